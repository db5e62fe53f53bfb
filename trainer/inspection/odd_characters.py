"""Characters that hardly belong in a text: invisible, of another script, garbled, or rare among these texts."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from trainer.inspection.characters import JAPANESE, JOINERS, main_scripts, odd_by_itself, script

_ALIKE = frozenset({"Latin", "Cyrillic", "Greek"})
"""Scripts with letters that look the same, and so are taken for each other: `а`, `a` and `α`."""
_LOOKALIKES = frozenset(
    "aceijopsxyABCEHIJKMOPSTXY"
    "\u0430\u0441\u0435\u0456\u0458\u043e\u0440\u0455\u0445\u0443\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423"
    "\u03bf\u03bd\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u0396"
)
_UNSPOKEN = frozenset("<>{}[]|\\^~_*#=/`+\u00a6\u00ac\u00b6\u00a7\u00a4")
_VARIANTS = {
    "apostrophes": "'\u2019\u02bc\u2018`\u00b4\u02bb\u02b9\uff07",
    "quotation marks": '"\u201c\u201d\u201e\u00ab\u00bb\u201f\uff02\u2033',
    "hyphens": "-\u2010\u2011",
    "dashes": "\u2012\u2013\u2014\u2015\u2212",
}
"""Characters that mean the same; a model has to learn each."""
_MOJIBAKE = re.compile(
    "[\u00c2\u00c3\u00c4\u00c5\u00ce\u00cf\u00d0\u00d1\u00d7\u00d8\u00d9]"
    "[\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u00bf\u20ac\u0192\u2020\u2021\u02c6\u2030\u0160\u0152\u017d\u02dc\u2122\u0161\u0153\u017e\u0178\u0080-\u009f]"
    "|\u00e2\u20ac[\u0080-\u00bf\u0153\u009d\u2122\u02dc\u201c\u201d\u00a6]|\u00e0[\u00a4-\u00b8]|\u00ef\u00bb\u00bf"
)
"""UTF-8 that was read as Latin-1 or Windows-1252: `Ã¤` for ä, `â€™` for the apostrophe, `Ð¿` for Cyrillic."""
_WORD = re.compile(r"[^\W\d_]+", re.UNICODE)


@dataclasses.dataclass(frozen=True, slots=True)
class Odd:
    """Something odd in one text."""

    position: int
    """Of the text among those given."""
    detail: str
    """What it is, in words."""
    certain: bool
    """Whether it is wrong in any text; else it is rare here, which may be as it should."""


def odd_characters(texts: Sequence[str], counts: Mapping[str, int]) -> list[Odd]:
    """What is odd in the texts, at most one entry a text, the certain before the uncertain.

    Args:
        texts: all of one language.
        counts: how often each character occurs in them.
    """
    mains = main_scripts(counts)
    found = certainly_odd(texts, counts, mains)
    told = {odd.position for odd in found}
    rare = _rare_characters(texts, counts, mains)
    latin = [] if "Latin" in mains else [char for char in counts if script(char) == "Latin"]
    if sum(counts[char] for char in latin) > 0.005 * sum(counts.values()):
        latin = []  # not rare here
    pattern = _any_of([*rare, *latin])
    for position, text in enumerate(texts):
        if position not in told and pattern.search(text):
            detail = _rarely_so(text, rare) or _foreign_letter(text, mains)
            if detail is not None:
                found.append(Odd(position, detail, certain=False))
    return found


def certainly_odd(texts: Sequence[str], characters: Collection[str], mains: frozenset[str]) -> list[Odd]:
    """What is wrong in the texts whatever their language, at most one entry a text.

    Args:
        texts: all of one language.
        characters: all that occur in them.
        mains: the scripts that they are written in.
    """
    suspects = [char for char in characters if _is_suspect(char, mains)]
    if len(mains & _ALIKE) > 1:  # which of them a word is in is seen only in the word
        suspects += [char for char in characters if script(char) in _ALIKE and not char.isascii()]
    pattern = _any_of(suspects)
    garbled = any(0xC2 <= ord(char) <= 0xEF for char in characters)
    if not suspects and not garbled:
        return []
    found = []
    for position, text in enumerate(texts):
        detail = None
        if garbled and (broken := _MOJIBAKE.search(text)):
            detail = f"letters of a wrong encoding: {_word_at(text, broken.start())!r}"
        elif pattern.search(text):
            detail = _certainly_odd(text, mains)
        if detail is not None:
            found.append(Odd(position, detail, certain=True))
    return found


def _any_of(characters: Collection[str]) -> re.Pattern[str]:
    return re.compile("[" + "".join(map(re.escape, characters)) + "]" if characters else "(?!)")


def _is_suspect(char: str, mains: frozenset[str]) -> bool:
    """Whether a text that has the character needs a closer look."""
    if char in JOINERS or 0x300 <= ord(char) < 0x370 or odd_by_itself(char) is not None:
        return True
    return bool(script(char)) and script(char) not in mains


def _certainly_odd(text: str, mains: frozenset[str]) -> str | None:
    for position, char in enumerate(text):
        kind = odd_by_itself(char)
        if kind is None and char in JOINERS and not _joins(text, position):
            kind = "invisible character"
        if kind is not None:
            return f"{kind} {_named(char)} in {_word_at(text, position)!r}"
    for word in _WORD.findall(text):
        mixed = _lookalike(word, mains)
        if mixed is not None:
            return mixed
    foreign = _foreign_letter(text, mains)
    # Latin words are common in all languages.
    return _decomposed(text) or (None if foreign is None or foreign.startswith("Latin") else foreign)


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
    if unicodedata.is_normalized("NFC", text):
        return None
    for position, char in enumerate(text):
        if "\u0300" <= char < "\u0370" and position:
            pair = unicodedata.normalize("NFC", text[position - 1] + char)
            if len(pair) == 1:
                return f"letter and accent apart, {_named(char)}, in {_word_at(text, position)!r}"
    return None


def _foreign_letter(text: str, mains: frozenset[str]) -> str | None:
    for position, char in enumerate(text):
        name = script(char)
        if name and mains and name not in mains:
            return f"{name} letter {_named(char)} in {_word_at(text, position)!r}"
    return None


def _rarely_so(text: str, rare: Mapping[str, str]) -> str | None:
    for position, char in enumerate(text):
        if char in rare:
            return f"{rare[char]} {_named(char)} in {_word_at(text, position)!r}"
    return None


def _rare_characters(
    texts: Sequence[str], counts: Mapping[str, int], mains: frozenset[str]
) -> dict[str, str]:
    """Characters that are rare in these texts, with what they are: unspoken signs, second ways to write the same."""
    limit = max(3.0, 0.01 * len(texts))
    rare = {}
    for char, count in counts.items():
        if count > limit or odd_by_itself(char) is not None:
            continue
        category = unicodedata.category(char)
        if char in _UNSPOKEN or (category in ("So", "Sk", "Sm") and char not in "\u00b0%"):
            rare[char] = "rare sign"
        elif category == "Lm":
            rare[char] = "rare letter"
        elif script(char) == "Latin" and not char.isascii() and "Latin" in mains:
            # Letters of the language itself are frequent in a data set of some size.
            times = counts.get(char.lower(), 0) + counts.get(char.upper(), 0)
            if times <= max(1.0, 0.0005 * len(texts)):
                rare[char] = "rare letter"
    for name, family in _VARIANTS.items():
        used = {char: counts[char] for char in family if counts.get(char)}
        most = max(used.values(), default=0)
        # Opening and closing marks are as frequent as each other.
        rare |= {char: f"of several {name}, a rare one:" for char, n in used.items() if n < most / 10}
    return rare


def _joins(text: str, position: int) -> bool:
    """Whether a joiner stands between letters of a script that needs it (Arabic, Indic), or in an emoji."""
    before = text[position - 1] if position else ""
    if not before or unicodedata.category(before)[0] not in "LM":
        return False
    return script(before) not in _ALIKE | {JAPANESE, "Hangul"}


def _named(char: str) -> str:
    name = unicodedata.name(char, "")
    shown = f"{char} " if char.isprintable() and unicodedata.category(char)[0] != "M" else ""
    return f"{shown}U+{ord(char):04X}{' ' + name if name else ''}"


def _word_at(text: str, position: int) -> str:
    """The word around a position."""
    start = position
    while start > 0 and not text[start - 1].isspace() and position - start < 20:
        start -= 1
    end = position
    while end < len(text) and not text[end].isspace() and end - position < 20:
        end += 1
    return text[start:end]
