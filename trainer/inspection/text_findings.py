"""Texts that cannot be right (not of their audio, in another language, no transcripts), or are in two splits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from trainer.inspection.characters import foreign_script, main_scripts, odd_characters
from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, make_finding, names_of
from trainer.inspection.rates import Misfit, RateModel
from trainer.inspection.texts import (
    count_words,
    grouped,
    markup,
    shorten,
    tell_languages,
)
from trainer.languages import language_name

Groups = Mapping[str, Sequence[Entry]]
"""Clips by the code of their language."""

FEW_WORDS = 100
"""Words of an evaluation split under which its WER says little."""


def find_misfitting(
    misfits: Sequence[tuple[Entry, float, Misfit]], models: Mapping[str, RateModel]
) -> list[Finding]:
    """Texts that are far too long or short for their audio.

    Args:
        misfits: clips, seconds of speech, and why they do not fit.
        models: what is usual, of each language where there was enough to learn it from.
    """
    told = ""
    if len(models) == 1:
        told = f" (usual are {next(iter(models.values())).rate:.0f} letters a second)"
    elif models:
        rates = ", ".join(f"{code} {model.rate:.0f}" for code, model in models.items())
        told = f" (usual letters a second: {rates})"
    found: dict[bool, list[tuple[Entry, str]]] = {True: [], False: []}
    for entry, seconds, misfit in misfits:
        usual = f", usually {misfit.usual:.1f} s" if misfit.usual is not None else ""
        detail = f"{entry.units} letters in {seconds:.1f} s{usual}: {shorten(entry.text)!r}"
        found[misfit.too_long].append((entry, detail))
    return [
        *make_finding("text_too_long", found[True], usual=told),
        *make_finding("text_too_short", found[False], usual=told),
    ]


def find_in_texts(
    entries: Sequence[Entry], groups: Groups, on_progress: Callable[[int, int], None] | None = None
) -> list[Finding]:
    """What there is to say about the texts as such; what is told of one is not told again in other words.

    Args:
        entries: all clips.
        groups: the same by language.
        on_progress: called with texts read and texts in all of a language.
    """
    marked = [
        (entry, f"{piece!r} in {shorten(entry.text)!r}")
        for entry in entries
        if (piece := markup(entry.text)) is not None
    ]
    foreign = _other_languages(groups, on_progress)
    return [*make_finding("markup", marked), *foreign, *_odd_characters(groups, skip=names_of(foreign))]


def _other_languages(groups: Groups, on_progress: Callable[[int, int], None] | None) -> list[Finding]:
    """Texts in another script or language than the rest, and data that is not in the language named."""
    scripts, languages, found = [], [], []
    for code, entries in groups.items():
        texts = [entry.text for entry in entries]
        mains = main_scripts(Counter("".join(texts)))
        told = tell_languages(texts, code, on_progress)
        others = dict(told.others)
        for at, entry in enumerate(entries):
            text = shorten(entry.text)
            if (name := foreign_script(entry.text, mains)) is not None:
                rest = " and ".join(sorted(mains))
                scripts.append((entry, f"{name} letters, where the others have {rest}: {text!r}"))
            elif at in others:
                shown = "like nonsense" if others[at] == "zxx" else language_name(others[at])
                rest = language_name(told.expected or code)
                languages.append((entry, f"looks {shown}, not {rest}: {text!r}"))
        if told.mostly is not None:
            names = language_name(told.mostly), language_name(code)
            found += make_finding("language_setting", None, found=names[0], named=names[1])
    return [*found, *make_finding("other_script", scripts), *make_finding("other_language", languages)]


def _odd_characters(groups: Groups, *, skip: Collection[tuple[str, str]]) -> list[Finding]:
    """Characters that are wrong in any text, but in those of another language, of which that is told."""
    found = []
    for entries in groups.values():
        texts = [entry.text for entry in entries]
        counts = Counter("".join(texts))
        for odd in odd_characters(texts, counts, main_scripts(counts)):
            entry = entries[odd.position]
            if (entry.split, entry.name) not in skip:
                found.append((entry, odd.detail))
    return make_finding("odd_characters", found)


def find_shared_texts(entries: Sequence[Entry]) -> list[Finding]:
    """Texts that are in two splits, but for case and punctuation."""
    groups = grouped(entries, lambda entry: entry.key).values()
    shared = [group for group in groups if len({entry.split for entry in group}) > 1]
    suspects = []
    for group in shared:
        for entry in group:
            other = next(one for one in group if one.split != entry.split)
            same = (
                "the same text as" if other.text == entry.text else "but for case and punctuation the text of"
            )
            suspects.append((entry, f"{same} {other.place}: {shorten(entry.text)!r}"))
    judged = sum(entry.split != "train" for entry, _ in suspects)
    total = sum(entry.split != "train" for entry in entries)
    return make_finding("shared_text", suspects, told=leak_count(len(shared), judged, total))


def leak_count(texts: int, judged: int, total: int) -> str:
    """`3 texts, 4 of 100 validation and test clips`."""
    return f"{texts:,} text{'s' * (texts != 1)}, {judged:,} of {total:,} validation and test clips"


def find_small_splits(entries: Sequence[Entry]) -> list[Finding]:
    """Validation or test splits with too few words for a WER that means much."""
    found = []
    for split, mine in grouped(entries, lambda entry: entry.split).items():
        number, unit = count_words(entry.text for entry in mine)
        if split != "train" and number < FEW_WORDS:
            found += make_finding("small_split", None, told=small_split(split, number, unit), unit=unit)
    return found


def small_split(split: str, number: int, unit: str) -> str:
    """How little a WER on so few words says.

    Uncertain by half of the 95 % interval, in points, of a WER of 30 % over so many words, were they independent.
    """
    points = 196 * math.sqrt(0.3 * 0.7 / max(1, number))
    return f"the {split} split has only {number:,} {unit}: its error rate is uncertain by {points:.0f} points"


def find_shared_speakers(entries: Sequence[Entry]) -> list[Finding]:
    """Speakers of validation or test that are in train too: information rather than a fault."""
    speakers = {
        split: {entry.speaker for entry in mine}
        for split, mine in grouped((one for one in entries if one.speaker), lambda one: one.split).items()
    }
    learned = speakers.pop("train", set())
    shared = {split: sorted(mine & learned) for split, mine in speakers.items() if mine & learned}
    if not shared:
        return []
    told = " and ".join(
        f"{len(names):,} of {len(speakers[split]):,} speakers of {split}" for split, names in shared.items()
    )
    names = next(iter(shared.values()))
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return make_finding("shared_speakers", None, told=told, names=", ".join(names[:3]) + rest)
