"""Where experiments are kept: a folder, or a prefix of an object store."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import os
import re
import shlex
import urllib.parse
from pathlib import Path

from tune.experiments.folder import EXPERIMENT_FILE, ExperimentFolder, feature_cache
from tune.experiments.object_stores.object_store import QUERY_KEYS, ObjectStore, StorageError
from tune.util.environment import user_cache
from tune.util.errors import ExperimentError
from tune.util.files import check_folder
from tune.util.redact import without_password

DEFAULT_STORAGE = "experiments"
EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclasses.dataclass(frozen=True)
class Storage:
    """The place of all experiments; `Storage.parse` checks what was given."""

    text: str
    """A folder, or `s3://bucket/prefix`, `gs://bucket/prefix`, ..."""

    @classmethod
    def parse(cls, text: str | Path) -> Storage:
        """Take what `--storage` was given; contacts nobody.

        Raises:
            StorageError: the address cannot be one, or holds credentials.
        """
        text = str(text)
        if re.match(r"(s3|gs):/?(?!/)", text):
            raise StorageError(
                f"--storage {text}: an address begins with {text[:2]}://, as in {text[:2]}://bucket/prefix"
            )
        if "://" not in text:
            if not text:
                raise StorageError(
                    "--storage: is empty; give a folder, s3://bucket/prefix or gs://bucket/prefix"
                )
            return cls(text)
        parts = urllib.parse.urlsplit(text)
        if parts.scheme == "file":
            return cls(urllib.parse.unquote(parts.path))
        return cls(_checked(text, parts))

    @property
    def folder(self) -> Path | None:
        """The folder, absolute; None for an object store."""
        return None if "://" in self.text else Path(self.text).expanduser().absolute()

    @property
    def address(self) -> str:
        """What goes after `--storage` from any folder."""
        return self.text if self.folder is None else str(self.folder)

    @property
    def option(self) -> str:
        """What a command that names an experiment here ends with, from this folder; nothing for the default."""
        default = self.folder == Path(DEFAULT_STORAGE).absolute()
        return "" if default else f" --storage {shlex.quote(self.address)}"

    @property
    def feature_cache(self) -> Path:
        return feature_cache(self.folder)

    def check(self, *, write: bool = False) -> None:
        """Find out in seconds whether experiments can be kept there.

        Args:
            write: also whether a folder takes new files; of a bucket this is always found out.

        Raises:
            StorageError: it is a file; or the bucket is not there, cannot be reached or may not be written.
            ConfigError: the folder cannot be written.
        """
        if self.folder is None:
            ObjectStore(self.text).check()
        elif self.folder.exists() and not self.folder.is_dir():
            raise StorageError(f"--storage {self.text}: is a file; give a folder")
        elif write:
            check_folder(f"--storage {self.text}", self.folder)

    def new_experiment(self, option: str, name: str) -> ExperimentFolder:
        """The place of an experiment that is not there yet.

        Raises:
            ExperimentError: the name, given by `option`, cannot be one, or is taken.
            StorageError: the storage cannot be used.
        """
        if not EXPERIMENT_NAME.fullmatch(name):
            raise ExperimentError(
                f"{option} {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
            )
        self.check(write=True)
        folder = self.experiment(name)
        if folder.exists():
            copy = f" and its working copy {folder.path}" if folder.remote and folder.path.exists() else ""
            raise ExperimentError(
                f"{option} {name}: exists already in {self.text}; choose another name, go on with it by "
                f"--resume {name}, or remove {folder.address}{copy}"
            )
        return folder

    def experiment(self, name: str) -> ExperimentFolder:
        """The folder of one experiment, which need not be there yet."""
        if self.folder is not None:
            return ExperimentFolder(name, self.folder / name)
        copy = user_cache() / "experiments" / self._digest() / name
        return ExperimentFolder(name, copy, ObjectStore(self.text))

    def names(self) -> list[str]:
        """Names of the experiments whose `experiment.yaml` is there, the newest last.

        Raises:
            StorageError: the object store cannot be read.
        """
        if self.folder is not None:
            files = sorted(self.folder.glob(f"*/{EXPERIMENT_FILE}"), key=lambda file: file.stat().st_mtime)
            return [file.parent.name for file in files]
        store = ObjectStore(self.text)
        names = store.folders()
        marks = store.marks([f"{name}/{EXPERIMENT_FILE}" for name in names]) if names else []
        dated = [(mark[1], name) for mark, name in zip(marks, names, strict=True) if mark is not None]
        return [name for _, name in sorted(dated)]

    def _digest(self) -> str:
        """Tells one store from another of the same name behind another endpoint."""
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        shown = endpoint if self.text.startswith("s3:") and "endpoint_override" not in self.text else ""
        return hashlib.sha256(f"{self.text} {shown}".encode()).hexdigest()[:12]


def _checked(text: str, parts: urllib.parse.SplitResult) -> str:
    """The address of an object store without needless slashes; raises `StorageError`."""
    scheme, bucket = parts.scheme, parts.netloc
    named = text.replace("gs://anonymous@", "gs://", 1).rstrip("/")
    shown = without_password(named)
    if not bucket:
        raise StorageError(
            f"--storage {scheme}://{parts.path}: names no bucket; give {scheme}://bucket/prefix"
        )
    place = shown.partition("?")[0]
    if place != named.partition("?")[0]:
        raise _credentials(place)
    if scheme not in QUERY_KEYS:
        raise StorageError(
            f"--storage {place}: {scheme}:// cannot be used here; give a folder, s3://bucket/prefix or gs://bucket/prefix"
        )
    given = urllib.parse.parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(set(given) - set(QUERY_KEYS[scheme]))
    if unknown or parts.fragment:
        raise StorageError(
            f"--storage {place}: after ? only {', '.join(QUERY_KEYS[scheme])} are allowed, "
            f"not {', '.join(unknown) or '#'}"
        )
    if shown != named:
        raise _credentials(place)
    path = "/".join(part for part in parts.path.split("/") if part)
    address = f"{scheme}://{bucket}" + (f"/{path}" if path else "")
    return address + (f"?{parts.query}" if parts.query else "")


def _credentials(shown: str) -> StorageError:
    return StorageError(
        f"--storage {shown}: holds credentials, which would be written to files; give them by the environment"
    )


def dated_name(stem: str) -> str:
    """A name for an experiment where none is given: `stem`, as far as it can be one, and the time."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:80] or "search"
    return f"{plain}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
