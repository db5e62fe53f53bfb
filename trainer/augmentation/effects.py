"""Changes of one waveform: speed, rooms, noise, the band of a telephone.

All take and give float32 (samples,), 16 kHz mono with full scale as 1, leave what they are given as it is, and are
silent where it is silent.
"""

from __future__ import annotations

import numpy as np
import scipy.fft
import soxr

from trainer.data.audio import SAMPLE_RATE

_EDGE_ORDERS = (6, 8)
"""Of the Butterworth curves at the lower and upper end of a band."""
_RINGING = 4096
"""Samples of silence behind a clip in a transform, so that what rings on at its ends does not come round."""
_COLOUR_FROM = 50.0
"""Hertz below which coloured noise is white: else brown noise is mostly what nobody hears."""
_DIRECT = 0.0025
"""Seconds after the first sound that still belong to it (ISO 3382 takes 2.5 to 5 ms for the direct sound)."""
_LONGEST_ROOM = 2.0
"""Seconds of a room's answer that are heard."""


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
    resampled = soxr.resample(samples, SAMPLE_RATE * factor, SAMPLE_RATE, quality="HQ")
    count = stretched(len(samples), factor)
    return np.pad(resampled, (0, max(0, count - len(resampled))))[:count]


def limit_band(samples: np.ndarray, low: float, high: float) -> np.ndarray:
    """What lies between two frequencies in hertz, as of a telephone, without delay; as loud as before."""
    size = scipy.fft.next_fast_len(len(samples) + _RINGING, real=True)
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)
    below = (low / np.maximum(frequencies, 1.0)) ** (2 * _EDGE_ORDERS[0])
    above = (frequencies / high) ** (2 * _EDGE_ORDERS[1])
    curve = (1 / np.sqrt((1 + below) * (1 + above))).astype(np.float32)
    shaped = scipy.fft.irfft(scipy.fft.rfft(samples, size) * curve, size)[: len(samples)]
    return as_loud_as(shaped, samples)


def add_noise(samples: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """A clip with as many samples of noise, so many decibels below it; itself where it or the noise is silent."""
    speech, beside = level(samples), level(noise)
    if not speech or not beside:
        return samples
    return samples + noise * np.float32(speech / beside * 10 ** (-snr / 20))


def made_noise(generator: np.random.Generator, count: int, exponent: float) -> np.ndarray:
    """Noise whose power falls with the frequency to this power: 0 is white, 1 pink, 2 brown; any level.

    Returns:
        float32 (count,)
    """
    size = scipy.fft.next_fast_len(count, real=True)
    spectrum = scipy.fft.rfft(generator.standard_normal(size, dtype=np.float32))
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)
    spectrum *= np.maximum(frequencies, _COLOUR_FROM) ** np.float32(-exponent / 2)
    noise: np.ndarray = scipy.fft.irfft(spectrum, size)[:count]
    return noise


def reverberate(samples: np.ndarray, impulse: np.ndarray, share: float = 1.0) -> np.ndarray:
    """A clip as it sounds in a room: at the same times, as loud as before, and cut where it ends.

    Args:
        samples: float32 (samples,).
        impulse: the room's impulse response, float32; its loudest sample is the direct sound.
        share: the amplitude of what comes after the direct sound is taken times this; 0 is no room at all.
    """
    if not share or not np.any(impulse):
        return samples
    before = round(_DIRECT * SAMPLE_RATE)
    begin = max(0, int(np.argmax(np.abs(impulse))) - before)
    impulse = impulse[begin : begin + round(_LONGEST_ROOM * SAMPLE_RATE)].copy()
    first = int(np.argmax(np.abs(impulse)))
    impulse[first + before :] *= np.float32(share)
    size = scipy.fft.next_fast_len(len(samples) + len(impulse), real=True)
    sound = scipy.fft.irfft(scipy.fft.rfft(samples, size) * scipy.fft.rfft(impulse, size), size)
    return as_loud_as(sound[first : first + len(samples)], samples)


def level(samples: np.ndarray) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0


def as_loud_as(samples: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """With the level of another clip; silence stays silence."""
    own = level(samples)
    return samples * np.float32(level(reference) / own) if own else samples
