"""Features of a data set on disk, computed in parallel, in files that all processes of a machine map into memory.

A folder has for each split `<split>.f16`, the features of one clip after the other, float16 (n_mels, frames), and
`<split>.index.parquet`, a row for each clip. `train.i16` has the waveforms of the training clips, where they are
changed while training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.audio import SAMPLE_RATE, AudioError, AudioSource, DecodedAudio, read_audio
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.features import count_frames, extract_features, extractor_settings
from trainer.data.grouping import audio_key
from trainer.data.parallel import over_clips
from trainer.files import flush
from trainer.model.processor import window_seconds
from trainer.threads import one_torch_thread

if TYPE_CHECKING:
    import numpy as np
    from transformers import WhisperFeatureExtractor

CODE_VERSION = 4
"""Part of the key: raise it whenever the same clip would give other features or another layout."""
WAVEFORMS = "train.i16"
_NUMBERS = {
    "offset": "int64",
    "frames": "int32",
    "fill": "float32",
    "samples": "int32",
    "start": "int64",
    "scale": "float32",
    "audio": "uint64",
    "cancelled": "bool",
}
"""Columns of an index beside name and text: where in the file the features begin, their frames, and the constant of all
later ones; samples of the waveform, where it begins in its file, and what its values are to be multiplied by;
`audio_key` of the clip; and whether its channels cancel each other."""
_SMALL = 1000
"""Up to so many clips are done in this process: others take some seconds to start."""
_ESTIMATED_BY = 32
"""Clips of each split that are decoded to estimate how long they are."""
_KEEP_SECONDS = 5.0
"""What a kill costs at most, beside what the processes were just computing."""


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


def estimated_bytes(table: ClipTable, extractor: WhisperFeatureExtractor, *, waveforms: bool = False) -> int:
    """About as much disk as the features of a table take, from the times of its clips or the lengths of some.

    Args:
        table: the clips.
        extractor: the model's.
        waveforms: whether those of the training clips are kept too.
    """
    frames = samples = 0.0
    for role, clips in table.splits.items():
        # Inside a table audio is read from the beginning: all of the file would be otherwise.
        inside = any(clip.embedded for clip in clips)
        some = clips[:_ESTIMATED_BY] if inside else clips[:: max(1, len(clips) // _ESTIMATED_BY)]
        lengths = [_length(clip, extractor) for clip in some]
        mean = sum(lengths) / max(1, len(lengths))
        frames += len(clips) * count_frames(extractor, round(mean))
        samples += len(clips) * mean * (role == "train")
    return round(2 * frames * int(extractor.feature_size) + 2 * samples * waveforms)


def _length(clip: Clip, extractor: WhisperFeatureExtractor) -> int:
    """Samples; none of a clip that cannot be used."""
    longest = window_seconds(extractor)
    if clip.span is not None and clip.span.end is not None:
        seconds = clip.span.end - clip.span.start
        return round(seconds * SAMPLE_RATE) if 0 < seconds <= longest else 0
    try:
        return len(read_audio(clip.source(), max_seconds=longest))
    except AudioError:
        return 0


def build_features(
    folder: Path,
    *,
    table: ClipTable,
    extractor: WhisperFeatureExtractor,
    waveforms: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Write the features of all clips into `folder`, going on where an earlier run was killed.

    Args:
        folder: where to.
        table: the clips.
        extractor: the model's.
        waveforms: whether those of the training clips are written too.
        on_progress: called with clips done and clips in all.
        workers: processes; None for as many as there are cores.

    Returns:
        The manifest: number of mel bands, and clips without features.

    Raises:
        DataError: a worker process died.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    clips = [(role, clip) for role, mine in table.splits.items() for clip in mine]
    files = [*(f"{role}.f16" for role in table.splits), *([WAVEFORMS] if waveforms else [])]
    with _Unfinished(folder, files) as written:
        left = clips[len(written.rows) :]
        outcomes = over_clips(
            functools.partial(_compute, extractor, waveforms),
            [clip for _, clip in left],
            max_seconds=window_seconds(extractor),
            doing="computes features",
            workers=workers,
            small=_SMALL,
        )
        with contextlib.closing(outcomes):
            for (role, _), outcome in zip(left, outcomes, strict=True):
                written.add(role, outcome)
                if on_progress is not None:
                    on_progress(len(written.rows), len(clips))
    indexes: dict[str, list[tuple[Clip, list[Any]]]] = {role: [] for role in table.splits}
    drops = []
    for (role, clip), row in zip(clips, written.rows, strict=True):
        if isinstance(row, dict):
            drops.append({"split": role, "name": clip.name, **row})
        else:
            indexes[role].append((clip, row))
    for role, rows in indexes.items():
        columns = {
            name: pa.array([row[number] for _, row in rows], pa.type_for_alias(kind))
            for number, (name, kind) in enumerate(_NUMBERS.items())
        }
        columns["name"] = pa.array([clip.name for clip, _ in rows], pa.string())
        columns["text"] = pa.array([clip.text for clip, _ in rows], pa.string())
        pq.write_table(pa.table(columns), _index_path(folder, role))
    written.journal.unlink(missing_ok=True)
    return {"n_mels": int(extractor.feature_size), "drops": drops}


def read_index(folder: Path, role: str) -> dict[str, Any]:
    """Columns of an index: numbers as numpy arrays, names and texts as Arrow holds them, without objects."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(_index_path(folder, role))
    texts = {name: table[name].cast(pa.large_string()).combine_chunks() for name in ("name", "text")}
    return texts | {name: table[name].to_numpy() for name in _NUMBERS}


