"""The line that tells what of a gain is the search's own, beside a training with the usual settings."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_experiments import MadeLog, change_settings, made_trial, write_experiment

from tune.experiments.events import Baseline, Entry, GuardsJudged, SearchEnded
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import ExperimentFolder
from tune.report.analysis import Analysis, analyse
from tune.runs.final_round import compare
from tune.search.guards import GuardLoss
from tune.space.parameters import FloatParameter

USUAL = "the usual settings (trial 001)"
RATES = {"wer": 60.0, "cer": 30.0, "clips": 200.0}


def searched(folder: Path, usual: Any = None, **kinds: Any) -> ExperimentFolder:
    """Two finalists, 002 and 003, beside the usual settings, which come to 12 %."""
    trials = [usual or made_trial(1, [50.0, 30.0, 12.0])]
    trials += [made_trial(number, [48.0, 28.0, 11.0], rate=number) for number in (2, 3)]
    kinds = {"repeats": {"002": [10.0, 10.4], "003": [11.0, 11.4]}, "base_clips": True, **kinds}
    return write_experiment(folder, trials, **kinds)


def text_of(folder: ExperimentFolder) -> str:
    return analyse(folder).search_text


def interval_of(text: str) -> tuple[float, float]:
    found = re.search(r"95 % interval (-?[\d.]+) to (-?[\d.]+) points$", text)
    assert found is not None, text
    return float(found[1]), float(found[2])


@pytest.mark.parametrize(
    ("winner", "text"),
    [
        ([12.6, 13.0], r"0\.80 points less than one training with U, which gained 48\.00; within noise: .*"),
        ([20.0, 20.4], r"8\.20 points less than one training with U, which gained 48\.00; 95 % interval .*"),
    ],
)
def test_a_winner_that_is_worse_than_the_usual_settings_were(
    winner: list[float], text: str, tmp_path: Path
) -> None:
    """Both finalists were lucky as trials."""
    found = text_of(searched(tmp_path, repeats={"002": winner, "003": [22.0, 22.4]}))
    assert re.fullmatch(text.replace("U", re.escape(USUAL)), found)
    low, high = interval_of(found)
    assert low < float(found.split()[0]) < high
    assert (low > 0) == ("within noise" not in found)


def test_without_a_gain_there_is_no_share_of_it(tmp_path: Path) -> None:
    assert text_of(searched(tmp_path, baseline=9.0)) == ""


@pytest.mark.parametrize(
    "trial", [made_trial(1, [50.0]), made_trial(1, []), made_trial(1, [50.0], error="it broke")]
)
def test_a_training_with_the_usual_settings_that_did_not_come_to_its_end(trial: Any, tmp_path: Path) -> None:
    text = text_of(searched(tmp_path, trial))
    assert text == f"not known, because the training with {USUAL} did not come to its end"


def judged(found: Analysis, run: str, passed_over: str) -> Analysis:
    models = {
        passed_over: [GuardLoss("x.csv", 1.0, 10.0, 30.0, 20.0)],
        run: [GuardLoss("x.csv", 1.0, 10.0, 10.0, 0.0)],
    }
    found.state.apply(Entry(found.state.events + 1, 0.0, GuardsJudged(run=run, models=models)))
    return found


def test_where_the_guards_pass_over_the_lowest_mean_its_lead_is_not_denied(tmp_path: Path) -> None:
    folder = searched(
        tmp_path, made_trial(1, [50.0, 30.0, 10.9]), repeats={"001": [15.0, 15.4], "002": [10.0, 10.4]}
    )
    assert judged(analyse(folder), "001-r1", "002-r1").search_text == (
        f"{USUAL} won, because 002 loses more on the guards"
    )
    assert judged(analyse(folder), "002-r1", "001-r1").search_text.startswith(
        "5.00 points more than 2 trainings"
    )


def test_repeats_of_an_earlier_final_round_count_rather_than_the_trial(tmp_path: Path) -> None:
    """They are measured as the winner's are, with seeds by which nothing was chosen."""
    made = MadeLog(tmp_path / "made")
    made.session(trials=3, finalists=2, repeats=1)
    made.trial("001", 50.0, 30.0, 12.0)
    for name in ("002", "003"):
        made.trial(name, 48.0, 28.0, 11.0, learning_rate=2e-3 + float(name) / 1e5)
    made.trial("001-r1", 50.0, 30.0, 14.0, seed=1)
    for name, wer in (("002-r1", 10.0), ("003-r1", 10.5)):
        made.trial(name, 48.0, 28.0, wer, seed=1)
    made.close()
    experiment = OpenExperiment(made.experiment)
    assert compare(experiment)
    experiment.close()
    found = text_of(made.experiment)
    assert found.startswith(f"4.00 points more than one training with {USUAL}, which gained 46.00;")


class TestMeasuredOtherwise:
    """Trials are measured on a part of the clips, or in a shorter window, than the winner's repeats."""

    def test_a_base_model_that_loops_in_one_window_alone_gives_the_search_nothing(
        self, tmp_path: Path
    ) -> None:
        """It has 160 % there, by a few clips; no trained model does."""
        folder = searched(tmp_path, baseline=160.0)
        rates = [{**RATES, "wer": wer} for wer in (160.0, 60.0)]
        change_settings(folder.path, baseline=Baseline(rates=rates[0], trial_rates=rates[1]))
        found = text_of(folder)
        assert found.startswith(
            f"1.80 points more than one training with {USUAL}, which gained 48.00, measured like the trials; "
            "within noise: "
        )
        low, high = interval_of(found)
        assert low < 0 and high > 100, "how much the window matters is not known"

    def test_on_a_part_of_the_clips_the_interval_is_as_wide_as_both_are_unsure(self, tmp_path: Path) -> None:
        folder = searched(tmp_path)
        path = folder.path / "trials" / "001" / "checkpoint_3200" / "utterances.json"
        path.write_text(json.dumps({"word_errors": [1.2] * 60, "words": [10.5] * 60}))
        rates = [{**RATES, "wer": 60.0}, {**RATES, "wer": 58.0, "clips": 60.0}]
        change_settings(folder.path, baseline=Baseline(rates=rates[0], trial_rates=rates[1], trial_clips=60))
        found = text_of(folder)
        assert found.startswith(
            f"1.80 points more than one training with {USUAL}, which gained 46.00, measured like"
        )
        low, high = interval_of(found)
        assert low < -2.0 and high > 3.8


def test_the_usual_settings_are_found_in_a_space_that_has_another_setting_now(tmp_path: Path) -> None:
    """Trial 001 is not proposed again, as it lies where they are."""
    folder = searched(tmp_path)
    analysis = analyse(folder)
    assert analysis.space is not None
    dropout = FloatParameter(0.0, 0.3)
    space = dataclasses.replace(
        analysis.space,
        ranges={**analysis.space.ranges, "dropout": (dropout,)},
        try_first=[{**point, "dropout": 0.0} for point in analysis.space.try_first],
    )
    made = MadeLog(folder.path)
    made.session(trials=3, finalists=2, space=space.to_dict())
    made.append(SearchEnded(status="completed"))
    made.close()
    found = analyse(folder)
    assert found.recipe_trial is not None and found.recipe_trial.trial_id == "001"
    assert found.search_text.startswith("1.80 points more than one training")
