"""Two transcripts side by side, and transcripts as text, JSON and subtitles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pages import Page
from rich.console import Console

from trainer.transcription.differences import Comparison, compare
from trainer.transcription.recordings import Recording
from trainer.transcription.transcripts import FORMATS, Segment, Transcript, as_srt, as_text, as_vtt
from tune.transcription.comparison import comparison_page, comparison_table

RECORDING = Recording(Path("talks/a.wav"), Path("a.wav"), 4000.0)


def transcript(
    *texts: str, language: str | None = "en", times: list[tuple[float, float]] | None = None
) -> Transcript:
    """A segment of a second for each text, or at these times."""
    pairs = times or [(float(number), number + 0.9) for number in range(len(texts))]
    segments = tuple(Segment(start, end, text) for (start, end), text in zip(pairs, texts, strict=True))
    return Transcript(RECORDING, 4000.0, language, segments)


def kinds(found: Comparison) -> list[tuple[str, str, str]]:
    return [(each.kind, each.base, each.model) for row in found.rows for each in row.differences]


@pytest.mark.parametrize(
    ("base", "model", "expected"),
    [
        ("a b c", "a b c", [("equal", "a b c", "a b c")]),
        ("a b c", "a x c", [("equal", "a", "a"), ("replace", "b", "x"), ("equal", "c", "c")]),
        ("a b", "a b c d", [("equal", "a b", "a b"), ("insert", "", "c d")]),
        ("a b c", "c", [("delete", "a b", ""), ("equal", "c", "c")]),
        ("Hello, world.", "hello world", [("written", "Hello, world.", "hello world")]),
        ("раз'яднаць", "раз яднаць", [("replace", "раз'яднаць", "раз яднаць")]),
        ("50 %", "50 percent", [("equal", "50", "50"), ("replace", "%", "percent")]),
        ("", "a", [("insert", "", "a")]),
    ],
)
def test_words(base: str, model: str, expected: list[tuple[str, str, str]]) -> None:
    assert kinds(compare(transcript(base), transcript(model))) == expected


def test_every_word_of_both_is_shown_once() -> None:
    base = transcript("one two three", "four five six", "seven")
    model = transcript("one too three four", "Five, six", "eight seven nine")
    found = compare(base, model)
    for side, whole in (("base", base), ("model", model)):
        words = [word for _, *texts in kinds(found) for word in texts[side == "model"].split()]
        assert words == whole.text.split()
    assert (found.unit, found.count, found.changed) == ("words", 10, 5)


def test_characters_where_words_have_no_spaces() -> None:
    found = compare(
        transcript("今日は天気がいい", language="ja"), transcript("今日も天気がいい。", language="ja")
    )
    assert found.unit == "characters"
    assert ("replace", "は", "も") in kinds(found)
    assert (found.count, found.changed) == (9, 2)
    thai = compare(transcript("ที่นี่", language="th"), transcript("ที่นั่น", language="th"))
    assert all(
        not each[1].startswith(("\u0e31", "\u0e35", "\u0e48")) for each in kinds(thai)
    )  # marks stay on letters


def test_segments_that_one_of_the_two_has_halved_or_alone() -> None:
    alone = compare(transcript("a", times=[(0.0, 1.0)]), transcript("b", times=[(5.0, 6.0)]))
    assert kinds(alone) == [("delete", "a", ""), ("insert", "", "b")]
    assert alone.rows[0].model is None
    base = transcript("a b", "c d", "e", times=[(0.0, 1.0), (1.0, 2.0), (3.0, 4.0)])
    model = transcript("a b c d", "e", times=[(0.0, 2.0), (3.0, 4.0)])
    found = compare(base, model)
    assert [(row.start, row.end) for row in found.rows] == [(0.0, 2.0), (3.0, 4.0)]
    assert [kind for kind, *_ in kinds(found)] == ["equal", "equal"]
    assert found.changed == 0


def test_names_of_models_are_no_markup() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(
            comparison_table(compare(transcript("a"), transcript("b")), "m[fr]", "n[/x]", coloured=False)
        )
    assert capture.get().split("\n")[0].split() == ["time", "m[fr]", "n[/x]"]


def test_subtitles() -> None:
    told = transcript("one < two & more", "second", times=[(0.0, 1.2345), (3599.9996, 3723.4)])
    assert as_srt(told) == (
        "1\n00:00:00,000 --> 00:00:01,234\none < two & more\n\n2\n01:00:00,000 --> 01:02:03,400\nsecond\n"
    )
    assert as_vtt(told) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.234\none &lt; two &amp; more\n"
        "\n01:00:00.000 --> 01:02:03.400\nsecond\n"
    )
    assert as_text(told) == "one < two & more\nsecond\n"
    nothing = transcript()
    assert [FORMATS[name](nothing, "m") for name in ("text", "srt", "vtt")] == ["", "", "WEBVTT\n"]


def test_json() -> None:
    doubtful = Segment(0.12345, 1.0, "раз", "repeats")
    told = Transcript(RECORDING, 12.34567, "be", (doubtful, Segment(2.0, 3.0, "два")))
    written = FORMATS["json"](told, "my-model")
    assert "раз" in written  # readable as it is
    assert json.loads(written) == {
        **{
            "file": "talks/a.wav",
            "model": "my-model",
            "language": "be",
            "seconds": 12.346,
            "text": "раз два",
        },
        "segments": [
            {"start": 0.123, "end": 1.0, "text": "раз", "doubt": "repeats"},
            {"start": 2.0, "end": 3.0, "text": "два"},
        ],
    }


def test_page() -> None:
    base, model = transcript("one <b> two </script>"), transcript("one three two four")
    page = Page(comparison_page([compare(base, model)], "<script>", "my-model"))
    assert page.words["s"] == ["<script>", "<b>", "</script>"]
    assert page.words["b"][-3:] == ["my-model", "three", "four"]
    assert page.words["h2"] == ["talks/a.wav"]
    assert "script" not in page.words  # there are no figures
    assert "50.00 %" in page.texts
