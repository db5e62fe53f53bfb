"""The characters of the texts: the scripts that they are in, and those that hardly belong in a text."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fontTools import unicodedata as font_tools
from ftfy import fix_encoding_and_explain

from trainer.inspection.texts import any_of

_JAPANESE = "Han and kana"
_JAPANESE_CODES = frozenset({"Hani", "Hira", "Kana"})
"""Scripts that are written together."""
_UNITS = "\u2126\u212a\u212b"
"""Ohm, kelvin and angstrom, which by Unicode's count are letters of Greek and Latin."""
_JOINERS = "\u200c\u200d"
"""Invisible, and needed between letters of some scripts."""
_ALIKE = frozenset({"Latin", "Cyrillic", "Greek"})
"""Scripts with letters that look the same, and so are taken for each other: `а`, `a` and `α`."""
_LOOKALIKES = frozenset("aceijopsxyABCEHIJKMOPSTXYасеіјорѕхуАВСЕНІЈКМОРЅТХУονΑΒΕΗΙΚΜΝΟΡΤΥΧΖ")
_ACCENT = re.compile("[\u0300-\u036f]")
_WORD = re.compile(r"[^\W\d_]+")
_SAMPLE = 5_000
"""Texts from which it is seen in which scripts all are written."""


@functools.cache
def script(char: str) -> str:
    """The script of a letter (`Latin`, `Cyrillic`, `Han and kana`); empty for other characters."""
    if unicodedata.category(char)[0] != "L" or char in _UNITS:
        return ""
    # Raised letters such as º and ʰ stand in texts of any script.
    if unicodedata.decomposition(char).startswith("<super>"):
        return ""
    # What lengthens vowels of either kana and Arabic letters is of no script of its own, but goes with these.
    code, used_with = font_tools.script(char), font_tools.script_extension(char)
    if code == "Bopo" or _JAPANESE_CODES & used_with:
        return _JAPANESE
    if "Arab" in used_with:
        return "Arabic"
    return "" if code in ("Zyyy", "Zinh") else str(font_tools.script_name(code))


def main_scripts(texts: Sequence[str]) -> frozenset[str]:
    """The scripts that texts of one language are written in: those of at least a tenth of the letters."""
    counts: Counter[str] = Counter()
    for char, count in Counter("".join(texts[:: max(1, len(texts) // _SAMPLE)])).items():
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


def odd_characters(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Positions of texts of one language with something that is wrong in any, and the first that is.

    That is: broken, invisible and control characters, emoji, UTF-8 that was read as another encoding, letters of
    another script inside a word or in place of one that looks the same, letters and accents apart.
    """
    characters, mains = set("".join(texts)), main_scripts(texts)
    wrong = {char: kind for char in characters if (kind := _odd_by_itself(char, mains)) is not None}
    # Latin words are common in all languages.
    foreign = {
        char: f"{name} letter"
        for char in characters
        if mains and (name := script(char)) and name not in mains | {"Latin"}
    }
    odd = any_of([*wrong, *foreign])
    # A word in two of the scripts that look alike has a letter of one that is not the most common.
    alike = Counter(script(char) for char in characters if script(char) in _ALIKE)
    usual = max(alike, key=lambda name: (name in mains, alike[name]), default="")
    mixed = any_of([char for char in characters if script(char) in _ALIKE - {usual}])
    for position, text in enumerate(texts):
        detail = None if text.isascii() else _garbled(text)
        if detail is None and mixed.search(text):
            detail = next(filter(None, (_mixed_up(word, mains) for word in _WORD.findall(text))), None)
        if detail is None:
            detail = _first(text, odd, wrong | foreign)
        if detail is None and not text.isascii():
            detail = _decomposed(text)
        if detail is not None:
            yield position, detail


def _odd_by_itself(char: str, mains: frozenset[str]) -> str | None:
    """What is wrong with a character wherever it stands in texts of these scripts; None where nothing is."""
    category = unicodedata.category(char)
    if char == "\ufffd" or category in ("Co", "Cn", "Cs"):
        return "broken character"
    if category == "Cc" and not char.isspace():
        return "control character"
    # Joiners stand in words of Arabic and Indic letters.
    needed = char in _JOINERS and bool(mains - _ALIKE - {_JAPANESE, "Hangul"})
    unseen = category == "Cf" and not needed and "ARABIC" not in unicodedata.name(char, "")
    if unseen or "\ufe00" <= char <= "\ufe0f":
        return "invisible character"
    if category == "So" and (ord(char) >= 0x1F000 or 0x2600 <= ord(char) <= 0x27BF):
        return "emoji"
    return None


def _garbled(text: str) -> str | None:
    """UTF-8 that was read as another encoding, `Ã¤` for ä and `â€™` for the apostrophe, and what it should be."""
    for word in text.split(" "):
        if not word.isascii() and (fixed := _decoded(word)) is not None:
            return f"letters of a wrong encoding: {word!r} for {fixed!r}"
    return None


@functools.lru_cache(maxsize=100_000)
def _decoded(word: str) -> str | None:
    """What a garbled word was before; None of any other word. Words come again, and ftfy takes its time."""
    fixed, steps = fix_encoding_and_explain(word)
    # Some letters of African languages make UTF-8 of other letters in the encoding of old Macintoshes.
    letters = all(char.isascii() or char.isalpha() for char in word)
    return None if fixed == word or (letters and steps and steps[0][1] == "macroman") else fixed


def _first(text: str, pattern: re.Pattern[str], kinds: Mapping[str, str]) -> str | None:
    """What the first character is that matches, with the word that it is in."""
    match = pattern.search(text)
    return match and f"{kinds[match.group()]} {_named(match.group())} in {_word_at(text, match.start())!r}"


def _mixed_up(word: str, mains: frozenset[str]) -> str | None:
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
    for match in _ACCENT.finditer(text, 1):
        if len(unicodedata.normalize("NFC", text[match.start() - 1 : match.end()])) == 1:
            return f"letter and accent apart, {_named(match.group())}, in {_word_at(text, match.start())!r}"
    return None


def _named(char: str) -> str:
    name = unicodedata.name(char, "")
    shown = f"{char} " if char.isprintable() and unicodedata.category(char)[0] != "M" else ""
    return f"{shown}U+{ord(char):04X}{' ' + name if name else ''}"


def _word_at(text: str, position: int) -> str:
    before = "".join(re.findall(r"\S*$", text[max(0, position - 20) : position]))
    return before + "".join(re.findall(r"^\S*", text[position : position + 20]))
