"""Checkpoints where Ray put them, in a folder or an object store: read a piece, drop what nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from tune.experiment_folder import TRIALS_FOLDER

if TYPE_CHECKING:
    from tune.experiment_folder import ExperimentFolder

_PREFIX = "checkpoint_"


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

    def keep_only(self, wanted: Collection[str]) -> None:
        """Remove all other checkpoints, such as those that a killed search had written and not noted."""
        for trial in self._entries(TRIALS_FOLDER):
            if trial.is_file:
                continue
            for entry in self._entries(f"{TRIALS_FOLDER}/{trial.base_name}"):
                path = f"{TRIALS_FOLDER}/{trial.base_name}/{entry.base_name}"
                if not entry.is_file and entry.base_name.startswith(_PREFIX) and path not in wanted:
                    self._filesystem.delete_dir(entry.path)

    def _entries(self, path: str, *, recursive: bool = False) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(f"{self._root}/{path}", allow_not_found=True, recursive=recursive)
        return list(self._filesystem.get_file_info(selector))
