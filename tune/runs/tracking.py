"""The follower that tells MLflow, the Optuna study and TensorBoard what the log says, as long as a session runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tune.experiments.folder import RESULTS_FILE
from tune.experiments.results import write_results
from tune.tracking.process import FollowerProcess, count_events
from tune.tracking.tracker import Orders

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

    from tune.experiments.opened import OpenExperiment
    from tune.experiments.plan import Plan

_LAST_PATIENCE = 5.0
"""Seconds that a store is waited for where a session broke off."""


class Tracking(FollowerProcess):
    """That of a plan, from the beginning on: it imports what it needs while this process waits for Ray."""

    def __init__(self, plan: Plan, console: Console) -> None:
        orders = Orders(
            folder=str(plan.folder),
            name=plan.name,
            storage=plan.request.storage.text,
            trackers=plan.trackers,
            tracking_uri=plan.tracking_uri,
            optuna_url=plan.request.optuna_storage,
        )
        super().__init__(orders)
        self._console = console
        self._done = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Where the session broke off, its end is told too, if that is quickly done; `sync` tells the rest."""
        if not self._done and count_events(self._folder):
            self.finish(_LAST_PATIENCE)
        self.stop()

    def wait(self) -> None:
        """Wait until the stores are open.

        Raises:
            TrackingError: one cannot be reached or refuses.
        """
        with self._console.status("opening the MLflow store ..."):
            super().wait()

    def complete(self, experiment: OpenExperiment) -> str | None:
        """Wait, not for ever, until all is delivered, and note the runs' ids in the results; what is not delivered."""
        with self._console.status("telling MLflow the rest ..."):
            problem = self.finish()
        self._done = True
        try:
            write_results(experiment.folder, experiment.log.state)
        except OSError as error:
            told = f"{experiment.folder.path / RESULTS_FILE}: cannot be written again: {error.strerror}"
            problem = f"{problem}; {told}" if problem else told
        return problem
