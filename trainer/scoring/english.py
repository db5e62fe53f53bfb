"""English spellings that sound the same: British and American, titles, percent and money."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources

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
_CURRENCIES = {"$": "dollar", "£": "pound", "€": "euro"}
_INITIALS = re.compile(r"(?<!\w)(?:[a-z]\.){2,}")
_MONEY = re.compile(r"([$£€])\s?(\d[\d.,]*\d|\d)( (?:hundred|thousand|million|billion|trillion))?")


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


def spoken_signs(text: str) -> str:
    """Lower-case text with initials closed up (`u.s.` is `us`) and signs as they are said (`$5`, `5 %`, `&`)."""
    text = _INITIALS.sub(lambda found: found.group().replace(".", ""), text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = _MONEY.sub(_spoken_money, text)
    text = re.sub(r"\bper cent\b", "percent", text)
    return text.replace("%", " percent ").replace("&", " and ")


def _spoken_money(found: re.Match[str]) -> str:
    sign, number, scale = found.groups()
    plural = "" if number == "1" and not scale else "s"
    return f"{number}{scale or ''} {_CURRENCIES[sign]}{plural}"


def same_spelling(text: str) -> str:
    """Words without punctuation in one spelling each; a possessive keeps its ending."""
    table = spelling_table()
    words = []
    for word in text.split():
        stem, apostrophe, ending = word.partition("'")
        stem = _SAME.get(stem, table.get(stem, stem))
        words.append(stem + apostrophe + ending)
    return " ".join(words)
