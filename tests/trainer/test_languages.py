"""Languages: the table is the one of transformers; names, codes and tags are resolved as users write them."""

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from trainer.errors import ConfigError
from trainer.languages import CODES, language_code, resolve_language


def test_codes_and_names_are_those_of_transformers() -> None:
    assert tuple(LANGUAGES) == CODES
    for name, code in TO_LANGUAGE_CODE.items():
        assert resolve_language(name) == code


# Whisper's code, and what ISO 639-1, 639-2/B, 639-2/T and 639-3 have for it, where that differs.
ISO_639 = """
en eng | zh chi zho | de ger deu | fr fre fra | nl dut nld | el gre ell | ms may msa | cs cze ces | ro rum ron | mi mao
mri | cy wel cym | sk slo slk | fa per fas | mk mac mkd | eu baq eus | is ice isl | hy arm hye | sq alb sqi |
be bel | nn nno | my bur mya | bo tib bod | tl tgl | haw | jw jv jav | yue
"""


@pytest.mark.parametrize("codes", [entry.split() for entry in ISO_639.split("|")], ids=lambda codes: codes[0])
def test_languages_by_every_code_name_and_tag(codes: list[str]) -> None:
    whispers = codes[0]
    for code in codes:
        for tag in (code, code.upper(), f"{code}_419", f"{code}-Cyrl-RU"):
            assert resolve_language(tag) == language_code(tag) == whispers
    assert resolve_language(LANGUAGES[whispers]) == resolve_language(f"<|{whispers}|>") == whispers


# Whisper's code, then older, narrower and other names that are read as it.
OTHERS = """
he: iw iw-IL | jw: jv jav | no: nb nob nb-NO | zh: cmn zh-CN zh-TW zh-Hant zh_hans_cn cmn_hans_cn | yue:
zh-yue yue_hant_hk | tl: fil fil_ph | ms: zsm | id: in | fa: pes prs | ar: arb | sw: swh | az:
azj | uz: uzn | et: ekk | lv: lvs | mn: khk | ne: npi | sq: als | mg: plt | yi: ydd | ro: mo | pa:
Punjabi | zh: Mandarin | yue: Cantonese | sr: sh hbs | de: Deutsch
| be: Беларуская | fr: Français | ja: 日本語 | nn: nynorsk
"""


@pytest.mark.parametrize("entry", OTHERS.split("|"), ids=str.strip)
def test_older_and_narrower_codes(entry: str) -> None:
    code, tags = entry.split(":")
    for tag in tags.split():
        assert resolve_language(tag) == language_code(tag) == code.strip()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("belorusian", "did you mean belarusian"),
        ("no such!!", "language; use its name or a code such as en, bel or gsw"),
        ("xx", "use its name"),
        ("ig", "give a related one that it knows"),
        ("arz", "give a related one that it knows, such as ar (Arabic); two or three short trainings show"),
        ("nan-tw", "as zh (Chinese)"),
        ("chr", "that it knows, or one that you do not need, such as haw;"),
    ],
)
def test_unknown_languages_get_a_hint_that_helps(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="Whisper does not know this language") as error:
        resolve_language(name)
    assert hint in str(error.value)
    assert str(error.value).count("did you mean") == hint.count("did you mean")
    assert "\n" not in str(error.value)
    assert language_code(name) is None
