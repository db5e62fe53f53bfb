"""Log-mel features as Whisper hears them: computed without the padding, and padded back to the same numbers.

The feature extractor of Whisper fills every clip with silence up to its window (30 s), which makes 0.96 MB of
float32 of a clip of any length. Silence is one constant per clip, so it is kept as a number (`fill`), not as
frames. Those of a data set are computed in parallel, into files that are mapped into memory later; and so are the
waveforms, where they are to be changed while training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.data.audio import SAMPLE_RATE, AudioError, AudioSource, Heard, read_audio
from trainer.data.clips import Clip, ClipTable
from trainer.data.grouping import audio_key
from trainer.data.parallel import Task, over_clips
from trainer.data.unfinished import Unfinished
from trainer.errors import DataError
from trainer.files import flush
from trainer.model.processor import window_seconds
from trainer.threads import one_torch_thread

if TYPE_CHECKING:
    import numpy as np
    import torch
    from transformers import WhisperFeatureExtractor

FEATURE_TOLERANCE = 1e-3
"""Largest difference of padded-back features from the extractor's float32: float16's rounding up to 4."""


def count_frames(extractor: WhisperFeatureExtractor, samples: int) -> int:
    """Feature frames of a clip of so many samples.

    A frame sees n_fft / 2 samples to either side of its centre. With that much silence behind the clip, rounded up to
    whole frames, every frame left out sees silence only, and none that is kept sees the clip mirrored at its end (the
    transform pads by reflection) that it would not see in the full window.
    """
    hop = extractor.hop_length
    return int(min(extractor.n_samples // hop, -(-(samples + extractor.n_fft // 2) // hop)))


def extract_features(extractor: WhisperFeatureExtractor, audio: np.ndarray) -> tuple[np.ndarray, float]:
    """Features of one clip without the silence that fills the window.

    Args:
        extractor: the model's own.
        audio: float32 (samples,), 16 kHz mono.

    Returns:
        float16 (n_mels, frames), with the frames that `count_frames` says, and the constant that all later frames of
        the window have.

    Raises:
        AudioError: the clip is longer than the window.
    """
    import numpy as np

    if len(audio) > extractor.n_samples:
        raise AudioError(
            "too_long_audio",
            f"{len(audio) / SAMPLE_RATE:.2f} s, over the model's window of {window_seconds(extractor):g} s",
        )
    length = count_frames(extractor, len(audio)) * extractor.hop_length
    # The extractor warns where the rate is not given; `max_length` makes it pad to our length instead of its
    # window.
    features = extractor(audio, sampling_rate=SAMPLE_RATE, max_length=length, return_tensors="np")[
        "input_features"
    ][0]
    # The extractor lifts everything to 8 below the loudest (in log10, before its (x + 4) / 4), and log10 of
    # silence is -10: in its scale 2 below the largest feature, and never under -1.5.
    fill = max(float(features.max()) - 2.0, -1.5)
    return features.astype(np.float16), fill


def pad_features(
    arrays: Sequence[np.ndarray], fills: Sequence[float], n_frames: int, *, half: bool = False
) -> torch.Tensor:
    """A batch as the model takes it: each clip's features, then its constant up to the window.

    Args:
        arrays: one (n_mels, frames) per clip, frames at most `n_frames`.
        fills: the constant of each clip.
        n_frames: frames of the window (`extractor.nb_max_frames`, 3000 for Whisper).
        half: as float16, in which features are stored: half the bytes to copy to a GPU, which can widen them.

    Returns:
        float32 or float16 tensor (batch, n_mels, n_frames), within `FEATURE_TOLERANCE` of the extractor's own.
    """
    import numpy as np
    import torch

    kind = np.float16 if half else np.float32
    batch = np.empty((len(arrays), arrays[0].shape[0], n_frames), dtype=kind)
    for row, (array, fill) in enumerate(zip(arrays, fills, strict=True)):
        frames = array.shape[1]
        batch[row, :, :frames] = array
        batch[row, :, frames:] = fill
    return torch.from_numpy(batch)


def extractor_settings(extractor: WhisperFeatureExtractor) -> dict[str, Any]:
    """Everything of the extractor that shapes features, as plain values for the key of the cache."""
    names = ("feature_size", "hop_length", "n_fft", "n_samples", "sampling_rate", "padding_value", "dither")
    settings = {name: getattr(extractor, name) for name in names}
    return settings | {"mel_filters": hashlib.sha256(extractor.mel_filters.tobytes()).hexdigest()}


_ESTIMATED_BY = 32
"""Clips of each split that are heard to estimate how long they are."""


def estimated_bytes(table: ClipTable, extractor: WhisperFeatureExtractor, *, waveforms: bool = False) -> int:
    """About as much disk as the features of a table take, from the times of its clips or the lengths of some.

    Args:
        table: the clips.
        extractor: the model's.
        waveforms: whether those of the training clips are kept too.
    """
    frames = samples = 0.0
    for role, clips in table.splits.items():
        inside = any(
            clip.embedded for clip in clips
        )  # read from the beginning, as the whole file would be otherwise
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


CODE_VERSION = 3
"""Part of the cache's key: raise it whenever the same clip would give other features or another layout."""

