"""The end of a search: who wins, which weights may go, and that something can be exported at any moment."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from made_experiments import measured
from search_process import read_log
from test_state_machine import RESOURCES, RUNGS, begun, made_search

from trainer.errors import ModelError
from tune.experiments.events import CutShort, TrialEnded, TrialProposed, TrialStarted
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE, RESULTS_FILE
from tune.runs.candidates import measure_average
from tune.runs.final_round import compare
from tune.runs.finish import find_finished, finish
from tune.runs.resume import resume
from tune.runs.session import check_same_data, session_started
from tune.util.errors import ExperimentError

pytestmark = pytest.mark.usefixtures("_without_pages")


def _no_mean(*_: object) -> Any:
    raise ModelError("a model cannot be averaged: made up")


class Search:
    """A search whose trainings are one line each; its files are real."""

    def __init__(self, folder: Path, **asked: Any) -> None:
        self.plan, self.experiment = made_search(folder, **{"trials": 2, **asked})
        self.storage, self.folder = self.plan.storage, self.plan.folder
        self.begin()
        self.experiment.log.append(begun(self.plan))

    def begin(self) -> None:
        last = self.state.session
        self.experiment.log.append(session_started(self.plan, RESOURCES, "auto", 1.0, last))

    def resume(self, **given: Any) -> None:
        """`--resume` with these options."""
        resumed = resume("x", self.storage, given)
        self.experiment, self.plan = resumed.experiment, resumed.plan
        self.begin()

    def train_all(self, **wers: float | None) -> None:
        """Trainings that come to their end: `t001` is trial 001, `t001_r1` its first repeat."""
        for name, wer in wers.items():
            self.train(name[1:].replace("_", "-"), wer)

    def train(self, name: str, wer: float | None, *, open_: bool = False) -> None:
        """A trial or repeat that ends with this WER, or fails; an open one has come to its first rung."""
        folder = name if self.state.session.session == 1 else f"{name}-2"
        log = self.experiment.log
        config = {"learning_rate": 1e-3 + len(self.state.runs) / 1e4}
        log.append(TrialProposed(trial_id=name, config=config, effective_batch=8))
        log.append(TrialStarted(trial_id=name, folder=folder))
        if wer is not None:
            checkpoint = self.folder / "trials" / folder / "checkpoint_000000"
            checkpoint.mkdir(parents=True)
            for file in ("model.safetensors", "config.json"):
                (checkpoint / file).write_text("{}")
            clips = {"word_errors": [round(wer)] * 10, "words": [100] * 10}
            (checkpoint / "utterances.json").write_text(json.dumps(clips))
            path = f"trials/{folder}/checkpoint_000000"
            log.append(*measured(name, RUNGS[0 if open_ else -1], wer, checkpoint=path))
        if not open_:
            log.append(TrialEnded(trial_id=name, status="failed" if wer is None else "completed"))

    @property
    def state(self) -> Any:
        return self.experiment.log.state

    def end(self, cut: Any = None) -> dict[str, Any]:
        if cut is not None:
            self.experiment.log.append(CutShort(final_round=True, reason=cut, text=f"it ended by {cut}"))
        if compare(self.experiment):  # of these files no mean can be made
            measure_average(self.experiment, _no_mean, lambda _: None)
        finish(self.experiment, pytest.fail)
        self.experiment.close()
        return json.loads((self.folder / RESULTS_FILE).read_text())

    def weights(self) -> set[str]:
        """Runs whose weights are on the disk."""
        return {path.parent.parent.name for path in self.folder.rglob("model.safetensors")}


def test_a_final_round_that_a_budget_cuts_drops_nothing_and_is_finished_later(tmp_path: Path) -> None:
    """On commit 5857576 the winner flipped to a repeat whose weights were gone."""
    search = Search(tmp_path, finalists=2, repeats=2)
    search.train_all(t001=30.0, t002=31.0)
    assert search.state.open_repeats == ["001-r1", "002-r1", "001-r2", "002-r2"]
    search.train_all(t001_r1=32.0, t002_r1=34.0)
    found = search.end("time_budget")
    assert found["best"]["run"] == "001-r1"
    assert not found["interrupted"]
    assert search.weights() == {"001", "002", "001-r1", "002-r1"}
    search.resume(budgets={"seconds": 1e9})
    search.train("001-r2", 40.0)
    search.train("002-r2", 30.0)
    found = search.end()
    assert (found["finalists"]["winner"], found["best"]["run"]) == ("002", "002-r2")
    assert search.weights() == {"002-r2-2"}


def test_a_finalist_without_a_completed_repeat_is_not_beaten(tmp_path: Path) -> None:
    """On commit 5857576 trial 001 with 8.0 % lost unopposed to 12.4 % and was deleted."""
    search = Search(tmp_path, finalists=2, repeats=1)
    search.train_all(t001=8.0, t002=12.0)
    search.train_all(t001_r1=None, t002_r1=12.4)
    found = search.end()
    assert found["finalists"] is None
    assert found["not_compared"] == "trial 001 has no repeat that was completed"
    assert found["best"]["run"] == "001"
    assert search.weights() == {"001", "002", "002-r1"}


def test_those_that_lost_do_not_come_back(tmp_path: Path) -> None:
    """Weights of the losers are gone: a later round compares the winner with what is new."""
    search = Search(tmp_path, finalists=2, repeats=1)
    search.train_all(t001=8.0, t002=8.2)
    search.train_all(t001_r1=10.0, t002_r1=9.5)
    assert search.end()["finalists"]["winner"] == "002"
    search.resume(trials=3)
    search.train("003", 8.1)
    assert search.state.open_repeats == ["003-r1"]
    search.train("003-r1", 9.8)
    found = search.end()
    assert [score["trial_id"] for score in found["finalists"]["scores"]] == ["002", "003"]
    assert found["best"]["run"] == "002-r1"
    assert search.weights() == {"002-r1"}


def test_whoever_finds_the_end_undone_does_it(tmp_path: Path) -> None:
    """On commit 5857576 a search killed before `results.json` was a dead end."""
    search = Search(tmp_path, finalists=0)
    search.train_all(t001=30.0, t002=31.0)
    before = search.state.seconds
    search.experiment.close()  # killed
    resumed = resume("x", search.storage, {})
    assert resumed.only_finish, "--resume does it as well"
    resumed.experiment.close()
    folder = find_finished("x", search.storage)
    assert read_log(search.folder / EVENTS_FILE).seconds == pytest.approx(before), (
        "the time between is no search's"
    )
    assert Experiment.read(folder).best.trial_id == "001"
    assert json.loads((search.folder / RESULTS_FILE).read_text())["interrupted"] is False
    assert search.weights() == {"001"}
    with pytest.raises(ExperimentError, match="all its 2 trials have ended"):
        resume("x", search.storage, {})


def test_where_the_disk_knows_no_locks_nobody_comes_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report wrote the end of a search that was still measuring: two processes wrote one log."""
    search = Search(tmp_path, finalists=0)
    search.train_all(t001=30.0, t002=31.0)
    monkeypatch.setattr("trainer.files._lock", lambda *_: None)
    before = (search.folder / EVENTS_FILE).read_bytes()
    find_finished("x", search.storage)
    assert (search.folder / EVENTS_FILE).read_bytes() == before
    search.experiment.close()


