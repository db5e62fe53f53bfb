"""What a search says about its data before it spends anything: checks of texts and lengths that take a moment."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from trainer.inspection.characters import main_scripts
from trainer.inspection.findings import clips
from trainer.inspection.odd_characters import certainly_odd
from trainer.inspection.rates import find_misfits
from trainer.inspection.split_findings import FEW_WORDS, leak_count, small_split
from trainer.inspection.texts import characters_of, count_words, text_keys

_SCRIPT_SAMPLE = 5000
"""Texts from which it is seen in which script all are written."""
_FAR = 2.0
"""Times longer or shorter than usual: lengths are with the silence around, which differs."""


class Clips(Protocol):
    """One split, as prepared for training."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """The file."""

    def text(self, i: int) -> str:
        """The transcript."""

    def seconds(self, i: int) -> float:
        """Length of the audio."""


@dataclasses.dataclass(frozen=True)
class QuickLook:
    """What can be said of prepared data in a moment."""

    warnings: list[str]
    """What looks wrong, the most important first."""
    small: str | None
    """That the validation split has too few words to measure by."""


def quick_look(splits: Mapping[str, Clips]) -> QuickLook:
    """Look at texts and lengths, without reading audio: half a second for 100,000 clips."""
    texts = {name: [split.text(i) for i in range(len(split))] for name, split in splits.items()}
    keys = {name: text_keys(mine) for name, mine in texts.items()}
    warnings = [
        *_shared_texts(keys),
        *_misfits(splits, keys),
        *_listed_twice(splits, keys),
        *_odd_characters(splits, texts),
    ]
    number, unit = count_words(texts.get("validation", ()))
    few = 0 < number < FEW_WORDS
    return QuickLook(warnings, small_split("validation", number, unit) if few else None)


def _shared_texts(keys: Mapping[str, Sequence[str]]) -> list[str]:
    learned = set(keys.get("train", ()))
    judged = [key for name, mine in keys.items() if name != "train" for key in mine]
    shared = [key for key in judged if key in learned]
    if not shared:
        return []
    told = leak_count(len(set(shared)), len(shared), len(judged))
    return [f"texts of the training clips are in other splits too: {told}; their WER is too good"]


def _misfits(splits: Mapping[str, Clips], keys: Mapping[str, Sequence[str]]) -> list[str]:
    places = [(name, i) for name, split in splits.items() for i in range(len(split))]
    seconds = [splits[name].seconds(i) for name, i in places]
    _, misfits = find_misfits(seconds, [len(keys[name][i]) for name, i in places])
    far = [
        misfit
        for misfit in misfits
        if misfit.usual is None or not 1 / _FAR < seconds[misfit.position] / misfit.usual < _FAR
    ]
    if not far:
        return []
    name, i = places[far[0].position]
    return [
        f"text far too long or too short for its audio: {clips(len(far))}, such as {splits[name].name(i)} ({name})"
    ]


def _listed_twice(splits: Mapping[str, Clips], keys: Mapping[str, Sequence[str]]) -> list[str]:
    names = [(name, split.name(i)) for name, split in splits.items() for i in range(len(split))]
    if len(set(names)) == len(names):
        return []
    # By name alone it is not told: some data sets call every file `audio.wav`.
    rows = Counter(
        (split.name(i), keys[name][i], split.seconds(i))
        for name, split in splits.items()
        for i in range(len(split))
    )
    again = rows.total() - len(rows)
    if not again:
        return []
    first = next(name for (name, _, _), count in rows.items() if count > 1)
    return [f"listed more than once: {clips(again)}, such as {first}"]


def _odd_characters(splits: Mapping[str, Clips], texts: Mapping[str, Sequence[str]]) -> list[str]:
    every = [text for mine in texts.values() for text in mine]
    step = max(1, len(every) // _SCRIPT_SAMPLE)
    mains = main_scripts(Counter("".join(every[::step])))
    odd = certainly_odd(every, characters_of("".join(every)), mains)
    if not odd:
        return []
    at = odd[0].position
    for name, mine in texts.items():
        if at < len(mine):
            return [f"odd characters in {clips(len(odd))}, such as {splits[name].name(at)}: {odd[0].detail}"]
        at -= len(mine)
    return []
