"""Data ready for training: features on disk, shared by every process through memory mapping, and labels.

Features are computed once for all trials and experiments with the same data and feature extractor. How texts
are written (case, punctuation, language) does not touch them: labels are made each time the data is opened.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.build import CODE_VERSION, build_features
from trainer.cache import found_or_built
from trainer.config import TrainConfig
from trainer.data import ClipTable, load_clips
from trainer.drops import Drop, check_drops, check_usable, count_by_reason
from trainer.features import extractor_settings, window_seconds
from trainer.labels import Labels, make_labels
from trainer.model import load_model_config, load_processor

if TYPE_CHECKING:
    import numpy as np
    from transformers import WhisperFeatureExtractor


class PreparedSplit:
    """The usable clips of one split; positions run from 0 to `len(split) - 1`."""

    def __init__(self, path: Path, n_mels: int, index: Mapping[str, Sequence[Any]], labels: Labels) -> None:
        self._path, self._n_mels, self._index, self._labels = path, n_mels, index, labels

    def __len__(self) -> int:
        return len(self._labels.rows)

    @functools.cached_property
    def _mapped(self) -> np.ndarray:
        import numpy as np

        return np.memmap(self._path, dtype=np.float16, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        # Pickling the map would copy the whole file; the other process maps it itself.
        return {name: value for name, value in self.__dict__.items() if name != "_mapped"}

    def features(self, i: int) -> np.ndarray:
        """float16 (n_mels, frames) of clip `i` without the silence up to the window: a read-only view."""
        offset, frames = self._get("offset", i), self._get("frames", i)
        return self._mapped[offset : offset + self._n_mels * frames].reshape(self._n_mels, frames)

    def fill(self, i: int) -> float:
        """The constant of all later frames of clip `i`, for `pad_features`."""
        return float(self._get("fill", i))

    def labels(self, i: int) -> list[int]:
        """Token ids of clip `i`: start, language, task, no-timestamps token, the text, end token."""
        return self._labels.tokens[i]

    def text(self, i: int) -> str:
        """The transcript as the data set has it: the reference of the orthographic WER."""
        return str(self._get("text", i))

    def target(self, i: int) -> str:
        """The transcript as the model learns it."""
        return self._labels.targets[i]

    def name(self, i: int) -> str:
        """The file of clip `i` as the data set names it."""
        return str(self._get("name", i))

    def seconds(self, i: int) -> float:
        """Length of clip `i` in seconds."""
        return float(self._get("seconds", i))

    def _get(self, column: str, i: int) -> Any:
        return self._index[column][self._labels.rows[i]]


@dataclasses.dataclass
class PreparedData:
    """A data set with features and labels."""

    folder: Path
    """Where the features are."""
    notes: list[str]
    """Sentences for the user: what was chosen, filtered, made or dropped."""
    reused: bool
    """Whether the features were there already."""
    splits: Mapping[str, PreparedSplit]
    """`train`, `validation` and, where there is one, `test`."""
    drops: list[Drop]
    """Clips that cannot be used."""
    total: int
    """Clips that were loaded, dropped ones included."""

    def drop_counts(self) -> dict[str, int]:
        """Dropped clips by reason, the most frequent first."""
        return count_by_reason(self.drops)

    def write_dropped(self, path: str | Path) -> None:
        """List the dropped clips, one JSON object a line: split, name, reason, detail."""
        lines = [json.dumps(dataclasses.asdict(drop), ensure_ascii=False) + "\n" for drop in self.drops]
        Path(path).write_text("".join(lines), encoding="utf-8")


def prepare(
    config: TrainConfig, on_progress: Callable[[int, int], None] | None = None, workers: int | None = None
) -> PreparedData:
    """The data of `config`, with features from the cache or computed now.

    Args:
        config: its data, model and text settings count; all others are free to differ between trials.
        on_progress: called with clips done and clips in all while features are computed.
        workers: processes to compute with; by default one per core, or none but this for a small set.

    Raises:
        DataError: the data cannot be found or read, too much of it cannot be used, or the disk is full.
        ModelError: the model cannot be found.
    """
    import pyarrow.parquet as pq

    table = load_clips(config)
    processor = load_processor(config)
    longest = int(load_model_config(config).max_target_positions)
    extractor = processor.feature_extractor
    folder = Path(config.cache_dir).expanduser().absolute() / features_key(table, extractor)
    build = functools.partial(
        build_features, table=table, extractor=extractor, on_progress=on_progress, workers=workers
    )
    splits, window = {}, window_seconds(extractor)
    with found_or_built(folder, build) as (manifest, reused):
        drops = [Drop(**values) for values in manifest["drops"]] + table.drops
        for role in table.splits:
            index = pq.read_table(folder / f"{role}.index.parquet").to_pydict()
            labels, dropped = make_labels(config, processor, longest, split=role, index=index)
            splits[role] = PreparedSplit(folder / f"{role}.f16", manifest["n_mels"], index, labels)
            drops += dropped
        left = {role: len(split) for role, split in splits.items()}
        check_usable(config, drops, left=left, window=window)
    # Not inside: the features are what the next run needs, once the user allows for more drops.
    total = table.total + len(table.drops)
    notes = check_drops(config, drops, total=total, window=window)
    return PreparedData(folder, table.notes + notes, reused, splits, drops, total)


def features_key(table: ClipTable, extractor: WhisperFeatureExtractor) -> str:
    """Names all that shapes the features: the clips of each split in order, the extractor, our own code."""
    digest = hashlib.sha256(
        json.dumps([CODE_VERSION, extractor_settings(extractor)], sort_keys=True).encode()
    )
    seen: dict[str, str] = {}
    for role, clips in table.splits.items():
        digest.update(f"\n{role}\n".encode())
        for clip in clips:
            digest.update(json.dumps([clip.identity(seen), clip.name, clip.text]).encode())
    return digest.hexdigest()[:24]
