"""Folders of noises and of rooms' impulse responses, as waveforms that all trainings of a machine share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.audio import SAMPLE_RATE, AudioError, AudioFile
from trainer.data.cache import found_or_built
from trainer.data.features import WAVEFORMS_VERSION, Waveforms, WaveformWriter, encode_waveform
from trainer.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
_PIECE = 30 * SAMPLE_RATE
"""Longer noises are cut into such pieces, of which each is as likely as a short noise. Clips are not longer."""
_LEAST = SAMPLE_RATE
"""What is left behind the last piece is one too if it is so long: some samples, again and again, would be a tone."""


def find_sounds(setting: str, folder: str) -> list[Path]:
    """The audio files of a folder and its subfolders, by name.

    Args:
        setting: that names the folder, for the error: `noise_dir`.
        folder: its path.

    Raises:
        DataError: there is no such folder, or no audio in it.
    """
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise DataError(f"{setting}={folder!r}: is not a folder; give one with {_kinds()} files")
    found = sorted(
        path
        for path in place.rglob("*")
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")
    )
    if not found:
        raise DataError(f"{setting}={folder!r}: has no {_kinds()} files; give a folder that has some")
    return found


def open_sounds(setting: str, folder: str, cache: Path) -> Waveforms:
    """The sounds of a folder as 16 kHz mono, from the cache, or read now.

    Args:
        setting: `noise_dir` or `impulse_dir`; of an impulse response only the first 30 seconds are taken.
        folder: its path.
        cache: folder of the feature caches.

    Raises:
        DataError: as `find_sounds`, or a file cannot be read, or all are empty.
    """
    files = find_sounds(setting, folder)
    status = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(json.dumps([WAVEFORMS_VERSION, setting, _LEAST, status]).encode()).hexdigest()[:24]

    def build(place: Path) -> dict[str, Any]:
        with WaveformWriter(place, setting) as writer:
            for path in files:
                for number, piece in enumerate(_pieces(setting, folder, path)):
                    if not number or setting == "noise_dir":
                        writer.add(*encode_waveform(piece))
        return {"files": len(files)}

    with found_or_built(cache / f"sounds-{key}", build):
        sounds = Waveforms.open(cache / f"sounds-{key}", setting)
    if not len(sounds):
        raise DataError(f"{setting}={folder!r}: its {_kinds()} files are empty; give a folder with sounds")
    return sounds


def _pieces(setting: str, folder: str, path: Path) -> Iterator[np.ndarray]:
    """A file's samples, float32 (samples,), in pieces; what is damaged at its end is left out."""
    import numpy as np

    left, least = np.zeros(0, np.float32), 1
    try:
        for samples in AudioFile(path).stream():
            left = np.concatenate([left, samples])
            while len(left) >= _PIECE:
                yield left[:_PIECE]
                left, least = left[_PIECE:], _LEAST
    except AudioError as error:
        raise DataError(f"{setting}={folder!r}: {path.name}: {error}; remove or replace the file") from error
    if len(left) >= least:
        yield left


def _kinds() -> str:
    return ", ".join(_SUFFIXES[:-1]) + " or " + _SUFFIXES[-1]
