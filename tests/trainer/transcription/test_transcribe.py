"""Recordings are cut at pauses and decoded as an evaluation decodes; nothing is lost at the cuts."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from demo_clips import demo_clips, joined
from make_data import demo_copy
from training import evaluate

from trainer.config import TrainConfig
from trainer.transcription.transcribe import Transcriber, find_speech, read_recording
from trainer.transcription.transcripts import Segment, Transcript, mark_differences, write

RATE = 16_000


def load(model: str | Path = "demo", batch_size: int = 16, language: str | None = None) -> Transcriber:
    return Transcriber(str(model), language=language, task=None, batch_size=batch_size)


@pytest.fixture(scope="module")
def demo() -> Transcriber:
    return load()


def segments(model: Transcriber, audio: np.ndarray) -> list[Segment]:
    return model.transcribe(audio, find_speech(audio, model.window))[1]


def test_decodes_as_an_evaluation_does(demo: Transcriber, small_config: TrainConfig) -> None:
    config = small_config.replace(generation_max_length=None, max_eval_clips=None)
    measured = evaluate(config, "validation", clips=list(range(24)))
    clips = [clip for clip, _ in demo_clips("validation")[:24]]
    ends = np.cumsum([len(clip) for clip in clips])
    spans = [(int(end) - len(clip), int(end)) for end, clip in zip(ends, clips, strict=True)]
    found = demo.transcribe(np.concatenate(clips), spans)[1]
    same = sum(each.text == text for each, text in zip(found, measured.predictions, strict=True))
    assert same >= 23  # features are kept in half precision there


def test_a_segment_for_every_sentence(demo: Transcriber) -> None:
    """Whatever the batch, with times around it."""
    threads = torch.get_num_threads()
    clips = [clip for clip, _ in demo_clips()[:10]]
    audio = joined(clips, 1.0)
    found = segments(demo, audio)
    assert torch.get_num_threads() == threads
    assert [each.text for each in segments(load(batch_size=3), audio)] == [each.text for each in found]
    begin = 1.0
    for clip, segment in zip(clips, found, strict=True):
        spoken = np.flatnonzero(np.abs(clip) > 0.1 * np.abs(clip).max())
        assert begin - 0.3 <= segment.start <= begin + spoken[0] / RATE
        assert begin + spoken[-1] / RATE <= segment.end <= begin + len(clip) / RATE + 0.3
        begin += len(clip) / RATE + 1.0


def test_speech_without_a_pause_is_cut_to_the_window() -> None:
    audio = joined([clip for clip, _ in demo_clips()[:10]], 0.0)
    spans = find_speech(audio, 4.0)
    assert max(end - start for start, end in spans) <= 4 * RATE
    assert sum(end - start for start, end in spans) > 0.95 * len(audio)
    assert find_speech(audio[: 3 * RATE], 4.0) == [(0, 3 * RATE)], "what fits stays whole"


def test_nobody_speaks_or_softly(tmp_path: Path) -> None:
    """Whisper would write something for noise."""
    noise = 0.001 * np.random.default_rng(0).standard_normal(20 * RATE)
    soft = joined([clip for clip, _ in demo_clips()[:3]], 0.8)
    for audio, count in ((np.zeros(0), 0), (noise, 0), (soft / np.abs(soft).max() / 1000, 3)):
        soundfile.write(tmp_path / "a.wav", audio, RATE, subtype="FLOAT")
        assert len(find_speech(read_recording(tmp_path / "a.wav")[0], 4.0)) == count


def test_the_language_is_detected_where_none_is_given(tmp_path: Path) -> None:
    clip = demo_clips()[0][0]
    model = load(demo_copy(tmp_path / "open", "generation_config.json", language=None, task=None))
    assert model.language is None
    language, [segment] = model.transcribe(clip, [(0, len(clip))])
    assert language == "en"  # the only one that it ever heard
    assert [segment] == load(language="english").transcribe(clip, [(0, len(clip))])[1]


def test_formats() -> None:
    doubtful = Segment(0.12345, 1.2345, "раз < два & более", "repeats")
    found = Transcript(
        Path("a.wav"), 3800.0, "be", [doubtful, Segment(2, 3, ""), Segment(3599.9996, 3723.4, "два")]
    )
    assert write(found, "srt", "m") == (
        "1\n00:00:00,123 --> 00:00:01,234\nраз < два & более\n\n2\n01:00:00,000 --> 01:02:03,400\nдва\n"
    )
    assert write(found, "vtt", "m") == (
        "WEBVTT\n\n00:00:00.123 --> 00:00:01.234\nраз &lt; два &amp; более\n"
        "\n01:00:00.000 --> 01:02:03.400\nдва\n"
    )
    assert write(found, "text", "m") == "раз < два & более\nдва\n"
    content = json.loads(write(found, "json", "m"))
    assert (content["text"], content["model"], content["language"]) == ("раз < два & более два", "m", "be")
    assert content["segments"][0] == {
        **{"start": 0.123, "end": 1.234, "text": "раз < два & более", "doubt": "repeats"}
    }


@pytest.mark.parametrize(("task", "text"), [("translate", "One. Two."), ("transcribe", "One.Two.")])
def test_the_language_that_is_written_has_spaces_or_not(task: str, text: str) -> None:
    parts = [Segment(0, 1, "One."), Segment(1, 2, "Two.")]
    assert Transcript(Path("a.wav"), 2.0, "ja", parts, task=task).text == text


@pytest.mark.parametrize(
    ("base", "model", "language", "expected"),
    [
        ("a b c", "a x c", "en", ("a *b* c", "a *x* c", 1, 3)),
        ("a b", "a b c d", "en", ("a b", "a b *c* *d*", 2, 4)),
        ("a b c", "c", "en", ("*a* *b* c", "c", 2, 3)),
        ("Hello, world.", "hello world", "en", ("Hello, world.", "hello world", 0, 2)),
        ("", "a", "en", ("", "*a*", 1, 1)),
        ("今日は", "今日も", "ja", ("今日*は*", "今日*も*", 1, 3)),
    ],
)
def test_differences(base: str, model: str, language: str, expected: tuple[str, str, int, int]) -> None:
    assert mark_differences(base, model, language) == expected
