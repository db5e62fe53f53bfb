"""Features of training clips whose waveforms are changed, and the lengths that they have then."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trainer.augmentation.augmenter import Augmenter
from trainer.config import TrainConfig
from trainer.data.features import count_frames, extract_features
from trainer.threads import one_torch_thread
from trainer.training.window import round_window

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

    from trainer.data.prepared import PreparedSplit


class AugmentedSplit:
    """The training split as it is heard in each epoch, the same in whatever process and batch."""

    def __init__(
        self,
        config: TrainConfig,
        split: PreparedSplit,
        extractor: WhisperFeatureExtractor,
        window: int,
        full: int,
    ) -> None:
        """What `config` makes of a split.

        `window` is that of clips that are not changed, `full` the model's own, in feature frames.

        Raises:
            DataError: noises or impulse responses cannot be read.
        """
        self._split, self._extractor = split, extractor
        self.window = augmented_frames(config, split, window, full)
        """Feature frames that hold every clip, however it is changed."""
        longest = most_samples(extractor, self.window, full)
        self._augmenter = Augmenter(config, longest)

    def frames(self, epochs: np.ndarray, clips: np.ndarray) -> np.ndarray:
        """Feature frames of clips in their epochs, (clips,) each."""
        return np.array(
            [
                count_frames(self._extractor, self._augmenter.samples(epoch, clip, self._split.samples(clip)))
                for epoch, clip in zip(epochs.tolist(), clips.tolist(), strict=True)
            ],
            np.int64,
        )

    def features(self, epoch: int, clip: int) -> tuple[np.ndarray, float]:
        """Features of a clip in an epoch, float16 (n_mels, frames), and the constant of all later frames."""
        changes = self._augmenter.changes(epoch, clip, self._split.samples(clip))
        if changes is None:
            return self._split.features(clip), self._split.fill(clip)
        waveform = self._augmenter.change(changes, self._split.waveform(clip))
        # More threads would sum in another order.
        with one_torch_thread():
            return extract_features(self._extractor, waveform)


def most_samples(extractor: WhisperFeatureExtractor, window: int, full: int) -> int:
    """Samples of the longest clip that fits into a window of so many frames, of a model that hears `full`."""
    # A clip has a frame or two more than its samples fill, but where the model hears no more.
    return int(window * extractor.hop_length - (0 if window == full else extractor.n_fft // 2))


def augmented_frames(config: TrainConfig, split: PreparedSplit, window: int, full: int) -> int:
    """The window of a training whose clips may be longer than they are; else it is `window`.

    A number of seconds stays what it is: clips are slowed down as far as they fit.
    """
    if isinstance(config.audio_window, float):
        return window
    slowest = (1 + config.augment_speed) ** config.augment_strength
    return min(full, max(window, round_window(math.ceil(split.most_frames() * slowest))))
