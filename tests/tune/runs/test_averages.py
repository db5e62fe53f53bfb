"""The mean of the winner's repeats: in the log before anything acts on it, and never measured twice."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_experiments import measured
from test_final_round import Search
from test_search_summary import printed
from test_state_machine import RUNGS

import tune_whisper
from trainer.errors import ModelError
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import TrialEnded
from tune.experiments.experiment import Experiment
from tune.export.model_card import model_card
from tune.report.analysis import analyse
from tune.report.writer import make_page
from tune.runs.candidates import measure_average
from tune.runs.final_round import choose_export, compare
from tune.runs.outcome import Outcome
from tune.tracking.mlflow_runs import run_name, trial_run
from tune.tracking.mlflow_texts import experiment_note
from tune.workers.averages import Measured

pytestmark = pytest.mark.usefixtures("_without_pages")


class Averager:
    """Means with this WER; their files are real."""

    def __init__(self, search: Search, wer: float | BaseException) -> None:
        self.search, self.wer = search, wer
        self.made: list[str] = []
        self.told: list[str] = []

    def measure(
        self, config: dict[str, Any], checkpoints: Sequence[str], name: str, most_wer: float
    ) -> Measured:
        for path in checkpoints:
            assert (self.search.folder / path / "model.safetensors").is_file()
        if isinstance(self.wer, BaseException):
            raise self.wer
        self.made.append(" ".join(Path(path).parent.name.removesuffix("-2") for path in checkpoints))
        kept = self.wer <= most_wer
        if kept:
            files = CheckpointFiles(self.search.plan.experiment_folder)
            place = files.place(name)
            place.mkdir(parents=True)
            (place / "model.safetensors").write_text("{}")
            files.complete(place, name, {})
        return Measured({"wer": self.wer, "cer": self.wer / 3, "loss": 0.5, "clips": 10.0}, kept)

    def average(self) -> None:
        assert compare(self.search.experiment)
        measure_average(self.search.experiment, self.measure, self.told.append)
        choose_export(self.search.experiment, pytest.fail)


def final_round(folder: Path, **asked: Any) -> Search:
    """A search whose four repeats have ended."""
    search = Search(folder, **{"finalists": 2, "repeats": 2, **asked})
    search.train_all(t001=30.0, t002=40.0)
    search.train_all(t001_r1=32.0, t001_r2=31.0, t002_r1=41.0, t002_r2=42.0)
    return search


@pytest.mark.parametrize(
    ("wer", "exported", "told"),
    [
        (24.0, "001-a1", "WER 24.00 %, no more than the best of them (31.00 %)"),
        (31.0, "001-a1", "WER 31.00 %, no more than the best of them (31.00 %)"),
        (31.1, "001-r2", "WER 31.10 %; 001-r2 is better with 31.00 %"),
    ],
)
def test_it_is_exported_where_it_is_no_worse_than_the_best_repeat(
    tmp_path: Path, wer: float, exported: str, told: str
) -> None:
    search = final_round(tmp_path)
    averager = Averager(search, wer)
    averager.average()
    assert averager.made == ["001-r2 001-r1"], "the winner's repeats, from the best on"
    assert averager.told == [f"001-a1, the mean of the weights of 001-r2 and 001-r1, has {told}"]
    assert search.state.best().trial_id == search.state.chosen.run == exported
    assert search.state.winner == "001"
    found = search.end()
    assert (found["best"]["run"], found["best"]["wer"]) == (exported, min(wer, 31.0))
    assert search.weights() == {exported}
    (average,) = found["averages"]
    assert (average["members"], average["best_wer"]) == (["001-r2", "001-r1"], wer)
    winner = found["trials"][0]
    for name in ("config", "effective_batch_size"):  # once the seed of a repeat, and a batch of 0
        assert average[name] == winner[name]
    saved = Experiment.read(search.plan.experiment_folder)
    params = [trial_run(saved.state.run(run), saved).params for run in ("001", "001-a1")]
    assert params[0] == params[1]


def test_what_cannot_be_averaged_is_left_out_and_told(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    averager = Averager(search, ModelError("a model cannot be averaged: proj has values that are not finite"))
    averager.average()
    assert [run.status for run in search.state.averages.all()] == ["failed"]
    assert "is left out: a model cannot be averaged" in averager.told[0]
    assert search.end()["best"]["run"] == "001-r2"


@pytest.mark.parametrize("asked", [{"finalists": 1, "repeats": 1}, {"finalists": 0}])
def test_with_too_few_runs_nothing_is_averaged(tmp_path: Path, asked: dict[str, Any]) -> None:
    search = Search(tmp_path, **{"finalists": 2, "repeats": 2, **asked})
    search.train_all(t001=30.0, t002=40.0)
    for name in search.state.open_repeats:
        search.train(name, 31.0)
    assert not search.state.open_average
    choose_export(search.experiment, pytest.fail)
    assert search.end()["averages"] == []


def test_the_mean_of_runs_that_were_best_early_has_the_epoch_of_that(tmp_path: Path) -> None:
    """On fed11aa it had the epoch of their end, and `train --on train+validation` trained for as long."""
    search = Search(tmp_path, finalists=1, repeats=2)
    search.train_all(t001=30.0, t002=40.0)
    for name in search.state.open_repeats:
        search.train(name, 31.0, open_=True)
        evaluated = measured(name, RUNGS[-1], 45.0)
        search.experiment.log.append(*evaluated, TrialEnded(trial_id=name, status="completed"))
    Averager(search, 24.0).average()
    (mean,) = search.state.averages.all()
    assert (mean.samples_seen, mean.epoch) == (RUNGS[0], 0.5)
    assert mean.best_epoch == search.state.run("001-r1").best_epoch == 0.5


def test_it_defends_its_place_in_a_search_that_goes_on(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    Averager(search, 25.0).average()
    search.end()
    search.resume(trials=3)
    assert search.state.best().trial_id == "001-a1"
    search.train("003", 29.0)
    assert search.state.open_repeats == ["003-r1", "003-r2"]
    search.train_all(t003_r1=34.0, t003_r2=35.0)
    averager = Averager(search, 25.0)
    averager.average()
    assert averager.made == [], "no weights are left of the winner's repeats"
    found = search.end()
    assert (found["best"]["run"], found["best"]["trial_id"]) == ("001-a1", "001")
    assert search.weights() == {"001-a1"}


def test_all_that_is_made_from_the_log_tells_of_it(tmp_path: Path) -> None:
    search = final_round(tmp_path)
    Averager(search, 24.0).average()
    search.end()
    saved = Experiment.read(search.plan.experiment_folder)
    whom = "001-a1, the mean of 001-r2 and 001-r1"
    page = make_page(analyse(search.plan.experiment_folder))
    assert "001-a1, the mean of the weights of 001-r2 and 001-r1, has WER 24.00 %, no more" in page
    assert "weights of 001-a1" in experiment_note(saved, "")
    content = trial_run(saved.best, saved)
    assert run_name(saved.best) == "001-a1 mean of 001-r2, 001-r1"
    assert (content.tags["role"], content.tags["members"]) == ("average", "001-r2 001-r1")
    rates = {"wer": 24.0, "cer": 8.0, "clips": 10}
    card = model_card(saved, saved.best, {"validation": {"before": rates, "after": rates}}, 4.0)
    assert f"{whom.replace('the mean', 'the mean of the weights', 1)} (a [model soup]" in str(card)
    assert f"best      WER  24.00 %  {whom}, to be exported" in "\n".join(
        printed(Outcome(search.plan, saved.state))
    )
    found = tune_whisper.load_experiment("x", storage=search.storage.text)
    assert (found.best, found.wer) == (found.runs["001-a1"], 31.5)
