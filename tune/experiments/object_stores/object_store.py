"""One prefix of an object store (`s3://`, `gs://`); every error is one line."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainer.errors import UserError
from tune.util.cloud_errors import cloud_errors

QUERY_KEYS = {
    "s3": ("endpoint_override", "scheme", "region"),
    "gs": ("endpoint_override", "scheme", "retry_limit_seconds"),
}
"""What may stand after `?`; keys never: they would end up in `experiment.yaml`."""
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, or the machine's role",
}
_PATIENCE = 20
"""Seconds that Google's client may try again; by itself it goes on for a quarter of an hour."""

Mark = tuple[int, float]
"""Size in bytes and Unix time of the last change: tells one version of an object from the next."""


class StorageError(UserError):
    """The storage cannot be reached, read or written; it never shows a credential."""


class ObjectStore:
    """Objects below one address. Nothing is contacted before the first method that says so.

    Every method but `address` raises `StorageError` where the store does not answer or refuses.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        parts = urllib.parse.urlsplit(uri)
        self.scheme = parts.scheme
        self.address = f"{parts.scheme}://{parts.netloc}{parts.path}"
        """Without what stands after `?`."""

    def filesystem(self, *, quick: bool = False) -> tuple[Any, str]:
        """The `pyarrow.fs.FileSystem` and the path of the prefix on it; credentials come from the environment.

        Args:
            quick: give up within seconds where a store does not answer, instead of Google's 15 minutes.
        """
        import pyarrow.fs

        uri = self.uri
        if quick and self.scheme == "gs" and "retry_limit_seconds" not in uri:
            uri += ("&" if "?" in uri else "?") + f"retry_limit_seconds={_PATIENCE}"
        with self.translated():
            filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
        return filesystem, str(path).rstrip("/")

    def check(self) -> None:
        """Find out whether the bucket is there and may be written, by an object that is removed again."""
        import pyarrow.fs

        filesystem, root = self._open()
        with self.translated():
            bucket = root.split("/", maxsplit=1)[0]
            if filesystem.get_file_info([bucket])[0].type == pyarrow.fs.FileType.NotFound:
                raise StorageError(
                    f"--storage {self.address}: there is no bucket {bucket!r}; create it, or name another"
                )
            probe = f"{root}/.write-test-{uuid.uuid4().hex[:8]}"
            with filesystem.open_output_stream(probe) as stream:
                stream.write(b"tune-whisper")
            filesystem.delete_file(probe)

    def folders(self) -> list[str]:
        return [Path(info.path).name for info in self._list("") if not info.is_file]

    def files(self, below: str, *skip: str) -> dict[str, Mark]:
        """All objects below a folder by their names from there; folders `skip` right in it are left out."""
        found: dict[str, Mark] = {}
        waiting = [below]
        while waiting:
            folder = waiting.pop()
            for info in self._list(folder):
                name = f"{folder}/{Path(info.path).name}"
                if info.is_file:
                    found[name.removeprefix(f"{below}/")] = (int(info.size), float(info.mtime_ns or 0) / 1e9)
                elif name.removeprefix(f"{below}/") not in skip:
                    waiting.append(name)
        return found

    def marks(self, names: list[str]) -> list[Mark | None]:
        """Size and time of each object; None for one that is not there."""
        filesystem, root = self._open()
        with self.translated():
            infos = filesystem.get_file_info([f"{root}/{name}" for name in names])
        return [(int(info.size), float(info.mtime_ns or 0) / 1e9) if info.is_file else None for info in infos]

    def age(self, name: str) -> float | None:
        """Seconds since an object that is there was written, by the store's clock; None where it is gone.

        What time it is there is read off an object that is written beside it and removed again.
        """
        probe = f"{name}.clock-{uuid.uuid4().hex[:8]}"
        self.write(probe, b"tune-whisper")
        written, now = self.marks([name, probe])
        self.remove(probe)
        return now[1] - written[1] if written and now else None

    def read(self, name: str) -> bytes:
        """The content of one object, whole also where it is being replaced meanwhile."""
        content = io.BytesIO()
        self._copy(name, content)
        return content.getvalue()

    def write(self, name: str, content: bytes) -> None:
        """Write one object; it appears whole or not at all."""
        filesystem, root = self._open()
        # All is in memory before the first byte goes out: closing a stream half-way would publish the half.
        with self.translated(), filesystem.open_output_stream(f"{root}/{name}", compression=None) as stream:
            stream.write(content)

    def remove(self, name: str) -> None:
        filesystem, root = self._open()
        with self.translated():
            filesystem.delete_file(f"{root}/{name}")

    def delete(self, folder: str) -> None:
        """Remove a folder with all that is in it; one that is not there is no error."""
        filesystem, root = self._open()
        with self.translated():
            filesystem.delete_dir_contents(f"{root}/{folder}", missing_dir_ok=True)
            with contextlib.suppress(FileNotFoundError):
                filesystem.delete_dir(f"{root}/{folder}")

    def download(self, folder: str, target: Path, skip: tuple[str, ...] = ()) -> None:
        """Copy the files of a folder, but those named in `skip`, to a local folder that is made."""
        for name in self.files(folder):
            if Path(name).name in skip:
                continue
            path = inside(target, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                self._copy(f"{folder}/{name}", file)

    def _copy(self, name: str, target: BinaryIO) -> None:
        filesystem, root = self._open()
        source = f"{root}/{name}"
        last = None
        with self.translated():
            while True:
                target.seek(0)
                target.truncate()
                with filesystem.open_input_stream(source, compression=None) as stream:
                    shutil.copyfileobj(stream, target, 8 << 20)
                # The stream asks for the size first: of a longer object put there since, it gives the beginning.
                # The same other size twice is a store that counts differently, compressed bytes for instance.
                size = filesystem.get_file_info([source])[0].size
                if size in (target.tell(), None, last):
                    return
                last = size

    def _open(self) -> tuple[Any, str]:
        if not hasattr(self, "_opened"):
            self._opened = self.filesystem(quick=True)
        return self._opened

    def _list(self, folder: str) -> list[Any]:
        import pyarrow.fs

        filesystem, root = self._open()
        place = f"{root}/{folder}".rstrip("/")
        with self.translated():
            return list(filesystem.get_file_info(pyarrow.fs.FileSelector(place, allow_not_found=True)))

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what the store's client raises because of the store or its address into one line.

        `ValueError` is an address or setting that it cannot use. The cause stays attached.
        """
        try:
            yield
        except cloud_errors(ValueError) as error:
            raise StorageError(f"--storage {self.address}: {self._reason(str(error))}") from error

    def _reason(self, text: str) -> str:
        if re.search(r"NO_SUCH_BUCKET|bucket does not exist|NoSuchBucket", text):
            return "the bucket does not exist; create it, or name another"
        if re.search(
            r"ACCESS_DENIED|INVALID_ACCESS|SIGNATURE|INVALID_CLIENT_TOKEN|TOKEN|status 40[13]|PERMISSION|OAuth"
            r"|AccessDenied|InvalidAccessKey|SignatureDoes|ExpiredToken|^40[13] |\(40[13]\)|credentials",
            text,
        ):
            return (
                f"access was denied, or no credentials were found; give them by {_CREDENTIALS[self.scheme]}"
            )
        if re.search(
            r"NETWORK_CONNECTION|UNAVAILABLE|Could not (connect|resolve)|timed? ?out|REQUEST_TIMEOUT"
            r"|Max retries exceeded|Connection (was )?(aborted|closed|refused|reset)",
            text,
            re.I,
        ):
            where = (
                " and AWS_ENDPOINT_URL" if "AWS_ENDPOINT_URL" in os.environ and self.scheme == "s3" else ""
            )
            return f"cannot be reached; check the network{where}"
        return text.strip().splitlines()[0][:300] if text.strip() else "failed without an error message"


def inside(folder: Path, name: str) -> Path:
    """`folder / name`, for a name that another machine gave.

    Raises:
        StorageError: the name leads out of the folder.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts or not name:
        raise StorageError(f"{name!r}: points outside its folder and is refused")
    return folder / name
