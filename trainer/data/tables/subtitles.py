"""Recordings with texts beside them as a table: subtitles (SubRip, WebVTT), or a text file for each recording."""

from __future__ import annotations

import html
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.data.audio import AUDIO_SUFFIXES
from trainer.data.tables.table import CUE_COLUMN, Table, read_text
from trainer.data.text import word_gap
from trainer.errors import DataError
from trainer.languages import language_code

PLAIN_TEXT = ".txt"
SUFFIXES = (".srt", ".vtt", PLAIN_TEXT)
"""In the order in which they are preferred."""
_PACKED = 20.0
"""Seconds to which cues are joined: sentences go over several, and a model trained on short clips alone forgets how to
write for its whole window."""
_TIME = r"(?:(\d+):)?([0-5]?\d):([0-5]?\d)[,.](\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_MARKS = re.compile(
    r"</?(?:[A-Za-z][^<>]*)?>|<[\d:.]+>"  # <i>, <font ...>, <v Speaker>, <00:01.500>, but no 5 < 6
    r"|\{[\\Yy][^{}]*\}"  # {\an8}, {Y:i}
)
_COMMENT = re.compile(r"(?<=\n\n)NOTE.*(?:\n.+)*")
"""Of WebVTT; it may hold anything."""
_DASH = re.compile(r"^\s*[-\u2010-\u2015]+\s*(?=\S)")
_LABELS = re.compile(r"(?:\d+[.,]\d+\t\d+[.,]\d+\t.*\n?)+")
"""A label track of Audacity."""
_TOUCH = 0.1
"""Seconds between cues of which the second goes on with the lines of the first."""

Cue = tuple[float, float | None, str, int]
"""Start and end in seconds, text, and line of the file."""
_Lines = tuple[float, float, list[str], int]


def find_recordings(folder: Path, config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]] | None:
    """All recordings below a folder that have texts beside them, as one table, and notes; None where there are none.

    `talk.mp4` has `talk.srt`, `talk.en.vtt` or `talk.txt` beside it; of several languages that is taken which is
    written.

    Raises:
        DataError: subtitles are damaged, or none fits.
    """
    recordings, twins, texts = _files_below(folder)
    pairs: dict[Path, list[tuple[str, Path]]] = {}  # with the language in the name of each text
    alone = []
    for text in texts:
        stem = text.with_suffix("")
        if stem in recordings:
            pairs.setdefault(recordings[stem], []).append(("", text))
        elif stem.suffix and (shorter := stem.with_suffix("")) in recordings:
            pairs.setdefault(recordings[shorter], []).append((stem.suffix[1:], text))
        elif text.suffix.lower() != PLAIN_TEXT:
            alone.append(text)
    if not pairs and not alone:
        return None
    found = {path: _of_language(config, path, some) for path, some in pairs.items()}
    chosen = {path: text for path, text in found.items() if text is not None}
    notes = []
    without = [path for path in recordings.values() if path not in chosen]
    for paths, what in (
        (twins, "recordings that are left out, since others have the same name"),
        (without, "recordings without subtitles of the same name"),
        (alone, "subtitles without a recording of the same name"),
    ):
        if paths:
            notes.append(f"{what} beside them: {len(paths):,}, such as {paths[0]}")
    if not chosen:
        raise DataError(
            f"data={config.data!r}: {notes[-1]}; name them alike: talk.mp4 and talk.srt, "
            f"or talk.{config.written_language}.srt"
        )
    rows = [
        (str(path.relative_to(folder)), text, start, end, f"{file}, line {line}")
        for path, file in chosen.items()
        for start, end, text, line in _read_beside(file, config)
    ]
    names = ("audio", "text", "start", "end", CUE_COLUMN)
    columns: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    plain = all(file.suffix.lower() == PLAIN_TEXT for file in chosen.values())
    kind = "texts" if plain else "cues of subtitles"
    many = "s" * (len(chosen) != 1)
    notes.append(f"{len(rows):,} {kind} beside {len(chosen):,} recording{many}")
    return {"": [Table(str(folder), columns, bases=(folder,), pack_seconds=_PACKED)]}, notes