def test_all_weights_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    search = Search(tmp_path, finalists=0, keep_checkpoints="all")
    search.train_all(t001=30.0, t002=31.0)
    search.end()
    assert search.weights() == {"001", "002"}


def test_how_trials_are_measured_holds_for_a_searchs_life(tmp_path: Path) -> None:
    """On commit 5857576 other finalists on resume changed it, and WERs of both kinds met in one rung."""
    for name, finalists, other in (("with", 2, 0), ("without", 0, 2)):
        (tmp_path / name).mkdir()
        search = Search(tmp_path / name, finalists=finalists)
        search.train("001", 30.0, open_=True)
        search.experiment.close()
        resumed = resume("x", search.storage, {"finalists": other})
        assert resumed.experiment.settings.trials_full_window is (finalists == 0)
        resumed.experiment.close()


def test_other_data_on_resume_is_refused_by_what_differs(tmp_path: Path) -> None:
    search = Search(tmp_path)

    def split(clips: int, digest: str) -> Any:
        origins = SimpleNamespace(kinds=(), numbers=np.zeros(0, np.uint16))
        found = MagicMock(origins=origins, digest=lambda: digest, seconds=lambda clip: 1.0)
        found.__len__.return_value = clips
        return found

    def data(clips: int, digest: str, **more: Any) -> Any:
        splits = {"validation": split(clips, digest), **more}
        sizes = {name: len(each) for name, each in splits.items()}
        train = SimpleNamespace(epoch_samples=1.0)
        return SimpleNamespace(folder=Path("elsewhere"), splits=splits, clips=sizes, stream=None, train=train)

    check_same_data(search.experiment, data(10, "a"))
    for found, told in [
        (data(12, "b"), "has 12 validation clips now, 10 when it began"),
        (data(10, "b"), "has other validation clips or texts now"),
        (data(10, "a", test=split(3, "c")), "has a test split now"),
    ]:
        with pytest.raises(ExperimentError, match=told):
            check_same_data(search.experiment, found)
