"""Quiet stretches of a recording, lifted: neither silero-vad nor Whisper hears speech at -60 dBFS as it is.

The gain follows the loudness of a few seconds, since one recording may hold a loud speaker and a quiet one. It only
lifts: what is as loud as usual stays sample by sample what it was, so that a model hears in a recording what it heard
in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_FRAME = 512
"""Samples whose standard deviation is measured: 32 ms, without the offset that some microphones have."""
_HOP_FRAMES = 16
_HOP = _HOP_FRAMES * _FRAME
"""Samples from one level to the next: half a second."""
_CLICK_FRAMES = 2
"""Frames of a hop that may be louder than what counts as its level: 64 ms are a click and no word."""
_REACH = 1
"""Hops before and after that count as well: the gain has come down before something louder begins."""
_QUIET, _FAINT = -36.0, -44.0
"""dBFS: what is above the first is not lifted, and hardly any clip made for training is below; what is below the second
is lifted wholly, and what is between them in part."""
_FOR_DETECTION, _FOR_HEARING = -30.0, -20.0
"""dBFS to which is lifted: what silero-vad takes no hum for speech at, and what clips for training usually have."""
_MOST = 80.0
"""Highest gain in decibels."""


def measure_levels(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, bool]:
    """How loud a recording is around each half second, and whether there is any sound.

    Args:
        blocks: float32 (samples,) each, 16 kHz mono; their sizes make no difference.

    Returns:
        float64 (hops,) in dBFS; and whether any sample differs from the one before.
    """
    import numpy as np

    levels, sounds = [np.zeros(0)], False
    for group in regroup(blocks, 64 * _HOP):
        padded = np.pad(group, (0, -len(group) % _HOP), mode="edge")
        frames = np.sort(padded.reshape(-1, _HOP_FRAMES, _FRAME).std(axis=2, dtype=np.float64), axis=1)
        levels.append(frames[:, -1 - _CLICK_FRAMES])
        sounds = sounds or bool(frames.any())
    around = np.pad(np.concatenate(levels), _REACH)
    if len(levels) == 1:
        return levels[0], False
    loudest = np.lib.stride_tricks.sliding_window_view(around, 2 * _REACH + 1).max(axis=1)
    return 20 * np.log10(np.maximum(loudest, 1e-9)), sounds


def detection_gains(levels: np.ndarray) -> np.ndarray:
    """Decibels (hops,) by which the levels of `measure_levels` are lifted for silero-vad."""
    return _gains(levels, _FOR_DETECTION)


def hearing_gains(levels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Gains with which Whisper hears speech about as loud as in training.

    They are those of stretches with speech, and between two of these what leads from one to the other: the noise of a
    pause does not become as loud as speech.

    Args:
        levels: (hops,), as `measure_levels` returns them.
        probabilities: float32 (frames,) of speech in every 512 samples.

    Returns:
        float64 (hops,), decibels.
    """
    import numpy as np

    gains = _gains(levels, _FOR_HEARING)
    padded = np.pad(probabilities, (0, len(gains) * _HOP_FRAMES - len(probabilities)))
    (spoken,) = (padded.reshape(-1, _HOP_FRAMES).max(axis=1) >= 0.5).nonzero()
    return np.interp(np.arange(len(gains)), spoken, gains[spoken]) if len(spoken) else np.zeros(len(gains))


def _gains(levels: np.ndarray, wanted: float) -> np.ndarray:
    import numpy as np

    share = np.clip((_QUIET - levels) / (_QUIET - _FAINT), 0.0, 1.0)
    return np.minimum(share * (wanted - levels), _MOST)


def lift(blocks: Iterable[np.ndarray], gains: np.ndarray) -> Iterator[np.ndarray]:
    """The recording with its quiet stretches louder.

    Args:
        blocks: as `measure_levels` was given them.
        gains: (hops,), decibels for each half second.

    Yields:
        float32 (samples,), block by block; those in which nothing is lifted as they are.
    """
    import numpy as np

    # From the middle of a half second to that of the next the decibels change steadily.
    centres, first = (np.arange(len(gains)) + 0.5) * _HOP, 0
    for block in blocks:
        place, first = first, first + len(block)
        near = slice(max(0, place // _HOP - 1), first // _HOP + 2)
        if not gains[near].any():
            yield block
            continue
        wanted = np.interp(np.arange(place, first), centres[near], gains[near])
        yield np.clip(block * 10 ** (wanted / 20), -1.0, 1.0).astype(np.float32)


def regroup(blocks: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same samples in groups of this size, the last of which may be smaller."""
    import numpy as np

    held = np.zeros(0, dtype=np.float32)
    for block in blocks:
        held = np.concatenate((held, block))
        while len(held) >= size:
            yield held[:size]
            held = held[size:]
    if len(held):
        yield held
