"""Averages of the finalists' repeats: in the log before anything acts on them, and never twice."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_final_round import Search

import tune_whisper
from trainer.errors import DiskFullError
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import TrialProposed
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import parse, read_log
from tune.experiments.saved import load_saved
from tune.export.model_card import CardFacts, model_card
from tune.report.experiment import load_experiment
from tune.report.writer import make_report
from tune.runs import finish as finish_module
from tune.runs.averages import Aftermath
from tune.runs.final_round import choose_export, compare
from tune.runs.finish import find_finished
from tune.runs.outcome import Outcome
from tune.runs.search_display import print_summary
from tune.tracking.mlflow_runs import event_points, own_run, trial_run
from tune.tracking.mlflow_texts import search_ended
from tune.util.errors import ExperimentError, ModelError
from tune.workers.averages import Measured


class Killed(BaseException):
    """The driver's process is gone."""


@pytest.fixture(autouse=True)
def _without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_module, "write_report", lambda *_: None)


class Kitchen:
    """Averages whose WER is that of a table, by their members; their files are real."""

    def __init__(self, search: Search, wers: dict[str, float | BaseException]) -> None:
        self.search, self.wers = search, wers
        self.made: list[str] = []
        self.told: list[str] = []

    def average(
        self, config: dict[str, Any], checkpoints: Sequence[str], name: str, most_wer: float
    ) -> Measured:
        runs = [Path(path).parent.name.removesuffix("-2") for path in checkpoints]
        for path in checkpoints:
            assert (self.search.folder / path / "model.safetensors").is_file()
        wer = self.wers[" ".join(runs)]
        if isinstance(wer, BaseException):
            raise wer
        self.made.append(" ".join(runs))
        keep: Any = "weights" if wer <= most_wer else "errors"
        files = CheckpointFiles(self.search.plan.experiment_folder)
        place = files.place(name)
        place.mkdir(parents=True)
        if keep == "weights":
            (place / "model.safetensors").write_text("{}")
        (place / "utterances.json").write_text(
            json.dumps({"word_errors": [wer] * 9 + [wer + 0.1], "words": [100] * 10})
        )
        files.complete(place, name, {})
        return Measured({"wer": wer, "cer": wer / 3, "loss": 0.5, "clips": 10.0}, keep)

    def cook(self, over: str | None = None) -> None:
        """As `SearchStages` does it."""
        experiment = self.search.experiment
        assert compare(experiment)
        Aftermath(experiment, self, self.told.append, lambda *_: None).make_soup(lambda: over)
        choose_export(experiment, pytest.fail)


class Road:
    """Points between the base model and a run: their WER falls evenly to the run's."""

    def __init__(self) -> None:
        self.made: list[float] = []
        self.told: list[str] = []
        self.killed_at = 2.0
        self.fails = False

    def point(self, config: dict[str, Any], checkpoint: str, point: float) -> dict[str, float]:
        if point >= self.killed_at:
            raise Killed
        if self.fails:
            raise DiskFullError("the disk is full")
        self.made.append(point)
        return {"wer": 60.0 - 30.0 * point, "cer": 20.0, "loss": 0.5, "clips": 10.0}

    def go(self, search: Search) -> None:
        """As `SearchStages` does it."""
        assert compare(search.experiment)
        Aftermath(search.experiment, self, self.told.append, lambda *_: None).measure_points()
        choose_export(search.experiment, pytest.fail)


def final_round(folder: Path, **asked: Any) -> Search:
    """A search whose four repeats have ended."""
    search = Search(folder, **{"finalists": 2, "repeats": 2, "soup": True, **asked})
    search.train_all(t001=30.0, t002=40.0)
    search.trials_over()
    search.train_all(t001_r1=32.0, t001_r2=31.0, t002_r1=41.0, t002_r2=42.0)
    return search


BETTER: dict[str, Any] = {
    "001-r2 001-r1": 25.0,
    "001-r2 001-r1 002-r1": 26.0,
    "001-r2 001-r1 002-r2": 24.0,
}


