"""Texts that cannot be right: too long for their audio, in another language, no transcripts, with odd characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from trainer.inspection.characters import foreign_script, main_scripts
from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, clips, suspect
from trainer.inspection.language import language_name, tell_languages
from trainer.inspection.odd_characters import Odd, odd_characters
from trainer.inspection.rates import Misfit, RateModel
from trainer.inspection.texts import markup, no_transcript, placeholders, shorten

Groups = Mapping[str, Sequence[Entry]]
"""Clips by the code of their language."""


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
    found = []
    for too_long, kind, word in ((True, "text_too_long", "long"), (False, "text_too_short", "short")):
        chosen = [
            (entry, seconds, misfit) for entry, seconds, misfit in misfits if misfit.too_long == too_long
        ]
        if chosen:
            title = f"text too {word} for its audio: {clips(len(chosen))}{told}"
            advice = (
                "wrong text, or audio that is cut off or has more in it: listen, then mend or remove them"
            )
            suspects = [suspect(one[0], _misfit(*one)) for one in chosen]
            found.append(Finding(kind, "warning", title, advice, suspects))
    return found


def _misfit(entry: Entry, seconds: float, misfit: Misfit) -> str:
    usual = f", usually {misfit.usual:.1f} s" if misfit.usual is not None else ""
    return f"{entry.units} letters in {seconds:.1f} s{usual}: {shorten(entry.text)!r}"


def find_no_transcripts(entries: Sequence[Entry]) -> list[Finding]:
    """Texts that are placeholders, filler or loops, and texts with markup."""
    missing = placeholders([entry.key for entry in entries])
    wrong, marked = [], []
    for entry in entries:
        why = no_transcript(entry.text, entry.key)
        if entry.key in missing:
            why = f"a placeholder: {shorten(entry.text)!r}"
        if why is not None:
            wrong.append(suspect(entry, why))
        elif (piece := markup(entry.text)) is not None:
            marked.append(suspect(entry, f"{piece!r} in {shorten(entry.text)!r}"))
    found = []
    if wrong:
        title = f"no transcript: {clips(len(wrong))} with filler, a placeholder or words in a loop for a text"
        found.append(Finding("no_transcript", "warning", title, "write what is said, or remove them", wrong))
    if marked:
        title = f"markup in the text of {clips(len(marked))}: tags, entities or remarks that nobody speaks"
        found.append(
            Finding("markup", "warning", title, "take it out of the texts: the model would learn it", marked)
        )
    return found


def find_other_languages(
    groups: Groups,
    *,
    skip: Collection[tuple[str, str]] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Texts in another script or language than the rest, and data that is not in the language named.

    Args:
        groups: clips by language.
        skip: clips by split and name that are told elsewhere.
        on_progress: called with texts read and texts in all of a language.
    """
    scripts, languages, found = [], [], []
    for code, entries in groups.items():
        texts = [entry.text for entry in entries]
        mains = main_scripts(Counter("".join(texts)))
        foreign = [foreign_script(text, mains) for text in texts]
        told = tell_languages(texts, code, on_progress)
        for entry, name in zip(entries, foreign, strict=True):
            if name is not None and (entry.split, entry.name) not in skip:
                shown = f"{name} letters, where the others have {' and '.join(sorted(mains))}"
                scripts.append(suspect(entry, f"{shown}: {shorten(entry.text)!r}"))
        for at, other in told.others:
            if foreign[at] is None and (entries[at].split, entries[at].name) not in skip:
                shown = f"looks {'like nonsense' if other == 'zxx' else language_name(other)}"
                rest = f"not {language_name(told.expected or code)}"
                languages.append(suspect(entries[at], f"{shown}, {rest}: {shorten(entries[at].text)!r}"))
        if told.mostly is not None:
            found.append(
                Finding(
                    "language_setting",
                    "warning",
                    f"most texts look {language_name(told.mostly)}, and are taken for {language_name(code)}",
                    "name the language with --language: the model is told it with every clip",
                )
            )
    if scripts:
        title = f"text in another script than the rest: {clips(len(scripts))}"
        advice = "wrong text, or another language: mend or remove them"
        found.append(Finding("other_script", "warning", title, advice, scripts))
    if languages:
        title = f"text that looks like another language: {clips(len(languages))}"
        advice = "wrong text, or filler: mend or remove them (names and single foreign words can look so too)"
        found.append(Finding("other_language", "warning", title, advice, languages))
    return found


def find_odd_characters(
    groups: Groups,
    *,
    skip: Collection[tuple[str, str]] = (),
    skip_rare: Collection[tuple[str, str]] = (),
) -> list[Finding]:
    """Characters that are wrong in any text, and those that are only rare in these.

    Args:
        groups: clips by language.
        skip: clips by split and name whose texts are in another language, of which that is told.
        skip_rare: clips that are told elsewhere where they have nothing but rare characters.
    """
    certain: list[tuple[Entry, Odd]] = []
    rare: list[tuple[Entry, Odd]] = []
    for entries in groups.values():
        texts = [entry.text for entry in entries]
        for odd in odd_characters(texts, Counter("".join(texts))):
            entry = entries[odd.position]
            place = (entry.split, entry.name)
            if place in skip or (not odd.certain and place in skip_rare):
                continue
            (certain if odd.certain else rare).append((entry, odd))
    found = []
    if certain:
        title = f"odd characters in the texts of {clips(len(certain))}"
        advice = "replace or remove the characters: a model learns to write them, and WER counts their words as wrong"
        found.append(_about_characters("odd_characters", "warning", title, advice, certain))
    if rare:
        title = f"rare characters in the texts of {clips(len(rare))}"
        advice = (
            "write the same thing the same way everywhere; nothing to do where they belong to the language"
        )
        found.append(_about_characters("rare_characters", "note", title, advice, rare))
    return found


def _about_characters(
    kind: str, level: str, title: str, advice: str, odds: Sequence[tuple[Entry, Odd]]
) -> Finding:
    suspects = [suspect(entry, odd.detail) for entry, odd in odds]
    return Finding(kind, "warning" if level == "warning" else "note", title, advice, suspects)


def find_digits(entries: Sequence[Entry]) -> list[Finding]:
    """Digits in a few texts, where numbers are spelled out in the others, as far as one can see."""
    some = [entry for entry in entries if any(char.isdigit() for char in entry.text)]
    if not some or len(some) > 0.2 * len(entries):
        return []
    return [
        Finding(
            "digits",
            "note",
            f"digits in the texts of {clips(len(some))} ({100 * len(some) / len(entries):.1f} %)",
            'write numbers one way, as words or as digits: WER counts "5" for "five" as an error',
            [suspect(entry, shorten(entry.text)) for entry in some],
        )
    ]
