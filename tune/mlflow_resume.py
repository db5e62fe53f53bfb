"""The runs of an interrupted search, as the recorder goes on with them."""

from __future__ import annotations

from collections.abc import Container, Mapping

from tune.finalists import role_of
from tune.mlflow_client import TrackingStore
from tune.mlflow_journal import Journal
from tune.mlflow_records import Run, creation, tag_pairs
from tune.mlflow_writer import StoreWriter


def take_up(
    store: TrackingStore,
    writer: StoreWriter,
    journal: Journal | None,
    parent_run_id: str,
    trials: Mapping[str, tuple[str, str | None]],
    ended: Container[str],
) -> tuple[Run, dict[str, Run]]:
    """Give the writer, which has not started, what waits in the journal, and then that trials run again.

    Args:
        store: connected.
        writer: has the journal too.
        journal: not open yet.
        parent_run_id: the search's run.
        trials: the trials that go on, each with its run's name and, where known, id.
        ended: the other trials of the search.

    Returns:
        The search's run, and those of the trials of which something is queued.

    Raises:
        TrackingError: the store cannot be reached, or the journal cannot be read.
    """
    left = {} if journal is None else {run.key: run for run in journal.open()}
    parent = left.pop(None, Run(None))
    parent.run_id = parent_run_id
    for key in [key for key in left if key not in trials and key not in ended]:
        _forget(store, journal, parent_run_id, left.pop(key))
    runs = {str(key): run for key, run in left.items()}
    writer.take_over([parent, *runs.values()])
    with writer.changed:
        for run in runs.values():
            run.closed = True
        for trial_id, (name, run_id) in trials.items():
            if trial_id not in runs:
                runs[trial_id] = Run(trial_id, create_tried=True)
                writer.runs.append(runs[trial_id])
            run = runs[trial_id]
            run.closed = False
            run.run_id = run.run_id or run_id
            if run.run_id is None and not run.waiting:
                writer.queue(
                    run, "create", creation(parent_run_id, trial_id, name, {"role": role_of(trial_id)})
                )
            _reopen(writer, run)
        _reopen(writer, parent)
    return parent, runs


def _reopen(writer: StoreWriter, run: Run) -> None:
    writer.queue(run, "status", ["RUNNING", None])
    writer.queue(run, "tags", tag_pairs({"status": "running"}))


def _forget(store: TrackingStore, journal: Journal | None, parent_run_id: str, run: Run) -> None:
    """Leave out a trial that a killed driver announced and did not keep: its number is given anew."""
    found = run.run_id or store.find_run(parent_run_id, str(run.key))
    if found is not None:
        store.delete_run(found)
    if journal is not None:
        journal.done(record.number for record in run.waiting)
