"""Bringing an experiment's small files to an object store while its search runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tune.experiments.object_stores.object_store import StorageError
from tune.util.errors import ExperimentError

if TYPE_CHECKING:
    from tune.experiments.experiment import OpenExperiment

UPLOAD_SECONDS = 5.0
"""Between two looks for what has changed."""
_PATIENCE = 30.0
"""Seconds that the last upload may try again."""


class Uploader(threading.Thread):
    """Uploads what changed, again and again; a store that is away for a while holds up nothing."""

    def __init__(
        self, experiment: OpenExperiment, warn: Callable[[str], None], every: float = UPLOAD_SECONDS
    ) -> None:
        super().__init__(name="uploader", daemon=True)
        self._experiment, self._folder = experiment, experiment.folder
        self._warn, self._every = warn, every
        self._closing = threading.Event()
        self._away = False

    def run(self) -> None:
        """The thread's life: the first upload at once; a folder needs none."""
        if self._folder.remote:
            self._upload()
            while not self._closing.wait(self._every):
                self._upload()

    def finish(self, patience: float = _PATIENCE) -> None:
        """End the thread and upload the last changes; where that cannot be, say where they are."""
        if self.ident is None or not self._folder.remote:
            return
        self._closing.set()
        self.join()
        deadline = time.monotonic() + patience
        problem = self._upload()
        while problem and self._experiment.problem is None and time.monotonic() < deadline:
            time.sleep(min(2.0, patience))
            problem = self._upload()
        if problem and self._experiment.problem is None:
            self._warn(
                f"{problem}; the last files of the experiment were not uploaded and are in {self._folder.path}"
            )

    def _upload(self) -> str | None:
        """Upload once; warn once for each time that the store goes away."""
        try:
            self._experiment.upload()
        except (StorageError, ExperimentError, OSError) as error:
            if not self._away and self._experiment.problem is None:  # else the search ends by it
                self._warn(f"{error}; the search goes on, and files are uploaded later")
            self._away = True
            return str(error)
        self._away = False
        return None
