"""Splits: the ones that the data have, the ones made of the training clips, and subsets of them."""

from pathlib import Path

import pytest
from make_data import ALL_LANGUAGES, FILES, ROWS, load, records, refused, rows_with, sizes, write_manifest

from trainer.errors import ConfigError

TOLD = "splits are made by file and text: none of them is in two splits"


def test_split_names(folder: Path) -> None:
    rows = records(ROWS)
    for row in rows:
        row["split"] = {"train": "Training", "validation": "dev", "test": "extra"}[row["split"]]
    path = write_manifest(folder / "names.csv", rows)
    table = load(path, row_filter=ALL_LANGUAGES)
    assert sizes(table) == {"train": 6, "validation": 3}
    assert "splits that are not used: extra (3 clips)" in table.notes
    table = load(path, row_filter=ALL_LANGUAGES, test_split="extra")
    assert len(table.splits["test"]) == 3
    told = "no split 'val2'; it has Training, dev, extra; set validation_split"
    refused(told, path, validation_split="val2")
    both = {"train_split": "dev", "validation_split": "dev"}
    refused("train_split and validation_split are both 'dev'", path, ConfigError, **both)
    odd = [row | {"split": {"dev": "dv"}.get(row["split"], "tr")} for row in rows]
    told = "split names the splits tr, dv, none of which is known; .*train_split=tr"
    refused(told, write_manifest(folder / "odd.csv", odd))
    only_test = write_manifest(folder / "only.csv", [row | {"split": "test"} for row in rows])
    refused("no split 'train'; it has test; set train_split", only_test)


def test_validation_is_made_from_train(folder: Path) -> None:
    texts = [f"text {number // 2}{'!' * (number % 2)}" for number in range(12)]
    path = write_manifest(folder / "plain.csv", rows_with(audio=FILES, text=texts))
    table = load(path, validation_share=0.35)
    assert sizes(table) == {"train": 8, "validation": 4}
    assert table.notes == [
        "no validation split in the data: 4 of the 12 training clips (33%) were set apart as one "
        "(data_seed=0)",
        "no test split in the data, and too few training clips to make one (12; it takes 20, and 10 must "
        "remain for training): there will be no test WER",
        TOLD,
    ]
    learned, judged = (
        {clip.text.strip("!") for clip in table.splits[role]} for role in ("train", "validation")
    )
    assert not learned & judged
    assert not table.drops
    same = write_manifest(folder / "same.csv", rows_with(audio=FILES, text=["yes"] * 12))
    assert len(load(same, validation_share=0.25).splits["validation"]) == 3


def plain(folder: Path, count: int, *, name: str = "many.csv", split: str = "") -> Path:
    """A manifest of so many clips without any split, or with one more clip in `split`."""
    rows = [{"audio": f"{number}.wav", "text": f"text {number}", "split": "train"} for number in range(count)]
    if split:
        rows.append({"audio": "other.wav", "text": "another text", "split": split})
    return write_manifest(folder / name, rows)


def test_test_is_made_from_train(tmp_path: Path) -> None:
    path = plain(tmp_path, 40)
    table = load(path)
    assert sizes(table) == {"train": 32, "validation": 4, "test": 4}
    assert table.notes == [
        f"no {role} split in the data: 4 of the 40 training clips (10%) were set apart as one (data_seed=0)"
        for role in ("validation", "test")
    ] + [TOLD]
    assert load(path, data_seed=1).splits["test"] != table.splits["test"]
    # What the search judges by does not depend on whether there is a test split.
    with_test = plain(tmp_path, 40, name="with_test.csv", split="test")
    assert load(with_test).splits["validation"] == table.splits["validation"]
    assert sizes(load(path, max_train_clips=5, max_eval_clips=2)) == {"train": 5, "validation": 2, "test": 2}


@pytest.mark.parametrize(
    ("count", "share", "expected_sizes"),
    [
        (19, 0.1, {"train": 17, "validation": 2}),
        (20, 0.1, {"train": 16, "validation": 2, "test": 2}),
        (20, 0.25, {"train": 10, "validation": 5, "test": 5}),
        (20, 0.3, {"train": 14, "validation": 6}),
        (40, 0.9, {"train": 4, "validation": 36}),
    ],
)
def test_train_is_not_used_up_by_a_test_split(
    tmp_path: Path, count: int, share: float, expected_sizes: dict[str, int]
) -> None:
    table = load(plain(tmp_path, count), validation_share=share)
    assert sizes(table) == expected_sizes
    none = [note for note in table.notes if "too few training clips to make one" in note]
    assert len(none) == ("test" not in expected_sizes)


def test_clips_without_words_are_counted_as_they_are_met(tmp_path: Path) -> None:
    """Of few clips out of many, so many are counted as bad as were met while these were chosen."""
    rows = [
        {"audio": f"{number}.wav", "text": f"text {number}" if number >= 20 else "..."}
        for number in range(60)
    ]
    path = write_manifest(tmp_path / "x.csv", rows)
    assert sizes(load(path)) == {"train": 32, "validation": 4, "test": 4}
    assert len(load(path).drops) == 20
    few = load(path, max_train_clips=8)
    assert sizes(few)["train"] == 8
    assert 0 < len(few.drops) < 12
    assert few.drops == load(path, max_train_clips=8).drops


@pytest.mark.parametrize("text", ["5", "\u0915\u093f", "\u4f60\u597d", "a.", "\u00bd"])
def test_a_letter_or_digit_is_a_text(tmp_path: Path, text: str) -> None:
    rows = [{"audio": "a.wav", "text": text}, {"audio": "b.wav", "text": text}]
    assert load(write_manifest(tmp_path / "x.jsonl", rows)).total == 2


def test_subsets(folder: Path) -> None:
    path = write_manifest(folder / "subset.csv", records(ROWS))
    limits: dict[str, object] = {"row_filter": ALL_LANGUAGES, "max_train_clips": 4, "max_eval_clips": 2}
    table = load(path, **limits)
    assert sizes(table) == {"train": 4, "validation": 2, "test": 2}
    names = [clip.name for clip in table.splits["train"]]
    assert names == sorted(names) == [clip.name for clip in load(path, **limits).splits["train"]]
    other = load(path, **limits, data_seed=1).splits["train"]
    assert [clip.name for clip in other] != names
    assert "train: 4 of 6 clips (data_seed=0)" in table.notes


def test_splitting_is_stable_when_clips_are_added(tmp_path: Path) -> None:
    before, after = (
        {clip.name for clip in load(plain(tmp_path, count)).splits["validation"]} for count in (390, 400)
    )
    assert len(before) == 39 and len(after) == 40
    assert len(before & after) > 0.8 * len(before)


def test_one_training_clip_and_a_test_split(tmp_path: Path) -> None:
    rows = [{"audio": f"{split}.wav", "text": split, "split": split} for split in ("train", "test")]
    table = load(write_manifest(tmp_path / "x.csv", rows))
    assert [clip.text for clips in table.splits.values() for clip in clips] == ["train", "test"]
    assert sizes(table) == {"train": 1, "validation": 1}
    assert "WARNING: no validation split in the data and one training clip" in table.notes[0]
