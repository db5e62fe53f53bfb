"""Which language a text is in, to find those that are in another than the rest."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trainer.inspection.texts import count_units
from trainer.languages import LANGUAGES

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MARGIN = 18.0
"""By how many nats another language must be likelier than the expected one.

Of 400 English and German sentences one reaches 16 (a list of names: "Jack London, Waikiki Beach, Honolulu, Oahu."), all
others stay under 2; of the same sentences taken for the other language all of five words and more reach 18 (measured).
"""
_SAME = {"jw": "jv", "nn": "no", "yue": "zh"}
"""What Whisper and py3langid call differently, or one of them does not tell apart."""
_LEAST_LETTERS = 12
_ENOUGH = 20
"""Texts from which it can be said what most are in."""


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
    if mostly is not None and (mostly == named or votes[mostly] < 0.6 * len(ranks)):
        mostly = None
    # Languages that the classifier does not know come out as this and that, so only a clear majority counts.
    elsewhere = mostly is not None and named in known
    expected = mostly if mostly is not None else named if named in known else None
    if expected is None:
        return Languages(None, None, [])
    others = []
    for at, scores in ranks.items():
        best = next(iter(scores))
        if best != expected and scores[best] - scores[expected] >= MARGIN:
            others.append((at, best))
    return Languages(expected, mostly if elsewhere else None, others)


@functools.cache
def _identifier() -> LanguageIdentifier:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def language_name(code: str) -> str:
    """The English name of a language where Whisper has one, else the code."""
    known = {"jv": "jw"}.get(code, code)
    return LANGUAGES[known].capitalize() if known in LANGUAGES else f"{code!r}"
