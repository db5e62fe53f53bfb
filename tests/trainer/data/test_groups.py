"""What the splits that are made keep together, and clips of splits that are kept, in whatever the data has become."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_data import load, refused, sizes, write_manifest

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.drops import HELD_OUT, Drop, check_drops
from trainer.data.kept_splits import encode_splits, read_kept_splits
from trainer.errors import DataError


def rows(
    count: int, *, texts: int | None = None, speakers: int | None = None, files: int | None = None
) -> list[dict[str, str]]:
    """So many rows, of so many different texts, speakers and files where these are given."""
    found = []
    for number in range(count):
        row = {"audio": f"{number % (files or count)}.wav", "text": f"text {number % (texts or count)}"}
        found.append(row | ({"client_id": f"voice {number * speakers // count}"} if speakers else {}))
    return found


def parts(table: ClipTable, what: Callable[[Clip], str]) -> Mapping[str, set[str]]:
    return {role: {what(clip) for clip in clips} for role, clips in table.splits.items()}


def shared(table: ClipTable, what: Callable[[Clip], str]) -> set[str]:
    """What is in more than one split."""
    counts = Counter(value for values in parts(table, what).values() for value in values)
    return {value for value, count in counts.items() if count > 1}


def speaker(clip: Clip) -> str:
    return clip.cell("client_id")


def test_one_split_in_two_formats_is_read_once(tmp_path: Path) -> None:
    write_manifest(tmp_path / "train.csv", rows(30))
    write_manifest(tmp_path / "train.tsv", rows(30)[::-1])
    assert sum(sizes(load(tmp_path)).values()) == 30
    write_manifest(tmp_path / "train.tsv", rows(31))
    refused(r"train\.csv \(30 rows\) and train\.tsv \(31 rows\) have the same name", tmp_path)


def test_links_to_one_file_are_one_file(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.wav").write_bytes(b"")
        (tmp_path / f"link {number}.wav").symlink_to(tmp_path / f"{number}.wav")
    told = rows(40) + [{"audio": f"link {number}.wav", "text": f"another {number}"} for number in range(40)]
    table = load(write_manifest(tmp_path / "x.csv", told))
    assert not shared(table, lambda clip: str(Path(clip.path).resolve()))


def test_a_file_of_two_given_splits_is_left_out_of_training(tmp_path: Path) -> None:
    told = [row | {"split": "train"} for row in rows(20)]
    told += [{"audio": f"{number}.wav", "text": f"again {number}", "split": "test"} for number in range(3)]
    table = load(write_manifest(tmp_path / "x.csv", told))
    assert not parts(table, lambda clip: clip.name)["train"] & {"0.wav", "1.wav", "2.wav"}
    assert sorted(drop.name for drop in table.drops) == ["0.wav", "1.wav", "2.wav"]
    assert {(drop.split, drop.reason) for drop in table.drops} == {("train", "other_split")}
    # It is no damage that could stop a run, however large the share.
    assert check_drops(TrainConfig(max_dropped_share=0.0), table.drops, total=23, window=30.0)
    assert sizes(load(tmp_path / "x.csv", split_by=None))["train"] == 18


def test_speakers_are_in_one_split(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "x.csv", rows(400, speakers=40))
    table = load(path)
    assert not shared(table, speaker)
    assert sizes(table) == {"train": 320, "validation": 40, "test": 40}
    assert "splits are made by file, text and speaker: none of them is in two splits" in table.notes
    assert shared(load(path, split_by="text"), speaker)


@pytest.mark.parametrize("asked", ["auto", "speaker", "session"])
def test_files_that_write_the_column_in_another_way(tmp_path: Path, asked: str) -> None:
    column = "session" if asked == "session" else "speaker"
    for part, name in enumerate((column, column.title())):
        told = [row | {name: f"voice {at % 12}"} for at, row in enumerate(rows(120))]
        write_manifest(tmp_path / f"train-0000{part}-of-00002.csv", told[60 * part : 60 * part + 60])
    table = load(tmp_path, split_by=asked)
    assert not shared(table, lambda clip: clip.cell(column) or clip.cell(column.title()))


def test_few_speakers_are_mixed_unless_asked_for(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "x.csv", rows(400, speakers=4))
    table = load(path)
    assert shared(table, speaker)
    assert any("speakers (client_id) are in several, because 4 speakers" in note for note in table.notes)
    whole = load(path, split_by="speaker")
    assert not shared(whole, speaker)
    assert sizes(whole) == {"train": 200, "validation": 100, "test": 100}


def test_two_speakers_are_told_to_be_in_several_splits(tmp_path: Path) -> None:
    table = load(write_manifest(tmp_path / "x.csv", rows(400, speakers=2)))
    assert any("because 2 speakers who share texts" in note for note in table.notes)


def test_commands_are_in_all_splits(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "x.csv", rows(1000, texts=10))
    table = load(path)
    assert sizes(table) == {"train": 800, "validation": 100, "test": 100}
    for texts in parts(table, lambda clip: clip.text).values():
        assert len(texts) == 10
    assert any("10 different texts are too few for that" in note for note in table.notes)
    by_speaker = load(write_manifest(tmp_path / "y.csv", rows(1000, texts=10, speakers=50)))
    assert not shared(by_speaker, speaker)
    assert len(parts(by_speaker, lambda clip: clip.text)["validation"]) == 10


def test_another_column_keeps_clips_together(tmp_path: Path) -> None:
    told = [row | {"Session": f"day {number % 30}"} for number, row in enumerate(rows(300))]
    table = load(write_manifest(tmp_path / "x.csv", told), split_by="text, session")
    assert not shared(table, lambda clip: clip.cell("Session"))
    told = {"day": "no such column .* text, speaker, audio, Session"}
    told["speaker"] = ".* has no column of speakers, such as speaker, speaker_id"
    for name, words in told.items():
        refused(f"split_by='{name}': {words}", tmp_path / "x.csv", split_by=name)


def test_what_belongs_together_cannot_be_divided(tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "x.csv", rows(30, files=1))
    refused(r"all 30 training clips belong together \(file\)", path)
    one_speaker = write_manifest(tmp_path / "y.csv", [row | {"speaker": "me"} for row in rows(30)])
    assert sizes(load(one_speaker))["validation"] == 3
    told = r"belong together \(file and speaker\); give one, or set split_by"
    refused(told, one_speaker, split_by="speaker")


def keep(table: ClipTable, folder: Path) -> str:
    file = folder / "splits.parquet"
    file.write_bytes(encode_splits(table.whole, {}))
    return str(file)


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


def test_clips_without_text_stay_in_their_split_where_no_test_clip_was_kept(tmp_path: Path) -> None:
    marks = ["train"] * 12 + ["validation"] * 4
    rows = [{"audio": f"{at}.wav", "text": f"text {at}", "split": mark} for at, mark in enumerate(marks)]
    rows += [{"audio": "silent.wav", "text": "", "split": "validation"}]
    kept = keep(load(write_manifest(tmp_path / "x.csv", rows)), tmp_path)
    rows += [{"audio": f"new{text}.wav", "text": text, "split": "test"} for text in ("one", "")]
    again = load(write_manifest(tmp_path / "x.csv", rows), splits=kept)
    assert [clip.name for clip in again.without_text["validation"]] == ["silent.wav"]


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
        rows = [{"file_name": f"{at}.wav", "text": f"command {at % 10}"} for at in range(count)]
        write_manifest(tmp_path / split / "metadata.csv", rows)
    table = load(tmp_path)
    kept = read_kept_splits(keep(table, tmp_path))
    assert not any(kept.trained_on(table.splits["test"]))


def test_a_file_that_keeps_no_splits(tmp_path: Path) -> None:
    def told(path: Path | str, why: str) -> None:
        with pytest.raises(DataError, match=rf"is not a file with splits \({why}"):
            read_kept_splits(str(path))

    for path in ("", "/nowhere/splits.parquet", tmp_path):
        told(path, "no such file")
    told("~nobody-of-this-name/splits.parquet", "Could not determine home")
    file = tmp_path / "splits.parquet"
    pq.write_table(pa.table({"role": ["a"], "file": ["b"]}), file)
    told(file, r"its columns are not those of splits\)")
    keys = dict.fromkeys(("file", "text", "speaker", "audio"), pa.array([1], pa.uint64()))
    for role in (7, None):
        pq.write_table(pa.table({"role": pa.array([role], pa.uint8()), **keys}), file)
        told(file, r"its (columns|roles) are not those of splits\)")


def test_clips_that_are_held_out_hide_no_bad_ones() -> None:
    drops = [Drop("train", "a", HELD_OUT, "new")] * 180 + [Drop("train", "b", "unreadable_audio", "bad")] * 10
    told = r"10 of 20 clips \(50.0%\) cannot be used: 10 unreadable audio \(the first is b"
    with pytest.raises(DataError, match=told):
        check_drops(TrainConfig(), drops, total=200, window=30.0)
