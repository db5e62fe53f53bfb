"""A Whisper that transcribes: clips of one window each, in batches, decoded as in an evaluation."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE
from trainer.model.pretrained import find_model
from trainer.model.processor import is_multilingual
from trainer.scoring.batch_size import BatchSize
from trainer.scoring.decoding import Decoder, transcribe_encoded
from trainer.training.checkpoints import CONFIG_FILE
from trainer.transcription.transcripts import Doubt

if TYPE_CHECKING:
    import numpy as np
    import torch

_REPEATS = 2.4
"""Text that zlib makes smaller than this many times says the same over and over (openai/whisper's threshold)."""
_TIME_STEP = 0.02
"""Seconds from one timestamp token to the next."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Text between two of the model's own timestamps, in seconds from the beginning of its clip."""

    start: float
    end: float | None
    """`None` where the model gave none."""
    text: str


@dataclasses.dataclass(frozen=True)
class Decoded:
    """What was heard in one clip."""

    text: str
    ended: bool
    """Whether the model came to an end before the longest transcript it can write."""
    parts: tuple[Part, ...] = ()
    """The text again, where timestamps were asked for."""

    @property
    def doubt(self) -> Doubt | None:
        """`repeats`: it says the same over and over, as a model does that has lost the thread; `breaks off`."""
        text = self.text.encode()
        if len(text) > _REPEATS * len(zlib.compress(text)):
            return "repeats"
        return None if self.ended else "breaks off"


class Recogniser:
    """A model and its processor on the GPU, where there is one, ready for clips of 16 kHz audio."""

    def __init__(
        self,
        model: str,
        *,
        language: str | None = None,
        task: str | None = None,
        batch_size: int = 16,
        num_beams: int = 1,
    ) -> None:
        """Load the model; several seconds.

        Args:
            model: hub id, folder or short name.
            language: Whisper's code or name; `None` takes the model's own, and where it has none it is heard from the
                audio.
            task: `transcribe` or `translate`; `None` takes the model's own.
            batch_size: windows decoded at once; halved where they do not fit in the GPU's memory.
            num_beams: 1 is greedy, as trials are measured.

        Raises:
            ModelError: it cannot be loaded, or has not that language or task.
            ConfigError: Whisper knows no such language.
        """
        from transformers import logging

        logging.set_verbosity_error()  # Whisper's generate passes itself deprecated arguments (5.23) and says so
        asked = TrainConfig(model=model, language=language or "en", generation_num_beams=num_beams)
        folder = find_model(asked)
        own = _own_generation(folder)
        known = asked.language if language else own.get("language")
        asked = asked.replace(task=task or own.get("task") or "transcribe", language=known or asked.language)
        decoder = Decoder(asked)
        self.model, self.processor, self.device = decoder.model, decoder.processor, decoder.device
        self._arithmetic, self._greedy = decoder.arithmetic, decoder.greedy
        self.batch_size, self.task = batch_size, asked.task
        self._size = BatchSize(batch_size, clip_bytes=0)
        self._ours = (folder / CONFIG_FILE).is_file()
        self._multilingual = is_multilingual(self.processor)
        self.language: str | None = asked.language if known or not self._multilingual else None

    @property
    def window(self) -> float:
        """Longest clip that the model hears, in seconds."""
        return float(self.processor.feature_extractor.n_samples / SAMPLE_RATE)

    @property
    def has_timestamps(self) -> bool:
        """Whether timestamps are in the model's vocabulary."""
        last = getattr(self.model.generation_config, "no_timestamps_token_id", None)
        return last is not None and last + 1 < self.model.config.vocab_size

    @property
    def may_know_times(self) -> bool:
        """Whether the model can have learnt timestamps: it has them, and is none of ours."""
        return self.has_timestamps and not self._ours

    def hear_language(self, clip: np.ndarray) -> str:
        """The code of the language that a clip is most likely in."""
        import torch

        with torch.no_grad(), self._arithmetic():
            features = self._features([clip])
            ids = self.model.detect_language(features, generation_config=self.model.generation_config)
        codes = {number: token for token, number in self.model.generation_config.lang_to_id.items()}
        return str(codes[int(ids[0])]).strip("<|>")

    def decode(
        self, clips: Sequence[np.ndarray], languages: Sequence[str | None], *, timed: bool = False
    ) -> list[Decoded]:
        """Transcripts of clips that fit the window; a batch that does not fit in memory is halved.

        Args:
            clips: float32 (samples,) each, 16 kHz mono.
            languages: of each; `None` for a model that knows English only.
            timed: let the model write timestamps.

        Raises:
            RuntimeError: not even one of them fits in memory.
        """
        parts = self._size.in_parts(
            len(clips),
            lambda part: self._decode_batch(clips[part], languages[part], timed),
            self._greedy.forget,
        )
        return [decoded for part in parts for decoded in part]

    def _decode_batch(
        self, clips: Sequence[np.ndarray], languages: Sequence[str | None], timed: bool
    ) -> list[Decoded]:
        """One pass of the encoder, one search for each language, as an evaluation does it."""
        import torch
        from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor
        from transformers.modeling_outputs import BaseModelOutput

        found: dict[int, Decoded] = {}
        with torch.no_grad(), self._arithmetic():
            hidden = self.model.get_encoder()(self._features(clips)).last_hidden_state
            for language in dict.fromkeys(languages):
                rows = [row for row, other in enumerate(languages) if other == language]
                prefix = self._prefix(language)
                encoded = BaseModelOutput(hidden[rows])
                rules = []
                if timed:
                    prefix = prefix[:-1]  # without <|notimestamps|>
                    # Times come in pairs and never go back.
                    settings = self.model.generation_config
                    rules = [WhisperTimeStampLogitsProcessor(settings, begin_index=len(prefix))]
                tokens = transcribe_encoded(self.model, prefix, encoded, rules=rules, greedy=self._greedy)
                for row, ids in zip(rows, tokens[:, len(prefix) :].tolist(), strict=True):
                    found[row] = self._read(ids, timed)
        return [found[row] for row in range(len(clips))]

    def _read(self, ids: list[int], timed: bool) -> Decoded:
        """What a row of token ids says."""
        end, tokenizer = self.model.config.eos_token_id, self.processor.tokenizer
        ended = end in ids
        if not timed:
            return Decoded(tokenizer.decode(ids, skip_special_tokens=True).strip(), ended)
        first = self.model.generation_config.no_timestamps_token_id + 1
        parts: list[Part] = []
        words: list[int] = []
        start = 0.0
        for token in [*(ids[: ids.index(end)] if ended else ids), None]:
            if token is not None and token < first:
                words.append(token)
                continue
            time = None if token is None else (token - first) * _TIME_STEP
            if words:
                text = tokenizer.decode(words, skip_special_tokens=True).strip()
                parts.append(Part(start, time, text))
                words = []
            start = start if time is None else time
        return Decoded(" ".join(part.text for part in parts), ended, tuple(parts))

    def _prefix(self, language: str | None) -> list[int]:
        """What the transcript begins with: language, task, no timestamps."""
        prefix: list[int] = list(self.processor.tokenizer.prefix_tokens)
        if self._multilingual:
            prefix[1] = self.processor.tokenizer.convert_tokens_to_ids(f"<|{language}|>")
        return prefix

    def _features(self, clips: Sequence[np.ndarray]) -> torch.Tensor:
        """Float32 (batch, n_mels, n_frames): each clip and silence up to the window."""
        out = self.processor.feature_extractor(list(clips), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        return out["input_features"].to(self.device)  # type: ignore[no-any-return]


def _own_generation(folder: Path) -> dict[str, Any]:
    """The language and task that the model itself names."""
    from transformers import GenerationConfig

    try:
        own = GenerationConfig.from_pretrained(folder)
    except (OSError, ValueError):  # older models have none
        return {}
    return {name: getattr(own, name, None) for name in ("language", "task")}
