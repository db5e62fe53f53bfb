"""Texts as strings: which are the same, and which are no transcripts at all."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np

KeyT = TypeVar("KeyT", bound=Hashable)

_PLACEHOLDERS = frozenset(
    (
        *(
            "na",
            "nan",
            "nil",
            "null",
            "none",
            "empty",
            "todo",
            "tbd",
            "tba",
            "fixme",
            "xxx",
            "test",
            "testing",
        ),
        *(
            "dummy",
            "sample",
            "placeholder",
            "unknown",
            "unk",
            "untitled",
            "undefined",
            "notext",
            "notranscript",
        ),
        *("notranscription", "notranscriptavailable", "notavailable", "inaudible", "unintelligible"),
        *("transcript", "transcription", "sentence", "text", "label"),
    )
)
"""Texts, without case and punctuation, that somebody or some program put where a transcript was missing."""
_FILLER = re.compile(r"lorem\s+ipsum|\bdolor\s+sit\s+amet\b|\bconsectetur\s+adipisci", re.IGNORECASE)
_LOOP = re.compile(r"\b(\w{2,}(?:\W+\w+){0,3})(?:\W+\1\b){3,}", re.IGNORECASE)
"""One to four words, four times in a row: what speech recognisers write when they are lost."""
_MARKUP = re.compile(
    r"<[^<>\s][^<>\n]{0,60}>|&(?:[a-z]{2,8}|#x?[0-9a-f]{1,6});|\[[^\[\]\n]{1,60}\]|\{[^{}\n]{1,60}\}"
    r"|https?://\S+|\bwww\.\S+|\\[nrt]|\\u[0-9a-f]{4}|\*\w[^*\n]{0,40}\*"
    r"|\((?:laugh|nois|music|inaud|unintell|cough|applau|silen|uncl|breath|sigh|background|crosstalk)[^()]{0,40}\)",
    re.IGNORECASE,
)


def text_keys(texts: Sequence[str]) -> list[str]:
    """Each text without case, punctuation and white space: equal for texts that differ in nothing else.

    The same as the key by which made splits keep equal sentences together (`splits.split_off`), but for all at once: a
    call for each text would take a search seconds.
    """
    import numpy as np

    if not texts:
        return []
    whole = "\n".join(texts)
    if whole.count("\n") != len(texts) - 1:
        whole = "\n".join(text.replace("\n", " ") for text in texts)
    if not whole.isascii():
        whole = unicodedata.normalize("NFKC", whole)
    codes = _codes(whole.casefold())
    kept = np.zeros(int(codes.max(initial=10)) + 1, dtype=bool)
    for code in np.flatnonzero(np.bincount(codes)):
        kept[code] = code == 10 or unicodedata.category(chr(code))[0] in "LNM"
    text: str = codes[kept[codes]].tobytes().decode("utf-32-le", "surrogatepass")
    return text.split("\n")


def characters_of(text: str) -> list[str]:
    """All different characters of a long text, in Unicode's order."""
    import numpy as np

    return [chr(code) for code in np.flatnonzero(np.bincount(_codes(text)))]


def _codes(text: str) -> np.ndarray:
    """The code of each character, uint32 (characters,)."""
    import numpy as np

    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def count_units(text: str) -> int:
    """Letters and digits: what a text is long by when it is spoken. Ideographs, a syllable each, count double."""
    letters = sum(map(str.isalnum, text))
    return letters if text.isascii() else letters + sum("\u3400" <= char <= "\u9fff" for char in text)


def count_words(texts: Iterable[str]) -> tuple[int, str]:
    """What an error rate is counted in, and how many: words, or characters where the language has no spaces."""
    words = letters = 0
    for text in texts:
        words += len(text.split())
        letters += len(text)
    return (words, "words") if letters <= 20 * words else (letters, "characters")


def repeated(keys: Iterable[KeyT]) -> dict[KeyT, list[int]]:
    """Positions of each key that occurs more than once, in the order of first occurrence."""
    places: dict[KeyT, list[int]] = {}
    for position, key in enumerate(keys):
        places.setdefault(key, []).append(position)
    return {key: positions for key, positions in places.items() if len(positions) > 1}


def no_transcript(text: str, key: str) -> str | None:
    """Why a text is no transcript, as far as that shows: a placeholder, filler, or words that repeat in a loop.

    Args:
        text: as the data set has it.
        key: its key of `text_keys`.
    """
    if _FILLER.search(text):
        return "filler text (lorem ipsum)"
    loop = _LOOP.search(text)
    if loop:
        return f"repeats {shorten(loop.group(1), 30)!r}"
    if len(key) >= 3 and len(set(key)) == 1 and not key.isdigit():
        return f"one letter over and over: {shorten(text, 30)!r}"
    return None


def placeholders(keys: Sequence[str]) -> frozenset[str]:
    """Those of the keys that stand for a missing transcript.

    A single word such as `test` is one where the texts are sentences; where most are single words it may be spoken.
    """
    there = _PLACEHOLDERS.intersection(keys)
    return there if there and len(set(keys)) > 4 * len(there) else frozenset()


def markup(text: str) -> str | None:
    """The first piece of a text that nobody speaks: tags, entities, addresses, remarks of the transcriber."""
    # One of these is in every match.
    if not any(char in text for char in "<&[{\\*(:w"):
        return None
    found = _MARKUP.search(text)
    return found.group() if found else None


def shorten(text: str, limit: int = 60) -> str:
    """A text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3].rstrip()}..."
