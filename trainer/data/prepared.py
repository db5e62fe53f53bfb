"""Data ready for training: features on disk, shared by every process through memory mapping, and labels.

Features are computed once for all trials and experiments with the same data and feature extractor. How texts
are written (case, punctuation, language) does not touch them: labels are made when the data is prepared, and by each
trial that writes them in another way (5 s for 100,000 clips).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE
from trainer.data.cache import found_or_built, is_complete
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable, load_clips
from trainer.data.columns import PLAIN, Origin
from trainer.data.drops import Drop, check_drops, check_usable
from trainer.data.feature_store import (
    FEATURES,
    WAVEFORMS,
    build_features,
    features_key,
    needed_file,
    read_index,
    shard_file,
)
from trainer.data.kept_splits import encode_splits
from trainer.data.labels import TOO_LONG_TEXT, Labels, check_languages, make_labels
from trainer.data.parallel import check_main_guard
from trainer.model.pretrained import load_model_config
from trainer.model.processor import load_processor, window_seconds

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

    from trainer.data.streaming.stream import TrainStream


@dataclasses.dataclass(frozen=True)
class Origins:
    """Where the clips of an index come from, as a column of it."""

    kinds: tuple[Origin, ...]
    numbers: np.ndarray
    """uint16 (clips,): which of the kinds each clip is of."""

    def __getitem__(self, row: int) -> Origin:
        return self.kinds[int(self.numbers[row])]

    @property
    def sources(self) -> list[str]:
        return [self.kinds[number].source for number in self.numbers]

    @classmethod
    def of(cls, clips: Sequence[Clip]) -> Origins:
        kinds = {origin: number for number, origin in enumerate(dict.fromkeys(clip.origin for clip in clips))}
        numbers = np.fromiter((kinds[clip.origin] for clip in clips), np.uint16, len(clips))
        return cls(tuple(kinds) or (PLAIN,), numbers)


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedSplit:
    """The usable clips of one split; positions run from 0 to `len(split) - 1`."""

    folder: Path
    role: str
    n_mels: int
    index: Mapping[str, Any]
    """Columns as `read_index` gives them, and `origin`, of all clips that have features."""
    all_labels: Labels
    """Of those of them that can be used."""

    def __len__(self) -> int:
        return len(self.all_labels)

    @property
    def n_clips(self) -> int:
        return len(self)

    @functools.cached_property
    def _maps(self) -> dict[tuple[str, int], np.ndarray]:
        return {}

    def _mapped(self, kind: str, i: int, length: int) -> np.ndarray:
        """So many values of clip `i` in the file of its shard."""
        key = kind, int(self._get("shard", i))
        if key not in self._maps:
            path = shard_file(self.folder, self.role, key[1], kind)
            number = np.float16 if kind == FEATURES else np.int16
            self._maps[key] = np.memmap(path, dtype=number, mode="r")
        start = self._get(kind, i)
        return self._maps[key][start : start + length]

    def __getstate__(self) -> dict[str, Any]:
        # Pickling the maps would copy the whole files; the other process maps them itself.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def features(self, i: int) -> np.ndarray:
        """float16 (n_mels, frames) of clip `i` without the silence up to the window: a read-only view."""
        frames = self.frames(i)
        return self._mapped(FEATURES, i, self.n_mels * frames).reshape(self.n_mels, frames)

    def fill(self, i: int) -> float:
        """The constant of all later frames of clip `i`, for `pad_features`."""
        return float(self._get("fill", i))

    def samples(self, i: int) -> int:
        """Samples of clip `i`'s waveform, at 16 kHz."""
        return int(self._get("samples", i))

    def waveform(self, i: int) -> np.ndarray:
        """float32 (samples,) of clip `i`, 16 kHz mono, with full scale as 1.

        Raises:
            FileNotFoundError: the data was prepared without waveforms.
        """
        stored = self._mapped(WAVEFORMS, i, self.samples(i))
        waveform: np.ndarray = np.multiply(stored, self._get("scale", i), dtype=np.float32)
        return waveform

    def labels(self, i: int) -> list[int]:
        """Token ids of clip `i`: start, language, task, no-timestamps token, the text, end token."""
        ids: list[int] = self.all_labels.of(i).tolist()
        return ids

    def text(self, i: int) -> str:
        """The transcript as the data set has it: the reference of the orthographic WER."""
        return str(self._get("text", i))

    def name(self, i: int) -> str:
        """The file of clip `i` as the data set names it."""
        return str(self._get("name", i))

    def seconds(self, i: int) -> float:
        return self.samples(i) / SAMPLE_RATE

    def frames(self, i: int) -> int:
        return int(self._get("frames", i))

    def most_frames(self) -> int:
        return int(self.values("frames").max())

    def values(self, column: str) -> np.ndarray:
        """What a column of numbers of the index has of every usable clip, shape (clips,)."""
        values: np.ndarray = self.index[column][self.all_labels.rows]
        return values

    @property
    def origins(self) -> Origins:
        every: Origins = self.index["origin"]
        return Origins(every.kinds, every.numbers[self.all_labels.rows])

    @property
    def epoch_samples(self) -> float:
        """Samples in an epoch of these clips by their own weights, on average."""
        own = self.weights({})
        return float(len(self) if own is None else own.sum())

    def weights(self, given: Mapping[str, float]) -> np.ndarray | None:
        """How often each clip comes in an epoch, float64 (clips,); None where all come once.

        `given` are weights by source, in place of the data's own.
        """
        origins = self.origins
        of_kinds = [given.get(kind.source, kind.weight) for kind in origins.kinds]
        weights: np.ndarray = np.array(of_kinds)[origins.numbers]
        return None if (weights == 1).all() else weights

    def n_tokens(self, i: int) -> int:
        return len(self.all_labels.tokens[i])

    def digest(self) -> str:
        """Tells these clips and texts, in their order, from others, wherever the files are: by name, text, length, and
        the level of the loudest frame; and by what its source says of it.
        """
        digest = hashlib.sha256()
        plain = self.index["origin"].kinds == (PLAIN,)
        for i in range(len(self)):
            clip: list[Any] = [Path(self.name(i)).name, self.text(i), self.frames(i), self.fill(i)]
            clip += dataclasses.astuple(self._get("origin", i)) if not plain else ()
            digest.update(json.dumps(clip).encode())
        return digest.hexdigest()[:24]

    def only(self, clips: Sequence[int]) -> PreparedSplit:
        """The clips at these positions, in this order; one may come more than once."""
        return dataclasses.replace(self, all_labels=self.all_labels.only(clips))

    def _get(self, column: str, i: int) -> Any:
        return self.index[column][self.all_labels.rows[i]]


