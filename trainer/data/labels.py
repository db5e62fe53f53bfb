"""Token ids that the model learns to write, of texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.drops import Drop
from trainer.data.text import prepare_target
from trainer.errors import ModelError
from trainer.languages import WITHOUT_SPACES
from trainer.mix import read_mix
from trainer.model.processor import Processor, prefix_tokens

TOO_LONG_TEXT = "too_long_text"
"""The only reason for a drop that depends on how texts are written."""


_TOKENS = pa.large_list(pa.int32())


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """Labels of the clips whose texts are not too long, as arrays, which processes share at no cost."""

    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    """int32 (clips,): positions of these clips among all that were given."""
    tokens: pa.LargeListArray = dataclasses.field(default_factory=lambda: pa.array([], _TOKENS))
    """int32 ids of each clip, with the prefix (start, language, task, no timestamps) and the end token."""

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, i: int) -> np.ndarray:
        """int32: token ids of clip `i`."""
        tokens: np.ndarray = self.tokens[i].values.to_numpy()
        return tokens

    def only(self, clips: Sequence[int] | np.ndarray) -> Labels:
        chosen = np.asarray(clips, np.int64)
        return Labels(self.rows[chosen], self.tokens.take(chosen))


_AT_ONCE = 2_000
"""Texts that are tokenised in one call: much faster than one by one, and lists of all tokens would take gigabytes."""


def make_labels(
    config: TrainConfig, processor: Processor, longest: int, *, split: str, index: Mapping[str, Any]
) -> tuple[Labels, list[Drop]]:
    """Labels of one split, and the clips dropped because their texts are too long.

    `longest` is the most tokens that the model can write, prefix included. `index` has `name` and `text` of every
    clip, and `origin` where they have several; only an empty text has no letter or digit.
    """
    texts, origins = index["text"], index.get("origin")
    configs = [origin.config(config) for origin in origins.kinds] if origins else [config]
    prefixes = [prefix_tokens(own, processor) for own in configs]
    # Whisper's vocabulary has words with the space in front of them.
    leads = [" " * (own.leading_space and own.written_language not in WITHOUT_SPACES) for own in configs]
    usual = prefix_tokens(config, processor)
    kept, drops = [Labels()], list[Drop]()
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        kinds = origins.numbers[start : start + _AT_ONCE].tolist() if origins else [0] * len(some)
        targets = [
            (leads[kind] if text else "")
            + prepare_target(
                text,
                lowercase=config.lowercase,
                remove_punctuation=config.remove_punctuation,
                language=configs[kind].written_language,
            )
            for text, kind in zip(map(str, some), kinds, strict=True)
        ]
        # `<|endoftext|>` in a text is text, not the end.
        tokens = processor.tokenizer(targets, split_special_tokens=True).input_ids
        for ids, kind in zip(tokens, kinds, strict=True) if prefixes != [usual] else ():
            ids[: len(usual)] = prefixes[kind]
        lengths = np.fromiter(map(len, tokens), np.int64)
        rows = np.arange(start, start + len(some), dtype=np.int32)
        kept.append(Labels(rows, pa.array(tokens, _TOKENS)).only(np.flatnonzero(lengths <= longest)))
        drops += [
            Drop(
                split,
                str(index["name"][start + row]),
                TOO_LONG_TEXT,
                f"{lengths[row]} tokens; the model writes at most {longest}",
            )
            for row in np.flatnonzero(lengths > longest).tolist()
        ]
    rows = np.concatenate([one.rows for one in kept])
    return Labels(rows, pa.concat_arrays([one.tokens for one in kept])), drops


def check_languages(config: TrainConfig, clips: Iterable[Clip], processor: Processor) -> None:
    """Refuse languages and tasks of clips that the model does not know, before features are computed.

    Raises:
        ModelError: it does not know one; of a data file's source with the file and its line.
    """
    for origin in dict.fromkeys(clip.origin for clip in clips):
        try:
            prefix_tokens(origin.config(config), processor)
        except ModelError as error:
            if not origin.source:
                raise
            mix = read_mix(config.data)
            location = next(mix.location(source) for source in mix.sources if source.name == origin.source)
            raise ModelError(f"{location}: {error}") from error
    prefix_tokens(config, processor)
