"""Whether a converted model still writes what it wrote: its WER beside that of transformers, on the same clips.

Both get the audio itself, so that the runtime's own features are checked too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config import TrainConfig
from trainer.conversion.formats import FORMATS, Target, read_decoding, transcribe
from trainer.data.audio import AudioError, read_audio
from trainer.data.clips import load_clips
from trainer.errors import DataError
from trainer.scoring.alignment import count_errors
from trainer.scoring.normalizers import make_normalizer
from trainer.scoring.objectives import CHRF_ERROR, WER, task_of, words
from trainer.scoring.translation import TRANSLATE, count_chrf

_MOST_CLIPS = 32
"""Clips of the validation split that are transcribed."""
_POINTS = {"float32": 0.5, "float16": 0.5, "int8": 1.5, "int8_float16": 1.5, "q5_0": 2.0}
"""WER points that a conversion may cost, by how it stores its weights."""
_WORDS = 2
"""On few clips so many words decide: a word that two candidates are equally likely for goes by rounding."""

Progress = Callable[[str, int, int], None]
"""Called with the runtime, clips done and clips in all."""


@dataclasses.dataclass
class CheckClips:
    audio: list[np.ndarray] = dataclasses.field(default_factory=list)
    """float32 (samples,) each, 16 kHz mono."""
    texts: list[str] = dataclasses.field(default_factory=list)


def read_clips(
    config: TrainConfig, window: float, split: str = "validation", most: int = _MOST_CLIPS
) -> CheckClips:
    """Clips of a split, evenly spread over it, but for unreadable ones and those longer than the window, in seconds.

    Raises:
        DataError: the data cannot be found or read, or none of its clips can be used.
    """
    chosen, every = CheckClips(), load_clips(config).splits.get(split, [])
    # A format decodes in one language: of data in several, those clips that the model decodes so by itself.
    clips = [clip for clip in every if clip.origin.config(config) == config] or every
    if config.task != TRANSLATE and config.empty_text != "keep":
        # Of texts without a word for the normaliser, as `hmm`, nobody knows what was said: in no rate, as elsewhere.
        normalizer = make_normalizer(config)
        clips = [clip for clip in clips if normalizer(clip.text)]
    count = min(most, len(clips))
    for clip in (clips[index * len(clips) // count] for index in range(count)):
        try:
            chosen.audio.append(read_audio(clip.source(), max_seconds=window))
        except AudioError:
            continue
        chosen.texts.append(clip.text)
    if not chosen.audio:
        raise DataError(f"data={config.data!r}: none of its {split} clips can be read")
    return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatCheck:
    """A converted model beside its original, on the same clips. Error rates in percent."""

    format: str
    quantization: str
    clips: int
    words: int
    """Of the normalised references (characters, in languages without spaces)."""
    objective: str
    rate: float
    """Of the converted model, in its own runtime."""
    hf_rate: float
    """Of the same model in transformers."""
    same: int
    """Clips with the same normalised transcript in both."""
    drift: float
    """WER points between the two, where a clip has at most as many errors as words: one near tie can send a
    transcript into a loop in one runtime only, and counts as one wrong clip then, not as twenty insertions."""
    tolerance: float
    """Points that the drift may come to."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, the rates by their name: `wer`, `hf_wer`."""
        values = dataclasses.asdict(self)
        name = values.pop("objective")
        values |= {name: values.pop("rate"), f"hf_{name}": values.pop("hf_rate")}
        return values

    @property
    def problem(self) -> str | None:
        """In one line, where the conversion cost, or changed, more than it may."""
        if abs(self.drift) <= self.tolerance:
            return None
        return words(
            f"{self.format} ({self.quantization}): in {FORMATS[self.format].runtime} the model has a WER of "
            f"{self.rate:.2f} % on {self.clips} clips, in transformers {self.hf_rate:.2f} %: "
            f"a drift of {self.drift:+.2f} points, over the tolerance of {self.tolerance:.2f}",
            task_of(self.objective),
        )


class Checker:
    """Holds clips and the original's transcripts, against which any number of formats are checked."""

    def __init__(self, config: TrainConfig, folder: Path, clips: CheckClips, progress: Progress) -> None:
        """Transcribe the clips, none longer than the window, with the original, a Hugging Face folder."""
        translates = config.task == TRANSLATE
        self._normalize: Callable[[str], str] = str.strip if translates else make_normalizer(config)
        self._count = count_chrf if translates else count_errors
        self._objective = CHRF_ERROR if translates else WER
        self._decoding = read_decoding(folder)
        self._clips = clips
        self._progress = progress
        self._original = self._transcribe("hf", folder)

    def _transcribe(self, name: str, folder: Path) -> list[str]:
        texts: list[str] = []
        for text in transcribe(name, folder, self._decoding, self._clips.audio):
            texts.append(self._normalize(text))
            self._progress(FORMATS[name].runtime, len(texts), len(self._clips.audio))
        return texts

    def check(self, target: Target, folder: Path) -> FormatCheck:
        """Transcribe the clips with a converted model; a `ModelError` where the runtime cannot load it."""
        texts = self._transcribe(target.name, folder)
        references = [self._normalize(text) for text in self._clips.texts]
        original, converted = self._count(references, self._original), self._count(references, texts)
        lengths = original.lengths
        words = int(lengths.sum())
        change = np.minimum(converted.errors, lengths) - np.minimum(original.errors, lengths)
        return FormatCheck(
            format=target.name,
            quantization=target.quantization,
            clips=len(texts),
            words=words,
            objective=self._objective,
            rate=converted.percent,
            hf_rate=original.percent,
            same=sum(a == b for a, b in zip(texts, self._original, strict=True)),
            drift=100.0 * float(change.sum()) / words,
            tolerance=max(_POINTS[target.quantization], 100.0 * _WORDS / max(1, words)),
        )
