"""Recordings with subtitles beside them (SubRip, WebVTT) as a table of cues."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.data.audio import AUDIO_SUFFIXES
from trainer.data.tables import CUE_COLUMN, Table
from trainer.errors import DataError
from trainer.languages import language_code

SUFFIXES = (".srt", ".vtt")
_PACKED = 20.0
"""Seconds to which cues are joined: sentences go over several, and a model that hears short clips only forgets how to
write for its whole window."""
_TIME = r"(?:(\d+):)?([0-5]?\d):([0-5]?\d)[,.](\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s.*)?")
_MARKS = re.compile(
    r"<[^<>]*>"  # <i>, <font ...>, <v Speaker>, <00:01.500>
    r"|\{[\\Yy][^{}]*\}"  # {\an8}, {Y:i}
)
_DASH = re.compile(r"^\s*[-\u2010-\u2015]+\s*(?=\S)")


def find_subtitled(folder: Path, config: TrainConfig) -> tuple[list[Table], list[str]]:
    """All recordings below a folder that have subtitles, as one table of their cues; none where there are none.

    Args:
        folder: `talk.mp4` has `talk.srt`, or `talk.en.vtt`, beside it.
        config: where a recording has subtitles in several languages, those of its language are taken.

    Returns:
        No table or one, and notes for the user.

    Raises:
        DataError: subtitles are damaged, or none fits.
    """
    recordings, twins, texts = _files_below(folder)
    if not texts:
        return [], []
    found, alone = _pairs(recordings, texts)
    chosen = {
        path: one for path, some in found.items() if (one := _of_language(config, path, some)) is not None
    }
    notes = []
    without = [path for path in recordings.values() if path not in chosen]
    for paths, told in (
        (twins, "recordings that are not heard, since others have the same name"),
        (without, "recordings without subtitles of the same name"),
        (alone, "subtitles without a recording of the same name"),
    ):
        if paths:
            notes.append(f"{told} beside them: {len(paths):,}, such as {paths[0]}")
    if not chosen:
        raise DataError(
            f"data={config.data!r}: {notes[-1] if notes else 'no subtitles'}; name them alike: talk.mp4 and talk.srt, "
            f"or talk.{config.language or 'en'}.srt"
        )
    columns: dict[str, list[Any]] = {name: [] for name in ("audio", "text", "start", "end", CUE_COLUMN)}
    for path, file in chosen.items():
        for start, end, text, line in read_cues(file):
            row = (str(path.relative_to(folder)), text, start, end, f"{file}, line {line}")
            for values, value in zip(columns.values(), row, strict=True):
                values.append(value)
    cues = len(columns["text"])
    notes.append(f"{cues:,} cues of subtitles beside {len(chosen):,} recording{'s' * (len(chosen) != 1)}")
    return [Table(str(folder), columns, bases=(folder,), pack_seconds=_PACKED)], notes


def _files_below(folder: Path) -> tuple[dict[Path, Path], list[Path], list[Path]]:
    """Recordings by their names without suffix, further ones of the same names, and subtitles."""
    recordings: dict[Path, Path] = {}
    twins, texts = [], []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for path in (Path(place, name) for name in sorted(names) if not name.startswith(".")):
            if path.suffix.lower() in AUDIO_SUFFIXES:
                if recordings.setdefault(path.with_suffix(""), path) != path:
                    twins.append(path)
            elif path.suffix.lower() in SUFFIXES:
                texts.append(path)
    return recordings, twins, texts


def _pairs(
    recordings: dict[Path, Path], texts: Sequence[Path]
) -> tuple[dict[Path, list[tuple[str, Path]]], list[Path]]:
    """Subtitles of each recording with the language in their names, and those that belong to none."""
    found: dict[Path, list[tuple[str, Path]]] = {}
    alone = []
    for path in texts:
        stem = path.with_suffix("")
        if stem in recordings:
            found.setdefault(recordings[stem], []).append(("", path))
        elif stem.suffix and (shorter := stem.with_suffix("")) in recordings:
            found.setdefault(recordings[shorter], []).append((stem.suffix[1:], path))
        else:
            alone.append(path)
    return found, alone


def _of_language(config: TrainConfig, recording: Path, some: list[tuple[str, Path]]) -> Path | None:
    """The subtitles in the language that is trained; those that name none if there are no others."""
    code = config.language or "en"
    mine = [path for language, path in some if language and language_code(language) == code]
    plain = [path for language, path in some if not language]
    stems = {path.with_suffix("") for path in mine or plain}
    if len(mine or plain) > len(stems):  # talk.srt beside talk.vtt: the same in two formats
        return (mine or plain)[0]
    if len(mine) > 1:
        raise DataError(
            f"{recording}: has subtitles in {', '.join(path.name for path in mine)}; remove all but one"
        )
    return next(iter(mine or plain), None)


def read_cues(path: Path) -> list[tuple[float, float, str, int]]:
    """Start and end in seconds, text and line of every cue that has a text.

    Raises:
        DataError: the file cannot be read, or a line of times is none.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    cues: list[tuple[float, float, str, int]] = []
    number = 0
    while number < len(lines):
        number += 1
        if lines[number - 1].startswith("NOTE"):  # a comment may hold anything
            while number < len(lines) and lines[number].strip():
                number += 1
        if "-->" not in lines[number - 1]:
            continue
        times = _TIMES.fullmatch(lines[number - 1])
        if times is None:
            raise DataError(
                f"{path}, line {number}: {lines[number - 1].strip()!r} are no times; write them as "
                "00:01:02,500 --> 00:01:04,000"
            )
        start, end = (_seconds(*times.groups()[at : at + 4]) for at in (0, 4))
        line, texts = number, []
        while number < len(lines) and lines[number].strip() and "-->" not in lines[number]:
            texts.append(lines[number])
            number += 1
        if text := clean_cue(texts):
            cues.append((start, end, text, line))
    if not cues:
        raise DataError(f"{path}: has no cue with a text; give SubRip (.srt) or WebVTT (.vtt), or remove it")
    return cues


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str) -> float:
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + int(fraction.ljust(3, "0")) / 1000


def clean_cue(lines: Sequence[str]) -> str:
    """What is said in a cue: without tags, dashes before speakers, entities and line breaks."""
    said = (html.unescape(_MARKS.sub("", line)) for line in lines)
    return " ".join(" ".join(_DASH.sub("", line) for line in said).split())
