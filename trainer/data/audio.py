"""Audio, as 16 kHz mono of any rate, WAV, FLAC, OGG or MP3."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import soundfile

SAMPLE_RATE = 16_000
"""Samples a second that every Whisper model hears."""
_BLOCK = 1 << 20
"""Samples of each channel that are read at once where nobody says how many there may be."""


class AudioError(Exception):
    """A clip cannot be used; `reason` is the code it is counted under, the message is one line.

    Not a `UserError`: a bad clip is dropped and listed, and only too many of them stop the run.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def read_audio(source: str | bytes | Path, *, max_seconds: float | None = None) -> np.ndarray:
    """The samples of one clip.

    Args:
        source: path of a file, or the content of one.
        max_seconds: longest clip wanted; a longer one is refused without decoding all of it.

    Returns:
        float32 array (samples,), 16 kHz mono in about -1 to 1; channels are averaged.

    Raises:
        AudioError: `unreadable_audio`, `empty_audio` or `too_long_audio`.
    """
    import numpy as np
    import soundfile

    try:
        with soundfile.SoundFile(
            io.BytesIO(source) if isinstance(source, bytes) else _existing(source)
        ) as file:
            rate = file.samplerate
            # A header may lie about the length, so the limit holds for what is read, not for what is
            # announced.
            samples = (
                _read_whole(file)
                if max_seconds is None
                else file.read(int(max_seconds * rate) + 2, dtype="float32", always_2d=True)
            )
            announced = file.frames / rate
    except (soundfile.SoundFileError, OSError) as error:
        raise AudioError("unreadable_audio", why_undecodable(error)) from error
    if not len(samples):
        raise AudioError("empty_audio", "no samples")
    mono = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    if not np.isfinite(mono).all():
        raise AudioError("unreadable_audio", "has samples that are not finite numbers")
    if max_seconds is not None and len(mono) / rate > max_seconds + 0.5 / SAMPLE_RATE:
        seconds = max(announced, len(mono) / rate)
        raise AudioError("too_long_audio", f"{seconds:.2f} s, over the model's window of {max_seconds:g} s")
    return _resample(mono, rate)


def _read_whole(file: soundfile.SoundFile) -> np.ndarray:
    """All samples (samples, channels) of an open file, block after block.

    At once soundfile reads only what it can seek in, and libsndfile cannot seek in GSM and some kinds of ADPCM.
    """
    import numpy as np

    blocks = [np.zeros((0, file.channels), dtype=np.float32)]
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        blocks.append(block)
    return np.concatenate(blocks)


def _resample(mono: np.ndarray, rate: int) -> np.ndarray:
    import numpy as np
    import soxr

    if rate != SAMPLE_RATE:
        mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
    if not len(mono):
        raise AudioError("empty_audio", "shorter than one sample at 16 kHz")
    return np.ascontiguousarray(mono, dtype=np.float32)


def _existing(source: str | Path) -> str:
    """The path, checked here because of a missing file libsndfile says no more than "System error"."""
    path = Path(source)
    if not path.exists():
        raise AudioError("unreadable_audio", "file not found")
    if not path.is_file():
        raise AudioError("unreadable_audio", "not a file")
    if not path.stat().st_size:
        raise AudioError("empty_audio", "the file is empty")
    return str(path)


def why_undecodable(error: BaseException) -> str:
    """libsndfile's reason, or the system's, in one line and without the object's address."""
    text = str(getattr(error, "error_string", "") or getattr(error, "strerror", "") or error).strip()
    text = text.splitlines()[0].rstrip(".") if text else type(error).__name__
    return f"cannot be decoded as WAV, FLAC, OGG or MP3: {text}"
