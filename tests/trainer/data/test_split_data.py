"""The split that a model is measured on: as a training sees it, or of data that is only for tests."""

from pathlib import Path

import pytest
from make_data import (
    ALL_LANGUAGES,
    FILES,
    ROWS,
    records,
    rows_with,
    write_common_voice,
    write_manifest,
    write_processor,
)

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.data.split_data import load_split, prepare_split
from trainer.errors import DataError


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
