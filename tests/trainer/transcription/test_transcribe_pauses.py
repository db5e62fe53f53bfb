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

from trainer.transcription.pauses import FRAME, find_spans, measure_speech

RATE = 16_000


def spans(audio: np.ndarray, *, pause: float = 0.5, longest: float = 4.0) -> list[tuple[int, int]]:
    """The parts of a recording, checked for what always holds."""
    probabilities, samples = measure_speech([audio.astype(np.float32)])
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
    for loudness in (0.003, 0.2):
        noise = loudness * np.random.default_rng(0).standard_normal(30 * RATE)
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


def test_without_a_pause_nothing_is_lost_or_said_twice() -> None:
    audio = babble(60.0)
    found = spans(audio)
    assert found[0][0] < RATE // 2
    assert found[-1][1] > len(audio) - RATE // 2
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
    assert min(end - start for start, end in found) >= RATE  # no scraps of words


def test_real_speech(shared_data: Path) -> None:
    """English and German one after the other: no part is empty, and next to nothing is left out."""
    import csv

    folder = shared_data / "speech_en_de"
    with (folder / "metadata.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[::20]
    audio = np.concatenate([soundfile.read(folder / row["file_name"], dtype="float32")[0] for row in rows])
    found = spans(audio, longest=30.0)
    assert len(found) >= 3
    assert max(end - start for start, end in found) <= 30 * RATE
    kept = np.concatenate([audio[start:end] for start, end in found])
    assert np.square(kept).sum() > 0.9999 * np.square(audio).sum()
