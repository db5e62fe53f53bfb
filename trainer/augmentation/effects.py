"""Changes of one waveform: pace, spectrum, level.

All take and give float32 (samples,), 16 kHz mono with full scale as 1, leave what they are given as it is, and are
silent where it is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.fft
import soxr

from trainer.data.audio import SAMPLE_RATE

_HOP, _OVERLAP, _SEEK = 480, 160, 320
"""Of `change_tempo`, in samples: new sound in each piece, the cross-fade between two, and where the next is looked for:
20 ms, which is the period of 50 Hz, lower than any voice."""
_TILT_FROM = 100.0
"""Hertz below which a tilt is level: there is no speech."""
_TILT_AROUND = 1000.0
_EDGE_ORDERS = (6, 8)
"""Of the Butterworth curves at the lower and upper end of a band."""
_RINGING = 4096
"""Samples of silence behind a clip in a transform, so that what rings on at its ends does not come round."""


def stretched(samples: int, factor: float) -> int:
    """Samples of a clip that is so many times as fast."""
    return max(1, round(samples / factor))


def change_speed(samples: np.ndarray, factor: float) -> np.ndarray:
    """So many times as fast, and as high: like a tape, which also makes the speaker smaller or larger.

    Returns:
        `stretched(len(samples), factor)` samples.
    """
    if factor == 1:
        return samples
    found = soxr.resample(samples, SAMPLE_RATE * factor, SAMPLE_RATE, quality="HQ")
    return _of_length(found, stretched(len(samples), factor))


def change_tempo(samples: np.ndarray, factor: float) -> np.ndarray:
    """So many times as fast, at the same pitch: pieces are laid over each other where they are most alike.

    Synchronised overlap-add with waveform similarity (WSOLA, Verhelst and Roelands, ICASSP 1993).

    Returns:
        `stretched(len(samples), factor)` samples.
    """
    if factor == 1:
        return samples
    wanted = stretched(len(samples), factor)
    n_pieces = -(-wanted // _HOP)
    behind = round(n_pieces * _HOP * factor) - len(samples) + _SEEK + _HOP + _OVERLAP
    source = np.concatenate([np.zeros(_SEEK // 2, np.float32), samples, np.zeros(max(0, behind), np.float32)])
    sums = np.concatenate([[0.0], np.cumsum(np.square(source, dtype=np.float64))])
    energies = sums[_OVERLAP:] - sums[:-_OVERLAP]  # of the stretch that begins at each sample
    fade = (np.arange(_OVERLAP, dtype=np.float32) + 0.5) / _OVERLAP
    made = np.zeros(n_pieces * _HOP + _OVERLAP, np.float32)
    made[: _HOP + _OVERLAP] = source[_SEEK // 2 :][: _HOP + _OVERLAP]
    for piece in range(1, n_pieces):
        begin, nominal = piece * _HOP, round(piece * _HOP * factor)
        tail = made[begin : begin + _OVERLAP]
        alike = np.correlate(source[nominal : nominal + _SEEK + _OVERLAP], tail, "valid")
        best = nominal + int(np.argmax(alike / np.sqrt(energies[nominal : nominal + _SEEK + 1] + 1e-9)))
        tail += fade * (source[best : best + _OVERLAP] - tail)
        made[begin + _OVERLAP : begin + _OVERLAP + _HOP] = source[best + _OVERLAP :][:_HOP]
    return made[:wanted]


def change_gain(samples: np.ndarray, decibels: float) -> np.ndarray:
    """Louder by so many decibels, or softer."""
    return samples * np.float32(10 ** (decibels / 20))


def limit_peak(samples: np.ndarray) -> np.ndarray:
    """Softer where a sample is beyond full scale, so that none is."""
    peak = float(np.abs(samples).max(initial=0.0))
    return samples / np.float32(peak) if peak > 1 else samples


def tilt(samples: np.ndarray, slope: float) -> np.ndarray:
    """Brighter by so many decibels an octave, or darker; as loud as before."""
    if slope == 0:
        return samples
    power = slope / (20 * math.log10(2))

    def curve(frequencies: np.ndarray) -> np.ndarray:
        found: np.ndarray = (np.maximum(frequencies, _TILT_FROM) / _TILT_AROUND) ** power
        return found

    return _filtered(samples, curve)


def limit_band(samples: np.ndarray, low: float, high: float) -> np.ndarray:
    """What lies between two frequencies in hertz, as of a telephone; as loud as before."""

    def curve(frequencies: np.ndarray) -> np.ndarray:
        below = (low / np.maximum(frequencies, 1.0)) ** (2 * _EDGE_ORDERS[0])
        above = (frequencies / high) ** (2 * _EDGE_ORDERS[1])
        found: np.ndarray = 1 / np.sqrt((1 + below) * (1 + above))
        return found

    return _filtered(samples, curve)


def clip_peaks(samples: np.ndarray, decibels: float) -> np.ndarray:
    """What is less than so many decibels below the loudest sample; all else is cut off there, as by bad recorders."""
    most = float(np.abs(samples).max(initial=0.0)) * 10 ** (-decibels / 20)
    clipped: np.ndarray = np.clip(samples, -most, most)
    return clipped


def delay(samples: np.ndarray, count: int) -> np.ndarray:
    """So many samples of silence, then the clip."""
    return np.concatenate([np.zeros(count, np.float32), samples]) if count else samples


def level(samples: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0


def as_loud_as(samples: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """With the level of another clip; silence stays silence."""
    own = level(samples)
    return samples * np.float32(level(reference) / own) if own else samples


def _filtered(samples: np.ndarray, curve: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """With each frequency as much louder or softer as a curve over hertz says, without delay; as loud as before."""
    size = scipy.fft.next_fast_len(len(samples) + _RINGING, real=True)
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)
    spectrum = scipy.fft.rfft(samples, size) * curve(frequencies).astype(np.float32)
    shaped: np.ndarray = scipy.fft.irfft(spectrum, size)[: len(samples)]
    return as_loud_as(shaped, samples)


def _of_length(samples: np.ndarray, count: int) -> np.ndarray:
    """The first so many samples, with silence behind them where there are fewer."""
    return np.pad(samples, (0, max(0, count - len(samples))))[:count]