@dataclasses.dataclass
class PreparedData:
    """A data set with features and labels."""

    folder: Path
    notes: list[str]
    """Sentences for the user: what was chosen, filtered, made or dropped."""
    reused: bool
    """Whether the features were there already."""
    splits: Mapping[str, PreparedSplit]
    """`train` unless that is streamed, `validation` and, where there is one, `test`."""
    drops: list[Drop]
    total: int
    """Clips that were loaded, dropped ones included."""
    source_notes: list[str]
    """Those of the notes that hold whatever the texts are made into."""
    stream: TrainStream | None = None

    @property
    def train(self) -> PreparedSplit | TrainStream:
        return self.stream or self.splits["train"]

    @property
    def clips(self) -> dict[str, int]:
        """Usable clips of each split, of a stream about as many as it has."""
        streamed = {"train": self.stream.n_clips} if self.stream else {}
        return streamed | {name: len(split) for name, split in self.splits.items()}

    def write_dropped(self, path: str | Path) -> None:
        """List the dropped clips, one JSON object a line: split, name, reason, detail."""
        lines = [json.dumps(dataclasses.asdict(drop), ensure_ascii=False) + "\n" for drop in self.drops]
        Path(path).write_text("".join(lines), encoding="utf-8")

    def encode_splits(self, table: ClipTable) -> bytes:
        """The content of the file that keeps the splits of `table`, of which this data was made."""
        audio = {}
        for role, clips in table.whole.items():
            keys = dict[int, int]()
            if role in self.splits:
                index = self.splits[role].index
                positions = zip(index["position"].tolist(), index["audio"].tolist(), strict=True)
                keys = {id(table.splits[role][position]): key for position, key in positions}
            audio[role] = [keys.get(id(clip), 0) for clip in clips]
        return encode_splits(table.whole, audio)

    @classmethod
    def of_split(cls, split: PreparedSplit) -> PreparedData:
        """Data of which nothing is trained on: `validation` alone is measured."""
        splits = {"train": split, "validation": split}
        return cls(split.folder, [], reused=True, splits=splits, drops=[], total=len(split), source_notes=[])

    def moved_to(self, folder: Path) -> PreparedData:
        """The same data with its features in another folder, as on another machine."""
        splits = {role: dataclasses.replace(split, folder=folder) for role, split in self.splits.items()}
        return dataclasses.replace(self, folder=folder, splits=splits)

    def with_texts(self, config: TrainConfig) -> PreparedData:
        """The same data with labels for other text settings: what `prepare(config)` gives, without the source.

        Raises:
            DataError: too much of the data cannot be used with these settings.
            ModelError: the model cannot be found.
        """
        processor = load_processor(config)
        longest = int(load_model_config(config.model).max_target_positions)
        drops = [drop for drop in self.drops if drop.reason != TOO_LONG_TEXT]
        splits = {}
        for role, split in self.splits.items():
            labels, too_long = make_labels(config, processor, longest, split=role, index=split.index)
            splits[role] = dataclasses.replace(split, all_labels=labels)
            drops += too_long
        window = window_seconds(processor.feature_extractor)
        check_usable(config, drops, left=splits, window=window)
        notes = check_drops(config, drops, total=self.total, window=window)
        return dataclasses.replace(self, notes=self.source_notes + notes, splits=splits, drops=drops)


