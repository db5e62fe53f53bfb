"""Data ready for training: features on disk, shared by every process through memory mapping, and labels.

Features are computed once for all trials and experiments with the same data and feature extractor. How texts
are written (case, punctuation, language) does not touch them: labels are made when the data is prepared, and once for
each other way to write them that a search tries.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TEXT_SETTINGS, TrainConfig
from trainer.data.audio import SAMPLE_RATE
from trainer.data.cache import found_or_built, read_complete, unfinished
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable, load_clips
from trainer.data.columns import PLAIN, Origin
from trainer.data.drops import Drop, check_drops, check_usable, count_by_reason
from trainer.data.feature_store import WAVEFORMS, build_features, estimated_bytes, features_key, read_index
from trainer.data.kept_splits import encode_splits
from trainer.data.labels import TOO_LONG_TEXT, Labels, check_languages, make_labels, map_labels, write_labels
from trainer.data.parallel import check_main_guard
from trainer.errors import DataError
from trainer.files import nearest_folder
from trainer.model.processor import Processor, load_processor, window_seconds
from trainer.model.whisper import load_model_config

if TYPE_CHECKING:
    import numpy as np
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
        """The source of each clip."""
        return [self.kinds[number].source for number in self.numbers]

    @classmethod
    def of(cls, clips: Sequence[Clip], index: Mapping[str, Any]) -> Origins:
        """Those of the clips of which an index is made."""
        import numpy as np

        kinds = {clip.origin: None for clip in clips}
        if len(kinds) < 2:
            return cls(tuple(kinds) or (PLAIN,), np.zeros(len(index["text"]), np.uint16))
        places = {origin: number for number, origin in enumerate(kinds)}
        found = [places[clips[position].origin] for position in clip_positions(clips, index)]
        return cls(tuple(kinds), np.array(found, np.uint16))


def clip_positions(clips: Sequence[Clip], index: Mapping[str, Any]) -> list[int]:
    """Where in `clips` each clip of an index of them is: in the same order, without those that have no features."""
    kept = list(zip(map(str, index["name"]), map(str, index["text"]), strict=True))
    positions: list[int] = []
    for position, clip in enumerate(clips):
        if len(positions) < len(kept) and kept[len(positions)] == (clip.name, clip.text):
            positions.append(position)
    return positions


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedSplit:
    """The usable clips of one split; positions run from 0 to `len(split) - 1`."""

    path: Path
    """Of the features."""
    n_mels: int
    index: Mapping[str, Any]
    """Columns as `build_features` writes them, and `origin`, of all clips that have features."""
    all_labels: Labels
    """Of those of them that can be used."""

    def __len__(self) -> int:
        return len(self.all_labels)

    @property
    def n_clips(self) -> int:
        """The same, as a stream has it too."""
        return len(self)

    @functools.cached_property
    def _mapped(self) -> np.ndarray:
        import numpy as np

        return np.memmap(self.path, dtype=np.float16, mode="r")

    @functools.cached_property
    def _waveforms(self) -> np.ndarray:
        import numpy as np

        return np.memmap(self.path.with_name(WAVEFORMS), dtype=np.int16, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        # Pickling the maps would copy the whole files; the other process maps them itself.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def features(self, i: int) -> np.ndarray:
        """float16 (n_mels, frames) of clip `i` without the silence up to the window: a read-only view."""
        offset, frames = self._get("offset", i), self._get("frames", i)
        return self._mapped[offset : offset + self.n_mels * frames].reshape(self.n_mels, frames)

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
        import numpy as np

        start, scale = self._get("start", i), self._get("scale", i)
        stored = self._waveforms[start : start + self.samples(i)]
        waveform: np.ndarray = np.multiply(stored, scale, dtype=np.float32)
        return waveform

    def labels(self, i: int) -> list[int]:
        """Token ids of clip `i`: start, language, task, no-timestamps token, the text, end token."""
        found: list[int] = self.all_labels.of(i).tolist()
        return found

    def text(self, i: int) -> str:
        """The transcript as the data set has it: the reference of the orthographic WER."""
        return str(self._get("text", i))

    def name(self, i: int) -> str:
        """The file of clip `i` as the data set names it."""
        return str(self._get("name", i))

    def seconds(self, i: int) -> float:
        """Length of clip `i` in seconds."""
        return self.samples(i) / SAMPLE_RATE

    def frames(self, i: int) -> int:
        """Feature frames of clip `i`."""
        return int(self._get("frames", i))

    def most_frames(self) -> int:
        """Feature frames of the longest clip."""
        return int(self.all_frames().max())

    def all_frames(self) -> np.ndarray:
        """Feature frames of every clip, shape (clips,)."""
        frames: np.ndarray = self.index["frames"][self.all_labels.rows]
        return frames

    def audio(self, i: int) -> int:
        """What stands for the content of clip `i`'s audio file, whatever its name is: `audio_key` of it."""
        return int(self._get("audio", i))

    def audio_keys(self, clips: Sequence[Clip]) -> list[int]:
        """The same of clips of which this split is made, in their order; 0 where they have no features."""
        found = [0] * len(clips)
        for key, position in zip(
            self.index["audio"].tolist(), clip_positions(clips, self.index), strict=True
        ):
            found[position] = key
        return found

    def origin(self, i: int) -> Origin:
        """Source, language and task of clip `i`, as far as they are its own."""
        found: Origin = self._get("origin", i)
        return found

    @property
    def origins(self) -> Origins:
        """Those of all clips."""
        every: Origins = self.index["origin"]
        return Origins(every.kinds, every.numbers[self.all_labels.rows])

    @property
    def epoch_samples(self) -> float:
        """Samples in an epoch of these clips by their own weights, on average."""
        own = self.weights({})
        return float(len(self) if own is None else own.sum())

    def weights(self, given: Mapping[str, float]) -> np.ndarray | None:
        """How often each clip comes in an epoch, float64 (clips,); None where all come once.

        Args:
            given: weights by source, in place of the data's own.
        """
        import numpy as np

        origins = self.origins
        of_kinds = [given.get(kind.source, kind.weight) for kind in origins.kinds]
        found: np.ndarray = np.array(of_kinds)[origins.numbers]
        return None if (found == 1).all() else found

    def n_tokens(self, i: int) -> int:
        """Label tokens of clip `i`."""
        return int(self.all_labels.offsets[i + 1] - self.all_labels.offsets[i])

    def digest(self) -> str:
        """Tells these clips and texts, in their order, from others, wherever the files are: by name, text, length, and
        the level of the loudest frame; and by what its source says of it.
        """
        digest = hashlib.sha256()
        plain = self.index["origin"].kinds == (PLAIN,)
        for i in range(len(self)):
            clip: list[Any] = [Path(self.name(i)).name, self.text(i), self.frames(i), self.fill(i)]
            clip += dataclasses.astuple(self.origin(i)) if not plain else ()
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
    """Where the features are."""
    notes: list[str]
    """Sentences for the user: what was chosen, filtered, made or dropped."""
    reused: bool
    """Whether the features were there already."""
    splits: Mapping[str, PreparedSplit]
    """`train` unless that is streamed, `validation` and, where there is one, `test`."""
    drops: list[Drop]
    """Clips that cannot be used."""
    total: int
    """Clips that were loaded, dropped ones included."""
    source_notes: list[str]
    """Those of the notes that hold whatever the texts are made into."""
    stream: TrainStream | None = None
    """The training clips where they are streamed."""

    @property
    def train(self) -> PreparedSplit | TrainStream:
        """The training clips."""
        return self.stream or self.splits["train"]

    @property
    def clips(self) -> dict[str, int]:
        """Usable clips of each split, of a stream about as many as it has."""
        streamed = {"train": self.stream.n_clips} if self.stream else {}
        return streamed | {name: len(split) for name, split in self.splits.items()}

    def drop_counts(self) -> dict[str, int]:
        """Dropped clips by reason, the most frequent first."""
        return count_by_reason(self.drops)

    def write_dropped(self, path: str | Path) -> None:
        """List the dropped clips, one JSON object a line: split, name, reason, detail."""
        lines = [json.dumps(dataclasses.asdict(drop), ensure_ascii=False) + "\n" for drop in self.drops]
        Path(path).write_text("".join(lines), encoding="utf-8")

    def encode_splits(self, table: ClipTable) -> bytes:
        """The content of the file that keeps the splits of `table`, of which this data was made."""
        audio = {
            role: self.splits[role].audio_keys(clips) if role in self.splits else [0] * len(clips)
            for role, clips in table.whole.items()
        }
        return encode_splits(table.whole, audio)

    @classmethod
    def of_split(cls, split: PreparedSplit) -> PreparedData:
        """Data of which nothing is trained on: `validation` alone is measured."""
        splits = {"train": split, "validation": split}
        return cls(
            split.path.parent, [], reused=True, splits=splits, drops=[], total=len(split), source_notes=[]
        )

    def moved_to(self, folder: Path) -> PreparedData:
        """The same data with its features in another folder, as on another machine."""
        splits = {
            role: dataclasses.replace(split, path=folder / split.path.name)
            for role, split in self.splits.items()
        }
        return dataclasses.replace(self, folder=folder, splits=splits)

    def with_texts(self, config: TrainConfig) -> PreparedData:
        """The same data with labels for other text settings: what `prepare(config)` gives, without the source.

        Args:
            config: its model and text settings count; its data must be this data.

        Raises:
            DataError: too much of the data cannot be used with these settings.
            ModelError: the model cannot be found.
        """
        processor = load_processor(config)
        longest = int(load_model_config(config).max_target_positions)
        folder = self._labels_folder(config, processor, longest)
        manifest, _ = found_or_built(
            folder, functools.partial(self._write_labels, config, processor, longest)
        )
        drops = [drop for drop in self.drops if drop.reason != TOO_LONG_TEXT]
        drops += [Drop(**values) for values in manifest["drops"]]
        splits = {
            role: dataclasses.replace(split, all_labels=map_labels(folder, role))
            for role, split in self.splits.items()
        }
        window = window_seconds(processor.feature_extractor)
        check_usable(config, drops, left={role: len(split) for role, split in splits.items()}, window=window)
        notes = check_drops(config, drops, total=self.total, window=window)
        return dataclasses.replace(self, notes=self.source_notes + notes, splits=splits, drops=drops)

    def _labels_folder(self, config: TrainConfig, processor: Processor, longest: int) -> Path:
        """Beside the features; named by the clips that have some and all that makes labels of their texts."""
        vocabulary = processor.tokenizer.backend_tokenizer.to_str()
        settings = [getattr(config, name) for name in ("language", "task", *TEXT_SETTINGS)]
        digest = hashlib.sha256(json.dumps([LABELS_VERSION, self.folder.name, settings, longest]).encode())
        digest.update(vocabulary.encode())
        for split in self.splits.values():
            origins = split.index["origin"]
            digest.update(json.dumps([(kind.language, kind.task) for kind in origins.kinds]).encode())
            digest.update(origins.numbers.tobytes())
            digest.update(split.index["audio"].tobytes())
        return self.folder.parent / f"labels-{digest.hexdigest()[:24]}"

    def _write_labels(
        self, config: TrainConfig, processor: Processor, longest: int, folder: Path
    ) -> dict[str, Any]:
        drops = []
        for role, split in self.splits.items():
            labels, dropped = make_labels(config, processor, longest, split=role, index=split.index)
            write_labels(folder, role, labels)
            drops += [dataclasses.asdict(drop) for drop in dropped]
        return {"drops": drops}