def test_an_average_that_is_better_beyond_noise_is_exported(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    kitchen = Kitchen(search, BETTER)
    kitchen.cook()
    assert kitchen.made == list(BETTER), "the winner's repeats from the best on, then the others"
    state = search.state
    assert [run.members for run in state.averages.all()] == [name.split() for name in BETTER]
    assert [run.status for run in state.averages.all()] == ["completed"] * 3
    assert state.soup_judged.run == "001-a3"
    assert state.best().trial_id == state.chosen.run == "001-a3"
    assert state.winner == "001"
    assert "001-a3, the average of 001-r2, 001-r1 and 002-r2, has" in kitchen.told[-1]
    found = search.end()
    assert (found["best"]["run"], found["best"]["wer"]) == ("001-a3", 24.0)
    assert search.weights() == {"001-a3"}
    (why,) = [each for each in found["averages"] if each["trial_id"] == "001-a3"]
    assert why["members"] == ["001-r2", "001-r1", "002-r2"]


def test_an_average_that_noise_may_be_is_not(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    kitchen = Kitchen(search, dict.fromkeys(BETTER, 40.0) | {"001-r2 001-r1": 30.5})
    # On half of the clips it is much better, on the others much worse.
    average = kitchen.average

    def uneven(*given: Any) -> Measured:
        found = average(*given)
        path = search.folder / given[2] / "utterances.json"
        path.write_text(json.dumps({"word_errors": [20.0] * 5 + [41.0] * 5, "words": [100] * 10}))
        return found

    kitchen.average = uneven  # type: ignore[method-assign]
    kitchen.cook()
    assert search.state.soup_judged.verdict.interval[0] < 0 < search.state.soup_judged.verdict.gain
    assert search.end()["best"]["run"] == "001-r2"
    assert search.weights() == {"001-r2"}


def test_killed_in_the_middle_it_ends_as_unbroken(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    kitchen = Kitchen(search, {**BETTER, "001-r2 001-r1 002-r1": Killed()})
    with pytest.raises(Killed):
        kitchen.cook()
    search.experiment.close()
    assert search.state.best().trial_id == "001-r2", "something can be exported at any moment"
    assert find_finished("x", search.storage)
    assert not read_log(search.folder / EVENTS_FILE).written, "nobody but the search itself ends it"
    assert len(search.weights()) == 7, "two trials, four repeats, an average"
    search.resume(trials=2)
    assert search.state.open_soup
    search.trials_over()
    again = Kitchen(search, BETTER)
    again.cook()
    assert again.made == list(BETTER)[1:], "what was measured is not measured again"
    assert [run.trial_id for run in search.state.averages.all()] == ["001-a1", "001-a2", "001-a3"]
    assert search.end()["best"]["run"] == "001-a3"
    log = (search.folder / EVENTS_FILE).read_bytes()
    proposed = [each.event for each in parse(log, Path()) if isinstance(each.event, TrialProposed)]
    assert [event.trial_id for event in proposed if event.kind == "average"] == ["001-a1", "001-a2", "001-a3"]
    with pytest.raises(ExperimentError, match="have ended"):
        search.resume(trials=2)


def test_what_cannot_be_averaged_is_left_out_and_told(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    broken = ModelError("a model cannot be averaged: proj has values that are not finite")
    kitchen = Kitchen(search, dict.fromkeys([*BETTER, "001-r2 002-r1", "001-r2 002-r2"], broken))
    kitchen.cook()
    assert [run.status for run in search.state.averages.all()] == ["failed"] * 3
    assert "is left out: a model cannot be averaged" in kitchen.told[0]
    assert "no average is exported" in kitchen.told[-1]
    assert search.end()["best"]["run"] == "001-r2"


def test_the_time_budget_ends_it(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    kitchen = Kitchen(search, BETTER)
    kitchen.cook(over="its time budget of 1h is spent")
    assert kitchen.made == []
    assert "its time budget of 1h is spent" in search.state.soup_judged.text
    assert search.end()["best"]["run"] == "001-r2"


@pytest.mark.parametrize("asked", [{"soup": False}, {"finalists": 1, "repeats": 1}, {"finalists": 0}])
def test_without_it_or_with_too_few_runs_nothing_is_averaged(tmp_path: Path, asked: dict[str, Any]) -> None:
    search = Search(tmp_path, **{"finalists": 2, "repeats": 2, "soup": True, **asked})
    search.train_all(t001=30.0, t002=40.0)
    for name in search.trials_over():
        search.train(name, 31.0)
    assert not search.state.open_soup
    choose_export(search.experiment, pytest.fail)
    assert search.end()["averages"] == []


def test_an_average_defends_its_place_in_a_search_that_goes_on(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    Kitchen(search, BETTER).cook()
    search.end()
    search.resume("--trials", trials=3)
    assert search.state.best().trial_id == "001-a3"
    search.train("003", 29.0)
    assert search.trials_over() == ["003-r1", "003-r2"]
    search.train_all(t003_r1=34.0, t003_r2=35.0)
    kitchen = Kitchen(search, {})
    kitchen.cook()
    assert kitchen.made == [], "no weights are left of the winner's repeats"
    found = search.end()
    assert (found["best"]["run"], found["best"]["trial_id"]) == ("001-a3", "001")
    assert search.weights() == {"001-a3"}


def test_all_that_is_made_from_the_log_tells_of_the_average(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    Kitchen(search, BETTER).cook()
    search.end()
    saved = load_saved(search.plan.experiment_folder)
    whom = "001-a3, the average of 001-r2, 001-r1 and 002-r2"
    page = make_report(load_experiment(search.plan.experiment_folder)).html
    assert f"WER of {whom}, which is exported" in page
    assert "<h3>Averages</h3>" in page
    assert "001-r2, 001-r1 and 002-r1" in page, "those that were left out are told too"
    note = search_ended(saved, "")
    assert f"Averages: {whom}, has 7.0" in note
    assert "Run 001-a3 is the one to be exported, with 24.00 %." in note
    content = trial_run(saved.best, saved, new=True)
    assert content.name == "001-a3 average of 001-r2, 001-r1, 002-r2"
    assert (content.tags["role"], content.tags["members"]) == ("average", "001-r2 001-r1 002-r2")
    assert ("soup_gain", 7.0) in [point[:2] for point in own_run(saved, "", new=False).metrics]
    rates = {"wer": 24.0, "cer": 8.0, "clips": 10}
    card = model_card(
        saved,
        saved.best,
        {"validation": {"before": rates, "after": rates}},
        4.0,
        CardFacts(),
    )
    assert f"{whom.replace('the average', 'the average of the weights', 1)} (a greedy" in str(card)
    console = Console(file=io.StringIO(), width=200)
    print_summary(Outcome(search.plan, saved.state), console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"soup      {whom}, has 7.0" in printed
    assert f"best      WER  24.00 %  {whom}, to be exported" in printed
    found = tune_whisper.load_experiment("x", storage=search.storage.text)
    assert found.best is not None
    assert (found.best.id, len(found.averages), found.wer) == ("001-a3", 3, 31.5)


def test_points_between_base_and_winner_are_measured_of_a_search_that_has_ended(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    Kitchen(search, BETTER).cook()
    before = search.end()
    search.resume("--interpolate", trials=2, interpolate=True)
    search.trials_over()
    road = Road()
    road.killed_at = 0.6
    with pytest.raises(Killed):
        road.go(search)
    search.experiment.close()
    search.resume(trials=2)
    search.trials_over()
    again = Road()
    again.go(search)
    assert (road.made, again.made) == ([0.2, 0.4], [0.6, 0.8]), (
        "the ends are known, and nothing is measured twice"
    )
    after = search.end()
    points = {each["point"]: each["wer"] for each in after["interpolation"]}
    assert points == pytest.approx({0.0: 60.0, 0.2: 54.0, 0.4: 48.0, 0.6: 42.0, 0.8: 36.0, 1.0: 24.0})
    same = ("best", "finalists", "soup", "averages", "trials", "repeats")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    page = make_report(load_experiment(search.plan.experiment_folder)).html
    assert "Between the base model and the exported one" in page
    log = (search.folder / EVENTS_FILE).read_bytes()
    (own,) = event_points(list(parse(log, Path())), load_saved(search.plan.experiment_folder)).keys() & {None}
    values = event_points(list(parse(log, Path())), load_saved(search.plan.experiment_folder))[own]
    assert [point[3] for point in values if point[0] == "interpolated_wer"] == [0, 20, 40, 60, 80, 100]
    with pytest.raises(ExperimentError, match="have ended"):
        search.resume("--interpolate", trials=2, interpolate=True)


def test_points_come_after_the_soup_and_before_the_choice(tmp_path: Path) -> None:
    search = final_round(tmp_path, interpolate=True)
    assert compare(search.experiment)
    assert search.state.open_points == [], "it may still be another run"
    choose_export(search.experiment, pytest.fail)
    assert search.state.chosen is None
    Aftermath(search.experiment, Kitchen(search, BETTER), str, lambda *_: None).make_soup(lambda: None)
    choose_export(search.experiment, pytest.fail)
    assert search.state.chosen is None
    Road().go(search)
    assert list(search.state.points) == ["001-a3"]
    assert search.end()["best"]["run"] == "001-a3"


def test_points_that_cannot_be_measured_are_told_and_hold_up_nothing(tmp_path: Path) -> None:
    search = final_round(tmp_path, interpolate=True, soup=False)
    road = Road()
    road.fails = True
    road.go(search)
    assert "20 % 001-r2, 80 % base model: not measured: the disk is full" in road.told
    found = search.end()
    assert [each["point"] for each in found["interpolation"]] == [0.0, 1.0]
    assert not found["interrupted"]
