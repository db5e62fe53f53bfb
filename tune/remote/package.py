"""What a job takes along: the program's own modules, one YAML of resolved settings, files that the user names.

It is put together in a folder of its own from a list of what may go in. The current folder, with its data, keys and
`.env`, is never looked at. What goes along can be read by everybody on the cluster, so an address with a password, a
token, or what this shell's secret variables hold is refused in the settings, the arguments and the environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tune.errors import UserError

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("tune", "trainer", "search_spaces")
_SOURCES = (".py", ".yaml", ".json", ".md", ".html", ".css", ".js", ".svg", ".jinja", ".j2")
_DEMO = (".parquet", ".safetensors")
_MOST_BYTES = 10_000_000
_SECRET_NAME = re.compile(
    r"(^|[^A-Z])PASS($|[^A-Z])|(PASSWORD|PASSWD|PASSPHRASE|PWD|SECRETS?|TOKENS?|KEYS?|CREDENTIALS?|AUTH)($|[^A-Z])"
)
_SECRETS = {
    "a password in an address": r"://[^/@\s:]*:[^/\s]+@",
    "a secret in an address": r"(?i)[?&][^=&\s]*(?:password|passwd|secret|token|key|signature|sig)=[^&\s]+",
    "an access token": (
        r"\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}|A[KS]IA[0-9A-Z]{16}"
        r"|AIza[\w-]{35}|ya29\.[\w-]{20,}|sk-[\w-]{20,})"
    ),
}
_HINT = "set it on the cluster itself (as the nodes' environment or a Kubernetes secret)"


class PackageError(UserError):
    """A file cannot be sent along with a job."""


class SecretError(UserError):
    """Something that looks like a secret would have been sent; the message never shows it."""


def stage(folder: Path, settings: dict[str, str], files: Sequence[Path] = ()) -> int:
    """Fill an empty folder, the job's working directory, with what the job needs.

    Args:
        folder: to fill.
        settings: texts by the names of their files: the resolved settings.
        files: the user's own, as `--file` names them.

    Returns:
        How many files of the program are in it.

    Raises:
        PackageError: a file cannot be read, is too large, or has the name of another one.
    """
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, folder / package, ignore=_not_ours)
    program = sum(path.is_file() for path in folder.rglob("*"))
    for name, text in settings.items():
        (folder / name).write_text(text, encoding="utf-8")
    for path in files:
        if not path.is_file():
            raise PackageError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
        if path.stat().st_size > _MOST_BYTES:
            raise PackageError(
                f"{path}: {path.stat().st_size / 1e6:.0f} MB is too much to send with a job "
                f"(at most {_MOST_BYTES / 1e6:.0f} MB); put it where every node sees it and give that path"
            )
        if (folder / path.name).exists():
            raise PackageError(f"{path}: the job has another file of this name; rename it")
        try:
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise PackageError(f"{path}: cannot be read: {error.strerror}") from error
    return program


def _not_ours(folder: str, names: list[str]) -> list[str]:
    """What stays here of a folder of the program: caches, hidden files, links, and what is no source or demo."""
    demo = Path(folder).is_relative_to(_ROOT / "trainer" / "demo")
    suffixes = {*_SOURCES, *(_DEMO if demo else ())}
    paths = [Path(folder, name) for name in names]
    return [
        path.name
        for path in paths
        if path.name.startswith((".", "__pycache__"))
        or path.is_symlink()
        or not (path.is_dir() or path.suffix in suffixes)
    ]


def pinned_requirements(*, deepspeed: bool) -> list[str]:
    """Our direct dependencies at the versions installed here, for the cluster to install.

    Ray is not among them: the cluster has its own. Builds (`+cpu`, `+cu128`) are left to the cluster's machines.

    Raises:
        PackageError: the program itself was not installed, so its dependencies are unknown.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    try:
        declared = importlib.metadata.requires("tune-whisper") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise PackageError(
            "tune-whisper: is not installed here, so its requirements are unknown; pip install it, or use --no-install"
        ) from error
    extras = ["", "deepspeed"] if deepspeed else [""]
    pinned = []
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        wanted = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if not wanted or requirement.name == "ray":
            continue
        try:
            version = Version(importlib.metadata.version(requirement.name)).public
        except importlib.metadata.PackageNotFoundError:
            pinned.append(str(requirement).partition(";")[0].strip())
        else:
            pinned.append(f"{requirement.name}=={version}")
    return sorted(pinned)


def is_secret_name(name: str) -> bool:
    """Whether a variable or setting of this name holds a secret: `HF_TOKEN`, `db.password`, `apiKey`."""
    return _SECRET_NAME.search(name.upper()) is not None


def find_secret(text: str) -> str | None:
    """What secret `text` seems to hold, in words that do not show it; None: none."""
    for kind, shape in _SECRETS.items():
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
        name, equals, _ = word.removeprefix(f"{option}=").partition("=")
        if kind is None and option == "--set" and equals and is_secret_name(name):
            kind = f"{name}, which looks like a secret"
        if kind is not None:
            mend = _HINT
            if option == "--tracking-uri":
                mend = (
                    "give the address without it; MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD belong "
                    "into the environment of the cluster's nodes"
                )
            raise SecretError(
                f"{option}: holds {kind}, and everybody on the cluster can read a job's arguments; {mend}"
            )


def check_settings(source: Path, text: str) -> None:
    """Refuse resolved settings that hold a secret, by the name of the file they are from.

    Raises:
        SecretError: they do.
    """
    kind = find_secret(text)
    if kind:
        raise SecretError(f"{source}: holds {kind}; nothing was sent, take it out of the file")


def check_environment(items: Sequence[str], reserved: Sequence[str] = ()) -> dict[str, str]:
    """The variables of `--env NAME=VALUE`; `reserved` are names that the job itself decides.

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
