"""Texts that cannot be right (not of their audio, in another language, no transcripts), or are in two splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainer.data.columns import SPEAKER_NAMES, named
from trainer.inspection.characters import foreign_script, main_scripts, odd_characters
from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, make_finding
from trainer.inspection.rates import find_misfits
from trainer.inspection.texts import count_words, grouped, markup, shorten, tell_languages
from trainer.languages import language_name

Groups = Mapping[str, Sequence[Entry]]
"""Clips by the code of their language."""

_FEW_WORDS = 100
"""Words of an evaluation split under which its WER says little."""


def find_misfitting(groups: Groups) -> tuple[dict[str, float], list[Finding]]:
    """What is usual in each language, in letters a second, and texts that are far too long or short for their audio."""
    rates, suspects = {}, []
    for code, entries in groups.items():
        spoken = [
            (entry, sound.spoken)
            for entry in entries
            if (sound := entry.heard) is not None and not sound.is_silent
        ]
        rate, misfits = find_misfits([seconds for _, seconds in spoken], [one.units for one, _ in spoken])
        if rate is not None:
            rates[code] = rate
        for misfit in misfits:
            entry, seconds = spoken[misfit.position]
            usual = f", usually {misfit.usual:.1f} s" if misfit.usual is not None else ""
            detail = f"{entry.units} letters in {seconds:.1f} s{usual}: {shorten(entry.text)!r}"
            suspects.append((entry, detail))
    return rates, make_finding("text_misfit", suspects)


def find_in_texts(groups: Groups, on_progress: Callable[[int, int], None]) -> list[Finding]:
    """What there is to say about the texts as such; what is told of one is not told again in other words.

    Args:
        groups: all clips by language.
        on_progress: called with languages read and languages in all.
    """
    marked, foreign, odd, found = [], dict[Entry, str](), list[tuple[Entry, str]](), list[Finding]()
    for done, (code, entries) in enumerate(groups.items(), start=1):
        marked += [
            (one, f"{piece!r} in {shorten(one.text)!r}") for one in entries if (piece := markup(one.text))
        ]
        mostly, others = _other_languages(code, entries)
        foreign |= others
        odd += [pair for pair in odd_entries(entries) if pair[0] not in others]
        if mostly is not None:
            names = {"found": language_name(mostly), "named": language_name(code)}
            found += make_finding("language_setting", None, **names)
        on_progress(done, len(groups))
    return [
        *found,
        *make_finding("markup", marked),
        *make_finding("other_language", foreign.items()),
        *make_finding("odd_characters", odd),
    ]


def _other_languages(code: str, entries: Sequence[Entry]) -> tuple[str | None, dict[Entry, str]]:
    """The language of most texts where it is not the one named; those in another script or language than the rest."""
    texts = [entry.text for entry in entries]
    mostly, others = tell_languages(texts, code)
    rest, mains = language_name(mostly or code), main_scripts(texts)
    found = {}
    for at, other in others:
        looks = "like nonsense" if other == "zxx" else language_name(other)
        found[entries[at]] = f"looks {looks}, not {rest}: {shorten(texts[at])!r}"
    for entry in entries:
        if (name := foreign_script(entry.text, mains)) is not None:
            usual = " and ".join(sorted(mains))
            found[entry] = f"{name} letters, where the others have {usual}: {shorten(entry.text)!r}"
    return mostly, found


def odd_entries(entries: Sequence[Entry]) -> Iterable[tuple[Entry, str]]:
    """Clips of one language with characters that are wrong in any text, and what is wrong."""
    return ((entries[at], detail) for at, detail in odd_characters([entry.text for entry in entries]))


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
            suspects.append((entry, f"{same} {other.name} ({other.split}): {shorten(entry.text)!r}"))
    judged = sum(entry.split != "train" for entry, _ in suspects)
    total = sum(entry.split != "train" for entry in entries)
    texts = f"{len(shared):,} text{'s' * (len(shared) != 1)}"
    told = f"{texts}, {judged:,} of {total:,} validation and test clips"
    return make_finding("shared_text", suspects, told=told)


def find_small_splits(entries: Sequence[Entry]) -> list[Finding]:
    """Validation or test splits with too few words for a WER that means much."""
    found = []
    for split, mine in grouped(entries, lambda entry: entry.split).items():
        number, unit = count_words(entry.text for entry in mine)
        if split != "train" and number < _FEW_WORDS:
            # Half of the 95 % interval, in points, of a WER of 30 % over so many words, were they independent.
            points = 196 * math.sqrt(0.3 * 0.7 / max(1, number))
            told = f"the {split} split has only {number:,} {unit}: its error rate is uncertain by {points:.0f} points"
            found += make_finding("small_split", None, told=told, unit=unit)
    return found


def speakers_by_split(entries: Sequence[Entry]) -> dict[str, set[str]]:
    """Who speaks in each split, as a column of a usual name tells it; nobody where there is none."""
    found: dict[str, set[str]] = {}
    for split, mine in grouped(entries, lambda entry: entry.split).items():
        columns = {id(one.clip.columns): one.clip.columns for one in mine}  # shared by all clips of a table
        known = {key: named(SPEAKER_NAMES, table) for key, table in columns.items()}
        cells = ((one.clip, known[id(one.clip.columns)]) for one in mine)
        found[split] = {clip.cell(column) for clip, column in cells if column} - {""}
    return found


def tell_shared_speakers(speakers: Mapping[str, set[str]]) -> list[str]:
    """Whose voices are known from training: information rather than a fault."""
    learned = speakers.get("train", set())
    return [
        f"{len(mine & learned):,} of {len(mine):,} speakers of {split} are in train too: its WER is that of known "
        "voices; split_by=speaker keeps them apart"
        for split, mine in speakers.items()
        if split != "train" and mine & learned
    ]
