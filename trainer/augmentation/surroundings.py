"""What is heard beside a speaker: noises at a signal-to-noise ratio, and rooms that answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.fft

from trainer.augmentation.effects import as_loud_as, level
from trainer.data.audio import SAMPLE_RATE

_COLOUR_FROM = 50.0
"""Hertz below which coloured noise is white: else brown noise is mostly what nobody hears."""
_DIRECT = 0.0025
"""Seconds after the first sound that still belong to it (ISO 3382 takes 2.5 to 5 ms for the direct sound)."""
_GAPS = (0.002, 0.02)
"""Seconds until the walls answer, at least and at most: of ways that are 0.7 to 7 m longer."""
_LONGEST_ROOM = 2.0
"""Seconds of a room's answer that are heard."""


def add_noise(
    samples: np.ndarray, noise: np.ndarray, snr: float, *, of: np.ndarray | None = None
) -> np.ndarray:
    """A clip with noise.

    Args:
        samples: float32 (samples,).
        noise: as many.
        snr: decibels between the mean powers of the clip and of the noise.
        of: the stretch of the clip whose power counts, where it has silence around it.

    Returns:
        float32 (samples,); the clip itself where it or the noise is silent.
    """
    speech, beside = level(samples if of is None else of), level(noise)
    if not speech or not beside:
        return samples
    return samples + noise * np.float32(speech / beside * 10 ** (-snr / 20))


def coloured_noise(generator: np.random.Generator, count: int, exponent: float) -> np.ndarray:
    """Noise whose power falls with the frequency to this power: 0 is white, 1 pink, 2 brown; any level.

    Returns:
        float32 (count,)
    """
    size = scipy.fft.next_fast_len(count, real=True)
    if exponent == 0:
        return generator.standard_normal(count, dtype=np.float32)
    spectrum = scipy.fft.rfft(generator.standard_normal(size, dtype=np.float32))
    frequencies = np.fft.rfftfreq(size, 1 / SAMPLE_RATE).astype(np.float32)
    spectrum *= np.maximum(frequencies, _COLOUR_FROM) ** np.float32(-exponent / 2)
    found: np.ndarray = scipy.fft.irfft(spectrum, size)[:count]
    return found


def babble(generator: np.random.Generator, voices: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Several clips at once, equally loud, each from somewhere on and again from its beginning where it ends.

    Returns:
        float32 (count,)
    """
    mixed = np.zeros(count, np.float32)
    for voice in voices:
        if loudness := level(voice):
            mixed += excerpt(generator, voice, count) / np.float32(loudness)
    return mixed


def excerpt(generator: np.random.Generator, sound: np.ndarray, count: int) -> np.ndarray:
    """A stretch of a sound that begins anywhere; where the sound ends, its beginning follows.

    Returns:
        float32 (count,)
    """
    if not len(sound):
        return np.zeros(count, np.float32)
    if len(sound) >= count:
        begin = int(generator.integers(len(sound) - count + 1))
        return sound[begin : begin + count]
    return np.resize(np.roll(sound, -int(generator.integers(len(sound)))), count)


def simulated_room(generator: np.random.Generator, seconds: float) -> np.ndarray:
    """The impulse response of a room whose sound decays by 60 dB in so many seconds: noise that fades (Moorer, 1979).

    The direct sound and the answer have the same power, as a metre or two away from the speaker.

    Returns:
        float32 (samples,), its first sample the direct sound, which is 1.
    """
    gap = max(1, round(generator.uniform(*_GAPS) * SAMPLE_RATE))
    times = np.arange(max(1, round(seconds * SAMPLE_RATE)), dtype=np.float32) / SAMPLE_RATE
    answer = generator.standard_normal(len(times), dtype=np.float32)
    answer *= np.exp(times * np.float32(-np.log(1000) / seconds))
    answer /= np.sqrt(np.square(answer).sum())
    return np.concatenate([np.ones(1, np.float32), np.zeros(gap - 1, np.float32), answer])


def reverberate(samples: np.ndarray, impulse: np.ndarray, share: float = 1.0) -> np.ndarray:
    """A clip as it sounds in a room: at the same times, as loud as before, and cut where it ends.

    Args:
        samples: float32 (samples,).
        impulse: the room's impulse response, float32; its loudest sample is the direct sound.
        share: the amplitude of what comes after the direct sound is taken times this; 0 is no room at all.
    """
    if not share or not np.any(impulse):
        return samples
    first = int(np.argmax(np.abs(impulse)))
    impulse = impulse[max(0, first - round(_DIRECT * SAMPLE_RATE)) :][
        : round(_LONGEST_ROOM * SAMPLE_RATE)
    ].copy()
    first = int(np.argmax(np.abs(impulse)))
    impulse[first + round(_DIRECT * SAMPLE_RATE) :] *= np.float32(share)
    size = scipy.fft.next_fast_len(len(samples) + len(impulse), real=True)
    heard = scipy.fft.irfft(scipy.fft.rfft(samples, size) * scipy.fft.rfft(impulse, size), size)
    return as_loud_as(heard[first : first + len(samples)], samples)