_SMALL = 1000
"""Up to so many clips are done in this process: others take some seconds to start."""

#: Of one clip: features, fill, seconds, key of its audio, whether channels cancel each other, and the waveform where it
#: is kept; or why it is dropped.
_Outcome: TypeAlias = "tuple[np.ndarray, float, float, int, bool, _Kept | None] | tuple[str, str]"
_Kept: TypeAlias = "tuple[np.ndarray, int]"


def build_features(
    folder: Path,
    *,
    table: ClipTable,
    extractor: WhisperFeatureExtractor,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
    waveforms: WaveformWriter | None = None,
) -> dict[str, Any]:
    """Write the features of all clips into `folder`.

    For each split `<split>.f16` holds (n_mels, frames) float16 of one clip after the other, and
    `<split>.index.parquet` where each begins, its frames, fill, seconds, name, text and the key of
    its audio.

    Args:
        folder: where to.
        table: the clips.
        extractor: the model's.
        on_progress: called with clips done and clips in all.
        workers: who computes.
        waveforms: is given those of the training clips that have features, in the same pass over the audio.

    Returns:
        The manifest: splits, number of mel bands, clips in all, those dropped, and how many have channels that cancel
        each other.

    Raises:
        DataError: a worker process died.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept = Unfinished(folder, list(table.splits), waveforms)
    offsets = {
        role: sum(row[1] for row in rows) * int(extractor.feature_size) for role, rows in kept.rows.items()
    }
    every = [(role, clip) for role, clips in table.splits.items() for clip in clips]
    outcomes = over_clips(
        Task(
            functools.partial(_compute, extractor, waveforms is not None),
            window_seconds(extractor),
            _use_one_thread,
        ),
        [clip for _, clip in every[kept.done :]],
        doing="computes features",
        workers=workers,
        small=_SMALL,
    )
    # One clip is too little work to share: with two threads on two busy cores it took 40 times longer.
    with one_torch_thread(), contextlib.closing(outcomes), contextlib.ExitStack() as stack:
        files = {role: stack.enter_context((folder / f"{role}.f16").open("ab")) for role in table.splits}
        for role, clip in every[kept.done :]:
            outcome = next(outcomes)
            if len(outcome) == 2:
                reason, detail = outcome
                kept.drop({"split": role, "name": clip.name, "reason": reason, "detail": detail})
            else:
                features, fill, seconds, audio, cancels, waveform = outcome
                files[role].write(features.tobytes())
                if waveforms is not None and waveform is not None and role == "train":
                    waveforms.add(*waveform)
                row = [offsets[role], features.shape[1], fill, seconds, clip.name, clip.text, audio]
                kept.add(role, row, cancels=cancels)
                offsets[role] += features.size
            kept.keep(files, waveforms)
            if on_progress is not None:
                on_progress(kept.done, table.total)
    for role in table.splits:
        schema = _index_schema()
        index = {name: [row[column] for row in kept.rows[role]] for column, name in enumerate(schema.names)}
        pq.write_table(pa.table(index, schema=schema), folder / f"{role}.index.parquet")
    kept.finish()
    splits = {role: len(clips) for role, clips in table.splits.items()}
    counts = {"total": table.total, "cancelled": kept.cancelled}
    return {"splits": splits, "n_mels": int(extractor.feature_size), "drops": kept.drops} | counts


def _index_schema() -> Any:
    import pyarrow as pa

    types = {"offset": pa.int64(), "frames": pa.int32(), "fill": pa.float32(), "seconds": pa.float32()}
    return pa.schema([*types.items(), ("name", pa.string()), ("text", pa.string()), ("audio", pa.uint64())])


def _compute(
    extractor: WhisperFeatureExtractor, keep: bool, source: AudioSource, heard: Heard | AudioError
) -> _Outcome:
    try:
        if isinstance(heard, AudioError):
            raise heard
        features, fill = extract_features(extractor, heard.samples)
    except AudioError as error:
        return error.reason, str(error)
    kept = encode_waveform(heard.samples) if keep else None
    key = audio_key(heard.samples.tobytes() if source.is_part else source.file)
    return features, fill, len(heard.samples) / SAMPLE_RATE, key, heard.cancelled, kept


def _use_one_thread() -> None:
    """The processes share the cores already; threads of each on top would only be in each other's way."""
    import torch

    torch.set_num_threads(1)


WAVEFORMS_VERSION = 1
"""Part of their key: raise it whenever the same clip would give another waveform or another layout."""
_WAVEFORM_FILES = ("i16", "lengths.i32", "exponents.i8")