def _index_path(folder: Path, role: str) -> Path:
    return folder / f"{role}.index.parquet"


@dataclasses.dataclass(frozen=True)
class _Computed:
    """What comes of a clip."""

    features: np.ndarray
    fill: float
    samples: int
    waveform: tuple[np.ndarray, float] | None
    """As `encode_waveform` gives it, where it is kept."""
    audio: int
    cancelled: bool


def _compute(
    extractor: WhisperFeatureExtractor,
    waveforms: bool,
    source: AudioSource,
    decoded: DecodedAudio | AudioError,
) -> _Computed | dict[str, str]:
    """The same, or `reason` and `detail` why nothing comes of it."""
    try:
        if isinstance(decoded, AudioError):
            raise decoded
        # One clip is too little work to share: with two threads on two busy cores it took 40 times longer.
        with one_torch_thread():
            features, fill = extract_features(extractor, decoded.samples)
    except AudioError as error:
        return {"reason": error.reason, "detail": str(error)}
    waveform = encode_waveform(decoded.samples) if waveforms else None
    key = audio_key(decoded.samples.tobytes() if source.is_part else source.file)
    return _Computed(features, fill, len(decoded.samples), waveform, key, decoded.cancelled)


def encode_waveform(samples: np.ndarray) -> tuple[np.ndarray, float]:
    """int16 (samples,) and what they are to be multiplied by to be float32 samples.

    That is the smallest power of two that fits: 16-bit audio is kept as it is, and of other audio as many bits as there
    can be.
    """
    import numpy as np

    peak = max(float(samples.max(initial=0)) / 32767, -float(samples.min(initial=0)) / 32768)
    mantissa, power = math.frexp(peak)  # peak = mantissa * 2 ** power, mantissa at least 1/2
    scale = 2.0 ** max(-100, min(100, power - (mantissa == 0.5))) if peak else 1.0
    return np.rint(samples / np.float32(scale)).astype(np.int16), scale


class _Unfinished:
    """Files that only grow, and a journal of what is safely in them: a killed run is gone on with.

    Every few seconds the files are flushed, then a line is added to the journal: the rows since the line before, and
    how long each file is. What stands in the files behind that is cut off by the next run.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Read what an earlier run left, if that is whole and has the same files; else begin anew."""
        self.journal = folder / "journal.jsonl"
        self.rows: list[list[Any] | dict[str, str]] = []
        """Of each clip in its order the numbers of its row in the index, or why it is dropped."""
        sizes = self._read(folder, names)
        if sizes is None:
            for path in folder.iterdir():
                path.unlink()
            self.rows, sizes = [], {}
        self._files = {name: (folder / name).open("ab") for name in names}
        for name, size in sizes.items():
            self._files[name].truncate(size)
            self._files[name].seek(0, os.SEEK_END)
        self._kept, self._kept_at = len(self.rows), time.monotonic()

    def _read(self, folder: Path, names: Sequence[str]) -> dict[str, int] | None:
        """How long each file is to be."""
        sizes: dict[str, int] = {}
        try:
            content = self.journal.read_bytes()
            whole = content.rfind(b"\n") + 1
            os.truncate(self.journal, whole)  # a line that a kill cut
            for line in content[:whole].splitlines():
                piece = json.loads(line)
                self.rows += piece["rows"]
                sizes = piece["sizes"]
            same = sizes.keys() == set(names)
            return (
                sizes
                if same and all((folder / name).stat().st_size >= sizes[name] for name in names)
                else None
            )
        except (OSError, ValueError, KeyError, TypeError):  # missing, or damaged
            return None

    def add(self, role: str, outcome: _Computed | dict[str, str]) -> None:
        """What came of the next clip, which is of this split."""
        if isinstance(outcome, dict):
            self.rows.append(outcome)
        else:
            sounds = self._files.get(WAVEFORMS) if role == "train" else None
            file = self._files[f"{role}.f16"]
            offset, start, scale = file.tell() // 2, 0, 1.0
            file.write(outcome.features.tobytes())
            if sounds is not None and outcome.waveform is not None:
                start = sounds.tell() // 2
                samples, scale = outcome.waveform
                sounds.write(samples.tobytes())
            numbers = [offset, outcome.features.shape[1], outcome.fill, outcome.samples, start, scale]
            self.rows.append([*numbers, outcome.audio, outcome.cancelled])
        if time.monotonic() - self._kept_at >= _KEEP_SECONDS:
            self._keep()

    def _keep(self) -> None:
        for file in self._files.values():
            file.flush()
            flush(Path(file.name))
        sizes = {name: file.tell() for name, file in self._files.items()}
        with self.journal.open("a", encoding="utf-8") as journal:
            journal.write(json.dumps({"rows": self.rows[self._kept :], "sizes": sizes}) + "\n")
        flush(self.journal)
        self._kept, self._kept_at = len(self.rows), time.monotonic()

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
