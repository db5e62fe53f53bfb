"""The clips of one split with their features, ready to be transcribed by any model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.cache import found_or_built
from trainer.data.clips import Clip, ClipTable
from trainer.data.drops import Drop, check_drops
from trainer.data.feature_files import build_features
from trainer.data.features import window_seconds
from trainer.data.labels import Labels, make_labels
from trainer.data.prepared import PreparedSplit, features_key
from trainer.errors import DataError, ModelError
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model_config
from trainer.scoring.split_clips import SplitClips

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

Progress = Callable[[int, int], None]
_ROLE = "evaluated"
"""Of the split in its cache, whatever the data set calls it: it names files there."""


@dataclasses.dataclass(frozen=True)
class SplitData:
    """The usable clips of a split, those with an empty reference among them."""

    source: SplitClips
    model: str
    """That it was prepared for."""
    prepared: PreparedSplit
    """With that model's features."""
    rows: list[int]
    """Position in the source of each usable clip."""
    drops: list[Drop]
    """Clips that cannot be used."""
    notes: list[str]
    """Sentences for the user: what was chosen or dropped."""
    labels: Labels

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[str]:
        """The cell of each usable clip in a column of the data, empty where it has none."""
        return [self.source.clips[row].cell(name) for row in self.rows]

    def for_model(self, config: TrainConfig, on_progress: Progress | None = None) -> PreparedSplit:
        """The same clips with the features of another model, which may hear other mel bands.

        Raises:
            ModelError: the model cannot be found, or hears a window of another length and so other clips.
        """
        found = _find_features(config, self.source, load_processor(config).feature_extractor, on_progress)
        other = found.split(self.labels)
        mine = [(self.prepared.name(row), self.prepared.text(row)) for row in range(len(self))]
        if len(found.names) <= max(self.labels.rows) or mine != [
            (other.name(row), other.text(row)) for row in range(len(self))
        ]:
            raise ModelError(
                f"model={config.model!r}: hears a window of another length and so not the same clips; compare "
                "models with one window"
            )
        return other


@dataclasses.dataclass(frozen=True)
class _Features:
    """What is in the cache."""

    folder: Path
    n_mels: int
    index: Mapping[str, Sequence[Any]]
    drops: list[Drop]

    @property
    def names(self) -> Sequence[str]:
        return self.index["name"]

    def split(self, labels: Labels) -> PreparedSplit:
        return PreparedSplit(self.folder / f"{_ROLE}.f16", self.n_mels, self.index, labels)


def prepare_split(config: TrainConfig, source: SplitClips, on_progress: Progress | None = None) -> SplitData:
    """Features of a split from the cache, or computed now.

    Args:
        config: its model hears and writes the clips; those that it cannot are left out as in a training.
        source: the split, as `load_split` gives it.
        on_progress: called with clips done and clips in all while features are computed.

    Raises:
        DataError: too much of the split cannot be used, or the disk is full.
        ModelError: the model cannot be found.
    """
    processor = load_processor(config)
    extractor = processor.feature_extractor
    found = _find_features(config, source, extractor, on_progress)
    longest = int(load_model_config(config).max_target_positions)
    labels, too_long = make_labels(config, processor, longest, split=source.name, index=found.index)
    drops = [dataclasses.replace(drop, split=source.name) for drop in found.drops] + too_long
    if not labels.rows:
        raise DataError(
            f"data={config.data!r}: no clip of the split {source.name!r} can be used; the first is "
            f"{drops[0].name}: {drops[0].detail}"
        )
    positions = _positions(source.clips, found)
    told = check_drops(config, drops, total=len(source.clips), window=window_seconds(extractor))
    return SplitData(
        source=source,
        model=config.model,
        prepared=found.split(labels),
        rows=[positions[row] for row in labels.rows],
        drops=drops,
        notes=source.notes + told,
        labels=labels,
    )


def _find_features(
    config: TrainConfig,
    source: SplitClips,
    extractor: WhisperFeatureExtractor,
    on_progress: Progress | None,
) -> _Features:
    import pyarrow.parquet as pq

    table = ClipTable({_ROLE: source.clips}, [])
    folder = Path(config.cache_dir).expanduser().absolute() / features_key(table, extractor)
    build = functools.partial(build_features, table=table, extractor=extractor, on_progress=on_progress)
    with found_or_built(folder, build) as (manifest, _):
        index = pq.read_table(folder / f"{_ROLE}.index.parquet").to_pydict()
    return _Features(folder, manifest["n_mels"], index, [Drop(**values) for values in manifest["drops"]])


def _positions(clips: Sequence[Clip], found: _Features) -> list[int]:
    """Where in `clips` each clip of the index is: they are in the same order, without those dropped."""
    kept = list(zip(found.names, found.index["text"], strict=True))
    positions: list[int] = []
    for position, clip in enumerate(clips):
        if len(positions) < len(kept) and kept[len(positions)] == (clip.name, clip.text):
            positions.append(position)
    return positions
