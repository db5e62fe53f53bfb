"""Text normalisers applied to references and hypotheses before errors are counted.

Whisper's own (`BasicTextNormalizer`, `EnglishTextNormalizer`) split words at apostrophes, put a space where Indic,
Thai and Arabic texts have a vowel sign, and for English write numbers as digits and run them together, so that
their WER is not that of the words. Those here keep words whole, one for each language; `docs/scoring.md` has the
table.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from trainer.config import TrainConfig
from trainer.data.text import join_space, prepare_target
from trainer.languages import WITHOUT_SPACES, language_name
from trainer.scoring.language_rules import (
    EARLY,
    LATE,
    RULES,
    arrange_signs,
    plain_signs,
    spelling_table,
    split_characters,
)

if TYPE_CHECKING:
    from transformers import WhisperTokenizer

    from trainer.data.prepared import Origins

Unit = Literal["words", "characters"]


@dataclasses.dataclass(frozen=True)
class Normalizer:
    """What is done to a text before errors are counted, and what is counted in it.

    The normalised text has its units apart by single spaces: words, or characters where a language has no words
    to count, so that the WER of such a text is the CER of the language.
    """

    name: str
    """As reports name it: `auto-be`, `whisper`, `basic`, `none`."""
    unit: Unit
    description: str
    """A sentence or two of what it makes equal, for reports."""
    function: Callable[[str], str]

    def __call__(self, text: str) -> str:
        return self.function(text)

    def as_written(self, text: str) -> str:
        """The text as it is taught, in units: what orthographic rates count."""
        return split_characters(text) if self.unit == "characters" else join_space(text)


def make_normalizer(config: TrainConfig, tokenizer: WhisperTokenizer | None = None) -> Normalizer:
    """The normaliser of `config.normalizer` for the language that is written; nothing heavy is imported until it is
    called. A tokenizer may bring the model's own table of English spellings, which `whisper` then takes.
    """
    code = config.written_language
    unit: Unit = "words"
    function: Callable[[str], str] = join_space
    if config.normalizer == "none":
        description = "texts as they are, but for white space"
    elif config.normalizer == "basic":
        function, description = _basic, "case and punctuation are left out; the same for all languages"
    elif config.normalizer == "whisper":
        kind = "EnglishTextNormalizer" if code == "en" else "BasicTextNormalizer"
        function, description = _whisper(code, tokenizer), f"Whisper's own {kind}"
        if code in WITHOUT_SPACES:
            unit, description = "characters", f"{description}, by characters as in Whisper's paper"
    else:
        function = functools.partial(normalize, language=code)
        description = (
            f"{language_name(code)}: case and punctuation are left out, letters and their marks are kept"
        )
        if any(code in table for table in (EARLY, RULES, LATE)):
            description += "; its own rules are in docs/scoring.md of tune-whisper"
        if code in WITHOUT_SPACES:
            unit = "characters"
            description += "; written without spaces between words, so characters are counted"
    return Normalizer(config.normalizer_name, unit, description, function)


def make_normalizers(
    config: TrainConfig, origins: Origins, tokenizer: WhisperTokenizer | None = None
) -> list[Normalizer]:
    """The normaliser of each clip, by the language that it is written in."""
    made = [make_normalizer(kind.config(config), tokenizer) for kind in origins.kinds]
    return [made[kind] for kind in origins.numbers]


def as_one(normalizers: Sequence[Normalizer]) -> Normalizer:
    """Several normalisers as reports name them; the rates of words and of characters are shown as WER."""
    different = list({(one.name, one.unit): one for one in normalizers}.values())
    if len(different) == 1:
        return different[0]
    units = {one.unit for one in different}
    return dataclasses.replace(
        different[0],
        name=", ".join(dict.fromkeys(one.name for one in different)),
        unit=units.pop() if len(units) == 1 else "words",
        description="; ".join(dict.fromkeys(one.description for one in different)),
    )


def unit_note(config: TrainConfig) -> str | None:
    """What a user must know of a rate that is called WER and counts no words; None where it does."""
    if config.task == "translate" or make_normalizer(config).unit == "words":
        return None
    language = language_name(config.written_language)
    return (
        f"{language} is written without spaces between words: errors are counted by character, "
        f"so WER is the CER here (normaliser {config.normalizer_name})"
    )


def rates_note(config: TrainConfig) -> str:
    """The normaliser and what is counted, in sentences for a report that tells WERs."""
    if config.task == "translate":
        return (
            "Translations are measured by chrF (sacrebleu's chrF2, on texts as written), given as the error 100 - chrF "
            "so that lower is better; BLEU is shown beside it."
        )
    own = make_normalizer(config)
    called = ", so that it is the CER here" if own.unit == "characters" else ""
    description = f"{own.description[0].upper()}{own.description[1:]}"
    return f"WER is counted with normaliser {own.name}, unit: {own.unit}{called}. {description}."


#: All that stands for an apostrophe: of typewriter and typesetting, the modifier letters, accents, primes, the
#: opening quote that is typed for either, those of full width, Armenian and Hebrew.
_APOSTROPHES = dict.fromkeys(
    map(ord, "\u2019\u2018\u201b\u02bc\u02bb\u02bd\u02b9\u0060\u00b4\u2032\u2035\uff07\ua78c\u055a\u05f3"),
    "'",
)
#: What shows nothing: soft hyphen, joiners, marks of direction, byte order mark, variation selectors.
_INVISIBLE = {
    **dict.fromkeys((0x00AD, 0x034F, 0x061C, 0x180E, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF)),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xFE00, 0xFE10))),
    0x200B: " ",
}
#: What NFKC makes letters or digits of, which would become one word or number with those beside them: ₨, ﷼, №, ½, ².
_BECOME_WORDS = re.compile(
    "[\u20a8\ufdfc\u2116\u00bc-\u00be\u2150-\u215f\u2189]|[\u00b2\u00b3\u00b9\u2070-\u2079]+"
)
#: Hyphens and dashes: `well-known` and `well known` sound the same.
_HYPHENS = dict.fromkeys(map(ord, "-\u2010\u2011\u2012\u2013\u2014\u2015\u05be\u30a0"), " ")


def normalize(text: str, language: str) -> str:
    """The text as it is counted in `language` (Whisper's code): words, or characters, a space between each two.

    Left out are case, punctuation, hyphens, emoji and what is invisible; equal are the ways to type an apostrophe,
    digits of all scripts, the places of a sign (`signs`), and what `language_rules` has for the language. Letters keep
    their marks. What stands in brackets was said and counts.
    """
    for rule in EARLY.get(language, ()):
        text = rule(text)
    # Before NFKC, which makes a space and a combining accent of the acute accent that stands for an apostrophe.
    text = _BECOME_WORDS.sub(r" \g<0> ", text.translate(_INVISIBLE).translate(_APOSTROPHES))
    text = unicodedata.normalize("NFKC", text)
    text = prepare_target(text, lowercase=True, remove_punctuation=False, language=language)
    for rule in RULES.get(language, ()):
        text = rule(text)
    text = plain_signs(text).translate(_HYPHENS)
    # Emoji and other symbols are not said; of these only the degree sign is.
    text = "".join(" " if unicodedata.category(char) == "So" and char != "\u00b0" else char for char in text)
    text = prepare_target(text, lowercase=False, remove_punctuation=True)
    text = arrange_signs(text)
    for rule in LATE.get(language, ()):
        text = rule(text)
    return split_characters(text) if language in WITHOUT_SPACES else text


def _basic(text: str) -> str:
    """Lower case, no punctuation, single spaces; combining marks, and what joins a word inside, are kept."""
    composed = unicodedata.normalize("NFKC", text).translate(_APOSTROPHES)
    return prepare_target(composed, lowercase=True, remove_punctuation=True)


def _whisper(code: str, tokenizer: WhisperTokenizer | None) -> Callable[[str], str]:
    @functools.cache
    def own() -> Callable[[str], str]:
        from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

        if code != "en":
            return BasicTextNormalizer(split_letters=code in WITHOUT_SPACES)  # type: ignore[no-any-return]
        table = getattr(tokenizer, "english_spelling_normalizer", None) or spelling_table()
        return EnglishTextNormalizer(table)  # type: ignore[no-any-return]

    return lambda text: own()(text).strip()
