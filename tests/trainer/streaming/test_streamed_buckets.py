"""Streams out of S3, by a real server that is stopped and started again."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from cut_proxy import CutProxy
from gcs_server import served_folder
from make_data import streaming, write_shards
from s3_server import S3Server, give_keys, s3_server

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.data.streaming import shards
from trainer.data.streaming.stream import TrainStream
from trainer.errors import ConfigError, DataError


def upload(server: S3Server, folder: Path, prefix: str) -> None:
    client = boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1")
    for path in folder.iterdir():
        client.upload_file(str(path), server.bucket, f"{prefix}/{path.name}")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch, s3_server() as running:
        give_keys(patch)
        patch.setattr(shards, "_WAIT_SECONDS", 0.3)
        yield running


def names(stream: TrainStream | None) -> list[str]:
    return [Path(clip.name).stem for clip in itertools.islice(stream.clips(2, 8), 60)]


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
    assert names(far.stream) == names(local.stream)

    proxy.stop()
    back = threading.Timer(1.5, proxy.start)
    back.start()
    assert names(far.stream) == names(local.stream)
    back.join()
    proxy.stop()
    monkeypatch.setattr(shards, "PATIENCE_SECONDS", 1.0)
    with pytest.raises(DataError) as error:
        names(far.stream)
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
        names(load_clips(streaming(small_config, folder, data=server.uri(f"damaged-{kind}"))).stream)
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
        assert names(far.stream) == names(local.stream)
        with pytest.raises(DataError, match=r"found nothing|cannot be read"):
            load_clips(config.replace(data=address.replace("/speech", "/other")))
