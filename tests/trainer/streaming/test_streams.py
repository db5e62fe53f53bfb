"""Streams of shards: which clips come in which order, what is kept of their source, and what cannot be streamed."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_data import CLIPS, demo_rows, streaming, write_shards

from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.clips import load_clips
from trainer.data.streaming.stream import StreamedClip, TrainStream
from trainer.errors import ConfigError, DataError

TRAIN = sorted(Path(row["audio"]["path"]).stem for row in demo_rows("train", CLIPS["train"]))


@pytest.fixture(scope="module", params=["parquet", "tar"])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def stream(shards: Path, small_config: TrainConfig) -> TrainStream:
    return load_clips(streaming(small_config, shards)).stream


def names(stream: TrainStream, count: int, *order: int) -> list[str]:
    return [Path(clip.name).stem for clip in itertools.islice(stream.clips(*order), count)]


def test_only_the_training_split_is_streamed(shards: Path, small_config: TrainConfig) -> None:
    config = streaming(small_config, shards)
    table = load_clips(config)
    assert {role: len(clips) for role, clips in table.splits.items()} == {"validation": 8, "test": 8}
    expected = {row["text"] for row in demo_rows("validation", CLIPS["validation"])}
    assert {clip.text for clip in table.splits["validation"]} == expected
    assert table.splits["validation"][0].cell("speaker") == demo_rows("validation", 1)[0]["speaker"]
    assert table.stream is not None and abs(table.stream.n_clips - CLIPS["train"]) <= 12
    assert any("streamed: 4 training shards" in note for note in table.notes)


@given(workers=st.integers(1, 6), buffer=st.integers(1, 50), seed=st.integers(0, 9))
@settings(max_examples=8)
def test_an_epoch_is_every_clip_once(stream: TrainStream, workers: int, buffer: int, seed: int) -> None:
    """Also where there are more workers than shards."""
    seen: list[str] = []
    for worker in range(workers):
        own = len(range(worker, 4, workers)) * 10 if workers <= 4 else len(range(worker, 40, workers))
        seen += names(stream, own, seed, buffer, worker, workers)
    assert sorted(seen) == TRAIN


def test_the_order_is_that_of_seed_and_epoch(stream: TrainStream) -> None:
    order = names(stream, 100, 3, 8)
    assert order == names(pickle.loads(pickle.dumps(stream)), 100, 3, 8)
    assert order != names(stream, 100, 4, 8)
    assert order[:40] != order[40:80]
    assert sorted(order[:40]) == sorted(order[40:80]) == TRAIN


def test_rows_of_no_use_do_not_come(small_config: TrainConfig, tmp_path: Path) -> None:
    rows = {split: demo_rows(split, count) for split, count in CLIPS.items()}
    rows["train"][3]["text"], rows["train"][4]["text"] = "...", None
    accents = {row["accent"] for row in rows["train"]}
    folder = write_shards(tmp_path / "shards", rows=rows)
    accent = sorted(accents & {row["accent"] for row in rows["validation"]})[0]
    wanted = [row for row in rows["train"] if row["accent"] == accent and row["text"] not in (None, "...")]
    found = load_clips(streaming(small_config, folder, row_filter=f"accent={accent}")).stream
    heard = {clip.text for clip in itertools.islice(found.clips(0, 4), len(wanted))}
    assert heard == {row["text"] for row in wanted}
    assert found.epoch_samples == len(wanted), "an epoch is the clips that are used"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"audio_window": None}, "audio_window is auto; set it to seconds"),
        ({"max_samples": None}, "give max_steps, max_samples or max_hours"),
        ({"max_hours": 1.0}, "max_samples=32 and max_hours=1: only one budget"),
        ({"splits": "splits.parquet"}, "splits='splits.parquet': cannot be combined with streaming"),
        ({"data": "demo"}, "data='demo': cannot be streamed"),
        ({"language_column": "language"}, "language_column='language': cannot be combined with streaming"),
    ],
)
def test_settings_that_do_not_go_together(
    small_config: TrainConfig, more: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as error:
        streaming(small_config, Path("shards"), **more)
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_hours_need_a_stream() -> None:
    with pytest.raises(ConfigError, match="max_hours: works only with streaming"):
        TrainConfig(max_hours=2.0)


@pytest.mark.parametrize("kind", ["array", "list of channels"])
def test_samples_in_lists_are_heard(small_config: TrainConfig, tmp_path: Path, kind: str) -> None:
    def samples(row: dict[str, Any]) -> dict[str, Any]:
        found = read_audio(row["audio"]["bytes"]).tolist()
        if kind != "array":
            found = [found, found]
            return {**row, "audio": found, "sampling_rate": 16_000}
        return {**row, "audio": {"array": found, "path": row["audio"]["path"], "sampling_rate": 16_000}}

    rows = {split: [samples(row) for row in demo_rows(split, 4)] for split in CLIPS}
    config = streaming(small_config, write_shards(tmp_path, rows=rows, shards=1))
    table = load_clips(config)
    for split, clips in (("train", itertools.islice(table.stream.clips(0, 4), 4)), *table.splits.items()):
        expected = {row["text"]: read_audio(row["audio"]["bytes"]) for row in demo_rows(split, 4)}
        for clip in clips:
            source = clip.audio if isinstance(clip, StreamedClip) else clip.source()
            np.testing.assert_array_equal(read_audio(source), expected.pop(clip.text))
        assert not expected


def test_sources_that_cannot_be_streamed(small_config: TrainConfig, tmp_path: Path) -> None:
    """One line each, which names the data and what is wrong."""

    def refused(folder: Path, **more: object) -> str:
        with pytest.raises(DataError) as error:
            load_clips(streaming(small_config, folder, **more))
        assert len(str(error.value).splitlines()) == 1, error.value
        return str(error.value)

    rows = {split: demo_rows(split, count) for split, count in CLIPS.items()}
    good = write_shards(tmp_path / "good", rows=rows)
    assert "no column 'mood'" in refused(good, row_filter="mood=good")
    assert "text_column='said': no such column" in refused(good, text_column="said")
    assert "it has test, train, validation" in refused(good, validation_split="held-out")
    assert "no validation split among train" in refused(
        write_shards(tmp_path / "one", rows={"train": rows["train"]})
    )
    (tmp_path / "empty").mkdir()
    assert "found nothing" in refused(tmp_path / "empty")
    both = write_shards(write_shards(tmp_path / "both", "tar", rows=rows), rows=rows)
    assert "found parquet and webdataset" in refused(both)
    broken = write_shards(tmp_path / "broken", rows=rows)
    (broken / "train-00000-of-00004.parquet").write_bytes(b"PAR1 and nothing else")
    assert "cannot be" in refused(broken)
    paths = {split: [{**row, "audio": row["audio"]["path"]} for row in mine] for split, mine in rows.items()}
    assert "names files" in refused(write_shards(tmp_path / "paths", rows=paths))
    assert "Couldn't cast" in refused(write_shards(tmp_path / "mixed", rows=rows | {"train": paths["train"]}))
    for row in rows["train"]:
        row["audio"] = {"bytes": b"noise", "path": row["audio"]["path"]}
    assert "none of the first 40 training clips can be decoded" in refused(
        write_shards(tmp_path / "deaf", rows=rows)
    )
