"""Streams out of Google Cloud Storage, by a server that speaks its API."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from gcs_server import served_folder
from make_data import streaming, write_shards

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.data.streaming.stream import TrainStream
from trainer.errors import DataError


def names(stream: TrainStream | None) -> list[str]:
    assert stream is not None
    return [Path(clip.name).stem for clip in itertools.islice(stream.clips(2, 8), 60)]


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
