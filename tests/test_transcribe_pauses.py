"""Where recordings are cut: nothing that is said is left out, said twice or longer than the window."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from demo_clips import demo_clips, joined

from trainer.transcription.pauses import find_spans, measure_levels, quietest_place

RATE = 16_000


def spans(audio: np.ndarray, *, pause: float = 0.5, longest: float = 4.0) -> list[tuple[int, int]]:
    """The parts of a recording, checked for what always holds."""
    powers, samples = measure_levels([audio])
    assert samples == len(audio)
    found = find_spans(powers, samples, pause=pause, longest=longest)
    assert all(0 <= start < end <= samples for start, end in found)
    assert all(end - start <= longest * RATE for start, end in found)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    return found


def left_out(audio: np.ndarray, found: list[tuple[int, int]]) -> float:
    """dB to full scale of the loudest 20 ms that lie in no part."""
    mask = np.ones(len(audio), bool)
    for start, end in found:
        mask[start:end] = False
    frames = np.square(np.where(mask, audio, 0.0)[: len(audio) // 320 * 320].reshape(-1, 320)).mean(axis=1)
    return float(10 * np.log10(max(frames.max(), 1e-12)))


def babble(seconds: float, seed: int = 0) -> np.ndarray:
    """Something without a pause: demo clips over one another."""
    random = np.random.default_rng(seed)
    audio = np.zeros(round(seconds * RATE), np.float32)
    clips = [clip for clip, _ in demo_clips()]
    for start in range(0, len(audio), RATE // 4):
        clip = clips[random.integers(len(clips))][: len(audio) - start]
        audio[start : start + len(clip)] += clip
    return audio


@pytest.mark.parametrize("sizes", [(7,), (160,), (1_000, 3), (100_000,)])
def test_levels_do_not_depend_on_blocks(sizes: tuple[int, ...]) -> None:
    audio = demo_clips()[0][0]
    whole, samples = measure_levels([audio])
    cuts = np.cumsum(np.resize(sizes, len(audio)))
    parts, total = measure_levels(part for part in np.split(audio, cuts[cuts < len(audio)]) if len(part))
    assert total == samples == len(audio)
    assert np.allclose(parts, whole, rtol=1e-4, atol=1e-12)


@pytest.mark.parametrize("audio", [np.zeros(0), np.zeros(100), np.zeros(200_000), np.full(200_000, 0.3)])
def test_silence_is_left_out(audio: np.ndarray) -> None:
    """Also a constant, as a broken microphone gives."""
    assert spans(audio.astype(np.float32)) == []


def test_steady_noise_is_silence_and_a_click_no_word() -> None:
    noise = (0.003 * np.random.default_rng(0).standard_normal(30 * RATE)).astype(np.float32)
    assert spans(noise) == []
    noise[15 * RATE] = 0.9
    assert spans(noise) == []


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3])
@pytest.mark.parametrize("pause", [0.6, 1.0, 3.0])
def test_a_part_for_every_sentence(pause: float, noise: float) -> None:
    clips = [clip for clip, _ in demo_clips()[:40]]
    audio = joined(clips, pause, noise)
    found = spans(audio)
    assert abs(len(found) - len(clips)) <= 1  # one clip has a pause of its own
    place = round(pause * RATE)
    for clip in clips:
        middle = place + len(clip) // 2
        assert sum(start <= middle < end for start, end in found) == 1
        place += len(clip) + round(pause * RATE)
    assert left_out(audio, found) < max(-45.0, 20 * np.log10(noise + 1e-9) + 3)


def test_soft_speech_after_loud_speech_is_kept() -> None:
    """A second speaker far from the microphone: 30 dB softer."""
    loud, soft = ([clip for clip, _ in demo_clips()[part]] for part in (slice(0, 10), slice(10, 14)))
    audio = np.concatenate([*loud, *(0.03 * clip for clip in soft), *loud])
    found = spans(audio)
    begin = sum(map(len, loud))
    end = begin + sum(map(len, soft))
    inside = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in found)
    assert inside > 0.85 * (end - begin)
    assert left_out(audio, found) < -45  # the noise of loud clips


def test_without_a_pause_nothing_is_lost_or_said_twice() -> None:
    audio = babble(60.0)
    found = spans(audio)
    assert found[0][0] < RATE // 2
    assert found[-1][1] > len(audio) - RATE // 2
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
    assert min(end - start for start, end in found) >= RATE  # no scraps of words


def test_cut_at_the_quietest_place_near_the_end_of_the_window() -> None:
    audio = babble(6.0)
    dip = slice(round(3.1 * RATE), round(3.2 * RATE))
    audio[dip] *= 0.001
    (first, second) = spans(audio)
    assert dip.start <= first[1] <= dip.stop
    assert second[0] == first[1]


def test_a_longer_pause_makes_longer_parts() -> None:
    clips = [clip for clip, _ in demo_clips()[:12]]
    audio = joined(clips, 0.8)
    assert len(spans(audio, longest=30.0)) == 12
    assert len(spans(audio, pause=1.5, longest=100.0)) == 1
    assert 1 < len(spans(audio, pause=1.5, longest=10.0)) < 12


def test_a_half_is_no_scrap() -> None:
    clip = babble(3.0)
    clip[:1_600] = clip[-1_600:] = 0.0
    clip[round(1.3 * RATE) : round(1.4 * RATE)] = 0.0
    assert 1.3 * RATE <= quietest_place(clip) <= 1.4 * RATE


def test_any_mixture() -> None:
    """Clips of any loudness, pauses of any length: what always holds does, and nothing loud is left out."""
    random = np.random.default_rng(1)
    clips = [clip for clip, _ in demo_clips()]
    for _ in range(30):
        chosen = random.integers(len(clips), size=random.integers(1, 12))
        parts = []
        for index in chosen:
            parts += [clips[index] * 10 ** (random.uniform(-25, 0) / 20)]
            parts += [np.zeros(round(random.uniform(0, 2) * RATE))]
        audio = np.concatenate(parts).astype(np.float32)
        found = spans(audio, pause=random.uniform(0.1, 2.0), longest=random.uniform(2.5, 30.0))
        assert left_out(audio, found) < -45


def test_real_speech(shared_data: object) -> None:
    """English and German one after the other: no part is empty, and next to nothing is left out."""
    import csv
    from pathlib import Path

    import soundfile

    folder = Path(str(shared_data)) / "speech_en_de"
    with (folder / "metadata.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::20]
    audio = np.concatenate([soundfile.read(folder / row["file_name"], dtype="float32")[0] for row in rows])
    found = spans(audio, longest=30.0)
    assert len(found) >= 5
    kept = np.concatenate([audio[start:end] for start, end in found])
    assert np.square(kept).sum() > 0.9999 * np.square(audio).sum()
