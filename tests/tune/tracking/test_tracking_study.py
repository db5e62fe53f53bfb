"""The Optuna study of an experiment: what it holds, however it was synced; damage and kills."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from made_experiments import MadeLog
from optuna.trial import TrialState

from tune.experiments.events import TrialEnded, TrialProposed, TrialStarted
from tune.tracking.optuna_study import STUDY_FILE, OptunaStore
from tune.tracking.sync import Log

COMPLETE, PRUNED, FAIL, RUNNING = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING


@pytest.fixture
def made(tmp_path: Path) -> MadeLog:
    return MadeLog(tmp_path / "exp")


def study(made: MadeLog) -> optuna.Study:
    """As anybody opens it."""
    backend = optuna.storages.journal.JournalFileBackend(str(made.folder / STUDY_FILE))
    return optuna.load_study(study_name="exp", storage=optuna.storages.JournalStorage(backend))


def held(made: MadeLog) -> list[tuple[Any, ...]]:
    """All that the study says of its trials, without the times, which are those of delivery for what ended live."""
    return [
        (trial.state, trial.values, trial.intermediate_values, trial.number, trial.user_attrs, trial.params)
        for trial in study(made).trials
    ]


def in_one_go(made: MadeLog, folder: Path) -> list[tuple[Any, ...]]:
    """What a study has to hold: that of another store, which got the whole log at once."""
    whole = MadeLog(folder / "exp")
    whole.log.path.write_bytes(made.log.path.read_bytes())
    store_of(whole).sync(whole.log_at())
    return held(whole)


def store_of(made: MadeLog) -> OptunaStore:
    return OptunaStore(made.target())


def test_it_holds_what_the_log_says(made: MadeLog) -> None:
    store = store_of(made)
    store.sync(Log(made.experiment))
    assert not (made.folder / STUDY_FILE).exists(), "before the first event"
    made.four()
    settings = made.saved.state.records["001"].config
    made.log.append(TrialProposed(trial_id="001-a1", config=settings))
    made.begin("001-r1", seed=1)
    made.measure("001-r1", 3200, 5.0)
    made.end("001-r1", "completed")
    made.finish()
    store.sync(made.log_at())
    found = study(made)
    assert found.direction == optuna.study.StudyDirection.MINIMIZE
    told = [(trial.user_attrs["trial_id"], trial.state, trial.values) for trial in found.trials]
    assert told == [
        ("001", COMPLETE, [11.0]),
        ("002", PRUNED, [70.0]),
        ("003", FAIL, None),
        ("004", FAIL, None),
    ]
    assert [trial.params["learning_rate"] for trial in found.trials] == [1e-4, 2e-4, 3e-4, 4e-4]
    measured = [{384: 30.0, 1088: 11.0, 3200: 12.0}, {384: 70.0}, {}, {}]
    assert [trial.intermediate_values for trial in found.trials] == measured
    assert found.trials[0].distributions == made.saved.space.to_optuna()  # type: ignore[union-attr]
    events = {(type(entry.event), getattr(entry.event, "trial_id", "")): entry for entry in made.entries}
    assert found.trials[0].datetime_start.timestamp() == events[TrialStarted, "001"].time
    assert found.trials[0].datetime_complete.timestamp() == events[TrialEnded, "001"].time


def test_none_is_left_running_and_those_that_go_on_run_again(made: MadeLog) -> None:
    made.four()
    made.begin("005")
    made.measure("005", 384, 40.0)
    store = store_of(made)
    store.sync(made.log_at())
    assert held(made)[4][:3] == (RUNNING, None, {384: 40.0})
    made.finish()
    store.sync(made.log_at(len(made.entries) - 1))
    store.sync(made.log_at())
    before = held(made)
    assert before[4][:3] == (FAIL, None, {384: 40.0})
    made.session()
    store_of(made).sync(made.log_at())
    assert held(made)[:4] == before[:4]
    assert held(made)[4][:3] == (RUNNING, None, {384: 40.0})
    made.measure("005", 1088, 10.5)
    made.measure("005", 3200, 10.0)
    made.end("005", "completed")
    made.finish()
    store_of(made).sync(made.log_at())
    assert held(made)[4][:3] == (COMPLETE, [10.0], {384: 40.0, 1088: 10.5, 3200: 10.0})


@pytest.mark.parametrize("anew", [False, True])
def test_synced_event_by_event_by_one_store_and_by_ever_new_ones(
    made: MadeLog, tmp_path: Path, anew: bool
) -> None:
    made.four()
    made.begin("005")
    made.measure("005", 384, 40.0)
    made.finish("interrupted")
    made.session()
    made.measure("005", 1088, 30.0)
    made.measure("005", 384, 41.0)  # its checkpoint was lost
    made.begin("006")
    store = store_of(made)
    for end in range(1, len(made.entries) + 1):
        store = store_of(made) if anew else store
        store.sync(made.log_at(end))
    assert held(made) == in_one_go(made, tmp_path / "whole")


@pytest.mark.parametrize("how", ["torn", "removed", "locked"])
def test_what_a_killed_process_or_a_disk_left_is_written_anew(
    made: MadeLog, tmp_path: Path, how: str
) -> None:
    """Optuna's own patience with a lock is 30 seconds for every line."""
    store, journal = store_of(made), made.folder / STUDY_FILE
    made.four()
    store.sync(made.log_at())
    content, lock = journal.read_bytes(), Path(f"{journal}.lock")
    if how == "locked":
        lock.symlink_to(journal)
    elif how == "removed":
        journal.unlink()
    else:
        journal.write_bytes(content[:-50])
    made.begin("005")
    made.measure("005", 384, 40.0)
    began = time.monotonic()
    (store if how == "removed" else store_of(made)).sync(made.log_at())
    assert time.monotonic() - began < 10
    assert held(made) == in_one_go(made, tmp_path / "whole")
    assert not os.path.lexists(lock)
