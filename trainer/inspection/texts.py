"""Texts as strings: which are the same, which are no transcripts at all, and which are in another language."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

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
_SAME = {"jw": "jv", "nn": "no", "yue": "zh"}
"""What Whisper and py3langid call differently, or one of them does not tell apart."""
_WHISPERS = {"jv": "jw"}
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


def text_keys(texts: Sequence[str]) -> list[str]:
    """Each text without case, punctuation and white space: equal for texts that differ in nothing else.

    The same as the key by which made splits keep equal sentences together (`splits.split_off`), but for all at once: a
    call for each text would take a search seconds.
    """
    if not texts:
        return []
    whole = "\n".join(texts)
    if whole.count("\n") != len(texts) - 1:
        whole = "\n".join(text.replace("\n", " ") for text in texts)
    if not whole.isascii():
        whole = unicodedata.normalize("NFKC", whole)
    whole = whole.casefold()
    removed = [char for char in set(whole) - {"\n"} if unicodedata.category(char)[0] not in "LNM"]
    return any_of(removed).sub("", whole).split("\n")


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


@dataclasses.dataclass(frozen=True)
class Languages:
    """What the texts of a data set are in."""

    expected: str | None
    """The language that they are compared with; None where it is none that can be told."""
    mostly: str | None
    """The language of most texts where it is clearly not the one named."""
    others: list[tuple[int, str]]
    """Positions of texts in another language, and which."""


def tell_languages(
    texts: Sequence[str], code: str, on_progress: Callable[[int, int], None] | None = None
) -> Languages:
    """Which texts are in another language than the rest.

    By py3langid, a naive Bayes classifier of byte n-grams (Lui and Baldwin: langid.py, ACL 2012) whose model comes
    with the package.

    Args:
        texts: all of one language, as far as the data set says.
        code: that language, as Whisper's code.
        on_progress: called with texts read and texts in all.
    """
    identifier = _identifier()
    known = set(identifier.nb_classes)
    named = _SAME.get(code, code)
    ranks: dict[int, dict[str, float]] = {}
    for at, text in enumerate(texts):
        if count_units(text) >= _LEAST_LETTERS:
            ranks[at] = dict(identifier.rank(text))
        if on_progress is not None and at % 100 == 0:
            on_progress(at, len(texts))
    votes = Counter(next(iter(scores)) for scores in ranks.values())
    mostly = votes.most_common(1)[0][0] if len(ranks) >= _ENOUGH else None
    # Languages that the classifier does not know come out as this and that, so only a clear majority counts.
    if mostly is not None and (mostly == named or votes[mostly] < 0.6 * len(ranks)):
        mostly = None
    expected = mostly or (named if named in known else None)
    if expected is None:
        return Languages(None, None, [])
    best = {at: next(iter(scores)) for at, scores in ranks.items()}
    others = [
        (at, _WHISPERS.get(best[at], best[at]))
        for at, scores in ranks.items()
        if best[at] != expected and scores[best[at]] - scores[expected] >= _MARGIN
    ]
    shown = mostly if mostly is not None and named in known else None
    return Languages(_WHISPERS.get(expected, expected), shown and _WHISPERS.get(shown, shown), others)


@functools.cache
def _identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)
