"""Folders of the driver's machine for trials on other nodes: in the storage, and from a bucket fetched once a node."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from pyarrow import fs

from trainer.errors import UserError
from trainer.files import locked, whole_folder
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.storage import Storage
from tune.util.environment import user_cache

CACHE = ".cache"
"""In the storage; no experiment has such a name."""
_ENDS = 1 << 20


@dataclasses.dataclass(frozen=True)
class NodeCopies:
    """Where other nodes find the folders: features, sounds, a model."""

    node: str
    """Ray's id of the driver's, which has the folders themselves."""
    filesystem: Any
    """Of the bucket, `pyarrow.fs.FileSystem`; None where the storage is a folder, which all nodes see."""
    paths: Mapping[Path, str]

    @classmethod
    def make(cls, storage: Storage, folders: Sequence[Path]) -> NodeCopies:
        """Bring folders, which are complete and do not change, to the storage, unless they are there."""
        node = ray.get_runtime_context().get_node_id()
        if storage.folder is None:
            return cls(node, *_upload(ObjectStore(storage.text), folders))
        paths = {}
        for folder in folders:
            path = folder
            if not folder.is_relative_to(storage.folder):
                copy = functools.partial(shutil.copytree, folder)
                path = _made_once(storage.folder / CACHE / _key(folder), copy)
            paths[folder] = str(path)
        return cls(node, None, paths)

    def local(self, folder: Path) -> Path:
        """Where this node has the folder; the first process of a node that asks fetches it, others wait."""
        if ray.get_runtime_context().get_node_id() == self.node:
            return folder
        path = self.paths[folder]
        if self.filesystem is None:
            return Path(path)
        fetch = functools.partial(self._fetch, path)
        return _made_once(user_cache() / "shared" / Path(path).name, fetch)

    def _fetch(self, path: str, target: Path) -> None:
        target.mkdir()
        fs.copy_files(path, str(target), source_filesystem=self.filesystem)


def _upload(store: ObjectStore, folders: Sequence[Path]) -> tuple[Any, dict[Path, str]]:
    filesystem, root = store.filesystem()
    paths = {}
    for folder in folders:
        name = f"{CACHE}/{_key(folder)}"
        paths[folder] = f"{root}/{name}"
        if store.marks([f"{name}.complete"]) == [None]:
            with store.translated():
                fs.copy_files(str(folder), paths[folder], destination_filesystem=filesystem)
            store.write(f"{name}.complete", b"all files are there")
    return filesystem, paths


def _key(folder: Path) -> str:
    """Names a folder by the names, sizes and both ends of its files: all of gigabytes would take too long."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size = path.stat().st_size
            digest.update(f"\n{path.relative_to(folder)} {size} ".encode())
            with path.open("rb") as file:
                digest.update(file.read(_ENDS))
                file.seek(max(_ENDS, size - _ENDS))
                digest.update(file.read(_ENDS))
    return f"{folder.name}-{digest.hexdigest()[:16]}"


def _made_once(target: Path, make: Callable[[Path], Any]) -> Path:
    """Have a folder made beside its place and renamed; raises `UserError` where there is no room."""
    try:
        with locked(target.with_name(f".{target.name}.lock")):
            if not target.exists():
                with whole_folder(target) as partial:
                    make(partial)
    except OSError as error:
        raise UserError(
            f"{target} on node {os.uname().nodename}: cannot be written ({error.strerror or error}); free some space, "
            "or set XDG_CACHE_HOME for Ray on that node"
        ) from error
    return target
