"""Which changes a training clip gets in which epoch, and the clip with them.

They are drawn from (seed, epoch, clip) by a generator of their own, so that they are the same with any number of
workers and loading processes, in any batch, and after a resume.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from trainer.augmentation.effects import (
    add_noise,
    change_speed,
    limit_band,
    made_noise,
    reverberate,
    stretched,
)
from trainer.augmentation.sounds import SoundFolder
from trainer.config import TrainConfig

_STREAM = 0x61756774
"""Keeps these numbers apart from others that are drawn from seed and epoch. Not 0, which would be no difference."""
_DRAWN = 9
"""Numbers that say which changes a clip gets: always as many, so that one setting does not change what others do."""
_LARGEST_SNR = 35.0
_TELEPHONE = ((200.0, 400.0), (2800.0, 3800.0))
"""Hertz at which a band may begin and end; telephones have 300 to 3400."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """What is done to one clip, in this order."""

    speed: float
    room: bool
    noise: bool
    snr: float
    colour: float
    """Of made noise: power falls with the frequency to this power."""
    band: tuple[float, float] | None
    generator: np.random.Generator = dataclasses.field(compare=False)
    """For what is random in the sounds themselves."""


def draw_changes(config: TrainConfig, epoch: int, clip: int, room: float = math.inf) -> Changes | None:
    """What a clip gets in an epoch; None for nothing.

    The clip may become `room` times as long at most.
    """
    generator = np.random.default_rng(np.random.SeedSequence([config.seed, epoch, clip, _STREAM]))
    changed, pace, in_room, noisy, snr, colour, by_telephone, low, high = generator.random(_DRAWN).tolist()
    strength = config.augment_strength
    if changed >= config.augment or not strength:
        return None
    speed = math.exp(strength * (2 * pace - 1) * math.log1p(config.augment_speed))
    (least, low_to), (high_from, most) = _TELEPHONE
    changes = Changes(
        speed=max(speed, 1 / room),
        room=in_room < config.augment_reverb and config.impulse_dir is not None,
        noise=noisy < config.augment_noise,
        snr=config.augment_snr + (_LARGEST_SNR - config.augment_snr) * snr - 20 * math.log10(strength),
        colour=2 * colour,
        band=(least + (low_to - least) * low, high_from + (most - high_from) * high)
        if by_telephone < config.augment_telephone
        else None,
        generator=generator,
    )
    return None if changes.speed == 1 and not (changes.room or changes.noise or changes.band) else changes


class Augmenter:
    """Training clips as they are heard in each epoch."""

    def __init__(self, config: TrainConfig, most_samples: int) -> None:
        """Open the folders of sounds.

        No clip is slowed down beyond `most_samples`, at least the longest clip's.

        Raises:
            DataError: a folder of sounds cannot be read.
        """
        self._config, self._most = config, most_samples
        self._noises = SoundFolder("noise_dir", config.noise_dir) if config.noise_dir else None
        self._rooms = SoundFolder("impulse_dir", config.impulse_dir) if config.impulse_dir else None

    def changes(self, epoch: int, clip: int, samples: int) -> Changes | None:
        """What a clip of so many samples gets in an epoch; None for nothing."""
        # One less: lengths are rounded.
        return draw_changes(self._config, epoch, clip, max(1.0, (self._most - 1) / samples))

    def samples(self, epoch: int, clip: int, samples: int) -> int:
        """How many samples a clip of so many has in an epoch, at 16 kHz."""
        changes = self.changes(epoch, clip, samples)
        return stretched(samples, changes.speed) if changes else samples

    def change(self, changes: Changes, sound: np.ndarray) -> np.ndarray:
        """A clip, float32 (samples,), with its changes; of at most 1."""
        generator = changes.generator
        sound = change_speed(sound, changes.speed)
        if changes.room:
            assert self._rooms is not None
            sound = reverberate(sound, self._rooms.draw(generator), self._config.augment_strength)
        if changes.noise:
            count = len(sound)
            noise = (
                self._noises.draw(generator, count)
                if self._noises
                else made_noise(generator, count, changes.colour)
            )
            sound = add_noise(sound, noise, changes.snr)
        if changes.band is not None:
            sound = limit_band(sound, *changes.band)
        peak = float(np.abs(sound).max(initial=0.0))
        return sound / np.float32(peak) if peak > 1 else sound
