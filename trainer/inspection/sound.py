"""What can be measured of a clip's audio: level, clipping, silence, and a digest by which equal clips are found."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np

from trainer.data.audio import SAMPLE_RATE, AudioError, AudioSource, DecodedAudio
from trainer.data.drops import Drop

FRAME = 320
"""Samples at 16 kHz of which a level is taken: 20 ms."""
_LEAST_PAUSE = 8
"""Frames: shorter ones are inside words."""
_LEAST_LEVEL = -120.0
"""Level in dB that stands for nothing at all."""
_NEAR_FULL_SCALE = 0.985
"""Lossy formats and resampling bend the flat tops of clipped audio; so near to full scale hardly anything else comes.

Of 80 clips of clean speech none has more than 0.04 % of its samples within 3 % of its peak; speech that was clipped
at half of its peak has 0.2 to 1.4 % there (measured).
"""
SILENT = -75.0
"""Loud parts below this are no speech that anybody could transcribe: 16 bits have hardly anything there."""
_STEADY = 1.5
"""Variation in dB of noise and tones; of speech it is 8 and more, under much noise still 4 (measured)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sound:
    """One clip as it was heard. Levels in dB below full scale (dBFS), times in seconds, shares from 0 to 1."""

    seconds: float
    loud: float
    """Level of the loud parts: exceeded by a twentieth of the 20 ms frames."""
    variation: float
    """Standard deviation of the frames' levels in dB: speech rises and falls, steady noise and tones do not."""
    clipped: float
    """Share of the samples that are cut off at full scale, or at the clip's own peak in flat runs."""
    lead: float
    """Silence before the first sound."""
    tail: float
    """Silence after the last one."""
    pause: float
    """Longest silence between."""
    spoken: float
    """Seconds of sound: without the silence around, and without pauses of a sixth of a second and more."""
    digest: bytes
    """Of the samples in 16 bits."""

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing in the clip that could be speech."""
        return self.loud < SILENT or (self.variation < _STEADY and self.seconds >= 0.5)


def listen(source: AudioSource, decoded: DecodedAudio | AudioError) -> Sound | Drop:
    """Measure one clip, or say why training would drop it, without its split and name."""
    if isinstance(decoded, AudioError):
        return Drop("", "", decoded.reason, str(decoded))
    audio = decoded.samples
    levels = frame_levels(audio - audio.mean())
    lead, tail, pauses = silences(levels)
    seconds = len(audio) / SAMPLE_RATE
    return Sound(
        seconds=seconds,
        loud=float(np.percentile(levels, 95)),
        variation=float(np.std(np.maximum(levels, -100.0))),
        clipped=clipped_share(audio),
        lead=lead,
        tail=tail,
        pause=max(pauses, default=0.0),
        spoken=max(0.0, seconds - lead - tail - sum(pauses)),
        digest=hashlib.blake2b(np.rint(audio * 32767).astype(np.int16), digest_size=16).digest(),
    )


def frame_levels(audio: np.ndarray) -> np.ndarray:
    """Level of every 20 ms in dBFS (a sine at full scale has -3), of at least one frame; -120 for silence."""
    whole = len(audio) // FRAME
    frames = audio[: whole * FRAME].reshape(-1, FRAME) if whole else audio[None, :]
    power = np.mean(np.square(frames, dtype=np.float64), axis=1)
    return np.asarray(10 * np.log10(np.maximum(power, 10 ** (_LEAST_LEVEL / 10))))


def silences(levels: np.ndarray) -> tuple[float, float, list[float]]:
    """Seconds without sound before the first sound, after the last, and each of a sixth of a second between.

    Silent is a frame at least 20 dB below the loud ones that is near the clip's own noise floor, or 35 dB below.
    """
    loud, floor = np.percentile(levels, [95, 10])
    loud_frames = np.flatnonzero(levels > min(max(loud - 35, floor + 6), loud - 20))
    seconds = FRAME / SAMPLE_RATE
    gaps = np.diff(loud_frames) - 1
    return (
        float(loud_frames[0] * seconds),
        float((len(levels) - 1 - loud_frames[-1]) * seconds),
        [float(gap * seconds) for gap in gaps[gaps >= _LEAST_PAUSE]],
    )


def clipped_share(audio: np.ndarray) -> float:
    """Share of the samples, with full scale as 1, that are cut off.

    That is: in runs of three and more at the clip's own peak, or anywhere so near to full scale that a lossy coding or
    another rate may have bent such a run.
    """
    size = np.abs(audio)
    peak = float(size.max())
    if peak < 0.05:  # steps of 16 bits are coarse for something so quiet
        return 0.0
    at_peak = np.flatnonzero(size >= peak * 0.9995)
    follows = (np.diff(at_peak) == 1) & (np.signbit(audio[at_peak[1:]]) == np.signbit(audio[at_peak[:-1]]))
    breaks = np.flatnonzero(~follows)
    lengths = np.diff(np.concatenate(([-1], breaks, [len(at_peak) - 1])))
    flat = int(lengths[lengths >= 3].sum())
    return max(flat, int(np.count_nonzero(size >= _NEAR_FULL_SCALE))) / len(audio)
