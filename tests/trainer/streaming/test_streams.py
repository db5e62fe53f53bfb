"""Streams of shards, in folders and buckets: which clips come in which order, what is refused, trainings on them."""

import itertools
import json
import pickle
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from cut_proxy import CutProxy
from gcs_server import served_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from make_data import CLIPS, demo_rows, streaming, write_shards
from processes import run_workers
from s3_server import S3Server, give_keys, s3_server
from training import train

from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.clips import load_clips
from trainer.data.prepared import prepare
from trainer.data.split_data import load_split
from trainer.data.streaming import shards as reading
from trainer.data.streaming.stream import StreamedClip, TrainStream
from trainer.errors import ConfigError, DataError
from trainer.training import streamed

pytestmark = pytest.mark.usefixtures("one_thread")
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
    assert len(load_split(config, "dev").clips) == 8, "another usual name of validation"
    assert re.fullmatch(r"about [\d,]+ hours of audio, [\d,.]+ GB", table.stream.cost(1e7))


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


def test_only_the_language_of_the_model_is_streamed(small_config: TrainConfig, tmp_path: Path) -> None:
    """Where the other splits have no other one, too."""
    rows = {split: demo_rows(split, count) for split, count in CLIPS.items()}
    for number, row in enumerate(row for some in rows.values() for row in some):
        row["locale"] = "ru" if number < CLIPS["train"] and number % 2 else "en"
    folder = write_shards(tmp_path / "shards", rows=rows)
    table = load_clips(streaming(small_config, folder))
    found = table.stream
    assert "of several languages, training clips with locale=en" in table.notes
    wanted = {row["text"] for row in rows["train"] if row["locale"] == "en"}
    assert {clip.text for clip in itertools.islice(found.clips(0, 4), 2 * len(wanted))} == wanted


def test_a_stream_of_which_nothing_is_seen_at_first_is_refused(
    small_config: TrainConfig, tmp_path: Path
) -> None:
    """An hour of it counted as 3.6 million clips."""
    rows = {split: demo_rows(split, count) for split, count in {**CLIPS, "train": 80}.items()}
    for number, row in enumerate(row for some in rows.values() for row in some):
        row["quality"] = "bad" if number < 70 else "good"
    folder = write_shards(tmp_path / "shards", rows=rows, shards=1)
    with pytest.raises(DataError, match="none of the first 64 rows of the training split can be used"):
        load_clips(streaming(small_config, folder, row_filter="quality=good"))


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


