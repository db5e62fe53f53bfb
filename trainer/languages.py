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
_NO_LANGUAGE = (None, "und", "mul", "zxx")
_SAME = 1
"""Distance of tags in CLDR's language matching up to which they are one language: `nb` and `no`."""
_RELATED = 14
"""The same, of languages that share a macrolanguage: `arz` (Egyptian Arabic) and `ar`."""
_SPARE = "haw"
"""A language on which Whisper was trained next to nothing, so that its token can be taught another."""
_ALIKE = 0.75
"""Likeness of two words, by difflib, from which one is taken for the other mistyped."""


def language_name(code: str) -> str:
    """The English name of a language: `German`; the code in quotes where Whisper does not know it."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    return LANGUAGES[code].title() if code in LANGUAGES else f"{code!r}"


@functools.cache
def resolve_language(name: str) -> str:
    """Whisper's code of a language.

    Args:
        name: an English name (`Belarusian`), a code of ISO 639-1, 639-2 or 639-3 (`be`, `bel`), a BCP 47 tag whose
            script and region do not count (`zh-Hant`, `pt_BR`), or Whisper's token (`<|be|>`).

    Raises:
        ConfigError: Whisper has no such language; a mistyped name and a related language are told.
    """
    import langcodes

    key = name.strip().lower().removeprefix("<|").removesuffix("|>")
    if key in CODES:
        return key
    tag = key.replace("_", "-")
    if not langcodes.tag_is_valid(tag) or langcodes.Language.get(tag).language in _NO_LANGUAGE:
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE as BY_NAME

        if key in BY_NAME:
            return str(BY_NAME[key])
        tag = _tags_by_name().get(key, "")
    if tag:
        code = _nearest(tag, _SAME)
        if code is not None:
            return code
        near = _nearest(tag, _RELATED)
        given = f", as {near} ({language_name(near)})" if near else f", or one to be taken over, as {_SPARE}"
        hint = f"give a related one that it knows{given}; two or three trainings tell which is best"
    else:
        alike = " or ".join(difflib.get_close_matches(key, BY_NAME, n=3, cutoff=_ALIKE))
        hint = f"did you mean {alike}?" if alike else "use a code such as en, de, be or an English name"
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
    found, _ = langcodes.closest_match(language, list(own), max_distance=distance)
    return own.get(found)


@functools.cache
def _standard_codes() -> dict[str, str]:
    """Whisper's codes by the standard ones, which some are not: `jw` is `jv`, and `tl` is read as `fil`."""
    import langcodes

    return {langcodes.standardize_tag(code): code for code in CODES}


@functools.cache
def _tags_by_name() -> dict[str, str]:
    """Tags of all languages by their English names in IANA's registry, in small letters; 0.05 s."""
    from langcodes.registry_parser import parse_registry

    found: dict[str, str] = {}
    for entry in parse_registry():  # type: ignore[no-untyped-call]
        if entry["Type"] == "language" and "Subtag" in entry:
            for name in entry["Description"]:
                found.setdefault(name.partition(" (")[0].lower(), entry["Subtag"])
    return found
