"""What a search says about its data before it spends anything: checks of texts and lengths that take a moment."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.inspection.characters import main_scripts, odd_characters
from trainer.inspection.findings import clips
from trainer.inspection.rates import find_misfits
from trainer.inspection.text_findings import FEW_WORDS, leak_count, small_split
from trainer.inspection.texts import count_words, text_keys

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedSplit

_SCRIPT_SAMPLE = 5000
"""Texts from which it is seen in which script all are written."""
_FAR = 2.0
"""Times longer or shorter than usual: lengths are with the silence around, which differs."""


@dataclasses.dataclass(frozen=True)
class QuickLook:
    """What can be said of prepared data in a moment."""

    warnings: list[str]
    """What looks wrong, the most important first."""
    small: str | None
    """That the validation split has too few words to measure by."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    split: str
    name: str
    text: str
    key: str
    seconds: float


def quick_look(splits: Mapping[str, PreparedSplit]) -> QuickLook:
    """Look at texts and lengths, without reading audio: a second or two for 100,000 clips."""
    places = [(split, i) for split, mine in splits.items() for i in range(len(mine))]
    texts = [splits[split].text(i) for split, i in places]
    rows = [
        _Row(split, splits[split].name(i), text, key, splits[split].seconds(i))
        for (split, i), text, key in zip(places, texts, text_keys(texts), strict=True)
    ]
    number, unit = count_words(row.text for row in rows if row.split == "validation")
    few = 0 < number < FEW_WORDS
    found = [_shared_texts(rows), _misfits(rows), _listed_twice(rows), _odd_characters(rows)]
    return QuickLook(list(filter(None, found)), small_split("validation", number, unit) if few else None)


def _shared_texts(rows: Sequence[_Row]) -> str | None:
    learned = {row.key for row in rows if row.split == "train"}
    judged = [row.key for row in rows if row.split != "train"]
    shared = [key for key in judged if key in learned]
    told = leak_count(len(set(shared)), len(shared), len(judged))
    return (
        f"texts of the training clips are in other splits too: {told}; their WER is too good"
        if shared
        else None
    )


def _misfits(rows: Sequence[_Row]) -> str | None:
    _, misfits = find_misfits([row.seconds for row in rows], [len(row.key) for row in rows])
    far = [
        rows[misfit.position]
        for misfit in misfits
        if misfit.usual is None or not 1 / _FAR < rows[misfit.position].seconds / misfit.usual < _FAR
    ]
    if not far:
        return None
    example = f"{far[0].name} ({far[0].split})"
    return f"text far too long or too short for its audio: {clips(len(far))}, such as {example}"


def _listed_twice(rows: Sequence[_Row]) -> str | None:
    # By name alone it is not told: some data sets call every file `audio.wav`.
    counts = Counter((row.name, row.key, row.seconds) for row in rows)
    again = counts.total() - len(counts)
    first = next((name for (name, _, _), count in counts.items() if count > 1), "")
    return f"listed more than once: {clips(again)}, such as {first}" if again else None


def _odd_characters(rows: Sequence[_Row]) -> str | None:
    texts = [row.text for row in rows]
    step = max(1, len(texts) // _SCRIPT_SAMPLE)
    mains = main_scripts(Counter("".join(texts[::step])))
    odd = odd_characters(texts, set("".join(texts)), mains)
    if not odd:
        return None
    return f"odd characters in {clips(len(odd))}, such as {rows[odd[0].position].name}: {odd[0].detail}"
