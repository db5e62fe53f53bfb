"""Data as other programs lay it out, without a header or a table: LJSpeech, Kaldi; and annotations that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.data.audio import AUDIO_SUFFIXES
from trainer.data.tables.table import Table, read_text
from trainer.errors import DataError


def read_ljspeech(path: Path) -> Table | None:
    """LJSpeech's `metadata.csv`: name of a file in `wavs/`, text as written and, perhaps, as spoken; None of others."""
    wavs = path.parent / "wavs"
    if path.suffix.lower() != ".csv" or not wavs.is_dir():
        return None
    rows = [line.split("|") for line in read_text(path).split("\n") if line]
    sounds = [file for file in sorted(wavs.iterdir()) if file.suffix.lower() in AUDIO_SUFFIXES]
    files = {name: file.name for file in sounds for name in (file.name, file.stem)}
    if not rows or rows[0][0] not in files:
        return None
    columns: dict[str, list[Any]] = {
        "audio": [files.get(row[0], row[0]) for row in rows],
        "text": [row[1] if len(row) > 1 else "" for row in rows],
    }
    return Table(str(path), columns, bases=(wavs, path.parent))


def read_kaldi(folder: Path) -> Table | None:
    """A data directory of Kaldi: `wav.scp` and `text`, with `segments` and `utt2spk` where they are; None of others.

    Raises:
        DataError: a recording is made by a command, or an utterance has none.
    """
    if not all((folder / name).is_file() for name in ("wav.scp", "text")):
        return None
    recordings, texts = _pairs(folder / "wav.scp"), _pairs(folder / "text")
    segments = {name: value.split() for name, value in _pairs(folder / "segments").items()}
    speakers = _pairs(folder / "utt2spk")
    columns: dict[str, list[Any]] = {name: [] for name in ("id", "audio", "text", "speaker")}
    columns |= {"start": [], "end": []} if segments else {}
    for name, text in texts.items():
        recording, *times = segments.get(name) or [name]
        file = recordings.get(recording, "")
        if not file or file.endswith("|"):
            what = (
                "is made by a command: write the sound to files, and their paths there"
                if file
                else "is not there"
            )
            raise DataError(
                f"{folder / 'wav.scp'}: recording {recording[:80]} of utterance {name[:80]} {what}"
            )
        if segments and len(times) != 2:
            raise DataError(
                f"{folder / 'segments'}: utterance {name[:80]}: must have a recording, a start and an end in seconds; "
                "add them, or remove it from text"
            )
        cells = (name, file, text, speakers.get(name, ""), *times)
        for values, cell in zip(columns.values(), cells, strict=True):
            values.append(cell)
    return Table(str(folder / "text"), columns, bases=(folder, *folder.parents[:2]))


def _pairs(path: Path) -> dict[str, str]:
    """The first word of each line, and the rest; nothing where there is no such file."""
    if not path.is_file():
        return {}
    lines = (line.split(maxsplit=1) for line in read_text(path).split("\n") if line.strip())
    return {line[0]: line[1].strip() if len(line) > 1 else "" for line in lines}


def refuse_annotations(folder: Path) -> None:
    """Say how ELAN's files beside recordings become subtitles, where there is nothing else."""
    file = next(iter(sorted(folder.rglob("*.eaf"))), None)
    if file is not None:
        raise DataError(
            f"{file}: is a file of ELAN; export it there as subtitles (File, Export As, Subtitles Text), as "
            f"{file.with_suffix('.srt').name} beside the recording"
        )