def _files_below(folder: Path) -> tuple[dict[Path, Path], list[Path], list[Path]]:
    """Recordings by their names without suffix, further ones of the same names, and texts."""
    recordings: dict[Path, Path] = {}
    twins, texts = [], []
    for below, folders, names in os.walk(folder):
        folders.sort()
        for path in (Path(below, name) for name in sorted(names) if not name.startswith(".")):
            if path.suffix.lower() in AUDIO_SUFFIXES:
                if recordings.setdefault(path.with_suffix(""), path) != path:
                    twins.append(path)
            elif path.suffix.lower() in SUFFIXES:
                texts.append(path)
    return recordings, twins, texts


def _of_language(config: TrainConfig, recording: Path, some: list[tuple[str, Path]]) -> Path | None:
    """The text in the language that is written; one that names none if there is no other."""
    code = config.written_language
    mine = [path for language, path in some if language and language_code(language) == code]
    plain = [path for language, path in some if not language]
    if len({path.with_suffix("") for path in mine}) > 1:
        raise DataError(
            f"{recording}: has subtitles in {', '.join(path.name for path in mine)}; remove all but one"
        )
    # talk.srt beside talk.vtt is the same in two formats.
    return min(mine or plain, key=lambda path: SUFFIXES.index(path.suffix.lower()), default=None)


def _read_beside(path: Path, config: TrainConfig) -> Sequence[Cue]:
    if path.suffix.lower() != PLAIN_TEXT:
        return read_cues(path, word_gap(config))
    text = read_text(path)
    if _LABELS.fullmatch(text):
        raise DataError(
            f"{path}: is a label track of Audacity; export the labels there as subtitles "
            f"({path.with_suffix('.srt').name}), or make a table of them with the columns audio,start,end,text"
        )
    return [(0.0, None, word_gap(config).join(text.split("\n")), 1)]


def read_cues(path: Path, gap: str = " ") -> list[Cue]:
    """Every cue of a file that has a text.

    A SubRip cue ends where the next one begins, for its text may have blank lines; a WebVTT cue at an empty line.

    `gap` stands between the lines of a cue.

    Raises:
        DataError: the file cannot be read, or a line of times is none.
    """
    text = read_text(path)
    vtt = text.startswith("WEBVTT")
    if vtt:
        text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    lines = text.split("\n")
    of_times = [at for at, line in enumerate(lines) if "-->" in line]
    counted = vtt or any(lines[at - 1].strip().isdecimal() for at in of_times[:1])
    raw: list[_Lines] = []
    for at, following in itertools.pairwise([*of_times, len(lines)]):
        times = _TIMES.fullmatch(lines[at])
        if times is None:
            raise DataError(
                f"{path}, line {at + 1}: {lines[at].strip()[:80]!r} are not times; write them as "
                "00:01:02,500 --> 00:01:04,000"
            )
        start, end = (_seconds(*times.groups()[first : first + 4]) for first in (0, 4))
        behind = next((empty for empty in range(at, following) if vtt and not lines[empty]), following)
        counter_follows = counted and behind == following < len(lines)
        raw.append((start, end, _spoken_lines(lines[at + 1 : behind], counter_follows), at + 1))
    cues: list[Cue] = [
        (start, end, gap.join(said), line) for start, end, said, line in _unrolled(raw) if said
    ]
    if not cues:
        raise DataError(f"{path}: has no cue with a text; give SubRip (.srt) or WebVTT (.vtt), or remove it")
    return cues


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


def _spoken_lines(lines: Sequence[str], counter_follows: bool) -> list[str]:
    """What is said in each line of a cue: without tags, dashes before speakers, entities and the next cue's number."""
    plain = [html.unescape(_MARKS.sub("", line)) for line in lines]
    said = [text for line in plain if (text := " ".join(_DASH.sub("", line).split()))]
    return said[:-1] if counter_follows and said and said[-1].isdecimal() else said


def _unrolled(cues: Sequence[_Lines]) -> list[_Lines]:
    """The cues without lines of the one before, where captions roll up: most go on with what was there."""
    again = [0]
    for before, cue in itertools.pairwise(cues):
        most = min(len(before[2]), len(cue[2])) if cue[0] - before[1] <= _TOUCH else 0
        sizes = [size for size in range(1, most + 1) if before[2][-size:] == cue[2][:size]]
        again.append(max(sizes, default=0))
    if 2 * sum(map(bool, again)) <= len(cues):
        return list(cues)
    return [
        (start, end, said[size:], line) for (start, end, said, line), size in zip(cues, again, strict=True)
    ]
