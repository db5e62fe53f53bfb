"""Recordings of any length: found, checked, and read block by block so that memory does not grow with them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.data.audio import AUDIO_SUFFIXES, AudioError, AudioFile
from trainer.errors import DataError

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class Recording:
    """One file to transcribe."""

    path: Path
    name: Path
    """The path below the folder that was given, or the file's own name: what its transcript is called after."""
    seconds: float
    """Length by the file's header, which may be wrong; 0 where it has none that can be read."""
    channel: int | None = None
    """The one to hear, from 1; None is the mean of all."""

    def open(self) -> AudioFile:
        """The file, from its beginning; every pass over it gives the same samples.

        Raises:
            AudioError: it cannot be read.
        """
        return AudioFile(self.path, self.channel)


def find_recordings(given: Sequence[Path], channel: int | None = None) -> list[Recording]:
    """Every file that was given, and all audio files below every folder, by name.

    One that cannot be read is among them as long as another can: reading it gives the reason.

    Raises:
        DataError: a path is not there, a folder holds no audio, or nothing at all can be read; a line each.
    """
    found: dict[Path, Recording] = {}
    missing, unreadable = [], []
    for path in given:
        try:
            files = _files(path)
        except DataError as error:
            missing.append(str(error))
            continue
        for file, name in files:
            if file not in found:
                try:
                    found[file] = Recording(file, name, _seconds(file, channel), channel)
                except AudioError as error:
                    found[file] = Recording(file, name, 0.0, channel)
                    unreadable.append(f"{file}: {error}")
    if missing or len(unreadable) == len(found):
        raise DataError("\n".join([*missing, *unreadable]))
    return list(found.values())


def _files(path: Path) -> list[tuple[Path, Path]]:
    """Path and name of a file, or of each audio file below a folder, and of folders that cannot be listed."""
    try:
        path.lstat()
        is_folder = path.is_dir()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{path}: no such file or folder") from error
    except OSError:  # a folder above may not be entered; told where the file is read
        is_folder = False
    if not is_folder:
        return [(path, Path(path.name))]
    found: list[Path] = []

    def closed(error: OSError) -> None:
        found.append(Path(error.filename))

    for folder, _, names in os.walk(path, onerror=closed):
        # A link to nowhere is a recording that is missing, and is told; pipes and the like are none.
        heard = (Path(folder, name) for name in names if Path(name).suffix.lower() in AUDIO_SUFFIXES)
        found += [file for file in heard if file.name[0] != "." and (file.is_file() or file.is_symlink())]
    if not found:
        raise DataError(f"{path}: has no audio file in it; looked for {', '.join(AUDIO_SUFFIXES)}")
    return [(file, file.relative_to(path)) for file in sorted(found)]


def _seconds(path: Path, channel: int | None) -> float:
    file = AudioFile(path, channel)
    if file.seconds is None:
        for _ in file.blocks():
            pass
    return file.held if file.seconds is None else file.seconds


def read_spans(blocks: Iterator[np.ndarray], spans: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
    """The samples of parts of a recording, one after the other, with no more of it in memory than they need.

    Args:
        blocks: the whole recording at 16 kHz, block after block.
        spans: first sample and the one after the last, at 16 kHz, in rising order without overlap.

    Raises:
        AudioError: the file cannot be read, or ends before the last part does.
    """
    import numpy as np

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
