"""Recordings of any length: found, checked, and read block by block so that memory does not grow with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.data.audio import SAMPLE_RATE, AudioError, why_undecodable
from trainer.errors import DataError

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".wav", ".wave", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64")
"""What is looked for in a folder; a file that is named itself may end otherwise."""
BLOCK_SECONDS = 20
"""Audio that is read at once."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """One file to transcribe."""

    path: Path
    name: Path
    """The path below the folder that was given, or the file's own name: what its transcript is called after."""
    seconds: float
    """Length by the file's header, which may be wrong."""


def find_recordings(given: Sequence[Path]) -> list[Recording]:
    """Every file that was given, and all audio files below every folder, by name.

    Raises:
        DataError: a path is not there, is no audio, or a folder holds none; a line each.
    """
    found: dict[Path, Recording] = {}
    problems = []
    for path in given:
        try:
            for file, name in _files(path):
                if file not in found:
                    found[file] = Recording(file, name, _announced_seconds(file))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return list(found.values())


def _files(path: Path) -> list[tuple[Path, Path]]:
    """Path and name of a file, or of each audio file below a folder."""
    if not path.is_dir():
        return [(path, Path(path.name))]
    below = (file for file in sorted(path.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file())
    visible = [(file, file.relative_to(path)) for file in below if not file.name.startswith(".")]
    if not visible:
        raise DataError(f"{path}: has no audio file in it; looked for {', '.join(SUFFIXES)}")
    return visible


def _announced_seconds(path: Path) -> float:
    import soundfile

    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    try:
        with soundfile.SoundFile(str(path)) as file:
            return float(file.frames / file.samplerate)
    except (soundfile.SoundFileError, OSError) as error:
        raise DataError(f"{path}: {why_undecodable(error)}") from error


def read_blocks(path: Path) -> Iterator[np.ndarray]:
    """The recording as 16 kHz mono, block after block; every pass over a file gives the same samples.

    Yields:
        float32 (samples,), in about -1 to 1; channels are averaged.

    Raises:
        AudioError: `unreadable_audio`, also where the file is damaged further on.
    """
    import numpy as np
    import soundfile
    import soxr

    try:
        with soundfile.SoundFile(str(path)) as file:
            rate, wanted = file.samplerate, BLOCK_SECONDS * file.samplerate
            resampler = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
            last = False
            while not last:
                samples = file.read(wanted, dtype="float32", always_2d=True)
                last = len(samples) < wanted
                mono = samples.mean(axis=1, dtype=np.float32)
                if not np.isfinite(mono).all():
                    raise AudioError("unreadable_audio", "has samples that are not finite numbers")
                block = mono if rate == SAMPLE_RATE else resampler.resample_chunk(mono, last=last)
                if len(block):
                    yield np.ascontiguousarray(block, dtype=np.float32)
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError("unreadable_audio", why_undecodable(error)) from error


def read_spans(path: Path, spans: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
    """The samples of parts of a recording, one after the other, with no more of it in memory than they need.

    Args:
        path: the file.
        spans: first sample and the one after the last, at 16 kHz, in rising order without overlap.

    Raises:
        AudioError: the file cannot be read, or ends before the last part does.
    """
    import numpy as np

    blocks = read_blocks(path)
    held, first = np.zeros(0, dtype=np.float32), 0
    for start, end in spans:
        parts = []
        while first + len(held) < end:
            if first + len(held) > start:
                parts.append(held[max(0, start - first) :])
            first += len(held)
            block = next(blocks, None)
            if block is None:
                raise AudioError("unreadable_audio", "became shorter while it was read")
            held = block
        parts.append(held[max(0, start - first) : end - first])
        yield np.concatenate(parts)