def upload(server: S3Server, folder: Path, prefix: str) -> None:
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    for path in folder.iterdir():
        client.upload_file(str(path), server.bucket, f"{prefix}/{path.name}")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as running:
        give_keys(patch)
        patch.setattr(reading, "_WAIT_SECONDS", 0.3)
        yield running


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_bucket_is_streamed_as_a_folder_is(
    server: S3Server, small_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The same order; it waits while the store is away, and one line tells where that is for good."""
    folder, proxy = write_shards(tmp_path / "shards", kind), CutProxy(server.endpoint)
    proxy.start()
    address = server.uri(kind).replace(str(server.port), str(proxy.port))
    upload(server, folder, kind)
    config = streaming(small_config, folder)
    local, far = load_clips(config), load_clips(config.replace(data=address))
    assert [clip.text for clip in far.splits["test"]] == [clip.text for clip in local.splits["test"]]
    assert names(far.stream, 60, 2, 8) == names(local.stream, 60, 2, 8)

    proxy.stop()
    back = threading.Timer(1.5, proxy.start)
    back.start()
    assert names(far.stream, 60, 2, 8) == names(local.stream, 60, 2, 8)
    back.join()
    proxy.stop()
    monkeypatch.setattr(reading, "PATIENCE_SECONDS", 1.0)
    with pytest.raises(DataError) as error:
        names(far.stream, 60, 2, 8)
    assert "cannot be read for 1 s" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_a_damaged_shard_is_no_cut_connection(
    server: S3Server, small_config: TrainConfig, tmp_path: Path, kind: str
) -> None:
    """Nobody waits for three minutes for it to be mended."""
    folder = write_shards(tmp_path / "shards", kind)
    [*_, last] = sorted(folder.glob("train*"))
    content = last.read_bytes()
    middle = len(content) // 2
    last.write_bytes(
        content[:middle] if kind == "tar" else content[:8] + bytes(middle) + content[8 + middle :]
    )
    upload(server, folder, f"damaged-{kind}")
    told = (
        r"-00003-of-00004\.tar is cut off: .*; write it again"
        if kind == "tar"
        else r"cannot be read: .*thrift.*; check"
    )
    with pytest.raises(DataError, match=told) as error:
        names(
            load_clips(streaming(small_config, folder, data=server.uri(f"damaged-{kind}"))).stream, 60, 2, 8
        )
    assert len(str(error.value).splitlines()) == 1


def test_buckets_that_cannot_be_read(server: S3Server, small_config: TrainConfig) -> None:
    def refused(data: str) -> str:
        with pytest.raises(DataError) as error:
            load_clips(streaming(small_config, Path("x"), data=data))
        assert len(str(error.value).splitlines()) == 1
        return str(error.value)

    assert "found nothing" in refused(server.uri("empty")) or "cannot be read" in refused(server.uri("empty"))
    assert "cannot be read" in refused(server.uri("speech").replace(server.bucket, "nobodys"))
    with pytest.raises(DataError, match="can only be streamed; set streaming=true"):
        load_clips(small_config.replace(data=server.uri("speech")))
    with pytest.raises(ConfigError, match="the address has keys in it") as error:
        streaming(small_config, Path("x"), data="s3://ID:hidden@bucket/speech")
    assert "hidden" not in str(error.value)


def test_a_bucket_of_google_is_streamed_as_a_folder_is(small_config: TrainConfig, tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", "tar")
    config = streaming(small_config, folder)
    local = load_clips(config)
    with served_folder(folder, "speech") as address:
        assert address.startswith("gs://")
        far = load_clips(config.replace(data=address))
        assert [clip.text for clip in far.splits["test"]] == [clip.text for clip in local.splits["test"]]
        assert names(far.stream, 60, 2, 8) == names(local.stream, 60, 2, 8)
        with pytest.raises(DataError, match=r"found nothing|cannot be read"):
            load_clips(config.replace(data=address.replace("/speech", "/other")))


@pytest.fixture(scope="module")
def config(small_config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """12 steps of 4 clips: more than an epoch."""
    folder = write_shards(tmp_path_factory.mktemp("shards"), "tar")
    settings = {"max_samples": 48, "train_batch_size": 2, "gradient_accumulation_steps": 2, "evaluations": 2}
    settings |= {"augment": 0.5, "dropout": 0.1, "max_eval_clips": 4, "log_every_seconds": 0.0}
    return streaming(small_config, folder, **settings)


def run(
    config: TrainConfig, folder: Path, resume: Path | None = None
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """What a training in processes of its own reported, and the clips of each in their order."""
    folder.mkdir(exist_ok=True)
    if resume is not None:
        (folder / "resume.json").write_text(json.dumps(str(resume)))
    run_workers("train", config, folder)
    rows = json.loads((folder / "rows-0.json").read_text())["rows"]
    names = ("step", "loss", "grad_norm", "wer", "eval_loss", "samples_seen")
    found = [{name: row[name] for name in names if name in row} for row in rows]
    return found, [(folder / f"stream-{rank}").read_text().splitlines() for rank in range(config.workers)]


def test_two_workers_go_on_with_the_same_clips_from_where_they_were_ended(
    config: TrainConfig, tmp_path: Path
) -> None:
    """Between evaluations; every step, evaluation and clip of both is that of the unbroken training."""
    config = config.replace(workers=2, gradient_accumulation_steps=1, spec_augment=True)
    rows, clips = run(config, tmp_path / "unbroken")
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "ends-after").write_text("5")
    assert run(config, tmp_path / "ended")[0][-1]["step"] == 5
    resumed, rest = run(config, tmp_path / "resumed", tmp_path / "ended" / "kept-5")
    later, again = ([row for row in found if row["step"] > 8] for found in (rows, resumed))
    assert again == later, "of the first steps of a process it logs the mean"
    for all_clips, last in zip(clips, rest, strict=True):
        assert len(all_clips) == 24
        assert last == all_clips[10:]
    assert not set(clips[0][:20]) & set(clips[1][:20])


def test_a_loading_process_reads_the_same(config: TrainConfig) -> None:
    """Its threads decode; what was loaded ahead when the training ended changes nothing."""
    data, losses = prepare(config), []
    for loaders in (0, 3):
        found: list[float] = []
        train(
            config.replace(dataloader_workers=loaders, max_samples=16, evaluations=1),
            lambda metrics, _, found=found: found.append(metrics["loss"]),  # type: ignore[misc]
            data=data,
        )
        losses.append(found)
    assert losses[0] == losses[1]


def test_clips_of_no_use_leave_their_places_empty(
    small_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches of one, a step without a usable clip has no gradient."""
    rows = {split: demo_rows(split, count) for split, count in CLIPS.items()}
    broken = rows["train"][::3]
    for row in broken:
        row["audio"] = {"bytes": b"noise", "path": row["audio"]["path"]}
    rows["train"][1]["text"] = "word " * 500
    settings = {"train_batch_size": 1, "max_samples": CLIPS["train"], "max_eval_clips": 2, "evaluations": 1}
    settings |= {"max_dropped_share": 0.5, "log_every_seconds": 0.0}
    config = streaming(small_config, write_shards(tmp_path, rows=rows), **settings)
    seen: list[Any] = []
    result = train(config, lambda metrics, _: seen.append(dict(metrics)))
    assert not result.diverged
    assert result.samples_seen == CLIPS["train"]
    still = [row for row in seen if row["loss"] == row["grad_norm"] == 0.0 and "wer" not in row]
    assert len(still) == len(broken) + 1
    monkeypatch.setattr(streamed, "_ENOUGH", 20)
    with pytest.raises(DataError) as error:
        train(config.replace(max_dropped_share=0.1))
    told = str(error.value)
    assert "training clips read so far" in told and "unreadable audio" in told and len(told.splitlines()) == 1


def test_hours_are_as_many_samples_as_clips_fill(config: TrainConfig) -> None:
    data = prepare(config)
    hours = config.replace(max_samples=None, max_hours=12 * data.stream.mean_seconds / 3600, evaluations=1)
    assert train(hours, data=data).samples_seen == 12
