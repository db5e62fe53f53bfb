"""Texts as strings: how long they are, which are no transcripts at all, and which are in another language."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

from py3langid.langid import MODEL_FILE, LanguageIdentifier

ItemT = TypeVar("ItemT")
KeyT = TypeVar("KeyT", bound=Hashable)

_MARKUP = re.compile(
    r"<[^<>\s][^<>\n]{0,60}>|&(?:[a-z]{2,8}|#x?[0-9a-f]{1,6});|\[[^\[\]\n]{1,60}\]|\{[^{}\n]{1,60}\}"
    r"|https?://\S+|\bwww\.\S+|\\[nrt]|\\u[0-9a-f]{4}|\*\w[^*\n]{0,40}\*"
    r"|\((?:laugh|nois|music|inaud|unintell|cough|applau|silen|uncl|breath|sigh|background|crosstalk)[^()]{0,40}\)",
    re.IGNORECASE,
)
_MARGIN = 18.0
"""By how many nats another language must be likelier than the expected one.

Of 400 English and German sentences one reaches 16 (a list of names: "Jack London, Waikiki Beach, Honolulu, Oahu."), all
others stay under 2; of the same sentences taken for the other language all of five words and more reach 18 (measured).
"""
_SAME = {"jw": "jv"}
"""What Whisper and py3langid call differently."""
_LEAST_LETTERS = 12
_ENOUGH = 20
"""Texts from which it can be said what most are in."""


def grouped(items: Iterable[ItemT], key: Callable[[ItemT], KeyT]) -> dict[KeyT, list[ItemT]]:
    """Items by their key, in the order of first occurrence."""
    groups: dict[KeyT, list[ItemT]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def any_of(characters: Collection[str]) -> re.Pattern[str]:
    """What matches one of some characters; of none, nothing."""
    return re.compile("[" + "".join(map(re.escape, characters)) + "]" if characters else "(?!)")


def count_units(key: str) -> int:
    """What a text is long by when it is spoken: its letters and digits; ideographs, a syllable each, count double."""
    return len(key) if key.isascii() else len(key) + sum("\u3400" <= char <= "\u9fff" for char in key)


def count_words(texts: Iterable[str]) -> tuple[int, str]:
    """What an error rate is counted in, and how many: words, or characters where the language has no spaces."""
    words = letters = 0
    for text in texts:
        words += len(text.split())
        letters += len(text)
    return (words, "words") if letters <= 20 * words else (letters, "characters")


def markup(text: str) -> str | None:
    """The first piece of a text that nobody speaks: tags, entities, addresses, remarks of the transcriber."""
    match = _MARKUP.search(text)
    return match.group() if match else None


def shorten(text: str, limit: int = 60) -> str:
    """A text in one line of at most so many characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3].rstrip()}..."


def detect_languages(texts: Sequence[str], code: str) -> tuple[str | None, list[tuple[int, str]]]:
    """Which texts are in another language than the rest.

    By py3langid, a naive Bayes classifier of byte n-grams (Lui and Baldwin: langid.py, ACL 2012) whose model comes
    with the package.

    Returns:
        The language of most texts where it is clearly not the one named, and positions of texts that are in neither,
        each with its language. A language that the classifier does not know is never told to be another.
    """
    identifier = _identifier()
    named = _SAME.get(code, code)
    ranks = {at: dict(identifier.rank(text)) for at, text in enumerate(texts) if len(text) >= _LEAST_LETTERS}
    best = {at: next(iter(scores)) for at, scores in ranks.items()}
    if named not in identifier.nb_classes:
        return None, []
    mostly = Counter(best.values()).most_common(1)[0] if len(best) >= _ENOUGH else (named, 0)
    expected = mostly[0] if mostly[1] >= 0.6 * len(best) else named
    others = [
        (at, best[at])
        for at, scores in ranks.items()
        if best[at] != expected and scores[best[at]] - scores[expected] >= _MARGIN
    ]
    return None if expected == named else expected, others


@functools.cache
def _identifier() -> LanguageIdentifier:
    return LanguageIdentifier.from_model_file(MODEL_FILE)
