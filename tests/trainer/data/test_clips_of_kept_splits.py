"""Clips of splits that are kept, found again in whatever the data has become."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_data import load, sizes, write_manifest

from trainer.config import TrainConfig
from trainer.data.clips import ClipTable
from trainer.data.drops import HELD_OUT, Drop, check_drops
from trainer.data.kept_splits import SPLITS_FILE, encode_splits, read_kept_splits
from trainer.errors import DataError


def keep(table: ClipTable, folder: Path) -> str:
    (folder / SPLITS_FILE).write_bytes(encode_splits(table.whole, {}))
    return str(folder / SPLITS_FILE)


def content(table: ClipTable) -> dict[str, set[Any]]:
    return {role: {clip.source() for clip in clips} for role, clips in table.splits.items()}


def test_another_text_of_a_file_does_not_join_its_split(tmp_path: Path) -> None:
    """It was left out of training as the file of a test clip; it is no more a test clip than it was."""
    marks = ["train"] * 12 + ["validation"] * 4 + ["test"] * 4
    rows = [{"audio": f"{at}.wav", "text": f"text {at}", "split": mark} for at, mark in enumerate(marks)]
    rows += [{"audio": "16.wav", "text": "another text", "split": "train"}]
    path = write_manifest(tmp_path / "x.csv", rows)
    table = load(path)
    again = load(path, splits=keep(table, tmp_path))
    assert sizes(again) == sizes(table) == {"train": 12, "validation": 4, "test": 4}
    assert [drop.detail for drop in again.drops] == ["a new clip whose file is held out from training"]
    rows[-1]["split"] = "test"
    assert sizes(load(write_manifest(tmp_path / "x.csv", rows), splits=keep(table, tmp_path)))["test"] == 4


@pytest.mark.parametrize("name", [None, "audio.wav"])
def test_audio_without_telling_names_is_known_by_its_content(tmp_path: Path, name: str | None) -> None:
    """Ten commands, each said many times: the texts tell nothing either."""
    rows = [(bytes([at, 1]), f"command {at % 10}") for at in range(200)]

    def write() -> Path:
        audio = [{"bytes": content, "path": name} for content, _ in rows]
        pq.write_table(pa.table({"audio": audio, "text": [text for _, text in rows]}), tmp_path / "x.parquet")
        return tmp_path / "x.parquet"

    table = load(write())
    kept, before = keep(table, tmp_path), content(table)
    random.Random(0).shuffle(rows)
    assert content(load(write(), splits=kept)) == before


def test_equal_names_and_texts_in_folders_of_splits_are_other_clips(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("validation", 20), ("test", 20)):
        (tmp_path / split).mkdir()
        rows = [{"file_name": f"{at}.wav", "text": f"command {at % 10}"} for at in range(count)]
        write_manifest(tmp_path / split / "metadata.csv", rows)
    table = load(tmp_path)
    kept = read_kept_splits(keep(table, tmp_path))
    assert not any(kept.trained_on(table.splits["test"]))


def test_a_file_that_keeps_no_splits(tmp_path: Path) -> None:
    def refused(path: Path | str, why: str) -> None:
        with pytest.raises(DataError, match=rf"is not a file with splits \({why}"):
            read_kept_splits(str(path))

    for path in ("", "/nowhere/splits.parquet", tmp_path):
        refused(path, "no such file")
    refused("~nobody-of-this-name/splits.parquet", "Could not determine home")
    file = tmp_path / SPLITS_FILE
    pq.write_table(pa.table({"role": ["a"], "file": ["b"]}), file)
    refused(file, r"its columns are not those of splits\)")
    keys = dict.fromkeys(("file", "text", "speaker", "audio"), pa.array([1], pa.uint64()))
    for role in (7, None):
        pq.write_table(pa.table({"role": pa.array([role], pa.uint8()), **keys}), file)
        refused(file, r"its (columns|roles) are not those of splits\)")


def test_clips_that_are_held_out_hide_no_bad_ones() -> None:
    drops = [Drop("train", "a", HELD_OUT, "new")] * 180 + [Drop("train", "b", "unreadable_audio", "bad")] * 10
    with pytest.raises(
        DataError, match=r"10 of 20 clips \(50.0%\) cannot be used: 10 unreadable audio \(the first is b"
    ):
        check_drops(TrainConfig(), drops, total=200, window=30.0)
