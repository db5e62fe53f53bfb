"""Labels: what the model learns to write for each clip, as text and as tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.drops import Drop
from trainer.data.text import prepare_target

if TYPE_CHECKING:
    from trainer.model.processor import Processor

TOO_LONG_TEXT = "too_long_text"
"""The only reason for a drop that depends on how texts are written."""


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels of the clips whose texts are not too long; the lists run in parallel."""

    rows: list[int]
    """Positions of these clips among all that were given."""
    targets: list[str]
    """Texts that the model learns."""
    tokens: list[list[int]]
    """Token ids with the prefix (start, language, task, no timestamps) and the end token."""


def make_labels(
    config: TrainConfig,
    processor: Processor,
    longest: int,
    *,
    split: str,
    index: Mapping[str, Sequence[Any]],
) -> tuple[Labels, list[Drop]]:
    """Labels of one split, and the clips dropped because their texts are too long.

    Args:
        config: says how texts are written.
        processor: its tokenizer has language and task set.
        longest: most tokens that the model can write, prefix included.
        split: role of the split, for the list of drops.
        index: `name` and `text` of every clip; each text has a letter or digit, so something is left of it.
    """
    targets = [
        prepare_target(
            text,
            lowercase=config.lowercase,
            remove_punctuation=config.remove_punctuation,
            language=config.language,
        )
        for text in index["text"]
    ]
    # The tokenizer fails on an empty list. One call for all: it is much faster than one for each.
    tokens = processor.tokenizer(targets).input_ids if targets else []
    labels, drops = Labels([], [], []), []
    for row, (target, ids) in enumerate(zip(targets, tokens, strict=True)):
        if len(ids) > longest:
            detail = f"{len(ids)} tokens; the model writes at most {longest}"
            drops.append(Drop(split, index["name"][row], TOO_LONG_TEXT, detail))
        else:
            labels.rows.append(row)
            labels.targets.append(target)
            labels.tokens.append(list(ids))
    return labels, drops
