"""A small data set, and a model of its own."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from make_data import ALL_LANGUAGES, ROWS, records, write_clips, write_manifest, write_processor

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
    """The clips and their manifest in `tmp_path`, where the cache is to be as well."""
    write_clips(tmp_path / "clips", ROWS)
    return TrainConfig(
        model=str(processor_folder),
        data=str(write_manifest(tmp_path / "all.csv", records(ROWS))),
        cache_dir=str(tmp_path / "cache"),
        row_filter=ALL_LANGUAGES,
    )


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
