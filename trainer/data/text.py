"""What the model learns to write: transcripts, as they are or lower-cased and without punctuation."""

from __future__ import annotations

import re
import unicodedata

from trainer.config import TrainConfig
from trainer.languages import WITHOUT_SPACES

TOKEN = re.compile(r"<\|[^|<>\s]{1,30}\|>")
"""One of Whisper's own tokens, such as a time."""

#: Punctuation that belongs to a word when letters stand on both sides.
_JOINERS = frozenset(
    "'-"
    "\u2019\uff07\u055a"  # apostrophes: typographic, full width, Armenian
    "\u2010\u2011\u05be"  # hyphens: hyphen, non-breaking, Hebrew's maqaf
    "\u00b7"  # Catalan's middle dot
    "\u05f3\u05f4"  # Hebrew's geresh and gershayim
    "\u0f0b\u0f0c"  # Tibetan's tsheg, between syllables
)
#: Part of a number when digits stand on both sides: 3.5, 1,000, 10:30.
_NUMBER_JOINERS = frozenset(".,:")
#: Unicode counts these as punctuation, yet they are spoken.
_SPOKEN = frozenset("%‰‱&@§٪؉؊")
#: Symbols by Unicode's count, punctuation in transcripts.
_UNSPOKEN_SYMBOLS = frozenset("`^~|<>\u00b4\u00a8\u266a\u266b")
#: Armenian marks of tone stand inside the word, after the vowel; a space there would cut the word in two.
_INSIDE_WORDS = frozenset("\u055b\u055c\u055e")
#: Signs of money: Unicode's category Sc, but for those that NFKC takes apart.
CURRENCIES = "$¢-¥֏؋߾߿৲৳৻૱௹฿៛₠-₧₩-\u20c1\ua838"
#: A hyphen or dash typed for a minus: right before a number, and behind nothing that it may join to that number.
MINUS = re.compile(
    rf"(?<![\w%‰‱٪°)\]{CURRENCIES}\u2010-\u2015-])(?<![\d%‰‱٪°{CURRENCIES}]\s)[-\u2010-\u2013](?=[{CURRENCIES}]?\d)"
)


def has_words(text: str) -> bool:
    """Whether anything is said: a text without a single letter or digit has nothing to learn or to measure."""
    return any(unicodedata.category(char)[0] in "LNM" for char in text)


def word_gap(config: TrainConfig) -> str:
    """What stands between words in the language that the model writes: nothing in Chinese, Thai and the like."""
    return "" if config.written_language in WITHOUT_SPACES else " "


def join_space(text: str) -> str:
    """One space for each run of white space of any kind, none at the ends.

    A no-break space before a French question mark, an ideographic space or a line break is typesetting, which nobody
    hears: the model is taught a space, and errors are counted in texts with a space.
    """
    return " ".join(text.split())


def prepare_target(
    text: str, *, lowercase: bool, remove_punctuation: bool, language: str | None = None
) -> str:
    """The text that the model learns, of one transcript.

    White space is joined as by `join_space`. Combining marks stay (Hindi, Thai or Hebrew would lose vowels
    without them), and so do apostrophes and hyphens inside words, separators inside numbers, and signs that
    are spoken (%, &, a minus).

    Turkish and Azerbaijani pair the capital I with the dotless small one.
    """
    if remove_punctuation:
        text = _without_punctuation(text)
    if lowercase:
        if language in ("tr", "az"):
            text = text.replace("I", "\u0131")
        # Python writes the lower case of the dotted capital I as i with a combining dot.
        text = text.replace("\u0130", "i").lower()
    return join_space(text)


def _without_punctuation(text: str) -> str:
    kept = []
    signs = {match.start() for match in MINUS.finditer(text)}
    for position, char in enumerate(text):
        if not _is_punctuation(char) or position in signs:
            kept.append(char)
            continue
        before = text[position - 1] if position else " "
        after = text[position + 1] if position + 1 < len(text) else " "
        inside_word = char in _JOINERS and _is_word(before) and _is_word(after)
        inside_number = char in _NUMBER_JOINERS and before.isdigit() and after.isdigit()
        if inside_word or inside_number:
            kept.append(char)
        elif char not in _INSIDE_WORDS:
            kept.append(" ")
    return "".join(kept)


def _is_punctuation(char: str) -> bool:
    if char in _UNSPOKEN_SYMBOLS:
        return True
    return unicodedata.category(char).startswith("P") and char not in _SPOKEN


def _is_word(char: str) -> bool:
    """Letters, digits, combining marks and the invisible joiners between letters."""
    return unicodedata.category(char)[0] in "LNM" or char in "\u200c\u200d"
