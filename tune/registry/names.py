"""What a registered model and its alias may be called; found out before anything is loaded."""

from __future__ import annotations

import re

from tune.errors import ConfigError

_LONGEST_NAME = 256
_LONGEST_ALIAS = 255


def check_names(name: str, alias: str | None, *, name_option: str = "--name") -> None:
    """Check both against the rules of MLflow's registry.

    Raises:
        ConfigError: one of them is not allowed.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or re.search(r"[/:]", name) or name in (".", ".."):
        raise ConfigError(
            f"{name_option} {name!r}: must have 1 to {_LONGEST_NAME} characters, no / and no :; "
            "a name such as whisper-be"
        )
    if alias is None:
        return
    if not re.fullmatch(r"[\w\-]+", alias) or len(alias) > _LONGEST_ALIAS:
        raise ConfigError(
            f"--alias {alias!r}: must have letters, digits, _ and - only; a name such as champion"
        )
    if alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        raise ConfigError(
            f"--alias {alias}: MLflow keeps 'latest' and v1, v2, ... to itself; a name such as champion"
        )
