"""Features of training clips whose waveforms are changed, and the lengths that they have then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trainer.augmentation.augmenter import Amounts, Augmenter
from trainer.augmentation.sounds import open_sounds
from trainer.config import TrainConfig
from trainer.data.features import count_frames, extract_features
from trainer.threads import one_torch_thread
from trainer.training.window import FRAMES_PER_SECOND, round_window, window_frames

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

    from trainer.data.prepared import PreparedData, PreparedSplit


def amounts_of(config: TrainConfig) -> Amounts:
    """How much the settings change clips."""
    return Amounts(
        share=config.augment,
        strength=config.augment_strength,
        speed=config.augment_speed,
        tempo=config.augment_tempo,
        shift=config.augment_shift,
        reverb=config.augment_reverb,
        reverb_seconds=config.augment_reverb_seconds,
        noise=config.augment_noise,
        snr=config.augment_snr,
        noise_kind=config.augment_noise_kind,
        tilt=config.augment_tilt,
        telephone=config.augment_telephone,
        clipping=config.augment_clipping,
        gain=config.augment_gain,
    )


class AugmentedSplit:
    """The training split as it is heard in each epoch, the same in whatever process and batch."""

    def __init__(
        self, split: PreparedSplit, extractor: WhisperFeatureExtractor, augmenter: Augmenter, window: int
    ) -> None:
        self._split, self._extractor, self._augmenter = split, extractor, augmenter
        self.window = window
        """Feature frames that hold every clip, however it is changed."""

    @classmethod
    def open(
        cls, config: TrainConfig, data: PreparedData, extractor: WhisperFeatureExtractor, full: int
    ) -> AugmentedSplit:
        """What `config` makes of the training split, of a model that hears `full` frames.

        Raises:
            DataError: noises or impulse responses cannot be read.
        """
        split, amounts = data.splits["train"], amounts_of(config)
        window = augmented_frames(config, data, amounts, full)
        cache = data.folder.parent
        augmenter = Augmenter(
            amounts,
            seed=config.seed,
            clips=split,
            most_samples=most_samples(extractor, window, full),
            noises=open_sounds("noise_dir", config.noise_dir, cache) if config.noise_dir else None,
            impulses=open_sounds("impulse_dir", config.impulse_dir, cache) if config.impulse_dir else None,
        )
        return cls(split, extractor, augmenter, window)

    def frames(self, epochs: np.ndarray, clips: np.ndarray) -> np.ndarray:
        """Feature frames of clips in their epochs, (clips,) each."""
        return np.array(
            [
                count_frames(self._extractor, self._augmenter.samples(epoch, clip))
                for epoch, clip in zip(epochs.tolist(), clips.tolist(), strict=True)
            ],
            np.int64,
        )

    def features(self, epoch: int, clip: int) -> tuple[np.ndarray, float]:
        """Features of a clip in an epoch, float16 (n_mels, frames), and the constant of all later frames."""
        waveform = self._augmenter.waveform(epoch, clip)
        if waveform is None:
            return self._split.features(clip), self._split.fill(clip)
        # More threads would sum in another order.
        with one_torch_thread():
            return extract_features(self._extractor, waveform)


def most_samples(extractor: WhisperFeatureExtractor, window: int, full: int) -> int:
    """Samples of the longest clip that fits into a window of so many frames, of a model that hears `full`."""
    # A clip has a frame or two more than its samples fill, but where the model hears no more.
    return int(window * extractor.hop_length - (0 if window == full else extractor.n_fft // 2))


def augmented_frames(config: TrainConfig, data: PreparedData, amounts: Amounts, full: int) -> int:
    """The window of a training whose clips may be longer than they are.

    A number of seconds stays what it is: clips are slowed down as far as they fit.
    """
    own = window_frames(config, data, full)
    if isinstance(config.audio_window, float):
        return own
    times, seconds = amounts.longest
    longest = data.splits["train"].most_frames() * times + seconds * FRAMES_PER_SECOND
    return min(full, max(own, round_window(math.ceil(longest))))
