"""Languages: the table is the one of transformers, and names are resolved as users write them."""

from __future__ import annotations

import pytest

from trainer.errors import ConfigError
from trainer.languages import LANGUAGES, resolve_language


def test_the_table_is_the_one_of_transformers() -> None:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES as THEIRS

    assert LANGUAGES == THEIRS


def test_every_other_name_is_known() -> None:
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    for name, code in TO_LANGUAGE_CODE.items():
        assert resolve_language(name) == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        *[("en", "en"), ("EN", "en"), (" Belarusian ", "be"), ("german", "de"), ("Mandarin", "zh")],
        *[("haitian creole", "ht"), ("yue", "yue"), ("Cantonese", "yue"), ("no", "no")],
    ],
)
def test_names_and_codes(name: str, code: str) -> None:
    assert resolve_language(name) == code


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("belorussian", "did you mean belarusian"),
        ("germn", "did you mean german"),
        ("klingon!!", "use a code such as en, de, be or an English name"),
        ("", "use a code"),
    ],
)
def test_unknown_languages_get_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="Whisper does not know this language") as error:
        resolve_language(name)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)
