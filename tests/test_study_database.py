"""The Optuna study in a database: what it holds, and that nothing waits for it."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from locked_database import locked
from optuna.trial import TrialState
from tune.apart import apart
from tune.study_database import StudyDatabase, check_study, default_study_url
from tune.study_table import StudyTable, killed_table

from tune.errors import ExperimentError
from tune.search.records import Outcome, Records, TrialRecord
from tune.search_space import load_space
from tune.searcher import TRIAL_ID, make_searcher

SPACE = load_space("lr_batch").resolve(1e-3)


class Search:
    """A searcher with a database, driven as Ray and the callback drive it."""

    def __init__(self, folder: Path, records: Records | None = None, **options: Any) -> None:
        self.url = options.pop("url", default_study_url(folder))
        self.records = records or Records()
        self.warnings: list[str] = []
        self.database = StudyDatabase(
            self.url,
            "exp",
            options.pop("table", None) or StudyTable(self.url, "exp", SPACE.to_optuna()),
            self.records,
            **{"goes_on": False, "warn": self.warnings.append, **options},
        )
        self.searcher: Any = make_searcher(
            SPACE, experiment="exp", seed=1, records=self.records, mirror=self.database
        )

    def begin(self) -> TrialRecord:
        number = f"ray-{len(self.records.all())}"
        config = self.searcher.suggest(number)
        return self.records.start(config.pop(TRIAL_ID), config)

    def measure(self, record: TrialRecord, samples: int, wer: float) -> None:
        result = {"wer": wer, "cer": wer, "samples_seen": samples, "epoch": 1.0, "finished": samples == 900}
        record.add_evaluation(result)
        self.searcher.on_trial_result(self.ray_id(record), result)

    def end(self, record: TrialRecord, outcome: Outcome) -> None:
        record.end(outcome)
        self.searcher.on_trial_complete(self.ray_id(record), error=outcome == "failed")

    def ray_id(self, record: TrialRecord) -> str:
        return next(ray_id for ray_id, number in self.searcher._open.items() if number == record.trial_id)

    @property
    def study(self) -> optuna.Study:
        return optuna.load_study(study_name="exp", storage=self.url)


def run_four(search: Search) -> None:
    """One of each end."""
    a, b, c, d = (search.begin() for _ in range(4))
    search.measure(a, 100, 30.0)
    search.measure(b, 100, 70.0)
    search.end(b, "early_stopped")
    search.measure(a, 300, 11.0)
    search.measure(c, 150, math.nan)
    search.end(c, "diverged")
    search.end(d, "failed")
    search.measure(a, 900, 12.0)
    search.end(a, "completed")


def check_four(search: Search) -> None:
    trials = search.study.trials
    assert [trial.state for trial in trials] == [
        *(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.FAIL)
    ]
    assert [trial.user_attrs for trial in trials] == [{"trial_id": f"00{number}"} for number in (1, 2, 3, 4)]
    assert [trial.params for trial in trials] == [record.config for record in search.records.all()]
    assert [trial.intermediate_values for trial in trials] == [
        *({100: 30.0, 300: 11.0, 900: 12.0}, {100: 70.0}, {}, {})
    ]
    assert (search.study.best_value, search.study.best_trial.number) == (11.0, 0)


def test_states_and_values_are_those_of_the_records(tmp_path: Path) -> None:
    search = Search(tmp_path)
    run_four(search)
    search.database.finish()
    assert search.study.study_name == "exp"
    assert search.study.direction == optuna.study.StudyDirection.MINIMIZE
    check_four(search)
    assert search.warnings == []


def test_trials_show_while_they_run_and_none_is_left_running(tmp_path: Path) -> None:
    """One is measured and one is not when the search ends; a third was proposed and never began."""
    search = Search(tmp_path)
    measured = search.begin()
    search.measure(measured, 100, 30.0)
    search.begin()
    search.searcher.suggest("never begun")
    search.database._thread.submit(lambda: None).result(60)
    states = [trial.state for trial in search.study.trials]
    assert states == [TrialState.RUNNING] * 3
    assert search.study.trials[0].intermediate_values == {100: 30.0}
    search.database.finish()
    trials = search.study.trials
    assert [trial.user_attrs["trial_id"] for trial in trials] == ["001", "002"]
    assert [trial.state for trial in trials] == [TrialState.FAIL] * 2
    assert trials[0].intermediate_values == {100: 30.0}
    assert [record.status for record in search.records.all()] == ["running"] * 2, "they go on when it does"


def test_a_resumed_search_writes_its_study_anew(tmp_path: Path) -> None:
    search = Search(tmp_path)
    run_four(search)
    running = search.begin()
    search.measure(running, 100, 20.0)
    search.database.finish()
    before = search.study.trials
    records = Records()
    for record in search.records.all():
        records.add(TrialRecord.from_dict(record.to_dict()))
    second = Search(tmp_path, records, goes_on=True)
    again = second.searcher.suggest("again")
    assert again.pop(TRIAL_ID) == "005"
    record = records["005"]
    for samples, wer in ((300, 10.5), (900, 10.0)):
        result = {"wer": wer, "cer": wer, "samples_seen": samples, "epoch": 1.0, "finished": samples == 900}
        record.add_evaluation(result)
        second.searcher.on_trial_result("again", result)
    record.end("completed")
    second.searcher.on_trial_complete("again")
    second.database.finish()
    trials = second.study.trials
    assert [trial.number for trial in trials] == [0, 1, 2, 3, 4]
    for name in ("state", "values", "params", "intermediate_values", "user_attrs"):
        assert [getattr(trial, name) for trial in trials[:4]] == [getattr(old, name) for old in before[:4]]
    assert trials[4].state == TrialState.COMPLETE
    assert trials[4].intermediate_values == {100: 20.0, 300: 10.5, 900: 10.0}
    assert second.study.best_value == 10.0
    assert second.warnings == []


def test_a_study_of_the_same_name_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    Search(tmp_path, url=url).database.finish()
    with pytest.raises(ExperimentError, match=r"^--optuna-storage sqlite:.*: has a study 'exp' already; .*$"):
        Search(tmp_path, url=url)
    check_study(url, "another")
    check_study(url, None)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/there/is/optuna.db",
        "nonsense",
        "postgresql://user:topsecret@127.0.0.1:9/db",
        "postgresql://user:topsecret@127.0.0.1:port/db",
        "mysql+nodriver://user:topsecret@127.0.0.1:9/db",
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(tmp_path: Path, url: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        check_study(url, "exp")
    assert str(caught.value).startswith("--optuna-storage ")
    assert "cannot be opened: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    check_study(url, "exp")
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v0.9.0.a'")
    with pytest.raises(ExperimentError, match="cannot be opened: The runtime optuna version"):
        check_study(url, "exp")


def test_nothing_waits_for_a_locked_database(tmp_path: Path) -> None:
    """The dashboard, or a backup, holds it; all that happens meanwhile is there in the end."""
    search = Search(tmp_path)
    with locked(tmp_path / "optuna.db"):
        run_four(search)
        assert [record.status for record in search.records.all()] == [
            *("completed", "early_stopped", "diverged", "failed")
        ]
    search.database.finish()
    check_four(search)
    assert search.warnings == []


def test_a_database_that_goes_away_is_written_anew_in_the_end(tmp_path: Path) -> None:
    search = Search(tmp_path)
    first = search.begin()
    search.database._thread.submit(lambda: None).result(60)
    os.truncate(tmp_path / "optuna.db", 0)
    search.measure(first, 900, 50.0)
    search.end(first, "completed")
    search.database._thread.submit(lambda: None).result(60)
    (warning,) = search.warnings
    assert warning.startswith(f"the Optuna study in sqlite:///{tmp_path}/optuna.db cannot be written now: ")
    assert warning.endswith("; the search goes on")
    assert "\n" not in warning
    search.begin()
    search.database.finish()
    assert [trial.state for trial in search.study.trials] == [TrialState.COMPLETE, TrialState.FAIL]
    assert search.study.best_value == 50.0
    assert len(search.warnings) == 1


def test_a_process_that_is_killed_is_done_without_in_the_end(tmp_path: Path) -> None:
    url = default_study_url(tmp_path)
    before = set(psutil.Process().children())
    with apart(lambda: StudyTable(url, "exp", SPACE.to_optuna()), gone=killed_table) as table:
        (writer,) = set(psutil.Process().children()) - before
        search = Search(tmp_path, table=table)
        first, _ = search.begin(), search.begin()
        search.measure(first, 900, 50.0)
        search.end(first, "completed")
        search.database._thread.submit(lambda: None).result(60)
        writer.kill()
        search.database.finish()
    assert search.warnings == []
    assert [trial.state for trial in search.study.trials] == [TrialState.COMPLETE, TrialState.FAIL]
    assert search.study.best_value == 50.0


def test_a_database_that_stays_away_is_told(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    search = Search(tmp_path / "there")
    first = search.begin()
    search.database._thread.submit(lambda: None).result(60)
    os.truncate(tmp_path / "there" / "optuna.db", 0)
    search.measure(first, 900, 50.0)
    search.database._thread.submit(lambda: None).result(60)
    (tmp_path / "there").rename(tmp_path / "gone")
    search.end(first, "completed")
    search.database.finish()
    assert len(search.warnings) == 2
    assert " lacks some trials: " in search.warnings[1]
    assert first.status == "completed"


def test_a_study_that_somebody_deletes_is_written_anew_in_the_end(tmp_path: Path) -> None:
    """As its button in the dashboard does."""
    search = Search(tmp_path)
    first = search.begin()
    search.database._thread.submit(lambda: None).result(60)
    optuna.delete_study(study_name="exp", storage=search.url)
    search.measure(first, 900, 50.0)
    search.end(first, "completed")
    search.database.finish()
    (warning,) = search.warnings
    assert "cannot be written now: " in warning
    assert search.study.best_value == 50.0


def test_a_trial_that_somebody_ends_is_written_anew_in_the_end(tmp_path: Path) -> None:
    search = Search(tmp_path)
    first = search.begin()
    search.database._thread.submit(lambda: None).result(60)
    search.study.tell(0, 1.0)
    search.end(first, "failed")
    search.database.finish()
    (warning,) = search.warnings
    assert "cannot be written now: " in warning
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL]


def test_a_bug_is_raised_in_the_end_and_is_not_told_of_the_database(tmp_path: Path) -> None:
    search = Search(tmp_path)
    first = search.begin()
    search.database.evaluated("a trial that never was", 100, 30.0)
    search.measure(first, 900, 50.0)
    search.end(first, "completed")
    with pytest.raises(RuntimeError, match=r"the Optuna study in sqlite:.* went wrong: KeyError") as caught:
        search.database.finish()
    assert isinstance(caught.value.__cause__, KeyError)
    assert search.warnings == []
    assert search.study.best_value == 50.0, "what could be written is there"
