"""Whisper's languages: its own codes for BCP 47 tags, ISO 639 codes and English names."""

from __future__ import annotations

import contextlib
import difflib
import functools
import re

from trainer.errors import ConfigError

#: Whisper's own list (`tokenization_whisper.py`, and the paper's appendix C measures these by CER), and two more
#: that put no space between words: Khmer, Tibetan.
WITHOUT_SPACES = frozenset({"zh", "yue", "ja", "th", "lo", "my", "km", "bo"})
_IN_ORDER = """
en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi
ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd
gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue
"""
CODES = tuple(_IN_ORDER.split())
"""In the order of Whisper's tokens; `tokenization_whisper` has them with their names, and takes a second to import."""
_SAME, _RELATED = 1, 14
"""Distances of tags in CLDR's language matching up to which they are one language, as `nb` and `no`, and up to which
they share a macrolanguage, as `arz` (Egyptian Arabic) and `ar`."""


def language_name(code: str) -> str:
    """The English name of a language: `German`; the code in quotes where Whisper does not know it."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return LANGUAGES[code].title() if code in LANGUAGES else f"{code!r}"


@functools.cache
def resolve_language(name: str) -> str:
    """Whisper's code of a language.

    Args:
        name: a name in English or in the language itself (`Belarusian`, `Deutsch`), a code of ISO 639-1, 639-2 or
            639-3 (`be`, `bel`), a BCP 47 tag whose script and region do not count (`zh-Hant`, `pt_BR`), or Whisper's
            token (`<|be|>`).

    Raises:
        ConfigError: Whisper has no such language; of a code a related language is told, of a name those like it.
    """
    import langcodes

    key = name.strip().lower().removeprefix("<|").removesuffix("|>")
    if key in CODES:
        return key
    tag = key.replace("_", "-")
    if not langcodes.tag_is_valid(tag):
        with contextlib.suppress(LookupError):
            tag = langcodes.find(key).to_tag()
    no_language = (None, "und", "mul", "zxx")
    if langcodes.tag_is_valid(tag) and langcodes.Language.get(tag).language not in no_language:
        code = _nearest(tag, _SAME)
        if code is not None:
            return code
        near = _nearest(tag, _RELATED)
        # On Hawaiian Whisper was trained next to nothing.
        given = (
            f", such as {near} ({language_name(near)})"
            if near
            else ", or one that you do not need, such as haw"
        )
        hint = f"give a related one that it knows{given}; two or three short trainings show which is best"
    else:
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        if key in TO_LANGUAGE_CODE:
            return str(TO_LANGUAGE_CODE[key])
        alike = " or ".join(difflib.get_close_matches(key, TO_LANGUAGE_CODE, n=3, cutoff=0.75))
        hint = f"did you mean {alike}? " * bool(alike) + "use its name or a code such as en, bel or gsw"
    raise ConfigError(f"language={name!r}: Whisper does not know this language; {hint}")


def language_code(value: object) -> str | None:
    """Whisper's code for a cell or folder name (`en`, `English`, `en-US`, `en_us`); none where it has no such."""
    text = str(value or "").strip().lower()
    for name in (text, re.split(r"[-_]", text)[0]):
        with contextlib.suppress(ConfigError):
            return resolve_language(name)
    return None


def _nearest(tag: str, distance: int) -> str | None:
    """Whisper's code of the language that is nearest to a tag's in CLDR's language matching; none farther off."""
    import langcodes

    own = _standard_codes()
    language = langcodes.Language.get(langcodes.standardize_tag(tag, macro=True)).language or "und"
    if language in own:
        return own[language]
    nearest, _ = langcodes.closest_match(language, list(own), max_distance=distance)
    return own.get(nearest)


@functools.cache
def _standard_codes() -> dict[str, str]:
    """Whisper's codes by the standard ones, which some are not: `jw` is `jv`, and `tl` is read as `fil`."""
    import langcodes

    return {langcodes.standardize_tag(code): code for code in CODES}
