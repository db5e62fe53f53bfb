"""Signs that are said, as for percent and money: one way to write each, wherever it stands and however it is spaced."""

from __future__ import annotations

import re

from trainer.data.text import CURRENCIES, MINUS

_PERCENT = "%‰‱"
_SAID = "§&@°+=±×÷≈≠≤≥\u2212"
"""Other signs that are said: words of their own, with a space beside them and without."""
_SAME = str.maketrans("٪؉؊٫٬\u2044", "%‰‱.,/")
"""Percent, per mille, per ten thousand and separators of numbers in Arabic script; the stroke that NFKC puts into ½."""
_NUMBER = r"(?>\d{1,3}(?: \d{3})+(?![\w.,]*\d)|\d(?:[\d.,']*\d)?)"
_DASHED = re.compile(r"(?<=\w)\u2212(?=\w)")
_SPACED = re.compile(rf"([{CURRENCIES}{_PERCENT}{_SAID}])")
_SIGN_BEFORE = re.compile(
    rf"(?:(?<!\d)([{CURRENCIES}{_PERCENT}])|(?<!\d)(?<!\d )([{CURRENCIES}{_PERCENT}]) )({_NUMBER})(?![.,:']*\w)"
)
"""A sign that touches the number behind it; one with a space between, where no number stands before it."""
_ENGLISH = {
    **{"$": ("dollar", "dollars"), "¢": ("cent", "cents"), "£": ("pound", "pounds"), "€": ("euro", "euros")},
    **{"¥": ("yen", "yen"), "₹": ("rupee", "rupees")},
}
_ENGLISH_MONEY = re.compile(rf"({_NUMBER}) ([{''.join(_ENGLISH)}])(?!\S)")


def keep_minus(text: str) -> str:
    """A minus as U+2212 with spaces, whichever hyphen or dash was typed for it; what joins two words as a hyphen."""
    return MINUS.sub(" \u2212 ", _DASHED.sub("-", text)).replace("\u2212", " \u2212 ")


def same_signs(text: str) -> str:
    """Signs that have another code point in one script as those of all others."""
    return text.translate(_SAME)


def arrange_signs(text: str) -> str:
    """Signs as words of their own, after their number: `5%`, `5 %` and `%5` are `5 %`.

    Nobody hears where a sign was typed. It belongs to the number that it touches, or else to the one before it.

    Args:
        text: without punctuation, its digits 0 to 9, a space between each two words.
    """
    while True:  # of several signs before a number one is moved at a time, each only towards the end
        moved = _SIGN_BEFORE.sub(lambda found: f" {found[3]} {found[1] or found[2]} ", text)
        moved = " ".join(_SPACED.sub(r" \1 ", moved).split())
        if moved == text:
            return text
        text = moved


def english_signs(text: str) -> str:
    """Arranged signs as they are said: `5 %` is `5 percent`, `5 €` is `5 euros`."""
    text = _ENGLISH_MONEY.sub(lambda found: f"{found[1]} {_ENGLISH[found[2]][found[1] != '1']}", text)
    return re.sub(r"\bper cent\b", "percent", text.replace("%", "percent").replace("\u2212", "minus"))
