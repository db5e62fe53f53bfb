"""What a job takes along: our own code, the files named in its arguments, pinned requirements; nothing else.

The package is made in a folder of its own from a list of what may go in. The current directory, with its data, keys
and `.env`, is never looked at.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tune.errors import UserError
from tune.job_secrets import SecretError, find_secret

PACKAGED_SETTINGS = ("ds_config.json", "ds_config_zero3.json")
"""DeepSpeed's settings that come with the program and are found on the cluster by name."""
REQUIREMENTS = "requirements.txt"
_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("tune", "trainer", "search_spaces")
_TEXTS = (".py", ".yaml", ".json", ".md", ".html", ".css", ".js")
_DEMO = (".parquet", ".safetensors")
_SECRET_FILES = (
    *(
        ".env",
        ".env.*",
        "*.env",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.kdbx",
        "id_rsa*",
        "id_dsa*",
        "id_ecdsa*",
    ),
    *(
        "id_ed25519*",
        "*credentials*",
        "*secret*",
        ".netrc",
        ".pypirc",
        ".npmrc",
        ".htpasswd",
        ".git-credentials",
    ),
    *("*token*.txt", "auth_token", "token", "service_account*.json", "kubeconfig*"),
)
_MOST_BYTES = 10_000_000


class PackageError(UserError):
    """A file cannot be sent along with a job."""


def stage(folder: Path, files: Mapping[str, Path], requirements: Sequence[str]) -> list[str]:
    """Fill an empty folder with what the job needs, and check it for secrets.

    Args:
        folder: becomes the job's working directory.
        files: the user's own files by their place in that directory.
        requirements: lines of the `requirements.txt` that is put there.

    Returns:
        All paths in the folder, relative to it.

    Raises:
        PackageError: a file cannot be read or is too large.
        SecretError: something that looks like a secret would have been sent.
    """
    for package in _PACKAGES:
        _copy_package(package, folder)
    for name in PACKAGED_SETTINGS:
        found = [place / name for place in (_ROOT, Path(sys.prefix) / "share" / "tune-whisper")]
        for path in [path for path in found if path.is_file()][:1]:
            shutil.copyfile(path, folder / name)
    (folder / REQUIREMENTS).write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    for place, path in files.items():
        _copy_file(path, folder, place)
    staged = sorted(path for path in folder.rglob("*") if path.is_file())
    places = [str(path.relative_to(folder)) for path in staged]
    for path, place in zip(staged, places, strict=True):
        _check_file(path, files.get(place))
    return places


def _copy_package(package: str, folder: Path) -> None:
    """Sources and what belongs to them; a link or any other file that lies about in the checkout stays here."""
    source = _ROOT / package
    for path in sorted(source.rglob("*")):
        place = path.relative_to(_ROOT)
        if (
            path.is_symlink()
            or not path.is_file()
            or any(part.startswith((".", "__pycache__")) for part in place.parts)
        ):
            continue
        if path.suffix in _TEXTS or (path.suffix in _DEMO and place.parts[:2] == ("trainer", "demo")):
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _copy_file(path: Path, folder: Path, place: str) -> None:
    if not path.is_file():
        raise PackageError(f"{path}: {'is a folder, not a file' if path.is_dir() else 'no such file'}")
    if path.stat().st_size > _MOST_BYTES:
        raise PackageError(
            f"{path}: {path.stat().st_size / 1e6:.0f} MB is too much to send with a job "
            f"(at most {_MOST_BYTES / 1e6:.0f} MB); put it where every node sees it and give that path"
        )
    target = folder / place
    if target.exists():
        raise PackageError(f"{path}: the job has another file named {place}; rename it")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(path, target)
    except OSError as error:
        raise PackageError(f"{path}: cannot be read: {error.strerror}") from error


def _check_file(path: Path, given: Path | None) -> None:
    """Refuse what looks like a secret: by what it holds, and for the user's own file (`given`) also by its name."""
    if given is not None and any(fnmatch.fnmatch(given.name.lower(), pattern) for pattern in _SECRET_FILES):
        raise SecretError(f"{given}: looks like a secret by its name; nothing was sent, leave it out")
    if path.suffix in _DEMO:
        return
    text = path.read_bytes().decode("utf-8", errors="replace")
    kind = find_secret(text, code=given is None)
    if kind:
        shown = given or path.name
        raise SecretError(f"{shown}: seems to hold {kind}; nothing was sent, take it out of the file")


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
