"""The last lines of a search on the screen: what won, how sure that is, and what it gained."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from made_experiments import made_trial, search_outcome, write_experiment
from plans import search_plan
from rich.console import Console

from tune.experiments.events import Entry, FinalistsCompared, HeldOutMeasured
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import read_log
from tune.experiments.storage import Storage
from tune.runs.outcome import Outcome
from tune.runs.search_display import print_summary

SETTINGS = "learning_rate 0.0024, warmup_ratio 0.1, train_batch_size 8, gradient_accumulation_steps 1"


def printed(outcome: Outcome) -> list[str]:
    """The lines after the table of trials."""
    console = Console(file=io.StringIO(), width=200)
    print_summary(outcome, console)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    return lines[next(n for n, line in enumerate(lines) if line.startswith("trials ")) :]


def labels(lines: list[str]) -> list[str]:
    return [line.split()[0] for line in lines]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return search_outcome(tmp_path_factory.mktemp("made"))


def test_the_winners_mean_and_its_interval_lead(outcome: Outcome) -> None:
    assert outcome.state.verdict is not None
    low, high = outcome.state.verdict.standing.mean_interval or (0.0, 0.0)
    lines = printed(outcome)
    assert labels(lines)[1:9] == [
        *("finalist", "004", "003", "winner", "verdict", "baseline", "gain", "best")
    ]
    assert lines[4] == (
        f"winner    WER  10.20 % (mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f})  trial 004: {SETTINGS}"
    )
    assert lines[5:9] == [
        "verdict   trial 004 has the lowest mean; no difference to 003 is shown",
        "baseline  WER  60.00 %  demo untouched",
        "gain           49.80 points: 83 % fewer errors",
        "best      WER  10.00 %  repeat 004-r1, to be exported: the lowest of 2 seeds on the clips that chose it",
    ]


def test_without_repeats_the_best_is_told_to_be_lucky(tmp_path: Path) -> None:
    lines = printed(search_outcome(tmp_path, repeats={}))
    assert lines[1:5] == [
        f"best      WER  10.60 %  trial 004: {SETTINGS}",
        "          the lowest of 12 trials on the clips that chose it",
        "baseline  WER  60.00 %  demo untouched",
        "gain           49.40 points: 82 % fewer errors",
    ]


def test_the_test_split_stands_beside_it(tmp_path: Path) -> None:
    outcome = search_outcome(tmp_path)
    measured = HeldOutMeasured(
        run="004-r1", rates={"wer": 10.894, "cer": 3.0, "clips": 1234.0}, baseline={"wer": 61.25, "cer": 20.0}
    )
    outcome.state.apply(Entry(outcome.state.events + 1, outcome.state.heard, measured))
    lines = printed(outcome)
    assert lines[7] == "test      WER  10.89 % (base 61.25 %)  on 1,234 clips that chose nothing"


def test_one_lucky_seed_below_the_base_model_is_no_gain(tmp_path: Path) -> None:
    """Its mean is 10.2 %, its lowest 10.0 %."""
    assert "gain" in labels(printed(search_outcome(tmp_path / "above", baseline=10.3)))
    lines = printed(search_outcome(tmp_path / "below", baseline=10.1))
    assert "gain" not in labels(lines)
    console = Console(file=io.StringIO(), width=200)
    print_summary(search_outcome(tmp_path / "whole", baseline=10.1), console)
    first = console.file.getvalue().lstrip().splitlines()[0]  # type: ignore[attr-defined]
    assert first.startswith("no gain: ")
    assert "WER 10.10 %; 10.20 % here" in first


def test_finalists_that_could_not_be_compared(tmp_path: Path) -> None:
    outcome = search_outcome(tmp_path, repeats={})
    told = FinalistsCompared(verdict=None, text="trial 003 has no repeat that came to its end")
    outcome.state.apply(Entry(outcome.state.events + 1, outcome.state.heard, told))
    lines = printed(outcome)
    assert (
        lines[1]
        == "no verdict trial 003 has no repeat that came to its end; the weights of all finalists stay"
    )
    assert lines[2].startswith("best      WER  10.60 %  trial 004")


def test_where_all_diverged_it_says_what_to_search(tmp_path: Path) -> None:
    written = write_experiment(tmp_path, [made_trial(number, []) for number in (1, 2)])
    plan = search_plan(Storage.parse(tmp_path / "elsewhere"), space="lr_batch", trials=2)
    lines = printed(Outcome(plan, read_log(written.path / EVENTS_FILE)))
    assert lines[0].endswith(": 2 diverged")
    assert lines[1] == "all trials diverged: search lower learning rates"
