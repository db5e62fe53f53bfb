"""What single languages write in more than one way though it is said in one, and how it is made equal.

Only differences that nobody can hear: which key the apostrophe was typed with, marks that a reader may leave out,
the same letter under two code points, one of two scripts, British and American spelling. A spelling that a listener
could tell from another stays an error. `docs/scoring.md` has the table with reasons; a test holds both to the same
languages.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from importlib import resources

from trainer.data.text import CURRENCIES, MINUS

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


_PERCENT = "%‰‱"
_SAID = "§&@°+=±×÷≈≠≤≥\u2212"
"""Other signs that are said: words of their own, with a space beside them and without."""
_SAME_SIGNS = str.maketrans("٪؉؊٫٬\u2044", "%‰‱.,/")
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


def plain_signs(text: str) -> str:
    """Digits and signs as all scripts have them: 0 to 9, `%` for `٪`, a minus as U+2212 with spaces.

    Whichever hyphen or dash was typed for the minus; what joins two words is a hyphen.
    """
    digits = "".join(
        char if char.isascii() or unicodedata.category(char) != "Nd" else str(unicodedata.decimal(char))
        for char in text.translate(_SAME_SIGNS)
    )
    return MINUS.sub(" \u2212 ", _DASHED.sub("-", digits)).replace("\u2212", " \u2212 ")


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


_SAME = {
    "mr": "mister",
    "mrs": "missus",
    "dr": "doctor",
    "prof": "professor",
    "st": "saint",
    "jr": "junior",
    "sr": "senior",
    "vs": "versus",
    "ok": "okay",
}
_INITIALS = re.compile(r"(?<!\w)[a-z](?:\.[a-z])+(?![\w'])\.?|(?<!\w)(?:[a-z]\. ?){2,}")


@functools.cache
def spelling_table() -> dict[str, str]:
    """American spellings of British words: Whisper's own table (openai/whisper, `normalizers/english.json`, MIT).

    Kept here because a model may come without it (`normalizer.json` beside the tokenizer), and two models must
    be measured alike. One entry with a space, which no word can match, is left out, and `archaeology` is mended
    (`archeology</span>` there).
    """
    text = resources.files("trainer.scoring").joinpath("english_spelling.json").read_text(encoding="utf-8")
    table: dict[str, str] = json.loads(text)
    return table


def closed_up(text: str) -> str:
    """Lower-case text with initials as one word (`u.s.`, `u.s` and `u. s.` are `us`) and `1,000` as `1000`."""
    text = _INITIALS.sub(_close_up, text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return text.replace("&", " and ")


def _close_up(found: re.Match[str]) -> str:
    word, following = found[0].replace(".", "").replace(" ", ""), found.string[found.end() :][:1]
    return f"{word} " if found[0].endswith(" ") or following.isalnum() else word


def same_spelling(text: str) -> str:
    """Words without punctuation in one spelling each; a possessive keeps its ending."""
    table = spelling_table()
    words = []
    for word in text.split():
        stem, apostrophe, ending = word.partition("'")
        stem = _SAME.get(stem, table.get(stem, stem))
        words.append(stem + apostrophe + ending)
    return " ".join(words)


Rule = Callable[[str], str]


def _replace(pattern: str, replacement: str) -> Rule:
    return functools.partial(re.compile(pattern).sub, replacement)


def _translate(table: Mapping[int, int | str]) -> Rule:
    return lambda text: text.translate(table)


_LETTER = r"[^\W\d_]"
_ELISION = r"\b({})' (?=\w)"
_STRESS = _replace("(?<=[аеёиоуыэюяіїє])\u0301", "")
_QUOTE_FOR_APOSTROPHE = _replace(f'(?<={_LETTER})["“”*](?={_LETTER})', "'")
_NO_HARAKAT = _replace(
    "[\u0610-\u061a\u0640\u064b-\u0652\u0656-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u08d3-\u08ff]",
    "",
)
#: After a silent heh it is a hamza above or a yeh: خانهٔ, خانۀ, خانه‌ی, خانه ی.
_EZAFE = _replace("(?:\u0647\u0654|\u06c0)", "\u0647\u06cc")
_URDU_HEH = _replace("(?:\u06c1\u0654|\u06c0)", "\u06c2")
_GERSHAYIM = _replace("(?<=[א-ת])(?:[\"“”״]|'')(?=[א-ת])", "\u05f4")
_COLON_INSIDE = _replace(rf"(?<=\w):(?={_LETTER})", "")
#: Vietnamese syllables without a final consonant, tone on the second vowel (1984) and on the first (before).
_TONES = {
    f"{first}{second}": f"{marked}{plain}"
    for first, plain, seconds, firsts in (
        ("o", "a", "àáảãạ", "òóỏõọ"),
        ("o", "e", "èéẻẽẹ", "òóỏõọ"),
        ("u", "y", "ỳýỷỹỵ", "ùúủũụ"),
    )
    for second, marked in zip(seconds, firsts, strict=True)
}
_TONE_ON_SECOND = re.compile(rf"(?<!q)(?:{'|'.join(_TONES)})(?!\w)")


def _vietnamese_tone(text: str) -> str:
    """The tone mark where the older rule puts it: `hoà` as `hòa`, `thuý` as `thúy`; not in `quý`."""
    return _TONE_ON_SECOND.sub(lambda found: _TONES[found.group()], text)


def _am_vowel(niggahita: str, tones: str, aa: str, am: str) -> list[Rule]:
    """Thai and Lao AM, which NFKC takes apart, whole again, whichever side of it the tone was typed on."""
    return [
        _replace(f"{niggahita}([{tones}]?){aa}", rf"\1{am}"),
        _replace(f"([{tones}]){niggahita}{aa}", rf"\1{am}"),
    ]


#: On the text as given, before invisible characters are taken out.
EARLY: dict[str, list[Rule]] = {
    # Chillu letters: one code point since Unicode 5.1, before that consonant, virama and joiner.
    "ml": [
        _replace(f"{old}\u0d4d\u200d", new)
        for old, new in zip("ണനരലളക", "\u0d7a\u0d7b\u0d7c\u0d7d\u0d7e\u0d7f", strict=True)
    ],
    # Khanda ta, likewise since Unicode 4.1.
    "bn": [_replace("\u09a4\u09cd\u200d", "\u09ce")],
    "as": [_replace("\u09a4\u09cd\u200d", "\u09ce")],
}
#: On lower-case text that still has its punctuation.
RULES: dict[str, list[Rule]] = {
    "en": [closed_up],
    "be": [_STRESS, _QUOTE_FOR_APOSTROPHE],
    "uk": [_STRESS, _QUOTE_FOR_APOSTROPHE],
    "ru": [_STRESS, _replace("ё", "е")],
    "bg": [_STRESS],
    "sr": [serbian_latin],
    "bs": [serbian_latin],
    "fr": [
        _replace("œ", "oe"),
        _replace("æ", "ae"),
        _replace(_ELISION.format("l|d|j|m|t|s|c|n|qu|jusqu|lorsqu|puisqu|quoiqu|quelqu|presqu"), r"\1'"),
    ],
    "it": [
        _replace(
            _ELISION.format("l|d|c|s|un|dell|all|dall|nell|sull|coll|quell|quest|bell|sant|anch"), r"\1'"
        )
    ],
    "ca": [_replace("l[.•‧∙⋅]l", "l·l"), _replace(_ELISION.format("l|d|m|t|s|n"), r"\1'")],
    "la": [_replace("œ", "oe"), _replace("æ", "ae")],
    "ro": [_translate(str.maketrans("şţ", "șț"))],
    "sv": [_COLON_INSIDE],
    "fi": [_COLON_INSIDE],
    "uz": [_replace("(?<=[og])'", "\u02bb")],
    "haw": [_replace("'(?=[aeiouāēīōū])", "\u02bb")],
    "vi": [_vietnamese_tone],
    "he": [_replace("[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]", ""), _GERSHAYIM],
    "yi": [_GERSHAYIM],
    "ar": [_NO_HARAKAT],
    "fa": [_NO_HARAKAT, _translate(str.maketrans("يىك", "ییک")), _EZAFE],
    "ur": [_NO_HARAKAT, _translate(str.maketrans("يىكه", "ییکہ")), _URDU_HEH],
    "ps": [_NO_HARAKAT],
    "sd": [_NO_HARAKAT],
    "th": [*_am_vowel("\u0e4d", "\u0e48-\u0e4b", "\u0e32", "\u0e33"), _replace("\u0e40\u0e40", "\u0e41")],
    "lo": [*_am_vowel("\u0ecd", "\u0ec8-\u0ecb", "\u0eb2", "\u0eb3"), _replace("\u0ec0\u0ec0", "\u0ec1")],
    "bo": [_replace("[\u0f0b\u0f0c]", " ")],
}
#: On words without punctuation, a space between each two.
LATE: dict[str, list[Rule]] = {
    "en": [english_signs, same_spelling],
    # One letter, at the end of a word in its final form; a letter alone, as in initials, is typed either way.
    "el": [_replace("ς", "σ"), _replace(r"(?<=\w)σ(?!\w)", "ς")],
    "fa": [
        _replace(r"\b(ن?می) (?=\w)", r"\1"),
        _replace(r" (ها|های|هایی|تر|ترین)\b", r"\1"),
        _replace(r"(?<=ه) ی\b", "ی"),
    ],
}
