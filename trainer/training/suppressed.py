"""What the training texts hold may be written: OpenAI's models are kept from some ninety signs, such as brackets.

The list is taken short where a training makes its model, in all trials and workers alike and after a resume, and saved
with the weights; so evaluations, averages and exports decode with it. The base model has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from trainer.config import TrainConfig
from trainer.model.pretrained import load_generation_config
from trainer.model.processor import Processor, load_processor

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from trainer.data.prepared import PreparedData

_MOST_SHOWN = 12


def allow_label_tokens(
    generation: GenerationConfig, config: TrainConfig, data: PreparedData, processor: Processor
) -> list[int]:
    """Take the tokens of the training texts off the lists of a generation config, unless `keep_suppress_tokens`.

    The texts of a stream are not known beforehand: those of its validation split stand for them.

    Returns:
        The tokens that were on the lists.
    """
    if config.keep_suppress_tokens:
        return []
    labels = data.splits["validation" if data.stream is not None else "train"].all_labels.tokens
    # Below the end token all are text; language and task, on the lists as well, are never written but given.
    end = processor.tokenizer.eos_token_id
    tokens = labels.flatten().to_numpy()
    taught = np.intersect1d(generation.suppress_tokens or [], tokens[tokens < end])
    first = pc.list_element(labels, len(processor.tokenizer.prefix_tokens)).to_numpy()
    # The end itself comes first where nothing is said (`empty_text=keep`).
    taken = set[int]()
    for name, allowed in (("suppress_tokens", taught), ("begin_suppress_tokens", first[first <= end])):
        listed = getattr(generation, name, None) or []
        if both := set(allowed.tolist()).intersection(listed):
            setattr(generation, name, [token for token in listed if token not in both])
            taken |= both
    return sorted(taken)


def allowed_tokens_note(config: TrainConfig, data: PreparedData) -> str | None:
    """A sentence for the user on what a training with these settings takes off the lists; None where it is nothing."""
    processor = load_processor(config)
    tokens = allow_label_tokens(load_generation_config(config.model), config, data, processor)
    # A space that a text begins with is no sign. Of "♪" and its like the list has the first two bytes, which no text
    # is made of.
    written = [token for token in tokens if token != processor.tokenizer.eos_token_id]
    decoded = [text for text in map(processor.tokenizer.decode, written) if text.strip()]
    signs = [sign or "others" for sign in dict.fromkeys(text.strip(" \ufffd") for text in decoded)]
    if not signs:
        return None
    more = f" and {len(signs) - _MOST_SHOWN} more" if len(signs) > _MOST_SHOWN else ""
    return (
        f"{config.model} never writes {' '.join(signs[:_MOST_SHOWN])}{more} (its suppress_tokens), but the training "
        "texts contain them: fine-tuned models may write them (keep_suppress_tokens=true: they may not)"
    )
