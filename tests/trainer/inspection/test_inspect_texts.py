"""Texts: which are the same, which are none, and which characters do not belong in them."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.inspection.characters import odd_characters
from trainer.inspection.rates import Misfit, find_misfits
from trainer.inspection.texts import markup

ODD = {
    "zero width": ("some\u200bword here", "invisible character U+200B ZERO WIDTH SPACE"),
    "byte order mark": ("\ufeffSome words", "invisible character U+FEFF"),
    "soft hyphen": ("hy\u00adphen", "invisible character U+00AD"),
    "control": ("a bell\x07", "control character U+0007"),
    "replacement": ("na\ufffdve", "broken character \ufffd U+FFFD"),
    "private use": ("a \ue000 sign", "broken character U+E000"),
    "emoji": ("so good \U0001f600", "emoji \U0001f600 U+1F600"),
    "cyrillic a": ("the c\u0430t", "Cyrillic and Latin letters in one word: 'c\u0430t'"),
    "greek o": ("d\u03bfor", "Greek and Latin letters in one word"),
    "cyrillic word": ("say \u0434\u0430 now", "Cyrillic letter \u0434 U+0434"),
    "mojibake": ("the cafÃ© is open", "letters of a wrong encoding: 'cafÃ©' for 'café'"),
    "mojibake quote": ("donâ€™t go", "letters of a wrong encoding"),
    "mojibake of Cyrillic": ("say Ð´Ð° now", "'Ð´Ð°' for 'да'"),
    "mojibake in Cyrillic": ("РџСЂРёРІРµС‚ to all", "'РџСЂРёРІРµС‚' for 'Привет'"),
    "mojibake of Chinese": ("ä½\xa0å¥½ he said", "for '你好'"),
    "mojibake with a blank": ("voilÃ\xa0 le", "for 'voilà'"),
    "arabic": ("so lـong", "Arabic letter ـ U+0640"),
    "accent apart": ("cafe\u0301", "letter and accent apart, U+0301"),
    "joiner": ("wo\u200drd", "invisible character U+200D"),
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
    "spanish": ["¿Qué pasó? ¡Mañana, señor!", "El pingüino nº 1"],
    "russian": ["Привет, как дела? Ёлка", "«Да», — сказал он."],
    "belarusian": ["раз'яднаць сям'ю", "Ўсё добра, і ты"],
    "greek": ["Καλημέρα, τι κάνεις;", "Ώρα καλή"],
    "hindi": ["यह एक वाक्य है।", "क्षत्रिय क्\u200dष"],
    "persian": ["می\u200cخواهم بروم", "کتاب\u200cها"],
    "arabic": ["السلام عليكم، كيف حالك؟"],
    "thai": ["สวัสดีครับ ผมชื่อสมชาย"],
    "japanese": ["今日はコーヒーを飲みました。", "Tシャツとラーメン"],
    "chinese": ["今天天气很好。", "我们去卡拉OK吧"],
    "korean": ["안녕하세요, 만나서 반갑습니다."],
    "vietnamese": ["Tôi đi học ở trường", "Cảm ơn bạn rất nhiều"],
    "serbian": ["Добар дан, Љубица", "Њега сам видео"],
    "hebrew": ["שלום, מה שלומך?", "צה״ל וז׳קט"],
    "ewe": ["Esi eme va kɔ ƒãa be, ŋutinya ƒomevi bubu"],  # letters that would be UTF-8 in Mac OS Roman
    "signs": ["it was 5 k\u2126 at 3 \u212a, 2 \u212b off", "la 1ª vez, el nº 2", "10 µm, mʰ"],
    "tamil": ["வணக்கம், எப்படி இருக்கிறீர்கள்?"],
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
    marked = {
        **{"<unk> hello": "<unk>", "he said [laughs] no": "[laughs]", "salt &amp; pepper": "&amp;"},
        **{
            "see https://example.org now": "https://example.org",
            "(laughter) yes": "(laughter)",
            "a \\n b": "\\n",
        },
        **{
            "*coughs* well": "*coughs*",
            "{noise} well": "{noise}",
            "3 < 5 and 7 > 6": None,
            "(perhaps) so": None,
        },
        **{"Q & A": None, "well: what now": None},
    }
    assert {text: markup(text) for text in marked} == marked


def test_texts_of_other_audio_are_found_by_their_length() -> None:
    draw = np.random.default_rng(0)
    letters = draw.integers(8, 120, 400)
    seconds = (letters + 10) / 17 * np.exp(0.12 * draw.standard_normal(400))
    assert find_misfits(seconds, letters)[1] == []
    swapped, order = letters.copy(), np.argsort(letters)
    wrong = {int(at) for at in (*order[:10], *order[-10:])}
    swapped[order[:10]], swapped[order[-10:]] = letters[order[-10:]], letters[order[:10]]
    rate, misfits = find_misfits(seconds, swapped)
    assert rate == pytest.approx(17, rel=0.05)
    assert {misfit.position for misfit in misfits} == wrong


def test_few_clips_are_judged_by_what_anybody_can_speak() -> None:
    assert find_misfits([1.0, 1.0, 10.0], [15, 90, 3]) == (None, [Misfit(1, None), Misfit(2, None)])
