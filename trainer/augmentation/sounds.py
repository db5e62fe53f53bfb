"""Folders of noises and of rooms' impulse responses, of which parts are read while clips are changed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import soundfile
import soxr

from trainer.data.audio import SAMPLE_RATE
from trainer.errors import DataError

_SUFFIXES = (".wav", ".flac", ".ogg")
_LONGEST_IMPULSE = 10.0
"""Seconds of an impulse response that are read."""


class SoundFolder:
    """The audio files of a folder and its subfolders, by name."""

    def __init__(self, setting: str, folder: str) -> None:
        """Look at the headers of all files.

        Raises:
            DataError: there is no such folder, no audio in it, or a file that cannot be read or is empty.
        """
        self._setting = f"{setting}={folder!r}"
        path, kinds = Path(folder).expanduser(), ", ".join(_SUFFIXES)
        if not path.is_dir():
            raise DataError(f"{self._setting}: is not a folder; give one with {kinds} files")
        named = (path for path in path.rglob("*") if not path.name.startswith("."))
        self._files = sorted(path for path in named if path.suffix.lower() in _SUFFIXES)
        if not self._files:
            raise DataError(f"{self._setting}: has no {kinds} files; give a folder that has some")
        for path in self._files:
            self._read(path, None, 1)

    def draw(self, generator: np.random.Generator, count: int | None = None) -> np.ndarray:
        """Any of the sounds at 16 kHz, float32 (samples,).

        Args:
            generator: draws which.
            count: samples of a stretch that begins anywhere, again from its beginning where it ends; None: from the
                beginning of the file.
        """
        path = self._files[int(generator.integers(len(self._files)))]
        sound = self._read(path, None if count is None else generator, count)
        return sound if count is None else np.resize(sound, count)

    def _read(self, path: Path, generator: np.random.Generator | None, count: int | None) -> np.ndarray:
        try:
            with soundfile.SoundFile(path) as file:
                seconds = _LONGEST_IMPULSE if count is None else count / SAMPLE_RATE
                wanted = math.ceil(seconds * file.samplerate)
                if generator is not None:
                    file.seek(int(generator.integers(max(1, file.frames - wanted + 1))))
                samples = file.read(wanted, dtype="float32", always_2d=True).mean(axis=1)
                rate = file.samplerate
        except soundfile.LibsndfileError as error:
            text = f"{self._setting}: {path.name}: {error.error_string}"
            raise DataError(f"{text}; remove or replace the file") from error
        if not len(samples):
            raise DataError(f"{self._setting}: {path.name}: is empty; remove or replace the file")
        resampled: np.ndarray = soxr.resample(samples, rate, SAMPLE_RATE)
        return resampled if len(resampled) else samples
