"""Files that come to an experiment's MLflow run after it has ended, or while it runs: a report and its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tune.errors import TrackingError
from tune.mlflow_client import TrackingStore
from tune.mlflow_store import check_store, hide_password
from tune.search_state import STATE_FILE
from tune.ui import read_tracking_uri

if TYPE_CHECKING:
    from tune.experiment_folder import ExperimentFolder


def attach_folder(folder: ExperimentFolder, files: Path) -> int:
    """Store all files of a folder as artifacts of the experiment's own run, below the folder's name.

    Files of the same names are replaced. Nothing else of the run changes.

    Args:
        folder: of the experiment; its small files are on this machine.
        files: what to store.

    Returns:
        How many files were stored.

    Raises:
        ExperimentError: `experiment.yaml` cannot be read.
        TrackingError: the store cannot be reached, has no run of this experiment, or the run's artifacts are gone.
    """
    uri = read_tracking_uri(folder.path)
    run_id = _parent_run(folder.path, uri)
    check_store(uri)
    store = TrackingStore(uri, folder.name, None)
    store.connect(create=False)
    place = store.artifact_folder(run_id)
    if place is not None and not place.is_dir():
        # MLflow would make a folder in the old place, in which nobody looks.
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: its artifacts' folder {place} is gone, as when an experiment was moved"
        )
    found = sorted(file for file in files.rglob("*") if file.is_file() and not file.name.startswith("."))
    for file in found:
        store.upload(run_id, file, file.parent.relative_to(files.parent).as_posix())
    return len(found)


def _parent_run(folder: Path, uri: str) -> str:
    try:
        saved = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        return str(saved["parent_run_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: the run of experiment {folder.name!r} is not known: "
            f"{folder / STATE_FILE} cannot be read"
        ) from error
