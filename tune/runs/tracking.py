"""The process that tells MLflow, the Optuna study and TensorBoard what the log says, as long as a session runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tune.experiments.folder import RESULTS_FILE
from tune.experiments.log import EVENTS_FILE
from tune.experiments.mlflow_store import default_artifact_root, is_server
from tune.experiments.results import write_results
from tune.tracking.process import FollowerProcess, last_number
from tune.tracking.tracker import Orders

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

    from tune.experiments.opened import OpenExperiment
    from tune.experiments.plan import Plan

_LAST_PATIENCE = 5.0
"""Seconds that a store is waited for where a session broke off."""


class Tracking:
    """A follower from the beginning of a session on: it imports what it needs while this process waits for Ray."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self._plan, self._console = plan, console
        self._process = FollowerProcess(plan.trackers)
        self._finished = False

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Where the session broke off, its end is told too, if that is quickly done; `sync` tells the rest."""
        if not self._finished and last_number(self._plan.folder / EVENTS_FILE):
            self._process.finish(_LAST_PATIENCE)
        self._process.stop()

    def connect(self) -> None:
        """Open the stores; the experiment's folder is there.

        Raises:
            TrackingError: one cannot be reached or refuses.
        """
        with self._console.status("opening the MLflow store ..."):
            self._process.begin(orders(self._plan))

    @property
    def problem(self) -> str | None:
        """Why a store takes nothing just now, in one line; None while all is well."""
        return self._process.problem

    def finish(self, experiment: OpenExperiment) -> str | None:
        """Wait, not for ever, until all is delivered, and note the runs' ids in the results; what is not delivered."""
        with self._console.status("telling MLflow the rest ..."):
            problem = self._process.finish()
        self._finished = True
        try:
            write_results(experiment.folder, experiment.log.state)
        except OSError as error:
            told = f"{experiment.folder.path / RESULTS_FILE}: cannot be written again: {error.strerror}"
            problem = f"{problem}; {told}" if problem else told
        return problem


def orders(plan: Plan) -> Orders:
    """What the follower needs to know; it holds passwords."""
    server = is_server(plan.tracking_uri)
    return Orders(
        folder=str(plan.folder),
        name=plan.name,
        storage=plan.request.storage.text,
        trackers=plan.trackers,
        tracking_uri=plan.tracking_uri,
        artifact_root=None if server else str(default_artifact_root(plan.folder)),
        optuna_url=plan.study,
    )
