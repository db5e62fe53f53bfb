"""Whisper's processor: what makes features of audio, and ids of text."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.errors import ModelError
from trainer.model.pretrained import load_part

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor, WhisperTokenizer

_ENGLISH_END = 50_256
"""Id of `<|endoftext|>` in the vocabulary of models that only know English, one below that of all others."""


@dataclasses.dataclass(frozen=True)
class Processor:
    """Both parts of transformers' `WhisperProcessor`, whose module takes 2 s more to import: it is there for images
    and video as well.
    """

    feature_extractor: WhisperFeatureExtractor
    tokenizer: WhisperTokenizer

    @classmethod
    def from_pretrained(cls, path: str) -> Processor:
        from transformers import WhisperFeatureExtractor, WhisperTokenizer

        return cls(WhisperFeatureExtractor.from_pretrained(path), WhisperTokenizer.from_pretrained(path))

    @functools.cached_property
    def is_multilingual(self) -> bool:
        """Whether its language tokens are used: `.en` models have them too, but never learnt them."""
        english, end = self.tokenizer.convert_tokens_to_ids(["<|en|>", "<|endoftext|>"])
        return english not in (None, self.tokenizer.unk_token_id) and end != _ENGLISH_END

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files that transformers' own writes, such that version 4 can read them, too."""
        from transformers import WhisperProcessor

        WhisperProcessor(feature_extractor=self.feature_extractor, tokenizer=self.tokenizer).save_pretrained(
            folder
        )
        path = Path(folder) / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(special := settings.get("extra_special_tokens"), list):  # 4.57 wants a mapping there
            del settings["extra_special_tokens"]
            settings["additional_special_tokens"] = special
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_processor(config: TrainConfig) -> Processor:
    """Feature extractor and tokenizer, with language and task set on the tokenizer's prefix.

    Raises:
        ModelError: the model cannot be loaded, has no tokenizer, or does not know the language or the task.
    """
    processor: Processor = load_part(Processor, config.model, "processor")
    # Without its files transformers makes a tokenizer of special tokens alone.
    ids = processor.tokenizer("a", add_special_tokens=False).input_ids
    if not processor.tokenizer.decode(ids, skip_special_tokens=True).strip():
        raise ModelError(
            f"model={config.model!r}: the folder has no tokenizer that knows words (tokenizer.json, or vocab.json "
            "and merges.txt); copy it from the model that was fine-tuned"
        )
    prefix_tokens(config, processor)
    return processor


def window_seconds(extractor: WhisperFeatureExtractor) -> float:
    """Longest clip that the model hears, in seconds."""
    return float(extractor.n_samples / extractor.sampling_rate)


def prefix_tokens(config: TrainConfig, processor: Processor) -> list[int]:
    """Start, language, task and no-timestamps token of a transcript; the tokenizer's own from here on.

    Those of a model that only knows English are always the same.

    Raises:
        ModelError: the model does not know the language or the task.
    """
    tokenizer = processor.tokenizer
    if not processor.is_multilingual:
        if config.language not in (None, "en") or config.task != "transcribe":
            raise ModelError(
                f"language={config.language!r}, task={config.task!r}: {config.model} only transcribes English; "
                "take a model without .en"
            )
        return list(tokenizer.prefix_tokens)
    # Looked up by name: transformers computes the id by counting, which for a language that is not in the
    # vocabulary (yue before large-v3) gives some other token.
    token = f"<|{config.language}|>"
    known = tokenizer.convert_tokens_to_ids(token)
    if config.language is None or known in (None, tokenizer.unk_token_id):
        fix = (
            "give one (null is for .en models)"
            if config.language is None
            else "take a newer or another model"
        )
        raise ModelError(f"language={config.language!r}: {config.model} has no such language; {fix}")
    tokenizer.set_prefix_tokens(language=config.language, task=config.task, predict_timestamps=False)
    if tokenizer.prefix_tokens[1] != known:
        raise ModelError(f"model={config.model!r}: its tokenizer puts no {token} in front of transcripts")
    return list(tokenizer.prefix_tokens)
