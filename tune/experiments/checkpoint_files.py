"""Checkpoints where Ray put them, in a folder or an object store: read a piece, drop what nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.training.checkpoints import flush_all
from tune.experiments.folder import TRIALS_FOLDER

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder

_PREFIXES = ("checkpoint_", "checkpoint-")
"""Of the folders of Ray Tune's checkpoints, and of a training's."""


class CheckpointFiles:
    """All checkpoints of an experiment. Paths are relative to it, as `trials/001/checkpoint_000002`.

    Every method raises OSError where the storage cannot be read or written.
    """

    def __init__(self, folder: ExperimentFolder) -> None:
        from pyarrow import fs

        storage = folder.ray_storage()
        self._filesystem: Any = storage.get("storage_filesystem") or fs.LocalFileSystem()
        self._root = storage["storage_path"]

    def read(self, checkpoint: str, name: str) -> bytes:
        """One small file of a checkpoint."""
        path = f"{self._root}/{checkpoint}/{name}"
        with self._filesystem.open_input_stream(path, compression=None) as stream:
            content: bytes = stream.read()
        return content

    def flush(self, checkpoint: str) -> None:
        """Bring a checkpoint through to the disk, where the storage is a folder: Ray's copy may not be yet."""
        from pyarrow import fs

        if isinstance(self._filesystem, fs.LocalFileSystem):
            flush_all(Path(f"{self._root}/{checkpoint}"))

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

    def set_aside(self, wanted: Collection[str], *, remove: bool) -> None:
        """Rename all other checkpoints, such as those that a killed search had written and not noted, or remove them.

        In an object store, where another machine may still write, they are only renamed (`aside_...`).
        """
        for trial in self._entries(TRIALS_FOLDER):
            if trial.is_file:
                continue
            for entry in self._entries(f"{TRIALS_FOLDER}/{trial.base_name}"):
                path = f"{TRIALS_FOLDER}/{trial.base_name}/{entry.base_name}"
                if entry.is_file or not entry.base_name.startswith(_PREFIXES) or path in wanted:
                    continue
                if remove:
                    self._filesystem.delete_dir(entry.path)
                else:
                    aside = f"{self._root}/{TRIALS_FOLDER}/{trial.base_name}/aside_{entry.base_name}"
                    self._copy(entry.path, aside)
                    self._filesystem.delete_dir(entry.path)

    def _copy(self, source: str, target: str) -> None:
        """Object stores know no folders that could be renamed."""
        from pyarrow import fs

        fs.copy_files(
            source, target, source_filesystem=self._filesystem, destination_filesystem=self._filesystem
        )

    def _entries(self, path: str, *, recursive: bool = False) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(f"{self._root}/{path}", allow_not_found=True, recursive=recursive)
        return list(self._filesystem.get_file_info(selector))
