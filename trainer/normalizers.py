"""Text normalisers applied to references and hypotheses before WER and CER are counted."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.text import prepare_target

if TYPE_CHECKING:
    from transformers import WhisperTokenizer


def make_normalizer(config: TrainConfig, tokenizer: WhisperTokenizer) -> Callable[[str], str]:
    """A function from text to normalised text, as `config.normalizer` and the language say."""
    name = config.normalizer_name
    if name == "none":
        return _unchanged
    if name == "basic":
        return _basic
    from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

    if config.language in (None, "en") or config.task == "translate":
        normalize: Callable[[str], str] = EnglishTextNormalizer(tokenizer.english_spelling_normalizer or {})
    else:
        normalize = BasicTextNormalizer()
    return lambda text: normalize(text).strip()


#: The apostrophe of typesetting, the modifier letter, the opening quote that stands for either: all the same word.
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u02bc": "'", "\u2018": "'"})


def _unchanged(text: str) -> str:
    return text.strip()


def _basic(text: str) -> str:
    """Lower case, no punctuation, single spaces; combining marks and apostrophes inside words are kept."""
    composed = unicodedata.normalize("NFKC", text).translate(_APOSTROPHES)
    return " ".join(prepare_target(composed, lowercase=True, remove_punctuation=True).split())