def prepare(
    config: TrainConfig,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    *,
    table: ClipTable | None = None,
    waveforms: bool = False,
) -> PreparedData:
    """The data of `config`, with features from the cache or computed now.

    Args:
        config: its data, model and text settings count; all others are free to differ between trials.
        on_progress: called with clips done and clips in all while features are computed.
        workers: who computes; by default a process per core, or none but this for a small set.
        table: its clips, where they were loaded before.
        waveforms: whether those of the training clips are kept with their features.

    Raises:
        DataError: the data cannot be found or read, too much of it cannot be used, or the disk is full.
        ModelError: the model cannot be found.
    """
    check_main_guard()
    table = table or load_clips(config)
    processor = load_processor(config)
    check_languages(config, (clip for clips in table.splits.values() for clip in clips), processor)
    return find_features(config, table, on_progress, workers, waveforms=waveforms).with_texts(config)


def is_prepared(config: TrainConfig, *, table: ClipTable | None = None, waveforms: bool = False) -> bool:
    """Whether all features that `prepare` computes are in the cache; raises as it does for data and model."""
    table = table or load_clips(config)
    folder = _features_folder(config, table, load_processor(config).feature_extractor)
    return is_complete(folder, needed_file(table, waveforms))


def find_features(
    config: TrainConfig,
    table: ClipTable,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    *,
    waveforms: bool = False,
) -> PreparedData:
    """The features of a table from the cache, or computed now as `prepare` does, without labels yet.

    Where they are there without the waveforms that are wanted, both are computed anew.
    """
    extractor = load_processor(config).feature_extractor
    folder = _features_folder(config, table, extractor)
    needs = needed_file(table, waveforms)
    build = functools.partial(
        build_features,
        table=table,
        extractor=extractor,
        waveforms=needs is not None,
        on_progress=on_progress,
        workers=workers,
    )
    reused = found_or_built(folder, build, needs=needs)
    splits, drops, cancelled = {}, list[Drop](), 0
    for role, clips in table.splits.items():
        index, dropped = read_index(folder, role)
        index["origin"] = Origins.of([clips[position] for position in index["position"].tolist()])
        splits[role] = PreparedSplit(folder, role, int(extractor.feature_size), index, Labels())
        drops += dropped
        cancelled += int(index["cancelled"].sum())
    drops += table.drops
    notes = list(table.notes)
    if cancelled:
        clips_have = "1 clip has" if cancelled == 1 else f"{cancelled} clips have"
        notes.append(
            f"{clips_have} channels that cancel each other (opposite phase): one channel is used, not the mean"
        )
    total = table.total + len(table.drops)
    return PreparedData(folder, notes, reused, splits, drops, total, notes, table.stream)


def _features_folder(config: TrainConfig, table: ClipTable, extractor: WhisperFeatureExtractor) -> Path:
    return Path(config.cache_dir).expanduser().absolute() / features_key(table, extractor)
