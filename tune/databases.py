"""What a search tells MLflow's store and Optuna's database, both written by processes of their own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tune.apart import apart
from tune.display import key_settings, say
from tune.mlflow_client import TrackingStore, killed_store, ready_store
from tune.mlflow_journal import JOURNAL_FILE
from tune.mlflow_logging import MlflowRecorder
from tune.mlflow_store import default_artifact_root, is_server
from tune.mlflow_story import search_begins, trial_ended
from tune.search_callback import error_line
from tune.study_database import StudyDatabase
from tune.study_table import StudyTable, killed_table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from trainer.config import TrainConfig
    from tune.cluster import TrialResources
    from tune.plan import SearchPlan
    from tune.search_state import SearchState


@dataclasses.dataclass(frozen=True)
class Databases:
    """What a search writes for people to look at, each in a process of its own."""

    store: TrackingStore
    """MLflow's."""
    study: StudyTable
    """Optuna's."""


@contextlib.contextmanager
def databases_apart(plan: SearchPlan) -> Iterator[Databases]:
    """Both processes, which import what they need while this one reads the data and waits for Ray."""

    def store() -> TrackingStore:
        return ready_store(plan.tracking_uri, plan.name, _artifact_root(plan))

    def study() -> StudyTable:
        return StudyTable(plan.study_url, plan.name, plan.space.to_optuna())

    with (
        apart(store, gone=killed_store, repeatable=("connect",)) as there,
        apart(study, gone=killed_table, repeatable=("exists",)) as table,
    ):
        yield Databases(there, table)


def open_study(
    plan: SearchPlan,
    databases: Databases,
    state: SearchState,
    console: Console,
    stack: contextlib.ExitStack,
    *,
    goes_on: bool,
) -> StudyDatabase:
    """The Optuna study's database, closed in the end."""
    study = StudyDatabase(
        plan.study_url,
        plan.name,
        databases.study,
        state.records,
        goes_on=goes_on,
        warn=lambda text: say(console, f"warning: {text}"),
    )
    stack.callback(study.finish)
    return study


@contextlib.contextmanager
def new_runs(
    plan: SearchPlan, databases: Databases, base: TrainConfig, resources: TrialResources, console: Console
) -> Iterator[MlflowRecorder]:
    """The open MLflow store with a parent run for the search."""
    recorder = make_recorder(plan, databases.store)
    with console.status("opening the MLflow store ..."):
        recorder.start(
            params={
                "trials": plan.request.trials,
                "seed": plan.request.seed,
                "space": plan.space.path.name,
                **{"gpus_per_trial": f"{resources.gpus:g}", "cpus_per_trial": f"{resources.cpus:g}"},
                **{f"search.{name}": text for name, text in plan.space.describe()},
                **base.to_dict(),
            },
            tags={"role": "experiment", "model": plan.base.model, "data": plan.base.data},
            description=search_begins(plan),
            artifacts=[plan.folder / "space.yaml"],
            compare=list(plan.space.parameters),
        )
    with run_ended(recorder, console):
        yield recorder


@contextlib.contextmanager
def old_runs(
    plan: SearchPlan, databases: Databases, state: SearchState, console: Console
) -> Iterator[MlflowRecorder]:
    """The open MLflow store with the runs of the search that goes on."""
    recorder = make_recorder(plan, databases.store)
    records = {record.trial_id: record for record in (*state.records.all(), *state.repeats.all())}
    ended = {key: state.run_ids.get(key) for key, record in records.items() if record.status != "running"}
    with console.status("opening the MLflow store ..."):
        untold = recorder.still_open(ended)
        names = {
            key: f"{key} {key_settings(record.config)}"
            for key, record in records.items()
            if record.status == "running" or key in untold
        }
        recorder.resume(
            str(state.parent_run_id),
            {key: (name, state.run_ids.get(key)) for key, name in names.items()},
            ended={key: run_id for key, run_id in state.run_ids.items() if key not in names},
        )
        for key in names:
            record = records[key]
            recorder.catch_up(key, record.evaluations)
            if record.status != "running":
                error = error_line(record.error) if record.error else None
                recorder.trial_ended(key, record.status, **trial_ended(record, error))
    with run_ended(recorder, console):
        yield recorder


def make_recorder(plan: SearchPlan, store: TrackingStore | None = None) -> MlflowRecorder:
    """The only writer to MLflow; through `store` where that is in another process."""
    return MlflowRecorder(
        plan.tracking_uri,
        plan.name,
        _artifact_root(plan),
        journal=plan.folder / JOURNAL_FILE,
        storage=plan.request.storage.address,
        store=store,
    )


def _artifact_root(plan: SearchPlan) -> Path | None:
    return None if is_server(plan.tracking_uri) else default_artifact_root(plan.folder)


@contextlib.contextmanager
def run_ended(recorder: MlflowRecorder, console: Console) -> Iterator[None]:
    """A block that fails ends the parent run as failed."""
    try:
        yield
    except BaseException as error:
        problem = recorder.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        if problem:
            say(console, f"warning: {problem}")
        raise
