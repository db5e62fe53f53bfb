"""Secrets stay out of jobs: their arguments, environment and files can be read by all who see the cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tune.errors import UserError

__all__ = ["SecretError", "check_environment", "check_words", "find_secret", "is_secret_name"]

_WORDS = (
    *("PASSWORD", "PASSWD", "PASSPHRASE", "PWD", "SECRET", "SECRETS", "TOKEN", "TOKENS", "KEY", "KEYS"),
    *("CREDENTIAL", "CREDENTIALS", "AUTH"),
)
_TOKENS = {
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "an access token": (
        r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}|A[KS]IA[0-9A-Z]{16}"
        r"|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|ya29\.[\w-]{20,}|sk-[\w-]{20,})"
    ),
}
_SETTINGS = {
    "a password in an address": r"://[^/@\s:]*:[^/\s]+@",
    "a secret in an address": r"(?i)[?&][^=&\s]*(?:password|passwd|secret|token|key|signature|sig)=[^&\s]+",
    "a password, token or key": (
        r"(?im)^[\s\"'{-]*[\w.-]*(?:password|passwd|secret|api_?key|access_?key|private_?key|token)[\"']?[ \t]*[:=]"
        r"[ \t]*[\"']?[^\s\"'({\[]{6,}[\"']?,?[ \t]*$"
    ),
}
"""Told from harmless text by what stands before it, which in program code means other things."""
_HINT = "set it on the cluster itself (as the nodes' environment or a Kubernetes secret)"


class SecretError(UserError):
    """Something that looks like a secret would have been sent; the message never shows it."""


def is_secret_name(name: str) -> bool:
    """Whether a variable or setting of this name holds a secret: `HF_TOKEN`, `db.password`, `apiKey`."""
    parts = [part for part in re.split(r"[^A-Z]+", name.upper()) if part]
    return any(part == "PASS" or part.endswith(_WORDS) for part in parts)


def find_secret(text: str, *, code: bool = False) -> str | None:
    """What secret `text` (with `code`: of our own program) seems to hold, in words that do not show it; None: none.

    What this shell's variables named like secrets hold is recognised too.
    """
    shapes = _TOKENS if code else _TOKENS | _SETTINGS
    for kind, shape in shapes.items():
        if re.search(shape, text):
            return kind
    for name, value in os.environ.items():
        # Short values ("token", "1") are modes and switches and would be found everywhere; a path is no secret.
        if len(value) >= 12 and is_secret_name(name) and value in text and not Path(value).is_absolute():
            return f"the value of ${name}"
    return None


def check_words(words: Sequence[str]) -> None:
    """Refuse command-line words that hold a secret.

    Raises:
        SecretError: one does; the message names the option, not the value.
    """
    option = "the arguments after --"
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
        kind = find_secret(word)
        name = word.removeprefix(f"{option}=").partition("=")[0]
        if kind is None and option in ("--set", "--env") and "=" in word and is_secret_name(name):
            kind = f"{name}, which looks like a secret"
        if kind is None:
            continue
        mend = _HINT
        if option == "--tracking-uri":
            mend = (
                "give the address without it; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD belong into the "
                "environment of the cluster's nodes"
            )
        raise SecretError(
            f"{option}: holds {kind}, and everybody on the cluster can read a job's arguments; {mend}"
        )


def check_environment(items: Sequence[str], reserved: Sequence[str] = ()) -> dict[str, str]:
    """The variables of `--env NAME=VALUE`.

    Args:
        items: as given.
        reserved: names that the job itself decides.

    Raises:
        SecretError: a name or a value looks like a secret, or cannot be set this way.
    """
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # The item itself is not shown: it may be a value that was given without its name.
            raise SecretError("--env: must be NAME=VALUE, as in HF_HUB_OFFLINE=1")
        if is_secret_name(name) or find_secret(value):
            raise SecretError(
                f"--env {name}: looks like a secret, and everybody on the cluster can read a job's environment; {_HINT}"
            )
        if name in reserved or name.startswith("MLFLOW_TRACKING_"):
            mend = "use --tracking-uri after --" if name == "MLFLOW_TRACKING_URI" else "leave it out"
            raise SecretError(f"--env {name}: is decided by the job; {mend}")
        found[name] = value
    return found
