"""Which changes a training clip gets in which epoch, and the clip with them.

They are drawn from (seed, epoch, clip) by a generator of their own, so that they are the same with any number of
workers and loading processes, in any batch, and after a resume.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal, Protocol

import numpy as np

from trainer.augmentation.effects import (
    change_gain,
    change_speed,
    change_tempo,
    clip_peaks,
    delay,
    limit_band,
    limit_peak,
    stretched,
    tilt,
)
from trainer.augmentation.surroundings import (
    add_noise,
    babble,
    coloured_noise,
    excerpt,
    reverberate,
    simulated_room,
)
from trainer.data.audio import SAMPLE_RATE

NoiseKind = Literal["any", "white", "coloured", "babble", "files"]
_STREAM = 0x61756774
"""Keeps these numbers apart from others that are drawn from seed and epoch. Not 0, which would be no difference."""
_DRAWN = 16
"""Numbers that say which changes a clip gets: always as many, so that one setting does not change what others do."""
_LARGEST_SNR = 35.0
_SHORTEST_ROOM = 0.1
_TELEPHONE = ((200.0, 400.0), (2800.0, 3800.0))
"""Hertz at which a band may begin and end; telephones have 300 to 3400."""
_NARROWEST = (600.0, 2000.0)
_WHOLE = (20.0, SAMPLE_RATE / 2)
_MOST_CLIPPING = 15.0
"""Decibels below the loudest sample."""
_VOICES = (3, 6)


class Sounds(Protocol):
    """Waveforms by number."""

    def __len__(self) -> int: ...

    def samples(self, i: int) -> int:
        """How many samples one has, at 16 kHz."""

    def waveform(self, i: int) -> np.ndarray:
        """float32 (samples,)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amounts:
    """How many clips are changed, and how much at most; 0 leaves a kind of change out."""

    share: float
    """Of all clips."""
    strength: float = 1.0
    """All amounts are taken times this, noise and answers of rooms by their amplitude; not the shares of clips."""
    speed: float = 0.0
    """Speed with pitch: from 1 / (1 + x) to 1 + x times."""
    tempo: float = 0.0
    """Speed without pitch, in the same way."""
    shift: float = 0.0
    """Seconds of silence put in front."""
    reverb: float = 0.0
    """Share of the changed clips that are heard in a room."""
    reverb_seconds: float = 0.6
    """Longest time in which a room's sound decays by 60 dB."""
    noise: float = 0.0
    """Share of the changed clips that get noise."""
    snr: float = 8.0
    """Least signal-to-noise ratio in decibels; the largest is 35."""
    noise_kind: NoiseKind = "any"
    tilt: float = 0.0
    """Decibels an octave."""
    telephone: float = 0.0
    """Share of the changed clips of which only the band of a telephone is left."""
    clipping: float = 0.0
    """Share of the changed clips whose peaks are cut off."""
    gain: float = 0.0
    """Decibels."""

    @property
    def longest(self) -> tuple[float, float]:
        """Times a clip's length that it can become, and seconds that can be added to that."""
        return ((1 + self.speed) * (1 + self.tempo)) ** self.strength, self.shift * self.strength


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """What is done to one clip, in this order; all but the noise and the room themselves."""

    speed: float
    tempo: float
    room: float | None
    """Seconds in which its sound decays."""
    shift: float
    """Seconds of silence."""
    noise: NoiseKind | None
    snr: float
    colour: float
    """Of coloured noise: power falls with the frequency to this power."""
    tilt: float
    band: tuple[float, float] | None
    clipping: float
    gain: float
    generator: np.random.Generator = dataclasses.field(compare=False)
    """For what is random in the sounds themselves."""

    @property
    def nothing(self) -> bool:
        """Whether the clip stays as it is."""
        made = (self.room, self.noise, self.band)
        return (
            self.speed == self.tempo == 1
            and made == (None, None, None)
            and not (int(self.shift * SAMPLE_RATE) or self.tilt or self.clipping or self.gain)
        )

    def fitted(self, samples: int, most: int) -> Changes:
        """The changes for a clip of so many samples, not as slow and late where it would have more than `most`."""
        pace = self.speed * self.tempo
        room = max(samples, most - 2)  # two lengths are rounded
        power = min(1.0, math.log(room / samples) / -math.log(pace)) if pace < 1 else 1.0
        fit = dataclasses.replace(self, speed=self.speed**power, tempo=self.tempo**power)
        left = max(0, most - fit.spoken(samples)) / SAMPLE_RATE
        return dataclasses.replace(fit, shift=min(self.shift, left))

    def spoken(self, samples: int) -> int:
        """Samples of the clip without the silence in front."""
        return stretched(stretched(samples, self.speed), self.tempo)

    def length(self, samples: int) -> int:
        """Samples of the whole."""
        return self.spoken(samples) + int(self.shift * SAMPLE_RATE)


