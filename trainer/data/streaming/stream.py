"""The training split as a stream of clips, and what is kept of its source beside it.

What WER is measured on is kept, as a data set is that is not streamed; of the training split some clips are looked at,
to know the columns and how long clips are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE, AudioError, AudioSource, decode_each
from trainer.data.cache import found_or_built
from trainer.data.columns import (
    cell_text,
    find_audio_column,
    find_text_column,
    language_filter,
    select_parts,
    transcript,
)
from trainer.data.drops import check_tokens, is_usable
from trainer.data.embedded import find_file
from trainer.data.sources import BUCKETS, SPLIT_ALIASES
from trainer.data.splits import find_splits
from trainer.data.streaming.shards import Shards, estimate_rows, is_local, open_shards, stream_errors
from trainer.data.tables.table import Table, read_manifest
from trainer.errors import DataError
from trainer.mix import is_hub_name

SAMPLE = 64
"""Clips of the training split that are looked at before anything is trained."""

_SOUND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_ItemT = TypeVar("_ItemT")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def _kept_rows(
    config: TrainConfig, name: str, key: Any, rows: Mapping[str, Iterable[dict[str, Any]]]
) -> Path:
    """The folder in `cache_dir` where rows are, read now unless they are there."""
    folder = Path(config.cache_dir).expanduser().absolute() / f"{name}-{_digest(key)}"

    def build(partial: Path) -> None:
        for split, all_rows in rows.items():
            _write_rows(partial / f"{split}.parquet", iter(all_rows))

    found_or_built(folder, build)
    return folder


def _write_rows(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """Write rows into a Parquet file; none where there are no rows."""
    if not (chunk := list(itertools.islice(rows, SAMPLE))):
        return
    names = dict.fromkeys(name for row in chunk for name in row)
    columns = {name: _column([row.get(name) for row in chunk]) for name in names}
    schema = pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    with pq.ParquetWriter(path, schema) as writer:
        while chunk:
            cells = {name: [cell(row.get(name)) for row in chunk] for name, (_, cell) in columns.items()}
            writer.write_table(pa.table(cells, schema=schema))
            chunk = list(itertools.islice(rows, SAMPLE))


def _column(values: Sequence[Any]) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """What a column holds that begins with these values, sound, numbers or text, and how it keeps a value."""
    kinds = {type(value) for value in values} - {type(None)}
    if dict in kinds:
        return _SOUND, lambda value: value if isinstance(value, dict) else None
    if kinds and kinds <= {int, float}:
        return pa.float64(), lambda value: float(value) if isinstance(value, int | float) else None
    return pa.string(), lambda value: None if value is None else cell_text(value)


@dataclasses.dataclass(frozen=True, slots=True)
class StreamedClip:
    """A clip of a stream, its audio not decoded yet."""

    name: str
    text: str
    audio: AudioSource


@dataclasses.dataclass(frozen=True, eq=False)
class TrainStream:
    """The training split of a source that is streamed; can be sent to other processes."""

    config: TrainConfig
    shards: Shards
    audio_column: str
    text_column: str
    wanted: Mapping[str, list[str]]
    """Values that a row must have, by column."""
    n_clips: int
    """Clips, as far as can be told from the sizes of the shards and those of some clips."""
    mean_seconds: float
    """Of those clips."""

    @property
    def epoch_samples(self) -> float:
        return float(self.n_clips)

    def weights(self, given: Mapping[str, float]) -> None:
        """All clips come once in an epoch."""

    def digest(self) -> str:
        """Tells these shards from others, wherever they are: by their names and sizes."""
        return _digest(sorted((Path(name).name, size) for name, size in self.shards.files.items()))

    def describe(self) -> str:
        return (
            f"streamed: {len(self.shards):,} training shards, about {self.n_clips:,} clips of "
            f"{self.mean_seconds:.1f} s: {self.cost(self.n_clips)}; lengths are not known in advance, so batches are "
            "not planned by length"
        )

    def cost(self, samples: float) -> str:
        """What it takes to read and decode so many clips, in words."""
        size = sum(self.shards.files.values()) * samples / self.n_clips
        hours = samples * self.mean_seconds / 3600
        hours, gigabytes = (float(f"{amount:.2g}") for amount in (hours, size / 1e9))
        return f"about {hours:,g} hours of audio, {gigabytes:,g} GB"

    def clips(self, seed: int, buffer: int, worker: int = 0, workers: int = 1) -> Iterator[StreamedClip]:
        """The clips of one worker without end, epoch after epoch; those without words are left out.

        In each epoch the shards are shuffled and divided among the workers, then the clips of a worker within a buffer
        of so many. Where there are fewer shards than workers, each reads all of them and takes its share of the rows.
        The order depends on the arguments and the epoch alone.

        Raises:
            DataError: the source cannot be read, or has no clips for this worker.
        """
        for epoch in itertools.count():
            order = np.random.default_rng([seed, epoch]).permutation(len(self.shards)).tolist()
            if len(order) >= workers:
                rows = self.shards.rows(order[worker::workers])
            else:
                rows = itertools.islice(self.shards.rows(order), worker, None, workers)
            generator = np.random.default_rng([seed, epoch, worker, workers])
            clip: StreamedClip | None = None
            for clip in _shuffled(filter(None, map(self._clip, rows)), buffer, generator):
                yield clip
            if clip is None:
                raise DataError(
                    f"data={self.shards.origin!r}: no clip of the training split has words"
                    + (f" and {self.wanted}" if self.wanted else "")
                    + (f" for worker {worker + 1} of {workers}" if workers > 1 else "")
                )

    def _clip(self, row: Mapping[str, Any]) -> StreamedClip | None:
        text = transcript(self.config, row.get(self.text_column))
        chosen = all(cell_text(row[name]) in values for name, values in self.wanted.items() if name in row)
        if not chosen or not is_usable(self.config, text):
            return None
        audio = row.get(self.audio_column) or {}
        path = str(audio.get("path") or "")
        bases = (Path(self.shards.origin),) if is_local(self.shards.origin) else ()
        file = audio.get("bytes") or find_file(path, bases)
        return StreamedClip(path, text, AudioSource(file, self.config.audio_channel))


def _shuffled(items: Iterable[_ItemT], buffer: int, generator: np.random.Generator) -> Iterator[_ItemT]:
    """The items in random order: each next one takes the place of one of those held, which is given."""
    held: list[_ItemT] = []
    for item in items:
        if len(held) < buffer:
            held.append(item)
        else:
            position = int(generator.integers(buffer))
            yield held[position]
            held[position] = item
    for position in generator.permutation(len(held)).tolist():
        yield held[position]


def open_stream(config: TrainConfig) -> tuple[dict[str, list[Table]], dict[str, str], Shards, list[str]]:
    """The source of `config`: tables of its validation and test splits, kept in `cache_dir`, by its names for them,
    which of them plays which role, the training split, and notes.

    Raises:
        DataError: there is no source, no such split, or no clip with audio and text.
    """
    shards, notes = open_shards(config)
    roles = find_splits(config, shards)
    if "validation" not in roles:
        raise DataError(
            f"data={config.data!r}: no validation split among {', '.join(shards)}, and none can be made from a stream; "
            "name one with validation_split, or remove streaming"
        )
    held_out = {role: name for role, name in roles.items() if role != "train"}
    kept = {name: shards[name] for name in held_out.values()}
    key = [config.data, [[name, dict(one.files), one.version] for name, one in kept.items()]]
    rows = {role: shards[name].rows(range(len(shards[name]))) for role, name in held_out.items()}
    folder = _kept_rows(config, "streamed", key, rows)
    files = {role: folder / f"{role}.parquet" for role in held_out}
    held_out = {role: name for role, name in held_out.items() if files[role].exists()}
    tables = {name: [read_manifest(files[role])] for role, name in held_out.items()}
    if "validation" not in held_out:
        raise DataError(
            f"data={config.data!r}: the validation split {roles['validation']!r} has no rows; name another"
        )
    return tables, held_out, shards[roles["train"]], notes


def look_at(config: TrainConfig, shards: Shards, wanted: Mapping[str, list[str]]) -> TrainStream:
    """The training split, of which only rows with certain values are wanted, once some of its clips were decoded."""
    rows = list(itertools.islice(shards.rows(range(len(shards))), SAMPLE))
    names = dict.fromkeys(name for row in rows for name in row)
    sounds = [name for name in names if any(isinstance(row.get(name), dict) for row in rows)]
    columns = {name: [row.get(name) for row in rows] for name in names if name not in sounds}
    table = Table(shards.origin, columns, dict.fromkeys(sounds))  # type: ignore[arg-type]
    audio, text = find_audio_column(config, table), find_text_column(config, table)
    if audio not in sounds:
        raise DataError(
            f"data={config.data!r}: column {audio!r} of the training split names files, and only audio inside the "
            "shards can be streamed; remove streaming"
        )
    times = [part.strip() for part in (config.segment_columns or "").split(",")]
    if config.segment_columns and all(name in columns for name in times):
        raise DataError(
            f"data={config.data!r}: columns {' and '.join(times)} say that rows are parts of recordings, which cannot "
            "be streamed; set segment_columns=null if they are not"
        )
    seen = select_parts([(table, range(len(rows)))], wanted)  # raises where a column is missing
    wanted = {**wanted, **language_filter(config, seen, wanted)[0]}
    stream = TrainStream(config, shards, audio, text, wanted, 0, 0.0)
    clips = list(filter(None, map(stream._clip, rows)))
    if not clips:
        raise DataError(
            f"data={config.data!r}: none of the first {len(rows)} rows of the training split can be used"
            f"{f' with {wanted}' if wanted else ''}, so that nothing is known of its clips; shuffle the shards"
        )
    check_tokens(config, [(clip.name, clip.text) for clip in clips])
    size = sum(len((row.get(name) or {}).get("bytes") or b"") for row in rows for name in sounds)
    decoded = [
        one if isinstance(one, AudioError) else len(one.samples) / SAMPLE_RATE
        for _, one in decode_each(clip.audio for clip in clips)
    ]
    seconds = [one for one in decoded if isinstance(one, float)]
    if not seconds:
        raise DataError(
            f"data={config.data!r}: none of the first {len(clips)} training clips can be decoded (the first is "
            f"{clips[0].name}: {decoded[0]})"
        )
    estimate = float(len(rows))
    if len(rows) == SAMPLE:
        with stream_errors(config):
            estimate = estimate_rows(shards.files, shards.options, size / len(rows))
    n_clips, mean = max(1, round(estimate * len(clips) / len(rows))), sum(seconds) / len(seconds)
    return dataclasses.replace(stream, n_clips=n_clips, mean_seconds=mean)


_SAMPLED_SHARDS = 8
_HELD_OUT_SHARE = 0.1


def is_far(data: str) -> bool:
    """Whether data is neither here nor embedded, so that all of it would have to be downloaded; or is in tar files."""
    if data.startswith(BUCKETS):
        return True
    path = Path(data).expanduser()
    if path.exists():
        return path.suffix == ".tar" or (path.is_dir() and any(path.rglob("*.tar")))
    return data != "demo" and (is_hub_name(data) or not path.suffix)


def keep_sample(config: TrainConfig, count: int) -> tuple[TrainConfig, str]:
    """Settings with which about so many rows of data that is far are read, and what the user should know of them.

    They are the first of a few shards that `data_seed` chooses, a tenth of them of the validation and test split each,
    and are kept in `cache_dir`; nothing else is read.

    Raises:
        DataError: the data or its training split cannot be had.
    """
    shards, notes = open_shards(config)
    roles = find_splits(config, shards)
    whole = [[role, shards[name].version, [*shards[name].files]] for role, name in roles.items()]
    held_out = max(1, round(count * _HELD_OUT_SHARE))
    wanted = {role: held_out for role in roles if role != "train"}
    wanted = {"train": max(1, count - sum(wanted.values())), **wanted}
    rows = {
        role: _some_rows(shards[roles[role]], number, config.data_seed) for role, number in wanted.items()
    }
    key = [config.data, config.data_config, [config.data_seed, count, whole]]
    folder = _kept_rows(config, "sample", key, rows)
    own: dict[str, Any] = {f"{role}_split": role for role in SPLIT_ALIASES}
    note = f"a sample of about {count:,} clips, the first of some shards; the rest was not downloaded"
    return config.replace(data=str(folder), data_config=None, **own), "; ".join([*notes, note])


def _some_rows(shards: Shards, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """So many rows, the first of each of some shards; of fewer shards where they have few rows."""
    order = np.random.default_rng([seed]).permutation(len(shards)).tolist()
    share = -(-count // min(len(order), _SAMPLED_SHARDS))
    each = (itertools.islice(shards.rows([shard]), share) for shard in order)
    return itertools.islice(itertools.chain.from_iterable(each), count)
