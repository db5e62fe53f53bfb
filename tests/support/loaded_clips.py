"""Twelve clips as tests load them from a source: their columns, and what a table of them holds."""

from __future__ import annotations

from pathlib import Path

from make_data import Example, examples

from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.clips import ClipTable, load_clips

ROWS = examples(12)
FILES = [f"clips/{row.file}" for row in ROWS]
TEXTS = [f"text {number}" for number in range(12)]
ALL_LANGUAGES = "language=en,language=de"


def load(data: Path | str, **settings: object) -> ClipTable:
    return load_clips(TrainConfig.from_dict({"data": str(data), **settings}))


def content(table: ClipTable) -> dict[str, list[tuple[str, str, bytes]]]:
    """What a table holds: name of the file, text and decoded audio of each clip of each split."""
    return {
        role: [(Path(clip.name).name, clip.text, read_audio(clip.source()).tobytes()) for clip in clips]
        for role, clips in table.splits.items()
    }


def expected(folder: Path, rows: list[Example] = ROWS) -> dict[str, list[tuple[str, str, bytes]]]:
    return {
        split: [
            (row.file, row.text, read_audio(folder / "clips" / row.file).tobytes())
            for row in rows
            if row.split == split
        ]
        for split in ("train", "validation", "test")
    }


def sizes(table: ClipTable) -> dict[str, int]:
    return {role: len(clips) for role, clips in table.splits.items()}


def rows_with(**columns: list[str]) -> list[dict[str, str]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