def encode_waveform(samples: np.ndarray) -> _Kept:
    """int16 (samples,) and the power of two by which they are larger than float32 samples.

    The largest power that fits: 16-bit audio is kept as it is, and of other audio as many bits as there can be.
    """
    import numpy as np

    peak = max(float(samples.max(initial=0)) / 32767, -float(samples.min(initial=0)) / 32768)
    mantissa, power = math.frexp(peak)  # peak = mantissa * 2 ** power, mantissa at least 1/2
    exponent = max(-100, min(100, (1 if mantissa == 0.5 else 0) - power)) if peak else 0
    return np.rint(np.ldexp(samples, exponent)).astype(np.int16), exponent


class WaveformWriter:
    """Writes waveforms one after the other: `<name>.i16`, and for each its length and its exponent."""

    def __init__(self, folder: Path, name: str) -> None:
        self._stack = contextlib.ExitStack()
        self._files = [
            self._stack.enter_context((folder / f"{name}.{suffix}").open("ab")) for suffix in _WAVEFORM_FILES
        ]
        self._folder, self._name = folder, name

    def add(self, samples: np.ndarray, exponent: int) -> None:
        """One as `encode_waveform` gives it."""
        import numpy as np

        length, power = np.array([len(samples)], np.int32), np.array([exponent], np.int8)
        for file, content in zip(self._files, (samples.data, length.data, power.data), strict=True):
            file.write(content)

    def flush(self) -> int:
        """Make those that were added safe, and count them."""
        for file, suffix in zip(self._files, _WAVEFORM_FILES, strict=True):
            file.flush()
            flush(self._folder / f"{self._name}.{suffix}")
        return self._files[2].tell()

    def cut(self, count: int) -> bool:
        """Forget all but the first ones; whether so many are there."""
        import numpy as np

        lengths = np.fromfile(self._folder / f"{self._name}.{_WAVEFORM_FILES[1]}", np.int32)[:count]
        sizes = (2 * int(lengths.sum(dtype=np.int64)), 4 * count, count)
        for file, size in zip(self._files, sizes, strict=True):
            if os.fstat(file.fileno()).st_size < size:
                return False
            file.truncate(size)
            file.seek(0, os.SEEK_END)
        return True

    def __enter__(self) -> WaveformWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclasses.dataclass(frozen=True, eq=False)
class Waveforms:
    """Waveforms that were written once; all processes of the machine share them."""

    folder: Path
    name: str
    offsets: np.ndarray
    """int64 (waveforms + 1,): samples before each."""
    exponents: np.ndarray
    """int8 (waveforms,)"""

    @classmethod
    def open(cls, folder: Path, name: str) -> Waveforms:
        """Those of a folder that is complete."""
        import numpy as np

        lengths, exponents = (
            np.fromfile(folder / f"{name}.{suffix}", kind)
            for suffix, kind in zip(_WAVEFORM_FILES[1:], (np.int32, np.int8), strict=True)
        )
        return cls(folder, name, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), exponents)

    def __len__(self) -> int:
        return len(self.exponents)

    def samples(self, i: int) -> int:
        """How many samples one has, at 16 kHz."""
        return int(self.offsets[i + 1] - self.offsets[i])

    def waveform(self, i: int) -> np.ndarray:
        """float32 (samples,), with full scale as 1."""
        import numpy as np

        stored = self._mapped[self.offsets[i] : self.offsets[i + 1]]
        return np.ldexp(stored.astype(np.float32), -int(self.exponents[i]))

    @functools.cached_property
    def _mapped(self) -> np.ndarray:
        import numpy as np

        path = self.folder / f"{self.name}.{_WAVEFORM_FILES[0]}"
        empty = not path.stat().st_size  # which cannot be mapped
        return np.zeros(0, np.int16) if empty else np.memmap(path, np.int16, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        # Pickling the map would copy the whole file; the other process maps it itself.
        return {name: value for name, value in self.__dict__.items() if name != "_mapped"}


def build_waveforms(
    writer: WaveformWriter,
    clips: Sequence[Clip],
    *,
    on_progress: Callable[[int, int], None] | None = None,
    workers: int | None = None,
) -> None:
    """Write the waveforms of clips whose features are there already.

    Raises:
        DataError: a worker process died, or a clip cannot be read any more.
    """
    outcomes = over_clips(Task(_hear), clips, doing="reads audio", workers=workers, small=_SMALL)
    with contextlib.closing(outcomes):
        for done, (clip, outcome) in enumerate(zip(clips, outcomes, strict=True), start=1):
            if isinstance(outcome, AudioError):
                raise DataError(f"{clip.name}: {outcome}; it was changed since its features were computed")
            writer.add(*outcome)
            if on_progress is not None:
                on_progress(done, len(clips))


def _hear(source: AudioSource, heard: Heard | AudioError) -> _Kept | AudioError:
    return heard if isinstance(heard, AudioError) else encode_waveform(heard.samples)
