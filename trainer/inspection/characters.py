"""The alphabet of the texts: every character, its script, and what is wrong with it wherever it stands."""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

JAPANESE = "Han and kana"
_SCRIPT_WORDS = {
    "CJK": JAPANESE,
    "HIRAGANA": JAPANESE,
    "KATAKANA": JAPANESE,
    "KATAKANA-HIRAGANA": JAPANESE,
    "IDEOGRAPHIC": JAPANESE,
    "BOPOMOFO": JAPANESE,
}
"""First words of Unicode names that are not those of a script."""
_NO_SCRIPT = frozenset(
    (
        *(
            "MODIFIER",
            "MASCULINE",
            "FEMININE",
            "MICRO",
            "KELVIN",
            "ANGSTROM",
            "OHM",
            "SUPERSCRIPT",
            "SUBSCRIPT",
        ),
        *("SCRIPT", "BLACK-LETTER", "DOUBLE-STRUCK", "MATHEMATICAL", "CIRCLED", "SQUARED", "PARENTHESIZED"),
        *("ALEF", "BET", "GIMEL", "DALET", "EULER", "PLANCK", "INFORMATION", "TURNED"),
    )
)
JOINERS = "\u200c\u200d"
"""Invisible, and needed between letters of some scripts."""
_BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800\u180e")
"""Letters and symbols by Unicode's count that show as nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Character:
    """One character of the alphabet."""

    char: str
    count: int
    """How often it occurs."""
    texts: int
    """In how many texts."""
    script: str
    """Of letters; empty for all others."""
    odd: str | None
    """Why it is odd by itself, whatever the text."""

    @property
    def code(self) -> str:
        """`U+0041`."""
        return f"U+{ord(self.char):04X}"

    @property
    def name(self) -> str:
        """Unicode's name."""
        return unicodedata.name(self.char, "no name")


@functools.cache
def script(char: str) -> str:
    """The script of a letter by its Unicode name (`Latin`, `Cyrillic`, `Han and kana`); empty for other characters."""
    if unicodedata.category(char)[0] != "L":
        return ""
    words = unicodedata.name(char, "").split()
    if words and words[0] in ("FULLWIDTH", "HALFWIDTH"):
        words = words[1:]
    if not words or words[0] in _NO_SCRIPT:
        return ""
    return _SCRIPT_WORDS.get(words[0], words[0].capitalize())


@functools.cache
def odd_by_itself(char: str) -> str | None:
    """What is wrong with a character wherever it stands; None where nothing is."""
    category = unicodedata.category(char)
    if char == "\ufffd" or category in ("Co", "Cn", "Cs"):
        return "broken character"
    if category == "Cc" and not char.isspace():
        return "control character"
    unseen = category == "Cf" and char not in JOINERS and "ARABIC" not in unicodedata.name(char, "")
    if unseen or char in _BLANKS or "\ufe00" <= char <= "\ufe0f":
        return "invisible character"
    if category == "So" and (ord(char) >= 0x1F000 or 0x2600 <= ord(char) <= 0x27BF):
        return "emoji"
    if category[0] == "L" and unicodedata.name(char, "").startswith("MATHEMATICAL"):
        return "letter of formulas"
    return None


def alphabet(texts: Iterable[str]) -> list[Character]:
    """All characters of the texts but white space, the most frequent first."""
    counts: Counter[str] = Counter()
    within: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
        within.update(set(text))
    return [
        Character(char, count, within[char], script(char), odd_by_itself(char))
        for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if not char.isspace()
    ]


def main_scripts(letters: Mapping[str, int]) -> frozenset[str]:
    """The scripts that the texts are written in: those of at least a tenth of the letters.

    Args:
        letters: how often each character occurs.
    """
    counts: Counter[str] = Counter()
    for char, count in letters.items():
        if script(char):
            counts[script(char)] += count
    total = sum(counts.values())
    return frozenset(name for name, count in counts.items() if count >= total / 10)


def foreign_script(text: str, mains: frozenset[str]) -> str | None:
    """The script of a text that is mostly written in none of `mains`."""
    counts = Counter(name for char in text if (name := script(char)))
    if not counts or not mains:
        return None
    name, count = counts.most_common(1)[0]
    return name if name not in mains and count > sum(counts.values()) / 2 else None
