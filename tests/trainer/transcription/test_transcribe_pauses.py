"""Where recordings are cut: nothing that is said is left out, said twice or longer than the window."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from demo_clips import demo_clips, joined

from trainer.transcription.loudness import detection_gains, hearing_gains, lift, measure_levels
from trainer.transcription.pauses import FRAME, find_spans, measure_speech

RATE = 16_000


def spans(audio: np.ndarray, *, pause: float = 0.5, longest: float = 4.0) -> list[tuple[int, int]]:
    """The parts of a recording, checked for what always holds."""
    blocks = [audio.astype(np.float32)]
    probabilities, samples = measure_speech(lift(blocks, detection_gains(measure_levels(blocks)[0])))
    assert samples == len(audio)
    assert len(probabilities) == -(-len(audio) // FRAME)
    found = find_spans(probabilities, samples, pause=pause, longest=longest)
    assert all(0 <= start < end <= samples for start, end in found)
    assert all(end - start <= longest * RATE for start, end in found)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    return found


def babble(seconds: float) -> np.ndarray:
    """Something without a pause: demo clips over one another."""
    random = np.random.default_rng(0)
    audio = np.zeros(round(seconds * RATE), np.float32)
    clips = [clip for clip, _ in demo_clips()]
    for start in range(0, len(audio), RATE // 4):
        clip = clips[random.integers(len(clips))][: len(audio) - start]
        audio[start : start + len(clip)] += clip
    return audio


def test_the_model_needs_no_network_and_leaves_torch_its_threads() -> None:
    """silero-vad 6.2 sets the whole process to one thread when it is imported."""
    code = (
        "import socket, sys, torch\n"
        "socket.socket.connect = None\n"
        "torch.set_num_threads(2)\n"
        "import numpy as np\n"
        "from trainer.transcription.pauses import measure_speech\n"
        "assert 'silero_vad' not in sys.modules\n"
        "assert measure_speech([np.zeros(16_000, np.float32)])[1] == 16_000\n"
        "assert torch.get_num_threads() == 2\n"
        "assert not {'torchaudio', 'torchcodec', 'onnxruntime'} & set(sys.modules)\n"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=300)


def test_probabilities_do_not_depend_on_blocks() -> None:
    """Nor much on where rows of 16 s and groups of 16 of them begin: as the model gives in one go."""
    from silero_vad import load_silero_vad

    audio = np.resize(joined([clip for clip, _ in demo_clips()[:20]], 0.7), 280 * RATE + 5)
    whole, samples = measure_speech([audio])
    cuts = np.cumsum(np.resize((160_000, 3), 60))
    parts, total = measure_speech(part for part in np.split(audio, cuts[cuts < len(audio)]))
    assert total == samples == len(audio)
    assert np.array_equal(parts, whole)
    torch.set_num_threads(1)
    straight = load_silero_vad().audio_forward(torch.tensor(audio)[None], RATE).numpy()[0]
    assert ((straight > 0.5) != (whole > 0.5)).mean() < 0.005


def test_silence_noise_and_clicks_are_left_out() -> None:
    """Also a constant, as a broken microphone gives."""
    for audio in (np.zeros(0), np.zeros(100), np.zeros(200_000), np.full(200_000, 0.3)):
        assert spans(audio) == []
    times = np.arange(30 * RATE) / RATE
    hum = sum(np.sin(2 * np.pi * 50 * harmonic * times) / harmonic for harmonic in (1, 2, 3))
    for loudness in (0.2, 0.003, 0.0003, 0.00003):
        noise = loudness * np.random.default_rng(0).standard_normal(30 * RATE)
        assert spans(noise) == spans(np.round(noise * 2**15) / 2**15) == spans(loudness * hum) == []
        noise[15 * RATE] = 0.9
        assert spans(noise) == []


@pytest.mark.parametrize(("pause", "noise"), [(0.6, 0.05), (3.0, 0.0)])
def test_a_part_for_every_sentence(pause: float, noise: float) -> None:
    """Also in noise as loud as the sentences are."""
    clips = [clip for clip, _ in demo_clips()[:40]]
    audio = joined(clips, pause)
    audio += noise * np.random.default_rng(0).standard_normal(len(audio)).astype(np.float32)
    found = spans(audio)
    assert abs(len(found) - len(clips)) <= 1
    place = round(pause * RATE)
    met = 0
    for clip in clips:
        middle = place + len(clip) // 2
        met += sum(start <= middle < end for start, end in found) == 1
        place += len(clip) + round(pause * RATE)
    assert met >= len(clips) - 1


def test_soft_speech_after_loud_speech_is_kept() -> None:
    """A second speaker far from the microphone: 25 dB softer."""
    loud, soft = ([clip for clip, _ in demo_clips()[part]] for part in (slice(0, 10), slice(10, 14)))
    audio = np.concatenate([*loud, *(0.056 * clip for clip in soft), *loud])
    begin = sum(map(len, loud))
    end = begin + sum(map(len, soft))
    inside = sum(max(0, min(stop, end) - max(start, begin)) for start, stop in spans(audio))
    assert inside > 0.95 * (end - begin)


@pytest.mark.parametrize("every", [1, 2])
def test_speech_is_found_at_every_level(every: int) -> None:
    """Of 16 bits and of floats; all of it, or every second sentence beside loud ones."""
    check_levels([clip for clip, _ in demo_clips()[:20]], every, lowest=-70)


def test_real_speech_is_found_at_every_level(shared_data: Path) -> None:
    check_levels(real_clips(shared_data, 20), 1, lowest=-80)


def check_levels(clips: list[np.ndarray], every: int, lowest: int) -> None:
    """As much of each is found when it is quiet; of 16 bits, as libsndfile writes them, down to `lowest`."""
    audio = joined(clips, 0.8)
    audio /= np.abs(audio).max()
    soft = np.concatenate(
        [np.full(len(clip) + round(0.8 * RATE), place % every == 0) for place, clip in enumerate(clips)]
    )
    soft = np.pad(soft, (0, len(audio) - len(soft)), mode="edge")
    heard = marked(audio)
    for decibels in (-20, -40, -60, -70, -80):
        quiet = np.where(soft, 10 ** (decibels / 20), 1.0) * audio
        for kind in (quiet, np.floor(quiet * 2**15) / 2**15)[: 1 + (decibels >= lowest)]:
            assert (marked(kind) != heard).sum() < 0.06 * heard.sum(), decibels


def marked(audio: np.ndarray) -> np.ndarray:
    """Which samples are taken for speech."""
    found = np.zeros(len(audio), bool)
    for start, end in spans(audio):
        found[start:end] = True
    return found


def test_what_is_heard_is_as_loud_as_in_training() -> None:
    """A quiet half beside a loud one is lifted, the pauses with it; loud speech and its pauses stay as they are."""
    random = np.random.default_rng(0)
    loud = joined([clip for clip, _ in demo_clips()[:10]], 3.0)
    loud = (loud + 1e-4 * random.standard_normal(len(loud))).astype(np.float32)
    audio = np.concatenate([loud, (1e-3 * loud).astype(np.float32)])
    levels, sounds = measure_levels(np.array_split(audio, 7))
    assert sounds
    assert np.array_equal(levels, measure_levels([audio])[0])
    speech, _ = measure_speech(lift([audio], detection_gains(levels)))
    lifted = np.concatenate(list(lift(np.array_split(audio, 7), hearing_gains(levels, speech))))
    assert lifted.dtype == np.float32
    half, margin = len(loud), 4 * RATE
    assert np.array_equal(lifted[: half - margin], loud[:-margin])
    assert 0.3 < np.abs(lifted[half + margin :]).max() <= 1.0
    ratio = lifted[half + margin :] / audio[half + margin :]
    assert ratio.min() > 300  # pauses as well, by no more than the speech beside them
    assert ratio.max() < 3000


def test_without_a_pause_nothing_is_lost_or_said_twice() -> None:
    audio = babble(60.0)
    found = spans(audio)
    assert found[0][0] < RATE // 2
    assert found[-1][1] > len(audio) - RATE // 2
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
    assert min(end - start for start, end in found) >= RATE  # no scraps of words


def test_real_speech(shared_data: Path) -> None:
    """English and German one after the other: no part is empty, and next to nothing is left out."""
    audio = np.concatenate(real_clips(shared_data, 20))
    found = spans(audio, longest=30.0)
    assert len(found) >= 3
    assert max(end - start for start, end in found) <= 30 * RATE
    kept = np.concatenate([audio[start:end] for start, end in found])
    assert np.square(kept).sum() > 0.9999 * np.square(audio).sum()


def real_clips(shared_data: Path, number: int) -> list[np.ndarray]:
    import csv

    folder = shared_data / "speech_en_de"
    with (folder / "metadata.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    chosen = rows[:: len(rows) // number]
    return [soundfile.read(folder / row["file_name"], dtype="float32")[0] for row in chosen]
