"""Signs that are said, as for percent and money: one way to write each, wherever it stands and however it is spaced."""

from __future__ import annotations

import functools
import re

from trainer.data.text import CURRENCIES, MINUS

_PERCENT = "%‰‱"
_SAID = "§&@°+=±×÷≈≠≤≥\u2212"
"""Other signs that are said: words of their own, with a space beside them and without."""
_SAME = str.maketrans("٪؉؊٫٬\u2044", "%‰‱.,/")
"""Percent, per mille, per ten thousand and separators of numbers in Arabic script; the stroke that NFKC puts into ½."""
_WORDS = {
    **dict.fromkeys(("da", "no", "nn", "sv", "is", "fo"), "kr"),
    **{"pl": "zł", "cs": "kč", "hu": "ft", "bg": "лв", "ru": "руб", "uk": "грн", "tr": "tl"},
}
"""Short words for currencies that stand where a sign does, by language."""
_SHORT_SCALES = {
    **{"k": "thousand", "m": "million", "mn": "million", "b": "billion", "bn": "billion"},
    **{"t": "trillion", "tn": "trillion"},
}
_SCALES = (
    "hundred|thousand|million|billion|trillion|mio|mln|mrd|mld|tausend|millionen|milliarden|millions|milliards|milioni|"
    "miliardi|millones|milhões|bilhões|miljoen|miljard|тыс|млн|млрд|万|萬|億|亿|만|억|조|लाख|करोड़|مليون|مليار|میلیون|میلیارد"
)
"""What a number of money may have behind it, for one language each or for many."""
_SCALE = rf"(?:{'|'.join([_SCALES, *_SHORT_SCALES])})(?!\w)"
_SCALE_BEHIND = rf"(?: (?:{_SCALES}|[mbt]n)(?!\w)|{_SCALE})"
"""A letter alone is one only where it touches the number."""
_NUMBER = r"(?>\d{1,3}(?: \d{3})+(?![\w.,]*\d)|\d(?:[\d.,']*\d)?)"
_DASHED = re.compile(r"(?<=\w)\u2212(?=\w)")
_COUNTRY = r"(?:(?<![^\W\d_])(?:us|aus?|can?|nz|hk|sg|nt|mx|[acerjs])[$£])"
"""Dollars and pounds of a country: US$, R$."""
_SPACED = re.compile(rf"({_COUNTRY}|[{CURRENCIES}{_PERCENT}{_SAID}])")
_ENGLISH = {
    **{"$": ("dollar", "dollars"), "¢": ("cent", "cents"), "£": ("pound", "pounds"), "€": ("euro", "euros")},
    **{"¥": ("yen", "yen"), "₹": ("rupee", "rupees"), "₩": ("won", "won"), "₽": ("ruble", "rubles")},
    **{"₺": ("lira", "lira"), "₪": ("shekel", "shekels"), "₴": ("hryvnia", "hryvnia"), "₫": ("dong", "dong")},
    **{"₦": ("naira", "naira"), "฿": ("baht", "baht")},
}
_ENGLISH_MONEY = re.compile(rf"({_NUMBER})(?: ({_SCALE}))? ([a-z]{{0,3}})([{''.join(_ENGLISH)}])(?!\S)")


def keep_minus(text: str) -> str:
    """A minus as U+2212 with spaces, whichever hyphen or dash was typed for it; what joins two words as a hyphen."""
    return MINUS.sub(" \u2212 ", _DASHED.sub("-", text)).replace("\u2212", " \u2212 ")


def same_signs(text: str) -> str:
    """Signs that have another code point in one script as those of all others."""
    return text.translate(_SAME)


def arrange_signs(text: str, language: str) -> str:
    """Signs as words of their own, after their number: `5%`, `5 %` and `%5` are `5 %`; `€5bn` is `5 bn €`.

    Nobody hears where a sign was typed. It belongs to the number that it touches, or else to the one before it.

    Args:
        text: lower-case, without punctuation, its digits 0 to 9, a space between each two words.
        language: Whisper's code.
    """
    word = _WORDS.get(language)
    if not _SPACED.search(text) and (word is None or word not in text):
        return text
    before, touching, apart = _patterns(word)
    while True:  # of several signs before a number one is moved at a time, each only towards the end
        moved = before.sub(_after, text)
        moved = touching.sub(lambda found: " ".join(filter(None, found.groups())), moved)
        moved = " ".join(_SPACED.sub(r" \1 ", moved).split())
        moved = " ".join(apart.sub(lambda found: found[0] if found["done"] else _after(found), moved).split())
        if moved == text:
            return text
        text = moved


def english_signs(text: str) -> str:
    """Arranged signs as they are said: `5 %` is `5 percent`, `5 bn €` is `5 billion euros`."""
    text = _ENGLISH_MONEY.sub(_say_money, text).replace("%", "percent").replace("\u2212", "minus")
    return re.sub(r"\bper cent\b", "percent", text)


def _say_money(found: re.Match[str]) -> str:
    number, scale, country, sign = found.groups()
    name = _ENGLISH[sign][number != "1" or scale is not None]
    return " ".join(filter(None, (number, _SHORT_SCALES.get(scale, scale), country, name)))


@functools.cache
def _patterns(word: str | None) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A sign that touches the number behind it; one that touches that before it; one between words."""
    word = "" if word is None else rf"|(?<![^\W\d_]){word}(?![^\W\d_])"
    sign = rf"(?:{_COUNTRY}|[{CURRENCIES}{_PERCENT}]{word})"
    behind = rf"(?P<number>{_NUMBER})(?P<scale>{_SCALE_BEHIND})?+(?![.,:']*\w)(?! ?{sign}(?! ?\d))"
    return (
        re.compile(rf"(?<!\d)(?P<sign>{sign}){behind}"),
        re.compile(rf"(\d)({_SCALE} ?)?({sign})"),
        re.compile(rf"(?P<done>{_NUMBER}(?: {_SCALE})? {sign})|(?P<sign>{sign}) {behind}"),
    )


def _after(found: re.Match[str]) -> str:
    words = (found["number"], (found["scale"] or "").strip(), found["sign"])
    return f" {' '.join(filter(None, words))} "
