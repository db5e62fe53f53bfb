"""Twelve clips for tests of prepared data: a config that prepares them, and what is looked at then."""

from __future__ import annotations

from pathlib import Path

from make_data import examples, records, write_clips, write_manifest

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData

ROWS = examples(12)


def clips_config(folder: Path, model: Path) -> TrainConfig:
    """The clips and their manifest in `folder`, where the cache is to be as well."""
    write_clips(folder / "clips", ROWS)
    manifest = write_manifest(folder / "all.csv", records(ROWS))
    return TrainConfig(
        model=str(model),
        data=str(manifest),
        cache_dir=str(folder / "cache"),
        row_filter="language=en,language=de",
    )


def caches(config: TrainConfig) -> list[str]:
    """Finished and unfinished folders in the cache; not the locks, which stay."""
    return sorted(path.name for path in Path(config.cache_dir).glob("*") if path.is_dir())


def snapshot(data: PreparedData) -> dict[str, list[object]]:
    """All that training takes from the data."""
    return {
        role: [
            (split.name(i), split.text(i), split.labels(i), split.fill(i), split.features(i).tobytes())
            for i in range(len(split))
        ]
        for role, split in data.splits.items()
    }
