"""Normalisers: every language keeps its words and letters."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from trainer.config import TrainConfig
from trainer.languages import CODES, WITHOUT_SPACES, language_name
from trainer.model.processor import load_processor
from trainer.scoring.language_rules import EARLY, LATE, RULES
from trainer.scoring.normalizers import make_normalizer, normalize, unit_note

DOCS = Path(__file__).resolve().parents[3] / "docs" / "scoring.md"

#: Language, a text, and what is counted of it.
TABLE = [
    ("be", "Раз'яднаць, сёння!", "раз'яднаць сёння"),
    ("uk", "П’ять об'єктів — сім'я.", "п'ять об'єктів сім'я"),
    ("ru", "Ещё раз: что?", "еще раз что"),
    ("hi", "हिन्दी में पढ़ना।", "हिन्दी में पढ़ना"),
    ("bn", "আমি বাংলায় গান গাই।", "আমি বাংলায় গান গাই"),
    ("ta", "தமிழ் மொழி", "தமிழ் மொழி"),
    ("th", "ที่นี่ น้ำ", "ที่ นี่ น้ ำ"),
    ("ar", "كِتَابٌ جديـد،", "كتاب جديد"),
    ("fa", "می‌خواهم كتاب", "میخواهم کتاب"),
    ("he", 'צה"ל, שָׁלוֹם', "צה״ל שלום"),
    ("vi", "Hoà bình, thuý!", "hòa bình thúy"),
    ("sr", "Њујорк, Џорџ", "njujork džordž"),
    ("sr", "Njujork, Džordž", "njujork džordž"),
    ("fr", "L’homme d'Œdipe, aujourd'hui.", "l'homme d'oedipe aujourd'hui"),
    ("sv", "EU:s språk, å ä ö", "eus språk å ä ö"),
    ("tr", "İstanbul'da IŞIK", "istanbul'da ışık"),
    ("uz", "Oʻzbek bog‘", "oʻzbek bogʻ"),
    ("zh", "你好,世界!", "你 好 世 界"),
    ("ja", "データを、見る。", "デ ー タ を 見 る"),
    ("ko", "안녕하세요, 세계!", "안녕하세요 세계"),
    ("de", "Straße, E-Mail", "straße e mail"),
    ("en", "Don't say 'seven three two'!", "don't say seven three two"),
]


@pytest.mark.parametrize(("language", "text", "ours"), TABLE)
def test_each_language(language: str, text: str, ours: str) -> None:
    assert normalize(text, language) == ours
    assert normalize(ours, language) == ours, "a normalised text is normal"


#: Language and spellings that nobody hears apart; all must come out as one.
SAME = [
    ("be", ["аб'ехаць", "аб’ехаць", "аб\u02bcехаць", "аб`ехаць", "аб\u00b4ехаць", 'аб"ехаць', "АБ'ЕХАЦЬ"]),
    ("sr", ["Љубав и џеп", "Ljubav i džep", "ljubav i \u01c6ep"]),
    ("vi", [unicodedata.normalize("NFD", "tiếng Việt hòa"), "tiếng việt hoà"]),
    ("hi", ["\u0915\u093c 5", "\u0958 ५"]),
    ("th", ["น้ำ", "น\u0e49\u0e4d\u0e32", "น\u0e4d\u0e49\u0e32"]),
    ("th", ["แม่", "เเม่"]),
    ("ml", ["അവൻ", "അവന\u0d4d\u200d"]),
    ("bn", ["উৎস", "উত\u09cd\u200dস"]),
    ("ar", ["كتاب", "كـتاب", "كِتَاب"]),
    ("ar", ["٣٫٥", "3.5"]),
    ("fa", ["می‌خواهم", "می خواهم", "میخواهم", "مي‌خواهم"]),
    ("fa", ["کتاب‌ها", "کتاب ها", "کتابها", "كتاب‌ها"]),
    ("he", ["בית־ספר", "בית ספר"]),
    ("fr", ["l'œuvre", "L’ oeuvre", "l'œu\u00advre"]),
    ("ca", ["col·legi", "col.legi", "co\u0140legi"]),
    ("ro", ["şi ţară", "și țară"]),
    ("nl", ["ĳs", "ijs"]),
    ("fi", ["EU:n", "EUn"]),
    ("tr", ["İSTANBUL’DA", "istanbul'da"]),
    ("ja", ["ﾃﾞｰﾀ　ＡＢ", "データAB"]),
    ("en", ["colour's grey", "color's gray"]),
    ("en", ["Mr. Smith paid $5.50 & 7 %", "mister smith paid 5.50 dollars and 7 per cent"]),
    ("en", ["the U.S. at 9 a.m.", "the US at 9 am"]),
    ("en", ["It’s okay 🙂", "It's OK"]),
]


@pytest.mark.parametrize(("language", "spellings"), SAME)
def test_what_sounds_the_same_counts_as_equal(language: str, spellings: list[str]) -> None:
    assert len({normalize(text, language) for text in spellings}) == 1


#: Language and two texts that a listener tells apart; they must not be made equal.
DIFFERENT = [
    ("be", "ўсё", "усё"),
    ("uk", "ґанок", "ганок"),
    ("de", "Maße", "Masse"),
    ("sv", "får", "far"),
    ("fr", "pêche", "péché"),
    ("vi", "quý", "qúy"),
    ("hi", "दिन", "दीन"),
    ("th", "มา", "ม้า"),
    ("ar", "كاتب", "كتاب"),
    ("ar", "علي", "على"),
    ("zh", "发", "發"),
    ("en", "can", "can't"),
    ("en", "it's", "it is"),
    ("en", "(quietly) no", "no"),
    ("en", "um yes", "yes"),
    ("en", "seven", "7"),
    ("haw", "ʻau", "au"),
    ("de", "5 € 3", "3 € 5"),
    ("de", "5²", "52"),
    ("de", "5 US$", "5 $"),
    ("en", "€5m", "€5"),
    ("en", "5 m", "5 million"),
]


@pytest.mark.parametrize(("language", "one", "other"), DIFFERENT)
def test_what_sounds_different_stays_different(language: str, one: str, other: str) -> None:
    assert normalize(one, language) != normalize(other, language)


@pytest.mark.parametrize("language", CODES)
def test_every_language_has_a_normaliser(language: str) -> None:
    config = TrainConfig(language=language)
    normalizer = make_normalizer(config)
    assert normalizer.name == f"auto-{language}"
    assert language_name(language) in normalizer.description
    assert (normalizer.unit == "characters") == (language in WITHOUT_SPACES)
    assert ("WER is the CER" in str(unit_note(config))) == (language in WITHOUT_SPACES)
    assert unit_note(config.replace(normalizer="basic")) is None
    plain = "a b c" if normalizer.unit == "characters" else "abc"
    assert normalizer(" ABC. ") == plain
    assert normalizer("") == normalizer("…!") == ""


def test_other_normalisers_are_as_they_were() -> None:
    def counted(normalizer: str, text: str, **settings: str) -> str:
        config = TrainConfig(normalizer=normalizer, **settings)
        return make_normalizer(config, load_processor(config).tokenizer)(text)

    assert counted("whisper", "It's Mr. Smith, isn't it?") == "it is mister smith is not it"
    assert counted("whisper", "seven three two colours") == "732 colors"
    assert counted("whisper", "Раз'яднаць", language="be") == "раз яднаць"
    assert counted("whisper", "你好,世界!", language="zh") == "你 好 世 界"
    assert counted("none", " As It Is. ") == "As It Is."
    assert counted("basic", "It's well-known - HERE!") == "it's well-known here"
    assert counted("basic", "don\u2019t") == "don't"
    assert counted("basic", "раз\u02bcяднаць", language="be") == "раз'яднаць"


def test_a_translation_is_counted_as_english() -> None:
    config = TrainConfig(language="be", task="translate")
    assert make_normalizer(config).name == config.normalizer_name == "auto-en"
    assert make_normalizer(config)("Colour") == "color"
    assert TrainConfig(model="tiny.en", language=None).normalizer_name == "auto-en"


def test_the_table_in_the_docs_is_complete() -> None:
    text = DOCS.read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    documented = {code for row in rows for code in re.findall(r"`([a-z]{2,3})`", row)}
    assert {*EARLY, *RULES, *LATE} <= documented
    assert documented <= set(CODES)
