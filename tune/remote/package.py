"""What a job takes along: the program's own modules and files that its arguments and the user name.

The current folder, with its data, keys and `.env`, is never looked at. What is sent, the job's arguments and its
environment can be read by everybody on the cluster.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from trainer.deepspeed import PACKAGED, packaged_file
from tune.remote.client import JobError
from tune.remote.jobs import ENVIRONMENT

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("tune", "trainer", "search_spaces")
_MOST_BYTES = 10_000_000
_PASSWORD = re.compile(
    r"(?i)://[^/@\s:]*:[^/\s]+@|[?&][^=&\s]*(?:password|passwd|secret|token|key|signature|sig)=[^&\s]+"
)
_SECRET_NAME = re.compile(
    r"(PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|SECRETS?|TOKENS?|KEYS?|CREDENTIALS?|AUTH)($|[^A-Z])"
)
_HINT = "set it on the cluster itself (as the nodes' environment or a Kubernetes secret)"


def stage(folder: Path, files: Sequence[Path]) -> None:
    """Fill an empty folder, the job's working directory, with the program and some files; raises `JobError`."""
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, folder / package, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    for name in PACKAGED:
        shutil.copyfile(packaged_file(name), folder / name)
    for path in files:
        if (folder / path.name).exists():
            raise JobError(f"{path}: the job has another file of this name; rename it")
        try:
            size = path.stat().st_size
            shutil.copyfile(path, folder / path.name)
        except OSError as error:
            raise JobError(f"{path}: cannot be read: {error.strerror}") from error
        if size > _MOST_BYTES:
            raise JobError(
                f"{path}: {size / 1e6:.0f} MB is too much to send with a job (at most "
                f"{_MOST_BYTES / 1e6:.0f} MB); put it where every node sees it and give that path"
            )


def pinned_requirements(extras: Collection[str]) -> list[str]:
    """Our direct dependencies, with those of some extras, at the versions installed here, for the cluster to install.

    Ray is not among them: the cluster has its own. Builds (`+cpu`, `+cu128`) are left to the cluster's machines.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    try:
        declared = importlib.metadata.requires("tune-whisper") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise JobError(
            "tune-whisper: is not installed here, so its requirements are unknown; pip install it, or use --no-install"
        ) from error
    pinned = []
    for requirement in map(Requirement, declared):
        wanted = not requirement.marker or any(
            requirement.marker.evaluate({"extra": each}) for each in ("", *extras)
        )
        if wanted and requirement.name != "ray":
            try:
                version = Version(importlib.metadata.version(requirement.name)).public
                pinned.append(f"{requirement.name}=={version}")
            except importlib.metadata.PackageNotFoundError:
                pinned.append(f"{requirement.name}{requirement.specifier}")
    return sorted(pinned)


def refuse_password(where: str, text: str) -> None:
    """Refuse a text with an address that has a password or a key in it; the `JobError` says where, not what."""
    if _PASSWORD.search(text):
        raise JobError(
            f"{where}: holds a password or key in an address, and everybody on the cluster can read a job's settings; "
            f"give the address without it and {_HINT}: MLFLOW_TRACKING_PASSWORD, AWS_SECRET_ACCESS_KEY ..."
        )


def check_environment(items: Sequence[str]) -> dict[str, str]:
    """The variables of `--env NAME=VALUE`; raises `JobError` where a name says that it holds a secret."""
    variables = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # The item itself is not shown: it may be a value that was given without its name.
            raise JobError("--env: must be NAME=VALUE, as in HF_HUB_OFFLINE=1")
        if _SECRET_NAME.search(name.upper()) or name == "TUNE_WHISPER_NOTIFY":
            raise JobError(
                f"--env {name}: looks like a secret, and everybody on the cluster can read a job's environment; {_HINT}"
            )
        if name in ENVIRONMENT or name.startswith("MLFLOW_TRACKING_"):
            advice = "use --tracking-uri after --" if name == "MLFLOW_TRACKING_URI" else "leave it out"
            raise JobError(f"--env {name}: is decided by the job; {advice}")
        refuse_password(f"--env {name}", value)
        variables[name] = value
    return variables
