"""Texts as characters, and the letters that one language writes in two ways."""

from __future__ import annotations

import unicodedata

#: Whisper's own list (`tokenization_whisper.py`, and the paper's appendix C measures these by CER), and two more
#: that put no space between words: Khmer, Tibetan.
WITHOUT_SPACES = frozenset({"zh", "yue", "ja", "th", "lo", "my", "km", "bo"})

_TO_LATIN = str.maketrans(
    {
        **dict(zip("абвгдђежзијклмнопрстћуфхцчш", "abvgdđežzijklmnoprstćufhcčš", strict=True)),
        **{"љ": "lj", "њ": "nj", "џ": "dž"},
    }
)


def split_characters(text: str) -> str:
    """The characters of a text, a space between each two: a character with its combining marks is one.

    Spaces of the text go: where a language has no words to count they are breaks of phrases, which nobody hears.
    """
    units: list[str] = []
    for char in text:
        if char.isspace():
            continue
        if units and unicodedata.category(char)[0] == "M":
            units[-1] += char
        else:
            units.append(char)
    return " ".join(units)


def serbian_latin(text: str) -> str:
    """Lower-case Serbian in Latin letters, whichever of its two scripts it is in.

    In this direction every letter has one answer; of the Latin `nj` nobody can tell whether it is one letter
    (`konj`) or two (`injekcija`).
    """
    return text.translate(_TO_LATIN)


def plain_digits(text: str) -> str:
    """Digits of all scripts as 0 to 9: the same number, typed on another keyboard."""
    return "".join(
        char if char.isascii() or unicodedata.category(char) != "Nd" else str(unicodedata.decimal(char))
        for char in text
    )
