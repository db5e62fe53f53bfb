"""Reading and changing a command line that is sent elsewhere, word by word."""

from __future__ import annotations

from collections.abc import Sequence


def positional(words: Sequence[str], value: str) -> int:
    """Where a positional argument is among words that may hold the same text as an option's value."""
    found = [index for index, word in enumerate(words) if word == value and index]
    free = [index for index in found if not words[index - 1].startswith("--")]
    return (free or found)[0]


def option_value(words: Sequence[str], option: str) -> str | None:
    """The value of an option; the last one counts, as for argparse."""
    value = None
    for index, word in enumerate(words):
        if word.startswith(f"{option}="):
            value = word.partition("=")[2]
        elif word == option and index + 1 < len(words) and not words[index + 1].startswith("--"):
            value = words[index + 1]
    return value


def setting_value(words: Sequence[str], key: str) -> str | None:
    """The value of a flag or of `--set KEY=VALUE`."""
    for index, word in enumerate(words):
        item = word.removeprefix("--set=")
        if item.startswith(f"{key}=") and (item != word or words[index - 1] == "--set"):
            return item.partition("=")[2]
    return option_value(words, f"--{key}")


def replace_option(words: list[str], option: str, new: str) -> None:
    """Give an option another value, wherever it is given."""
    old = option_value(words, option)
    for index, word in enumerate(words):
        if word == f"{option}={old}":
            words[index] = f"{option}={new}"
        elif index and word == old and words[index - 1] == option:
            words[index] = new


def replace_setting(words: list[str], key: str, new: str) -> None:
    """Give a setting another value, as a flag or in `--set KEY=VALUE`."""
    old = setting_value(words, key)
    if option_value(words, f"--{key}") == old:
        replace_option(words, f"--{key}", new)
        return
    for index, word in enumerate(words):
        if word == f"--set={key}={old}":
            words[index] = f"--set={key}={new}"
        elif index and word == f"{key}={old}" and words[index - 1] == "--set":
            words[index] = f"{key}={new}"
