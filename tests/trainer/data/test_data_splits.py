"""Splits that the data have, or made of the training clips; subsets of them; the one that a model is measured on."""

from pathlib import Path

import pytest
from make_data import (
    ALL_LANGUAGES,
    FILES,
    ROWS,
    load,
    records,
    refused,
    rows_with,
    sizes,
    write_common_voice,
    write_manifest,
    write_processor,
)

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.data.split_data import load_split, prepare_split
from trainer.errors import ConfigError, DataError

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


def config(data: Path, **settings: object) -> TrainConfig:
    return TrainConfig.from_dict({"data": str(data), "row_filter": ALL_LANGUAGES, **settings})


def speakers(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [row | {"speaker": f"s{number % 3}", "age": str(20 + number)} for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("split", "names"), [("train", "training"), ("validation", "dev val Valid"), ("test", "testing")]
)
def test_the_splits_of_a_training(folder: Path, split: str, names: str) -> None:
    settings = config(write_manifest(folder / "all.csv", speakers(records(ROWS))))
    found = load_split(settings, split)
    assert all(load_split(settings, name).clips == found.clips for name in names.split())
    assert list(found.clips) == list(load_clips(settings).splits[split])
    assert found.columns == ["audio", "text", "split", "language", "speaker", "age"]
    numbers = [number for number, row in enumerate(ROWS) if row.split == split]
    assert [clip.cell("speaker") for clip in found.clips] == [f"s{number % 3}" for number in numbers]
    assert [clip.cell("age") for clip in found.clips] == [str(20 + number) for number in numbers]
    assert found.clips[0].cell("accent") == ""


def test_a_made_test_split_is_the_same_as_in_a_training(folder: Path) -> None:
    rows = [{"audio": f"clips/{ROWS[number % 12].file}", "text": f"text {number}"} for number in range(60)]
    settings = TrainConfig(data=str(write_manifest(folder / "plain.csv", rows)))
    found = load_split(settings, "test")
    assert list(found.clips) == list(load_clips(settings).splits["test"])
    assert any("--split all takes every clip" in note for note in found.notes)
    assert len(load_split(settings, "all").clips) == 60
    few = load_split(settings.replace(max_eval_clips=2), "test")
    assert list(few.clips) == list(load_clips(settings.replace(max_eval_clips=2)).splits["test"])


def test_data_without_training_clips(folder: Path) -> None:
    rows = [row | {"split": "dev" if row["split"] == "validation" else "test"} for row in records(ROWS)]
    settings = config(write_manifest(folder / "no_train.csv", rows))
    assert len(load_split(settings, "test").clips) == 9
    assert len(load_split(settings, "dev").clips) == 3
    assert len(load_split(settings.replace(max_eval_clips=4), "test").clips) == 4
    english = load_split(settings.replace(row_filter=None), "test")
    assert {clip.cell("language") for clip in english.clips} == {"en"}


def test_splits_of_other_names_and_common_voice(folder: Path, tmp_path: Path) -> None:
    rows = [row | {"split": {"test": "test_other"}.get(row["split"], row["split"])} for row in records(ROWS)]
    settings = config(write_manifest(folder / "other.csv", rows))
    assert len(load_split(settings, "test_other").clips) == 3
    with pytest.raises(DataError, match=r"no split 'tets'; it has train, validation, test_other; all takes"):
        load_split(settings, "tets")
    release = TrainConfig(data=str(write_common_voice(tmp_path / "cv", ROWS)))
    assert [clip.cell("locale") for clip in load_split(release, "test").clips] == ["en"] * 3


def test_clips_without_text_stay_and_columns_follow_the_clips_that_are_left(
    folder: Path, tmp_path: Path
) -> None:
    rows = speakers(records(ROWS))
    first, second, third = (number for number, row in enumerate(ROWS) if row.split == "test")
    (folder / "clips" / "broken.flac").write_bytes(b"no audio")
    rows[first]["text"], rows[second]["audio"], rows[third]["text"] = "", "clips/broken.flac", "..."
    settings = config(
        write_manifest(folder / "broken.csv", rows),
        **{"model": str(write_processor(tmp_path / "model")), "cache_dir": str(tmp_path / "cache")},
        max_dropped_share=0.5,
    )
    data = prepare_split(settings, load_split(settings, "test"))
    assert [(drop.reason, drop.split) for drop in data.drops] == [("unreadable_audio", "test")]
    assert data.column("age") == [str(20 + first), str(20 + third)]
    assert [data.prepared.text(row) for row in range(2)] == ["", "..."]
    strict = settings.replace(max_dropped_share=0.1)
    with pytest.raises(DataError, match="max_dropped_share"):
        prepare_split(strict, load_split(strict, "test"))


def test_nothing_left_is_told(folder: Path) -> None:
    rows = rows_with(audio=FILES, text=[""] * 12, split=["test"] * 12)
    with pytest.raises(DataError, match="the split 'test' has no clip with text"):
        load_split(TrainConfig(data=str(write_manifest(folder / "mute.csv", rows))), "test")


def test_silence_on_purpose_is_among_the_few_that_are_measured(folder: Path) -> None:
    rows = rows_with(audio=FILES, text=["", *["a"] * 11], split=["test"] * 12)
    settings = config(write_manifest(folder / "pause.csv", rows), row_filter=None, empty_text="keep")
    assert "" in {clip.text for clip in load_split(settings.replace(max_eval_clips=11), "test").clips}
    dropped = settings.replace(empty_text="drop", max_eval_clips=10)
    assert {clip.text for clip in load_split(dropped, "test").clips} == {"a"}
