"""Data ready for training: features on disk, shared by every process through memory mapping, and labels.

Features are computed once for all trials and experiments with the same data and feature extractor. How texts
are written (case, punctuation, language) does not touch them: labels are made when the data is prepared, and once for
each other way to write them that a search tries.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TEXT_SETTINGS, TrainConfig
from trainer.data.cache import found_or_built, read_complete, unfinished
from trainer.data.clips import Clip, ClipTable, Drop, check_drops, check_usable, count_by_reason, load_clips
from trainer.data.columns import PLAIN, Origin
from trainer.data.features import (
    CODE_VERSION,
    WAVEFORMS_VERSION,
    Waveforms,
    WaveformWriter,
    build_features,
    build_waveforms,
    estimated_bytes,
    extractor_settings,
)
from trainer.data.kept_splits import encode_splits
from trainer.data.labels import TOO_LONG_TEXT, Labels, check_languages, make_labels, map_labels, write_labels
from trainer.data.parallel import check_main_guard
from trainer.data.unfinished import is_begun
from trainer.errors import DataError
from trainer.files import nearest_folder
from trainer.model.processor import load_processor, window_seconds
from trainer.model.whisper import load_model_config

if TYPE_CHECKING:
    import numpy as np
    from transformers import WhisperFeatureExtractor

    from trainer.data.streaming.stream import TrainStream
    from trainer.errors import DataError
from trainer.model.processor import Processor


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


class PreparedSplit:
    """The usable clips of one split; positions run from 0 to `len(split) - 1`."""

    def __init__(
        self,
        path: Path,
        n_mels: int,
        index: Mapping[str, Any],
        labels: Labels,
        waveforms: Waveforms | None = None,
    ) -> None:
        self._path, self._n_mels, self._index, self._labels = path, n_mels, index, labels
        self.waveforms = waveforms
        """Of all clips of the index, where they are kept."""

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def n_clips(self) -> int:
        """The same."""
        return len(self)

    @property
    def folder(self) -> Path:
        """Where its features are."""
        return self._path.parent

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

    def samples(self, i: int) -> int:
        """Samples of clip `i`'s waveform, at 16 kHz."""
        return self._kept().samples(self._labels.rows[i])

    def waveform(self, i: int) -> np.ndarray:
        """float32 (samples,) of clip `i`, 16 kHz mono.

        Raises:
            ValueError: the data was prepared without waveforms.
        """
        return self._kept().waveform(self._labels.rows[i])

    def _kept(self) -> Waveforms:
        if self.waveforms is None:
            raise ValueError("the data was prepared without waveforms")
        return self.waveforms

    def labels(self, i: int) -> list[int]:
        """Token ids of clip `i`: start, language, task, no-timestamps token, the text, end token."""
        found: list[int] = self._labels.of(i).tolist()
        return found

    def text(self, i: int) -> str:
        """The transcript as the data set has it: the reference of the orthographic WER."""
        return str(self._get("text", i))

    def name(self, i: int) -> str:
        """The file of clip `i` as the data set names it."""
        return str(self._get("name", i))

    def seconds(self, i: int) -> float:
        """Length of clip `i` in seconds."""
        return float(self._get("seconds", i))

    def frames(self, i: int) -> int:
        """Feature frames of clip `i`."""
        return int(self._get("frames", i))

    def most_frames(self) -> int:
        """Feature frames of the longest clip."""
        return int(self.all_frames().max())

    def all_frames(self) -> np.ndarray:
        """Feature frames of every clip, shape (clips,)."""
        frames: np.ndarray = self._index["frames"][self._labels.rows]
        return frames

    def audio(self, i: int) -> int:
        """What stands for the content of clip `i`'s audio file, whatever its name is: `audio_key` of it."""
        return int(self._get("audio", i))

    def audio_keys(self, clips: Sequence[Clip]) -> list[int]:
        """The same of clips of which this split is made, in their order; 0 where they have no features."""
        found = [0] * len(clips)
        for key, position in zip(
            self._index["audio"].tolist(), clip_positions(clips, self._index), strict=True
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
        return Origins(self.all_origins.kinds, self.all_origins.numbers[self._labels.rows])

    @property
    def all_origins(self) -> Origins:
        """The same, with clips of the index that have no labels."""
        found: Origins = self._index["origin"]
        return found

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
        return int(self._labels.offsets[i + 1] - self._labels.offsets[i])

    def digest(self) -> str:
        """Tells these clips and texts, in their order, from others, wherever the files are: by name, text, length, and
        the level of the loudest frame; and by what its source says of it.
        """
        digest = hashlib.sha256()
        plain = self.all_origins.kinds == (PLAIN,)
        for i in range(len(self)):
            clip: list[Any] = [Path(self.name(i)).name, self.text(i), self.frames(i), self.fill(i)]
            clip += dataclasses.astuple(self.origin(i)) if not plain else ()
            digest.update(json.dumps(clip).encode())
        return digest.hexdigest()[:24]

    def only(self, clips: Sequence[int]) -> PreparedSplit:
        """The clips at these positions, in this order; one may come more than once."""
        return self.with_labels(self._labels.only(clips))

    def moved_to(self, folder: Path, waveforms: Path | None = None) -> PreparedSplit:
        """The same split, its features, and its waveforms if it has any, read from other folders."""
        kept = self.waveforms
        if kept is not None and waveforms is not None:
            kept = dataclasses.replace(kept, folder=waveforms)
        return PreparedSplit(folder / self._path.name, self._n_mels, self._index, self._labels, kept)

    def write_labels(
        self, config: TrainConfig, processor: Processor, longest: int, role: str, folder: Path
    ) -> list[Drop]:
        """`write_labels` of all clips for other text settings."""
        return write_labels(config, processor, longest, split=role, index=self._index, folder=folder)

    def all_labels(self) -> Labels:
        """Those of all clips."""
        return self._labels

    def with_labels(self, labels: Labels) -> PreparedSplit:
        """The same clips with other labels."""
        return PreparedSplit(self._path, self._n_mels, self._index, labels, self.waveforms)

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
        return cls(split.folder, [], reused=True, splits=splits, drops=[], total=len(split), source_notes=[])

    @property
    def waveforms(self) -> Path | None:
        """Where the waveforms of the training clips are, if they are kept."""
        kept = self.splits["train"].waveforms if "train" in self.splits else None
        return kept.folder if kept else None

    def moved_to(self, folder: Path, waveforms: Path | None = None) -> PreparedData:
        """The same data with its features, and its waveforms, in other folders, as on another machine."""
        splits = {role: split.moved_to(folder, waveforms) for role, split in self.splits.items()}
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
        drops = [drop for drop in self.drops if drop.reason != TOO_LONG_TEXT]
        folder = self._labels_folder(config, processor, longest)
        build = functools.partial(self._write_labels, config, processor, longest)
        with found_or_built(folder, build) as (manifest, _):
            drops += [Drop(**values) for values in manifest["drops"]]
        splits = {role: split.with_labels(map_labels(folder, role)) for role, split in self.splits.items()}
        window = window_seconds(processor.feature_extractor)
        check_usable(config, drops, left={role: len(split) for role, split in splits.items()}, window=window)
        notes = check_drops(config, drops, total=self.total, window=window)
        return dataclasses.replace(
            self, notes=self.source_notes + notes, reused=True, splits=splits, drops=drops
        )

    def _labels_folder(self, config: TrainConfig, processor: Processor, longest: int) -> Path:
        """Beside the features; named by the clips and all that makes labels of their texts."""
        vocabulary = processor.tokenizer.backend_tokenizer.to_str()
        settings = [getattr(config, name) for name in ("language", "task", *TEXT_SETTINGS)]
        parts: list[Any] = [LABELS_VERSION, self.folder.name, settings, longest, vocabulary]
        for split in self.splits.values():
            if (origins := split.all_origins).kinds != (PLAIN,):
                told = [(kind.language, kind.task) for kind in origins.kinds]
                parts += [told, hashlib.sha256(origins.numbers.tobytes()).hexdigest()]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
        return self.folder.parent / f"labels-{key}"

    def _write_labels(
        self, config: TrainConfig, processor: Processor, longest: int, folder: Path
    ) -> dict[str, Any]:
        drops = [
            drop
            for role, split in self.splits.items()
            for drop in split.write_labels(config, processor, longest, role, folder)
        ]
        return {"drops": [dataclasses.asdict(drop) for drop in drops]}


LABELS_VERSION = 1
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
        waveforms: whether those of the training clips are kept beside their features.

    Raises:
        DataError: the data cannot be found or read, too much of it cannot be used, or the disk is full.
        ModelError: the model cannot be found.
    """
    check_main_guard()
    table = table or load_clips(config)
    waveforms = waveforms and table.stream is None
    processor = load_processor(config)
    check_languages(config, (clip for clips in table.splits.values() for clip in clips), processor)
    longest = int(load_model_config(config).max_target_positions)
    extractor = processor.feature_extractor
    window = window_seconds(extractor)
    splits = {}
    with open_features(config, table, extractor, on_progress, workers, waveforms=waveforms) as found:
        drops = found.drops + table.drops
        for role, index in found.indexes.items():
            labels, dropped = make_labels(config, processor, longest, split=role, index=index)
            splits[role] = found.split(role, labels)
            drops += dropped
        check_usable(config, drops, left={role: len(split) for role, split in splits.items()}, window=window)
    # Not inside: the features are what the next run needs, once the user allows for more drops.
    total = table.total + len(table.drops)
    notes = check_drops(config, drops, total=total, window=window)
    source_notes = table.notes + found.notes()
    return PreparedData(
        found.folder, source_notes + notes, found.reused, splits, drops, total, source_notes, table.stream
    )


def is_prepared(config: TrainConfig, *, table: ClipTable | None = None, waveforms: bool = False) -> bool:
    """Whether all that `prepare` computes is in the cache; raises as it does for data and model."""
    table, extractor = table or load_clips(config), load_processor(config).feature_extractor
    return not _missing(config, table, extractor, waveforms=waveforms)


def _missing(
    config: TrainConfig, table: ClipTable, extractor: WhisperFeatureExtractor, *, waveforms: bool
) -> list[Path]:
    """Folders that are still to be filled."""
    folder = _features_folder(config, table, extractor)
    needed = [folder, *([_waveforms_folder(folder)] if waveforms and table.stream is None else [])]
    return [place for place in needed if read_complete(place) is None]


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
        missing = _missing(config, table, extractor, waveforms=waveforms and table is tables[0])
        if missing:
            clips += table.total
            needed += estimated_bytes(table, extractor, waveforms=waveforms and table is tables[0])
            begun = (path for place in missing for path in unfinished(place).glob("*") if path.is_file())
            needed -= sum(path.stat().st_size for path in begun)
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


@dataclasses.dataclass(frozen=True)
class Features:
    """Features of a table in the cache."""

    folder: Path
    reused: bool
    """Whether they were there already."""
    n_mels: int
    indexes: Mapping[str, Mapping[str, Any]]
    """Columns `offset`, `frames`, `fill`, `seconds`, `name`, `text`, `audio` and `origin` of each split's usable
    clips."""
    drops: list[Drop]
    """Clips without features."""
    cancelled: int
    """Clips whose channels cancel each other."""
    waveforms: Waveforms | None = None
    """Of the training clips, where they were asked for."""

    def notes(self) -> list[str]:
        """Sentences for the user about what was heard."""
        if not self.cancelled:
            return []
        clips = "1 clip has channels" if self.cancelled == 1 else f"{self.cancelled} clips have channels"
        return [f"{clips} that cancel each other (opposite phase): one channel stands for all"]

    def split(self, role: str, labels: Labels) -> PreparedSplit:
        """Those of a split that have labels."""
        kept = self.waveforms if role == "train" else None
        return PreparedSplit(self.folder / f"{role}.f16", self.n_mels, self.indexes[role], labels, kept)


@contextlib.contextmanager
def open_features(
    config: TrainConfig,
    table: ClipTable,
    extractor: WhisperFeatureExtractor,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    *,
    waveforms: bool = False,
) -> Iterator[Features]:
    """The features of a table from the cache, or computed now as `prepare` does; and its waveforms, if asked for.

    They do not stay where what the `with` block does with new ones fails.
    """
    folder = _features_folder(config, table, extractor)
    begun = functools.partial(is_begun, unfinished(folder))
    with contextlib.ExitStack() as stack:
        found: list[tuple[dict[str, Any], bool]] = []

        def features(writer: WaveformWriter | None = None) -> tuple[dict[str, Any], bool]:
            build = functools.partial(
                build_features,
                table=table,
                extractor=extractor,
                on_progress=on_progress,
                workers=workers,
                waveforms=writer,
            )
            found.append(stack.enter_context(found_or_built(folder, build, begun)))
            return found[0]

        def build_beside(place: Path) -> dict[str, Any]:
            """With the features, where these are not there yet, so that the audio is read once."""
            with WaveformWriter(place, _TRAIN) as writer:
                if features(writer)[1]:
                    index, clips = _read_index(folder / f"{_TRAIN}.index.parquet"), table.splits[_TRAIN]
                    heard = [clips[position] for position in clip_positions(clips, index)]
                    writer.cut(0)
                    build_waveforms(writer, heard, on_progress=on_progress, workers=workers)
            return {}

        kept = None
        if waveforms:
            place = _waveforms_folder(folder)
            stack.enter_context(found_or_built(place, build_beside, begun))
            kept = Waveforms.open(place, _TRAIN)
        manifest, reused = found[0] if found else features()
        indexes = {role: _read_index(folder / f"{role}.index.parquet") for role in table.splits}
        for role, index in indexes.items():
            index["origin"] = Origins.of(table.splits[role], index)
        drops = [Drop(**values) for values in manifest["drops"]]
        yield Features(folder, reused, manifest["n_mels"], indexes, drops, manifest["cancelled"], kept)


_TRAIN = "train"


def _features_folder(config: TrainConfig, table: ClipTable, extractor: WhisperFeatureExtractor) -> Path:
    return Path(config.cache_dir).expanduser().absolute() / features_key(table, extractor)


def _waveforms_folder(features: Path) -> Path:
    """Beside the features whose clips they are."""
    return features.parent / f"waveforms-{WAVEFORMS_VERSION}-{features.name}"


def clip_positions(clips: Sequence[Clip], index: Mapping[str, Any]) -> list[int]:
    """Where in `clips` each clip of an index of them is: in the same order, without those that have no features."""
    kept = list(zip(map(str, index["name"]), map(str, index["text"]), strict=True))
    positions: list[int] = []
    for position, clip in enumerate(clips):
        if len(positions) < len(kept) and kept[len(positions)] == (clip.name, clip.text):
            positions.append(position)
    return positions


def _read_index(path: Path) -> dict[str, Any]:
    """Columns of an index: numbers as numpy arrays, names and texts as Arrow holds them, without objects."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type):
            columns[name] = column.cast(pa.large_string()).combine_chunks()
        else:
            columns[name] = column.to_numpy()
    return columns


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