LABELS_VERSION = 2
"""Part of the name: raise it whenever the same texts and settings would give other labels."""


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
    return read_complete(folder, WAVEFORMS if waveforms and table.stream is None else None) is not None


def tell_disk_needed(
    config: TrainConfig, tables: Sequence[ClipTable], *, waveforms: bool = False
) -> str | None:
    """How much disk what `prepare` computes will take, in words; None where it is all in the cache.

    Args:
        config: its cache and model count.
        tables: clips, of which the first are trained on.
        waveforms: whether those of the training clips are kept.

    Raises:
        DataError: the cache has no room for so much.
        ModelError: the model cannot be found.
    """
    extractor, clips, needed = load_processor(config).feature_extractor, 0, 0
    for table in tables:
        kept = waveforms and table is tables[0]
        if not is_prepared(config, table=table, waveforms=kept):
            clips += table.total
            needed += estimated_bytes(table, extractor, waveforms=kept)
            begun = unfinished(_features_folder(config, table, extractor))
            needed -= sum(path.stat().st_size for path in begun.glob("*"))
    if not clips:
        return None
    free = shutil.disk_usage(nearest_folder(Path(config.cache_dir).expanduser())).free
    told = f"{clips:,} clips take about {max(needed, 0) / 1e9:.2g} GB in {config.cache_dir}, which has {free / 1e9:.3g}"
    if needed > free:
        raise DataError(
            f"cache_dir={config.cache_dir!r}: the features of {told} GB free; free some space, or set cache_dir to "
            "another disk"
        )
    return f"features: those of {told} GB free"


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
    waveforms = waveforms and table.stream is None
    build = functools.partial(
        build_features,
        table=table,
        extractor=extractor,
        waveforms=waveforms,
        on_progress=on_progress,
        workers=workers,
    )
    manifest, reused = found_or_built(folder, build, needs=WAVEFORMS if waveforms else None)
    splits, cancelled = {}, 0
    for role, clips in table.splits.items():
        index = read_index(folder, role)
        index["origin"] = Origins.of(clips, index)
        splits[role] = PreparedSplit(folder / f"{role}.f16", manifest["n_mels"], index, Labels.none())
        cancelled += int(index["cancelled"].sum())
    drops = [Drop(**values) for values in manifest["drops"]] + table.drops
    notes = list(table.notes)
    if cancelled:
        clips_have = "1 clip has" if cancelled == 1 else f"{cancelled} clips have"
        notes.append(
            f"{clips_have} channels that cancel each other (opposite phase): one channel stands for all"
        )
    total = table.total + len(table.drops)
    return PreparedData(folder, notes, reused, splits, drops, total, notes, table.stream)


def _features_folder(config: TrainConfig, table: ClipTable, extractor: WhisperFeatureExtractor) -> Path:
    return Path(config.cache_dir).expanduser().absolute() / features_key(table, extractor)
