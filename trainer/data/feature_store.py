"""Features of a data set on disk, computed in parallel, in files that all processes of a machine map into memory.

A folder has for each split shards of `SHARD_CLIPS` clips. A shard is the files `<split>-<number>.f16`, the features of
one clip after the other, float16 (n_mels, frames); of training clips that are changed while training `.i16`, their
waveforms; and `.parquet`, a row for each clip, which is written last: a killed run keeps the shards that have it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.data.audio import AudioError, AudioSource, DecodedAudio
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.drops import Drop
from trainer.data.features import extract_features, extractor_settings
from trainer.data.grouping import audio_key
from trainer.data.parallel import over_clips
from trainer.files import flush
from trainer.model.processor import window_seconds
from trainer.threads import one_torch_thread

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

CODE_VERSION = 5
"""Part of the key: raise it whenever the same clip would give other features or another layout."""
SHARD_CLIPS = 1_000
"""What a kill costs at most, beside what the processes were just computing."""
FEATURES, WAVEFORMS = "f16", "i16"
_SMALL = 1000
"""Up to so many clips are done in this process: others take some seconds to start."""


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


def build_features(
    folder: Path,
    *,
    table: ClipTable,
    extractor: WhisperFeatureExtractor,
    waveforms: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> None:
    """Write the features of all clips into `folder`, but for shards that an earlier run has finished.

    Raises:
        DataError: a worker process died.
    """
    left: list[_Shard] = []
    for role, clips in table.splits.items():
        for number, start in enumerate(range(0, max(1, len(clips)), SHARD_CLIPS)):
            some = clips[start : start + SHARD_CLIPS]
            kinds = [FEATURES, *([WAVEFORMS] if waveforms and role == "train" else [])]
            shard = _Shard(folder, role, number, some, kinds)
            if not shard.is_written():
                left.append(shard)
    outcomes = over_clips(
        functools.partial(_compute, extractor, waveforms),
        [clip for shard in left for clip in shard.clips],
        max_seconds=window_seconds(extractor),
        doing="computes features",
        workers=workers,
        small=_SMALL,
    )

    def counted() -> Iterator[_Outcome]:
        begun = table.total - sum(len(shard.clips) for shard in left)
        for done, outcome in enumerate(outcomes, begun + 1):
            if on_progress is not None:
                on_progress(done, table.total)
            yield outcome

    with contextlib.closing(outcomes):
        computed = counted()
        for shard in left:
            shard.write(itertools.islice(computed, len(shard.clips)))


def needed_file(table: ClipTable, waveforms: bool) -> str | None:
    """The file that a folder with the waveforms of all training clips has, where these are wanted; a stream keeps none.

    Of the last shard: a killed run may have left some to one that wanted none.
    """
    if not waveforms or table.stream is not None:
        return None
    return shard_file(Path(), "train", max(0, len(table.splits["train"]) - 1) // SHARD_CLIPS, WAVEFORMS).name


def shard_file(folder: Path, role: str, number: int, kind: str) -> Path:
    """A file of a shard: `FEATURES`, `WAVEFORMS` or `parquet`."""
    return folder / f"{role}-{number:05}.{kind}"


@dataclasses.dataclass(frozen=True)
class _Shard:
    folder: Path
    role: str
    number: int
    clips: Sequence[Clip]
    kinds: Sequence[str]
    """Of files beside the index."""

    def file(self, kind: str) -> Path:
        return shard_file(self.folder, self.role, self.number, kind)

    def is_written(self) -> bool:
        """Whether an earlier run did."""
        return all(self.file(kind).exists() for kind in (*self.kinds, "parquet"))

    def write(self, outcomes: Iterable[_Outcome]) -> None:
        """Write what came of the clips, in their order."""
        rows = []
        with contextlib.ExitStack() as stack:
            files = {kind: stack.enter_context(self.file(kind).open("wb")) for kind in self.kinds}
            for clip, (row, arrays) in zip(self.clips, outcomes, strict=True):
                for kind, file in files.items():
                    if kind in arrays:
                        row[kind] = file.tell() // arrays[kind].itemsize
                        file.write(arrays[kind].tobytes())
                rows.append(row | {"name": clip.name, "text": clip.text})
        for kind in files:
            flush(self.file(kind))
        partial = self.file("partial")
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(list(_COLUMNS.items()))), partial)
        flush(partial)
        partial.replace(self.file("parquet"))


_COLUMNS = {
    **{"name": "string", "text": "string", "reason": "string", "detail": "string"},
    **{FEATURES: "int64", "frames": "int32", "fill": "float32", WAVEFORMS: "int64", "scale": "float32"},
    **{"samples": "int32", "audio": "uint64", "cancelled": "bool"},
}
"""Columns of an index: name and text; why there are no features, if so; where in their file the features begin, their
frames, and the constant of all later ones; where the waveform begins in its file, and what its values are to be
multiplied by; its samples; `audio_key` of the clip, and whether its channels cancel each other."""


def read_index(folder: Path, role: str) -> tuple[dict[str, Any], list[Drop]]:
    """The clips of a split that have features, and those that have none.

    Of the former the numbers of `_COLUMNS` as numpy arrays, names and texts as Arrow holds them, without objects; the
    `shard` of each, and its `position` among all clips of the split.
    """
    tables = [pq.read_table(path) for path in sorted(folder.glob(f"{role}-*.parquet"))]
    shards = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    table = pa.concat_tables(tables)
    dropped = pc.is_valid(table["reason"])
    position = np.flatnonzero(~dropped.to_numpy())
    drops = table.filter(dropped).select(["name", "reason", "detail"]).to_pylist()
    table = table.filter(pc.invert(dropped))
    index: dict[str, Any] = {"position": position, "shard": shards[position]}
    for name in ("name", "text"):
        index[name] = table[name].cast(pa.large_string()).combine_chunks()
    for name in list(_COLUMNS)[4:]:
        index[name] = table[name].to_numpy()
    return index, [Drop(role, **drop) for drop in drops]


_Outcome: TypeAlias = "tuple[dict[str, Any], dict[str, np.ndarray]]"
"""What comes of a clip: its part of the row in the index, and what goes to the files of each kind."""


def _compute(
    extractor: WhisperFeatureExtractor,
    waveforms: bool,
    source: AudioSource,
    decoded: DecodedAudio | AudioError,
) -> _Outcome:
    try:
        if isinstance(decoded, AudioError):
            raise decoded
        # One clip is too little work to share: with two threads on two busy cores it took 40 times longer.
        with one_torch_thread():
            features, fill = extract_features(extractor, decoded.samples)
    except AudioError as error:
        return {"reason": error.reason, "detail": str(error)}, {}
    row = {"frames": features.shape[1], "fill": fill, "samples": len(decoded.samples)}
    row |= {WAVEFORMS: 0, "scale": 1.0}
    row["audio"] = audio_key(decoded.samples.tobytes() if source.span else source.file)
    row["cancelled"] = decoded.cancelled
    arrays = {FEATURES: features}
    if waveforms:
        arrays[WAVEFORMS], row["scale"] = encode_waveform(decoded.samples)
    return row, arrays


def encode_waveform(samples: np.ndarray) -> tuple[np.ndarray, float]:
    """int16 (samples,) and what they are to be multiplied by to be float32 samples.

    That is the smallest power of two that fits: 16-bit audio is kept as it is, and of other audio as many bits as there
    can be.
    """
    peak = max(float(samples.max(initial=0)) / 32767, -float(samples.min(initial=0)) / 32768)
    mantissa, power = math.frexp(peak)  # peak = mantissa * 2 ** power, mantissa at least 1/2
    scale = 2.0 ** max(-100, min(100, power - (mantissa == 0.5))) if peak else 1.0
    return np.rint(samples / np.float32(scale)).astype(np.int16), scale
