"""Signs that are said: written in all the ways that people write them they are one, and others stay others."""

from __future__ import annotations

import unicodedata

import hypothesis
import pytest
from hypothesis import strategies

from trainer.data.text import CURRENCIES, prepare_target
from trainer.languages import CODES, WITHOUT_SPACES
from trainer.scoring.normalizers import normalize

#: Ways to write one thing, each of which people use somewhere; `N` stands for the number.
WAYS = {
    "percent": "N%|N %|N\u00a0%|N\u202f%|N\uff05|%N|% N|N\ufe6a|N٪|٪N|N ٪.",
    "per mille": "N‰|N ‰|N\u00a0‰|N؉",
    "euro": "N€|N €|N\u00a0€|€N|€ N|€\u202fN|(N €)|N€.",
    "dollar": "$N|$ N|N$|N $|\uff04N|N\u00a0$!",
    "pound": "£N|N £|\uffe1N",
    "yen": "¥N|N¥|\uffe5N|¥ N",
    "won": "₩N|\uffe6N|N ₩",
    **{sign: f"{sign}N|{sign} N|N{sign}|N {sign}" for sign in "₹₽₺₪₫₱₸₾৳฿؋"},
    "minus": "-N|\u2212N|\u2212 N|\u2011N|\u2013N|\uff0dN|\ufe63N",
    "minus euro": "-N €|\u2212N€|-€N|\u2013N\u00a0€",
    "degree": "N°C|N °C|N\u00a0°C|N ° C|N\u2103",
    "plus": "+N|+ N",
    "section": "§N|§ N|§\u00a0N",
}
#: Number in the digits of a language.
NUMBERS = [
    ("de", "1.000,50"),
    ("fr", "5\u00a0000"),
    ("de", "5'000"),
    ("ar", "٥٫٥"),
    ("hi", "५.५"),
    ("my", "၅"),
]
NUMBERS += [("ja", "５"), ("he", "7"), ("tr", "20"), ("en", "1,000.50")]


@pytest.mark.parametrize(("language", "number"), NUMBERS)
def test_a_sign_is_the_same_however_it_is_written(language: str, number: str) -> None:
    bare = normalize(number, language)
    for thing in WAYS.values():
        ways = [way.replace("N", number) for way in thing.split("|")]
        assert len({normalize(f"a {way} b", language) for way in ways}) == 1, ways
        assert len({normalize(way, language) for way in ways}) == 1, ways
        assert normalize(ways[0], language) != bare, f"the sign of {ways[0]} is said and stays"
        assert set(bare.split()) <= set(normalize(ways[0], language).split()), "and so does the number"


def test_no_sign_is_another() -> None:
    for language in ("fr", "ar", "zh", "en"):
        found = {normalize(ways.split("|")[0].replace("N", "5"), language) for ways in WAYS.values()}
        assert len(found) == len(WAYS)


#: What is counted of a text.
TABLE = [
    ("fr", "5 000 € à 3,5 %", "5 000 € à 3,5 %"),
    ("nl", "€ 5 miljoen, € 10,-", "5 € miljoen 10 €"),
    ("de", "5 - 10 Äpfel \u2013 gut", "5 10 äpfel gut"),
    ("de", "minus \u22125, E\u2011Mail, Covid-19", "minus − 5 e mail covid 19"),
    ("de", "2 $5 scheine", "2 5 $ scheine"),
    ("fr", "R&D, R & D; a@b.fr", "r & d r & d a @ b fr"),
    ("fr", "5½, 5 ½, 1/2", "5 1 2 5 1 2 1 2"),
    ("fr", "5² et 52", "5 2 et 52"),
    ("fa", "5﷼", "5 ریال"),
    ("ar", "١٬٠٠٠٫٥ ؉", "1,000.5 ‰"),
    ("fa", "خانهٔ خانۀ خانه‌ی خانه ی", "خانهی خانهی خانهی خانهی"),
    ("el", "Κ.Σ., κ.σ., κ.ς., ΟΔΟΣ οδος", "κ σ κ σ κ σ οδος οδος"),
    ("de", "z.B., z. B., U.S", "z b z b u s"),
    ("en", "$1.50; £5; $1; ¥5, ₹5, 5¢", "1.50 dollars 5 pounds 1 dollar 5 yen 5 rupees 5 cents"),
    ("en", "the U.S, the U.S., the U. S., the US", "the us the us the us the us"),
    ("en", "9 a.m. at J.R.R. Tolkien's; i.e., a. I", "9 am at jrr tolkien's ie a i"),
    ("en", "5%-10%, 5 per cent", "5 percent 10 percent 5 percent"),
    ("en", "\u22125 is -5 is minus 5; 3 - 5", "minus 5 is minus 5 is minus 5 3 5"),
]


@pytest.mark.parametrize(("language", "text", "counted"), TABLE)
def test_what_is_counted(language: str, text: str, counted: str) -> None:
    assert " ".join(normalize(text, language).split()) == counted


def test_every_currency_sign_is_known() -> None:
    signs = {chr(code) for code in range(0x3000) if unicodedata.category(chr(code)) == "Sc"}
    unknown = {sign for sign in signs if normalize(f"5{sign}", "fr") != normalize(f"5 {sign}", "fr")}
    assert not unknown
    assert "€" not in CURRENCIES, "a range has it"


@pytest.mark.parametrize(
    ("text", "taught"),
    [
        ("Es sind -5 °C, \u22125 % und E-Mail - 3!", "Es sind -5 °C \u22125 % und E-Mail 3"),
        ("٥٪ ثم ؉", "٥٪ ثم ؉"),
    ],
)
def test_signs_that_count_are_taught_without_punctuation_too(text: str, taught: str) -> None:
    assert prepare_target(text, lowercase=False, remove_punctuation=True) == taught


_SIGNS = strategies.sampled_from("5٥५5 %‰٪€$£₹-\u2212\u2013+§&°.,:' usakrmbn½²ۀهΣςσ()\u00a0")
_ANY = strategies.characters(exclude_categories=("Cs",))


@hypothesis.given(
    text=strategies.text(_SIGNS | _ANY, max_size=25),
    # English has Whisper's own normaliser within, whose words of signs ("$ $5") change what stands beside them.
    language=strategies.sampled_from(sorted(set(CODES) - WITHOUT_SPACES - {"en"})),
)
@hypothesis.example("%¢¼", "de")
@hypothesis.example("% € % € 5 10", "de")
@hypothesis.settings(max_examples=500, deadline=None)
def test_a_normalised_text_is_normal(text: str, language: str) -> None:
    once = normalize(text, language)
    assert normalize(once, language) == once