def draw_changes(amounts: Amounts, seed: int, epoch: int, clip: int) -> Changes | None:
    """What a clip gets in an epoch; None for nothing."""
    generator = np.random.default_rng(np.random.SeedSequence([seed, epoch, clip, _STREAM]))
    numbers: Iterator[float] = iter(generator.random(_DRAWN).tolist())
    strength = amounts.strength

    def happens(share: float) -> bool:
        return next(numbers) < share

    def between(low: float, high: float) -> float:
        return low + (high - low) * next(numbers)

    def around(most: float) -> float:
        return strength * between(-most, most)

    changed = happens(amounts.share)
    speed, tempo = (math.exp(around(math.log1p(most))) for most in (amounts.speed, amounts.tempo))
    shift = strength * between(0, amounts.shift)
    in_room, room = (
        happens(amounts.reverb),
        between(_SHORTEST_ROOM, max(_SHORTEST_ROOM, amounts.reverb_seconds)),
    )
    noisy, snr, colour = (
        happens(amounts.noise),
        between(amounts.snr, max(amounts.snr, _LARGEST_SNR)),
        between(0, 2),
    )
    slope = around(amounts.tilt)
    by_telephone, low, high = happens(amounts.telephone), between(*_TELEPHONE[0]), between(*_TELEPHONE[1])
    clipped, most_clipping = happens(amounts.clipping), strength * between(0, _MOST_CLIPPING)
    gain = around(amounts.gain)
    if not changed or not strength:
        return None
    band = (
        min(_WHOLE[0] + strength * (low - _WHOLE[0]), _NARROWEST[0]),
        max(_WHOLE[1] + strength * (high - _WHOLE[1]), _NARROWEST[1]),
    )
    return Changes(
        speed=speed,
        tempo=tempo,
        room=room if in_room else None,
        shift=shift,
        noise=amounts.noise_kind if noisy else None,
        snr=snr - 20 * math.log10(strength),
        colour=colour,
        tilt=slope,
        band=band if by_telephone else None,
        clipping=most_clipping if clipped else 0.0,
        gain=gain,
        generator=generator,
    )


class Augmenter:
    """The clips of a training split as they are heard in each epoch."""

    def __init__(
        self,
        amounts: Amounts,
        *,
        seed: int,
        clips: Sounds,
        most_samples: int,
        noises: Sounds | None = None,
        impulses: Sounds | None = None,
        voices: Sounds | None = None,
    ) -> None:
        """Take the clips.

        Args:
            amounts: of the changes.
            seed: of the training.
            clips: of the split.
            most_samples: no clip is slowed down or shifted beyond it; at least the longest clip's.
            noises: sounds that speech is mixed with.
            impulses: impulse responses of rooms; without them rooms are simulated.
            voices: clips of which babble is made; those of the split where they are not given.
        """
        self.amounts = amounts
        self._seed, self._clips, self._most = seed, clips, most_samples
        self._noises, self._impulses, self._voices = noises, impulses, voices

    def samples(self, epoch: int, clip: int) -> int:
        """Length of a clip in an epoch, at 16 kHz."""
        changes, own = self._changes(epoch, clip), self._clips.samples(clip)
        return changes.length(own) if changes else own

    def waveform(self, epoch: int, clip: int) -> np.ndarray | None:
        """A clip in an epoch, float32 (samples,) of at most 1; None where nothing is changed."""
        changes = self._changes(epoch, clip)
        if changes is None:
            return None
        sound = self._clips.waveform(clip)
        sound = change_tempo(change_speed(sound, changes.speed), changes.tempo)
        generator, strength = changes.generator, self.amounts.strength
        if changes.room is not None:
            sound = reverberate(sound, self._impulse(generator, changes.room), strength)
        speech = sound
        sound = delay(sound, changes.length(self._clips.samples(clip)) - len(sound))
        if changes.noise is not None:
            sound = add_noise(sound, self._noise(changes, clip, len(sound)), changes.snr, of=speech)
        sound = tilt(sound, changes.tilt)
        if changes.band is not None:
            sound = limit_band(sound, *changes.band)
        return limit_peak(change_gain(clip_peaks(sound, changes.clipping), changes.gain))

    def _changes(self, epoch: int, clip: int) -> Changes | None:
        changes = draw_changes(self.amounts, self._seed, epoch, clip)
        fitted = changes.fitted(self._clips.samples(clip), self._most) if changes else None
        return None if fitted is None or fitted.nothing else fitted

    def _impulse(self, generator: np.random.Generator, seconds: float) -> np.ndarray:
        if self._impulses is None:
            return simulated_room(generator, seconds)
        return self._impulses.waveform(int(generator.integers(len(self._impulses))))

    def _noise(self, changes: Changes, clip: int, count: int) -> np.ndarray:
        generator, kind = changes.generator, changes.noise
        if kind == "any":
            kinds: tuple[NoiseKind, ...] = ("white", "coloured", "babble", "files")
            kind = kinds[int(generator.integers(len(kinds) if self._noises else 3))]
        if kind == "babble":
            voices, itself = (self._clips, clip) if self._voices is None else (self._voices, None)
            others = generator.integers(len(voices), size=int(generator.integers(*_VOICES, endpoint=True)))
            return babble(generator, [voices.waveform(int(i)) for i in others if i != itself], count)
        if kind == "files":
            assert self._noises is not None
            return excerpt(
                generator, self._noises.waveform(int(generator.integers(len(self._noises)))), count
            )
        return coloured_noise(generator, count, changes.colour if kind == "coloured" else 0.0)
