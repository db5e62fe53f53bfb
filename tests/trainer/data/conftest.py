"""A small data set, and a model of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from make_data import ROWS, clips_config, write_clips, write_processor

import trainer.data.parallel
from trainer.config import TrainConfig
from trainer.data.audio import AudioSource


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clips/` with the audio, and nothing else yet."""
    place = tmp_path_factory.mktemp("data")
    write_clips(place / "clips", ROWS)
    return place


@pytest.fixture(scope="session")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(tmp_path: Path, processor_folder: Path) -> TrainConfig:
    return clips_config(tmp_path, processor_folder)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[AudioSource]:
    """Every clip that is read for its features."""
    found: list[AudioSource] = []

    def decode_each(sources: Iterable[AudioSource], **values: float) -> Iterator[object]:
        def counted() -> Iterator[AudioSource]:
            for source in sources:
                found.append(source)
                yield source

        return original(counted(), **values)

    original = trainer.data.parallel.decode_each
    monkeypatch.setattr(trainer.data.parallel, "decode_each", decode_each)
    return found
