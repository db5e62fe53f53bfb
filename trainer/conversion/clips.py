"""Clips that a converted model is checked on: the audio itself, so that the runtime's own features are checked too."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE, AudioError, read_audio
from trainer.data.clips import load_clips
from trainer.errors import DataError

if TYPE_CHECKING:
    import numpy as np


@dataclasses.dataclass(frozen=True)
class CheckClips:
    """Clips of one split."""

    split: str
    audio: list[np.ndarray]
    """float32 (samples,) each, 16 kHz mono."""
    texts: list[str]
    """What is said in each, as the data set has it."""

    @property
    def seconds(self) -> float:
        """Length of all clips together."""
        return sum(len(samples) for samples in self.audio) / SAMPLE_RATE


def read_clips(config: TrainConfig, window: float, most: int | None) -> list[CheckClips]:
    """Clips of the validation split, and all of the test split where `most` is None.

    Args:
        config: its data settings count.
        window: longest clip that the model hears, in seconds; longer ones are left out, as unreadable ones are.
        most: so many clips, evenly spread over the validation split; None for every clip of both splits.

    Raises:
        DataError: the data cannot be found or read, or none of its clips can be used.
        ConfigError: the settings of the data contradict each other.
    """
    table = load_clips(config)
    found = []
    for split in ["validation"] if most is not None else ["validation", "test"]:
        # A format decodes in one language: of data in several, those clips that the model decodes so by itself.
        every = table.splits.get(split, [])
        clips = [clip for clip in every if clip.origin.config(config) == config] or every
        step = max(1.0, len(clips) / (most or len(clips) or 1))
        chosen = [clips[int(i * step)] for i in range(int(len(clips) / step))] if clips else []
        audio, texts = [], []
        for clip in chosen:
            try:
                audio.append(read_audio(clip.source(), max_seconds=window))
            except AudioError:
                continue
            texts.append(clip.text)
        if audio:
            found.append(CheckClips(split, audio, texts))
    if not found:
        raise DataError(f"data={config.data!r}: none of its validation clips can be read")
    return found
