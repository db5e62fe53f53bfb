"""What a model can take, and which clips training would leave out for it: told by the code that leaves them out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE
from trainer.data.clips import ClipTable
from trainer.data.drops import DROP_REASONS, Drop, check_drops, check_usable, count_by_reason
from trainer.data.labels import make_labels
from trainer.errors import DataError
from trainer.inspection.findings import Entry, Finding, make_finding
from trainer.inspection.sound import Unusable
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model_config

if TYPE_CHECKING:
    from trainer.model.processor import Processor

WHISPER_SECONDS, WHISPER_TOKENS = 30, 448
"""Of every Whisper model that OpenAI published."""
_PREFIX = 5
"""Tokens around every text: start, language, task, no timestamps, end."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a clip may be for a model."""

    model: str | None
    """None: Whisper's usual limits, without a tokenizer to count by."""
    max_samples: int
    """The window at 16 kHz."""
    max_tokens: int
    """Most tokens of a text, with those around it."""
    processor: Processor | None

    @property
    def window(self) -> float:
        """The window in seconds."""
        return self.max_samples / SAMPLE_RATE


def find_limits(config: TrainConfig, *, with_model: bool) -> Limits:
    """The limits of `config.model`, or those that all of Whisper's own models have.

    Raises:
        ModelError: the model cannot be found, or does not know the language.
    """
    if not with_model:
        return Limits(None, WHISPER_SECONDS * SAMPLE_RATE, WHISPER_TOKENS, None)
    processor = load_processor(config)
    longest = int(load_model_config(config).max_target_positions)
    return Limits(config.model, int(processor.feature_extractor.n_samples), longest, processor)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What training would drop."""

    drops: list[Drop]
    stops: str | None
    """The error that a search would stop with: too much is dropped, or a split has nothing left."""
    maybe_too_long: int
    """Texts that might be too long for Whisper, where no model was named to count their tokens by."""


def find_left_out(
    config: TrainConfig, table: ClipTable, entries: Sequence[Entry], limits: Limits, *, whole: bool
) -> LeftOut:
    """The clips that a search would drop, as it would; counts the tokens of the others.

    Args:
        config: its settings of the texts count.
        table: the clips as loaded, with those that have no text.
        entries: the same clips, with what was heard; `tokens` of them is set.
        limits: of the model.
        whole: whether all were listened to, so that the share of drops can be judged.
    """
    drops = [
        Drop(entry.split, entry.name, entry.sound.reason, entry.sound.detail)
        for entry in entries
        if isinstance(entry.sound, Unusable)
    ]
    drops += table.drops
    usable: dict[str, list[Entry]] = {split: [] for split in table.splits}
    for entry in entries:
        if not isinstance(entry.sound, Unusable):
            usable[entry.split].append(entry)
    left = {split: len(chosen) for split, chosen in usable.items()}
    maybe = 0
    for split, chosen in usable.items():
        if limits.processor is None:
            # No byte makes more than one token.
            maybe += sum(len(entry.text.encode()) > limits.max_tokens - _PREFIX for entry in chosen)
            continue
        index = {"name": [entry.name for entry in chosen], "text": [entry.text for entry in chosen]}
        labels, dropped = make_labels(config, limits.processor, limits.max_tokens, split=split, index=index)
        for row, tokens in zip(labels.rows, labels.tokens, strict=True):
            chosen[row].tokens = len(tokens)
        left[split] -= len(dropped)
        drops += dropped
    stops = None
    if whole:
        try:
            check_usable(config, drops, left=left, window=limits.window)
            check_drops(config, drops, total=table.total + len(table.drops), window=limits.window)
        except DataError as error:
            stops = str(error)
    return LeftOut(drops, stops, maybe)


def find_dropped(left_out: LeftOut, total: int) -> list[Finding]:
    """What a search would do without, or stop for."""
    drops = left_out.drops
    told = ", ".join(f"{count:,} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    title = f"would be left out: {len(drops):,} of {total:,} clips: {told}"
    if left_out.stops is not None:
        title = f"a search would stop: {left_out.stops}"
    suspects = [(drop, f"{DROP_REASONS[drop.reason]}: {drop.detail}") for drop in drops]
    return make_finding("dropped", suspects, told=title)
