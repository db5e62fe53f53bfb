"""Transcripts as text, JSON and subtitles, and two side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.transcription.transcripts import Segment, Transcript, mark_differences, write


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
