"""Folders of the driver's machine on every node: fetched once a node where they are not there already.

Meant for the feature cache and for models given as a local folder. Files travel in chunks through a small
actor on the driver's node; nothing stays in Ray's object store.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer.files import FULL, locked
from tune.util.environment import user_cache
from tune.util.errors import UserError

_CHUNK = 16 << 20
_READERS = 4
"""Nodes that are served at once."""
_ENDS = 1 << 20

Listing = dict[str, tuple[int, str]]
"""Size in bytes and digest of each file, by its name from the folder."""


class ShareError(UserError):
    """A shared folder is not there, or cannot be kept on this node."""


class FileShare:
    """The actor: reads files of the folders that it was started with, and of no other."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._listings = {folder: list_folder(Path(folder)) for folder in folders}

    def listing(self, folder: str) -> Listing | None:
        """The files of a folder as they were when the share was started; None for a folder that is not shared."""
        return self._listings.get(folder)

    def read(self, folder: str, name: str, offset: int) -> bytes:
        """A chunk of a file that is in the listing; raises `ShareError` for any other."""
        if name not in self._listings.get(folder, {}):
            raise ShareError(f"{folder}: shares no file {name!r}")
        with (Path(folder) / name).open("rb") as file:
            file.seek(offset)
            return file.read(_CHUNK)


def start_share(folders: Sequence[Path]) -> Any:
    """Start the actor on the driver's node, where it takes no CPU of Ray's count; it ends with its last handle.

    Args:
        folders: absolute; complete by now, and left unchanged as long as the share lives.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_concurrency=_READERS, scheduling_strategy=here)(FileShare)
    return actor.remote([str(folder) for folder in folders])


def localize(share: Any | None, folder: Path) -> Path:
    """Where this node has a shared folder: the folder itself where it is the same here, else a copy of it.

    The copy is fetched by the first process of the node that asks; others wait for it. It stays in the user's
    cache for later searches. Without a share there is no other node, and the folder is the driver's.

    Raises:
        ShareError: the folder is not shared, changed since, or the copy does not fit on this node's disk.
    """
    if share is None:
        return folder
    import ray

    told: Listing | None = ray.get(share.listing.remote(str(folder)))
    if told is None:
        raise ShareError(f"{folder}: is not shared by the driver")
    if list_folder(folder) == told:
        return folder
    key = hashlib.sha256(json.dumps(sorted(told.items())).encode()).hexdigest()[:16]
    copy = user_cache() / "shared" / f"{folder.name}-{key}"
    with _told_of_disk(copy), locked(copy.parent / f".{copy.name}.lock") as alone:
        if list_folder(copy) != told:
            if alone:
                for left in copy.parent.glob(f".{copy.name}.*.partial"):  # of a process that was killed
                    shutil.rmtree(left, ignore_errors=True)
            _fetch(share, folder, told, copy)
    return copy


def list_folder(folder: Path) -> Listing:
    """All files below a folder; nothing where there is none.

    The digest covers a small file whole and a large one at both ends: reading gigabytes at every start would
    cost more than it finds.
    """
    return {
        file.relative_to(folder).as_posix(): (file.stat().st_size, _digest(file))
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256(stream.read(_ENDS))
        stream.seek(max(_ENDS, file.stat().st_size - _ENDS))
        digest.update(stream.read(_ENDS))
    return digest.hexdigest()


def _fetch(share: Any, folder: Path, told: Listing, copy: Path) -> None:
    """Build the copy beside its place and rename it there."""
    needed, free = sum(size for size, _ in told.values()), shutil.disk_usage(copy.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free")
    partial = copy.parent / f".{copy.name}.{uuid.uuid4().hex[:8]}.partial"
    partial.mkdir()
    try:
        for name, (size, _) in told.items():
            target = partial / name
            if not target.resolve().is_relative_to(partial.resolve()):
                raise ShareError(f"{folder}: {name!r} leads out of the folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            _fetch_file(share, folder, name, size, target)
        if list_folder(partial) != told:
            raise ShareError(f"{folder}: changed on the driver's machine while it was fetched; run again")
        if list_folder(copy) != told:  # else one that knew no lock either was first
            shutil.rmtree(copy, ignore_errors=True)  # a damaged one
            partial.rename(copy)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fetch_file(share: Any, folder: Path, name: str, size: int, target: Path) -> None:
    """One file, the next chunk under way while one is written."""
    import ray

    with target.open("wb") as file:
        following = share.read.remote(str(folder), name, 0) if size else None
        for offset in range(0, size, _CHUNK):
            chunk = ray.get(following)
            if offset + _CHUNK < size:
                following = share.read.remote(str(folder), name, offset + _CHUNK)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _told_of_disk(copy: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = "does not fit" if error.errno in FULL else "cannot be kept"
        raise ShareError(
            f"{copy.parent} on node {os.uname().nodename}: the copy of a folder of the driver {what} "
            f"({error.strerror or error}); free some space, set XDG_CACHE_HOME for Ray on that node, or use storage "
            "that all nodes see"
        ) from error
