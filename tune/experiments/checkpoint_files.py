"""Checkpoints in a folder or an object store: brought there whole or not at all, read, and dropped piece by piece."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.files import flush, locked
from trainer.manifest import MANIFEST, files_of, manifest_of, seal
from trainer.training.distributed import private_folder
from tune.experiments.folder import TRIALS_FOLDER, ExperimentFolder

_WRITING = ".writing-"
"""Before the name of what is not complete."""
_PREFIX = "checkpoint_"
_ASIDE = "aside_"


class CheckpointFiles:
    """All checkpoints of an experiment. Paths are relative to it, as `trials/001/checkpoint_000000400`.

    Workers have one too. Every method raises OSError where the storage cannot be read or written.
    """

    def __init__(self, folder: ExperimentFolder) -> None:
        from pyarrow import fs

        storage = folder.ray_storage()
        self._filesystem: Any = storage.get("storage_filesystem") or fs.LocalFileSystem()
        self._is_local = isinstance(self._filesystem, fs.LocalFileSystem)
        self._root = storage["storage_path"]

    def name(self, trial: str, samples_seen: int) -> str:
        """The path of a trial's checkpoint: an evaluation that is made again overwrites its own."""
        return f"{trial}/{_PREFIX}{samples_seen:09d}"

    def place(self, checkpoint: str) -> Path:
        """A folder of this machine in which the checkpoint can be written, not there yet.

        Raises:
            ConfigError: somebody else may read or write where it would be.
        """
        path = Path(self._root) / checkpoint
        if self._is_local:
            return path.with_name(f"{_WRITING}{path.name}")
        owner = hashlib.sha256(self._root.encode()).hexdigest()[:12]
        scratch = Path(tempfile.gettempdir()) / f"tune-whisper-{os.getuid()}-{owner}"
        private_folder(scratch)
        return scratch / checkpoint.replace("/", "-")

    def upload(self, written: Path, checkpoint: str) -> dict[str, dict[str, int]]:
        """Move what this node has written, if anything, to an object store; what its manifest shall say.

        Nothing for a folder.
        """
        from pyarrow import fs

        if self._is_local:
            return {}
        target, files = f"{self._root}/{checkpoint}", files_of(written)
        try:
            with contextlib.suppress(FileNotFoundError):  # of an evaluation that is made again
                self._filesystem.delete_file(f"{target}/{MANIFEST}")
            if files:
                fs.copy_files(str(written), target, destination_filesystem=self._filesystem)
        finally:
            shutil.rmtree(written, ignore_errors=True)
        return files

    def complete(self, written: Path, checkpoint: str, files: Mapping[str, Mapping[str, int]]) -> None:
        """Seal what was written, and give it its name; `files` are those that were uploaded."""
        target = Path(self._root) / checkpoint
        if self._is_local:
            seal(written)
            if target.exists():  # the trial went on from before it: it was damaged, or nobody knew of it
                shutil.rmtree(target)
            written.rename(target)
            flush(target.parent)
        else:
            with self._filesystem.open_output_stream(f"{self._root}/{checkpoint}/{MANIFEST}") as stream:
                stream.write(manifest_of(files).encode())

    @contextlib.contextmanager
    def fetched(self, checkpoint: str) -> Iterator[Path]:
        """All of a checkpoint as a local folder, for as long as the block lasts; it may be damaged or missing.

        Workers that train together have one copy on each node. It goes with the folder for temporary files that they
        were given.
        """
        if self._is_local:
            yield Path(self._root) / checkpoint
        elif "LOCAL_RANK" in os.environ:
            folder = Path(tempfile.gettempdir()) / f"fetched-{checkpoint.replace('/', '-')}"
            with locked(folder.with_suffix(".lock")):
                if not folder.exists():
                    self._download(checkpoint, folder.with_suffix(".partial")).rename(folder)
            yield folder
        else:
            with tempfile.TemporaryDirectory(prefix="tune-whisper-") as temporary:
                yield self._download(checkpoint, Path(temporary))

    def _download(self, checkpoint: str, folder: Path) -> Path:
        from pyarrow import fs

        folder.mkdir(exist_ok=True)
        if self._entries(checkpoint):
            fs.copy_files(f"{self._root}/{checkpoint}", str(folder), source_filesystem=self._filesystem)
        return folder

    def read(self, checkpoint: str, name: str) -> bytes:
        path = f"{self._root}/{checkpoint}/{name}"
        with self._filesystem.open_input_stream(path, compression=None) as stream:
            content: bytes = stream.read()
        return content

    def remove(self, checkpoint: str) -> None:
        """Remove a whole checkpoint; one that is not there is no error."""
        if self._entries(checkpoint):
            self._filesystem.delete_dir(f"{self._root}/{checkpoint}")

    def strip(self, checkpoint: str, dropped: Callable[[str], bool]) -> None:
        """Remove the files of a checkpoint whose names, relative to it, `dropped` picks."""
        for entry in self._entries(checkpoint, recursive=True):
            name = entry.path.rsplit(f"{checkpoint}/", maxsplit=1)[-1]
            if entry.is_file and dropped(name):
                self._filesystem.delete_file(entry.path)

    def remove_unnamed(self, wanted: Collection[str], *, remove: bool) -> None:
        """Rename all other checkpoints, such as those that a killed search had written and not noted, or remove them.

        In an object store, where another machine may still write, they are only renamed (`aside_...`).
        """
        from pyarrow import fs

        prefixes = (_PREFIX, _WRITING, *([_ASIDE] if remove else []))
        for trial in self._entries(TRIALS_FOLDER):
            if trial.is_file:
                continue
            for entry in self._entries(f"{TRIALS_FOLDER}/{trial.base_name}"):
                path = f"{TRIALS_FOLDER}/{trial.base_name}/{entry.base_name}"
                if entry.is_file or not entry.base_name.startswith(prefixes) or path in wanted:
                    continue
                if not remove:  # object stores know no folders that could be renamed
                    aside = f"{self._root}/{TRIALS_FOLDER}/{trial.base_name}/{_ASIDE}{entry.base_name}"
                    fs.copy_files(entry.path, aside, self._filesystem, self._filesystem)
                self._filesystem.delete_dir(entry.path)

    def _entries(self, path: str, *, recursive: bool = False) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(f"{self._root}/{path}", allow_not_found=True, recursive=recursive)
        return list(self._filesystem.get_file_info(selector))
