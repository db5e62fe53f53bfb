"""The characters of the texts: the alphabet with its scripts, and those that hardly belong in a text."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from trainer.inspection.texts import any_of

_JAPANESE = "Han and kana"
_JAPANESE_CODES = frozenset({"Hani", "Hira", "Kana"})
"""Scripts that are written together."""
_UNITS = "\u2126\u212a\u212b"
"""Ohm, kelvin and angstrom, which by Unicode's count are letters of Greek and Latin."""
_JOINERS = "\u200c\u200d"
"""Invisible, and needed between letters of some scripts."""
_BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u180e")
"""Letters and symbols by Unicode's count that show as nothing."""
_ALIKE = frozenset({"Latin", "Cyrillic", "Greek"})
"""Scripts with letters that look the same, and so are taken for each other: `а`, `a` and `α`."""
_LOOKALIKES = frozenset("aceijopsxyABCEHIJKMOPSTXYасеіјорѕхуАВСЕНІЈКМОРЅТХУονΑΒΕΗΙΚΜΝΟΡΤΥΧΖ")
_ACCENT = re.compile("[\u0300-\u036f]")
_WORD = re.compile(r"[^\W\d_]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Odd:
    """Something odd in one text."""

    position: int
    """Of the text among those given."""
    detail: str
    """What it is, in words."""


@functools.cache
def script(char: str) -> str:
    """The script of a letter (`Latin`, `Cyrillic`, `Han and kana`); empty for other characters."""
    from fontTools import unicodedata as scripts

    if unicodedata.category(char)[0] != "L" or char in _UNITS:
        return ""
    # Raised letters such as º and ʰ stand in texts of any script.
    if unicodedata.decomposition(char).startswith("<super>"):
        return ""
    # What lengthens vowels of either kana and Arabic letters is of no script of its own, but goes with these.
    code, used_with = scripts.script(char), scripts.script_extension(char)
    if code == "Bopo" or _JAPANESE_CODES & used_with:
        return _JAPANESE
    if "Arab" in used_with:
        return "Arabic"
    return "" if code in ("Zyyy", "Zinh") else str(scripts.script_name(code))


@functools.cache
def odd_by_itself(char: str) -> str | None:
    """What is wrong with a character wherever it stands; None where nothing is."""
    category = unicodedata.category(char)
    if char == "\ufffd" or category in ("Co", "Cn", "Cs"):
        return "broken character"
    if category == "Cc" and not char.isspace():
        return "control character"
    unseen = category == "Cf" and char not in _JOINERS and "ARABIC" not in unicodedata.name(char, "")
    if unseen or char in _BLANKS or "\ufe00" <= char <= "\ufe0f":
        return "invisible character"
    if category == "So" and (ord(char) >= 0x1F000 or 0x2600 <= ord(char) <= 0x27BF):
        return "emoji"
    if category[0] == "L" and unicodedata.name(char, "").startswith("MATHEMATICAL"):
        return "letter of formulas"
    return None


def main_scripts(letters: Mapping[str, int]) -> frozenset[str]:
    """The scripts that the texts are written in: those of at least a tenth of the letters.

    Args:
        letters: how often each character occurs.
    """
    counts: Counter[str] = Counter()
    for char, count in letters.items():
        if name := script(char):
            counts[name] += count
    return frozenset(name for name, count in counts.items() if count >= counts.total() / 10)


def foreign_script(text: str, mains: frozenset[str]) -> str | None:
    """The script of a text that is mostly written in none of `mains`."""
    counts = Counter(name for char in text if (name := script(char)))
    if not counts or not mains:
        return None
    name, count = counts.most_common(1)[0]
    return name if name not in mains and count > counts.total() / 2 else None


def odd_characters(texts: Sequence[str], characters: Collection[str], mains: frozenset[str]) -> list[Odd]:
    """What is wrong in the texts whatever their language, at most one entry a text.

    Args:
        texts: all of one language.
        characters: all that occur in them.
        mains: the scripts that they are written in.
    """
    wrong = {char: kind for char in characters if (kind := odd_by_itself(char)) is not None}
    foreign = {
        char: f"{name} letter"
        for char in characters
        if mains and (name := script(char)) and name not in mains
    }
    suspects = [*wrong, *foreign, *_JOINERS]
    if len(mains & _ALIKE) > 1:  # which of them a word is in is seen only in the word
        suspects += [char for char in characters if script(char) in _ALIKE and not char.isascii()]
    suspect, certain = any_of(suspects), any_of(wrong)
    # Latin words are common in all languages.
    strange = any_of([char for char in foreign if script(char) != "Latin"])
    found = []
    for position, text in enumerate(texts):
        detail = None if text.isascii() else _garbled(text)
        if detail is None and suspect.search(text):
            detail = (
                _first(text, certain, wrong)
                or _stray_joiner(text)
                or next(filter(None, (_lookalike(word, mains) for word in _WORD.findall(text))), None)
                or _first(text, strange, foreign)
            )
        if detail is None and not text.isascii():
            detail = _decomposed(text)
        if detail is not None:
            found.append(Odd(position, detail))
    return found


def _garbled(text: str) -> str | None:
    """UTF-8 that was read as another encoding, `Ã¤` for ä and `â€™` for the apostrophe, and what it should be."""
    for word in text.split(" "):
        if not word.isascii() and (fixed := _decoded(word)) is not None:
            return f"letters of a wrong encoding: {word!r} for {fixed!r}"
    return None


@functools.lru_cache(maxsize=100_000)
def _decoded(word: str) -> str | None:
    """What a garbled word was before; None of any other word. Words come again, and ftfy takes its time."""
    from ftfy import fix_encoding_and_explain

    fixed, steps = fix_encoding_and_explain(word)
    # Some letters of African languages make UTF-8 of other letters in the encoding of old Macintoshes.
    letters = all(char.isascii() or char.isalpha() for char in word)
    return None if fixed == word or (letters and steps and steps[0][1] == "macroman") else fixed


def _first(text: str, pattern: re.Pattern[str], kinds: Mapping[str, str]) -> str | None:
    """What the first character is that matches, with the word that it is in."""
    found = pattern.search(text)
    return found and f"{kinds[found.group()]} {_named(found.group())} in {_word_at(text, found.start())!r}"


def _stray_joiner(text: str) -> str | None:
    """A joiner that is not between letters of a script that needs it (Arabic, Indic)."""
    for position, char in enumerate(text):
        if char in _JOINERS:
            before = text[position - 1 : position]
            letter = bool(before) and unicodedata.category(before)[0] in "LM"
            if not letter or script(before) in _ALIKE | {_JAPANESE, "Hangul"}:
                return f"invisible character {_named(char)} in {_word_at(text, position)!r}"
    return None


def _lookalike(word: str, mains: frozenset[str]) -> str | None:
    """What is wrong with a word in letters of two scripts, or in letters of another script that look the same."""
    scripts = Counter(script(char) for char in word if script(char) in _ALIKE)
    if len(scripts) > 1:
        rarest = min(scripts, key=lambda name: (scripts[name], name in mains))
        char = next(char for char in word if script(char) == rarest)
        return f"{' and '.join(sorted(scripts))} letters in one word: {word!r} has {_named(char)}"
    foreign = bool(scripts) and not mains & scripts.keys() and bool(mains & _ALIKE)
    if foreign and len(word) <= 2 and all(char in _LOOKALIKES for char in word):
        return f"a letter that looks like another: {word!r} is {_named(word[0])}"
    return None


def _decomposed(text: str) -> str | None:
    """A letter and its accent as two characters, where Unicode has one for both."""
    for found in _ACCENT.finditer(text, 1):
        if len(unicodedata.normalize("NFC", text[found.start() - 1 : found.end()])) == 1:
            return f"letter and accent apart, {_named(found.group())}, in {_word_at(text, found.start())!r}"
    return None


def _named(char: str) -> str:
    name = unicodedata.name(char, "")
    shown = f"{char} " if char.isprintable() and unicodedata.category(char)[0] != "M" else ""
    return f"{shown}U+{ord(char):04X}{' ' + name if name else ''}"


def _word_at(text: str, position: int) -> str:
    """The word around a position."""
    before = "".join(re.findall(r"\S*$", text[max(0, position - 20) : position]))
    return before + "".join(re.findall(r"^\S*", text[position : position + 20]))
