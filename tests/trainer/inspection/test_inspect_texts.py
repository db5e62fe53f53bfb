"""Texts: which are the same, which are none, and which characters do not belong in them."""

from __future__ import annotations

import pytest

from trainer.inspection.characters import odd_characters
from trainer.inspection.rates import find_misfits
from trainer.inspection.texts import markup

ODD = {
    "zero width": ("some\u200bword here", "invisible character U+200B ZERO WIDTH SPACE"),
    "control": ("a bell\x07", "control character U+0007"),
    "replacement": ("na\ufffdve", "broken character \ufffd U+FFFD"),
    "emoji": ("so good \U0001f600", "emoji \U0001f600 U+1F600"),
    "cyrillic a": ("the c\u0430t", "Cyrillic and Latin letters in one word: 'c\u0430t'"),
    "cyrillic word": ("say \u0434\u0430 now", "Cyrillic letter \u0434 U+0434"),
    "mojibake": ("the cafÃ© is open", "letters of a wrong encoding: 'cafÃ©' for 'café'"),
    "mojibake of Cyrillic": ("say Ð´Ð° now", "'Ð´Ð°' for 'да'"),
    "mojibake in Cyrillic": ("РџСЂРёРІРµС‚ to all", "'РџСЂРёРІРµС‚' for 'Привет'"),
    "arabic": ("so lـong", "Arabic letter ـ U+0640"),
    "accent apart": ("cafe\u0301", "letter and accent apart, U+0301"),
}
PLAIN = [
    *("It was late, and she said nothing.", "Don't go - not yet; wait.", "Is it 5 o'clock? No!"),
    *("The cat sat on the mat.", "A “quoted” word", "Well-known, isn't it?"),
]


def found(text: str, others: list[str]) -> list[str]:
    """What is wrong with a text among others."""
    return [detail for position, detail in odd_characters([*others, text]) if position == len(others)]


@pytest.mark.parametrize("name", ODD)
def test_odd_characters_are_named(name: str) -> None:
    text, told = ODD[name]
    (odd,) = found(text, PLAIN * 30)
    assert told in odd


SOUND = {
    "english": PLAIN,
    "german": ["Schöne Grüße, Straße!", "Er sagte: „Ja, natürlich.“", "Ärger über Öl"],
    "french": ["Voilà « ça » s’appelle déjà", "à bientôt, Noël"],
    "russian": ["Привет, как дела? Ёлка", "«Да», — сказал он."],
    "belarusian": ["раз'яднаць сям'ю", "Ўсё добра, і ты"],
    "hindi": ["यह एक वाक्य है।", "क्षत्रिय क्\u200dष"],
    "persian": ["می\u200cخواهم بروم", "کتاب\u200cها"],
    "thai": ["สวัสดีครับ ผมชื่อสมชาย"],
    "japanese": ["今日はコーヒーを飲みました。", "Tシャツとラーメン"],
    "chinese": ["今天天气很好。", "我们去卡拉OK吧"],
    "hebrew": ["שלום, מה שלומך?", "צה״ל וז׳קט"],
    "ewe": ["Esi eme va kɔ ƒãa be, ŋutinya ƒomevi bubu"],  # letters that would be UTF-8 in Mac OS Roman
    "signs": ["it was 5 k\u2126 at 3 \u212a, 2 \u212b off", "la 1ª vez, el nº 2", "10 µm, mʰ"],
}


@pytest.mark.parametrize("language", SOUND)
def test_ordinary_texts_of_many_languages_are_sound(language: str) -> None:
    assert list(odd_characters(SOUND[language] * 30)) == []


def test_a_latin_letter_that_stands_for_a_cyrillic_one() -> None:
    texts = ["і я пайшоў дадому", "мая сям'я і мы"] * 40
    (odd,) = found("ты i я", texts)  # the Belarusian word for `and`, in the letter of another script
    assert "'i' is i U+0069 LATIN SMALL LETTER I" in odd
    assert found("у мяне ёсць Google", texts * 10) == [], "Latin names are common everywhere"


def test_markup() -> None:
    marked = (
        "<unk> hello|he said [laughs] no|salt &amp; pepper|see https://example.org now|a \\n b|{noise} well"
    )
    found = ["<unk>", "[laughs]", "&amp;", "https://example.org", "\\n", "{noise}"]
    assert [markup(text) for text in marked.split("|")] == found
    assert [markup(text) for text in ("3 < 5 and 7 > 6", "(perhaps) so", "Q & A", "well: what now")] == [
        None
    ] * 4


def test_few_clips_are_judged_by_what_anybody_can_speak() -> None:
    assert find_misfits([1.0, 1.0, 10.0], [15, 90, 3]) == (None, [1, 2])
