"""What MLflow's own pages say of a search, of a single training, and of every trial."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_experiments import made_trial, search_outcome, write_experiment
from made_logs import MadeLog, training_settings

from tune.experiments.events import FinalistsCompared, FinalRoundPlanned, HeldOutMeasured, TrialsOver
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import ExperimentLog
from tune.experiments.saved import SavedExperiment, load_saved
from tune.experiments.storage import Storage
from tune.search.budgets import Budgets
from tune.search.records import Stop, TrialRecord
from tune.tracking.mlflow_texts import (
    search_begins,
    search_ended,
    training_begins,
    training_ended,
    trial_note,
)
from tune.util.errors import error_line

OPTION = " --storage elsewhere"


def made(folder: Path, **kinds: Any) -> SavedExperiment:
    """A search of 12 trials, of which the first has the usual settings, and 003 and 004 are finalists."""
    search_outcome(folder, **kinds)
    return load_saved(Storage.parse(folder).experiment("made"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedExperiment:
    return made(tmp_path_factory.mktemp("made"))


def cells(text: str) -> list[list[str]]:
    """Rows of all Markdown tables."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if "---" not in row[0]]


def test_while_it_runs_the_description_says_what_is_searched(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    budgets = Budgets(seconds=5400.0, gpu_hours=3.0, plateau_trials=4)
    log.session(trials=12, finalists=2, repeats=2, budgets=budgets)
    text = search_begins(log.saved)
    assert "A search for the settings that fine-tune `demo` on `demo`, language `en` best by WER" in text
    assert (
        "\n12 trials, at most 1h30m, at most 3 GPU-hours, until 4 in a row bring nothing better, "
        "then the best 2 again with 2 new seeds each.\n"
    ) in text
    assert ["setting", "searched (`space.yaml`)"] in cells(text)
    assert ["`learning_rate`", "0.0001 to 0.01, log scale"] in cells(text)


def test_in_the_end_it_says_what_came_of_it(saved: SavedExperiment) -> None:
    text = search_ended(saved, OPTION)
    assert saved.state.verdict is not None
    verdict = saved.state.verdict
    low, high = verdict.standing.mean_interval or (0.0, 0.0)
    assert 0 < low < 10.2 < high
    told = f"mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f}"
    head = text.splitlines()[:3]
    assert head[0] == f"**WER 10.20 %**, 60.00 % before: 49.80 points, 83 % fewer errors ({told}, trial 004)."
    mean = "004-a1, the mean of 004-r1 and 004-r2: WER 11.00 %, left out for 004-r1 with 10.00 %"
    assert head[1] == f"Mean of the repeats: {mean}."
    assert head[2] == "Run 004-r1 is the one to be exported, with 10.00 %."
    rows = cells(text)
    assert ["`demo` untouched", "60.00", ""] in rows
    assert ["the usual settings: trial 001", "12.00", "`lr=0.001 warmup=0.1 batch=8 accum=1`"] in rows
    for standing in verdict.standings:
        (row,) = [row for row in rows if row[0].strip("*") == standing.trial_id]
        assert row[1:4] == ["2", f"{standing.mean:.2f}", f"{standing.sd:.2f}"]
    (won,) = [row for row in rows if row[0].startswith("**winner, mean of 2 seeds: trial 004")]
    assert won[1] == f"**10.20 ± {verdict.standing.sd:.2f}**"
    assert re.search(
        r"^12 trials in (59:59|1:00:0\d): 4 completed, 8 early stopped\. 4 repeats of the best\.$", text, re.M
    )
    commands = ["report made", "export made --output my-model"]
    assert text.endswith("".join(f"\ntune-whisper {command}{OPTION}" for command in commands) + "\n```")
    assert len(text) < 8000  # what a tag may hold


@pytest.mark.parametrize(
    ("repeats", "speeds", "told"),
    [
        (
            {"003": [10.5, 11.5], "004": [10.0, 10.4]},
            {},
            "has the lowest mean; no difference to 003 is shown.",
        ),
        ({"003": [30.0, 30.2], "004": [10.1, 10.4]}, {}, "has the lowest mean, by more than noise."),
        (
            {"003": [10.0, 10.4], "004": [10.1, 10.4]},
            {"003": 20.0, "004": 28.0},
            "is as good as 003 within 0.1 points and trains 1.4 x faster.",
        ),
    ],
)
def test_why_a_finalist_won(
    repeats: dict[str, list[float]], speeds: dict[str, float], told: str, tmp_path: Path
) -> None:
    """In the words of the screen and the report."""
    text = search_ended(made(tmp_path, repeats=repeats, repeat_speeds=speeds), OPTION)
    assert f"Trial 004 {told}" in text.splitlines()


def test_one_finalist_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    text = search_ended(made(tmp_path, repeats={"004": [10.1]}), OPTION)
    assert "(1 seed, 95 % interval " in text.splitlines()[0]
    assert "finalist" not in text


def test_the_usual_settings_win(tmp_path: Path) -> None:
    (row,) = [
        row
        for row in cells(search_ended(made(tmp_path, repeats={"001": [12.5]}), OPTION))
        if "usual" in row[0]
    ]
    assert row[:2] == ["**winner, 1 seed: trial 001 with the usual settings**", "**12.50**"]


def test_without_repeats_the_best_is_told_to_be_lucky(tmp_path: Path) -> None:
    text = search_ended(made(tmp_path, repeats={}), OPTION)
    told = "trial 004, the lowest of 12 trials on the clips that chose it"
    assert text.startswith(f"**WER 10.60 %**, 60.00 % before: 49.40 points, 82 % fewer errors ({told}).\n\n")
    assert ["**best trial: trial 004**", "**10.60**"] in [row[:2] for row in cells(text)]


def test_finalists_that_could_not_be_compared(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=2)
    log.trial("001", 50.0, 30.0, 12.0)
    log.trial("002", 50.0, 30.0, 11.0)
    log.append(TrialsOver())
    log.append(FinalRoundPlanned(finalists=["002"], repeats={"002-r1": {"seed": 1}}))
    log.append(FinalistsCompared(verdict=None, text="trial 002 has no repeat that came to its end"))
    log.finish()
    text = search_ended(log.saved, OPTION)
    assert "The finalists are not compared: trial 002 has no repeat that came to its end." in text
    assert text.startswith("**WER 11.00 %**")


def append(saved: SavedExperiment, *events: Any) -> SavedExperiment:
    """The experiment with more events."""
    log = ExperimentLog(saved.folder.path / EVENTS_FILE)
    log.append(*events)
    log.close()
    return load_saved(saved.folder)


def test_the_test_split_stands_beside_it(tmp_path: Path) -> None:
    rates = {"wer": 10.894, "cer": 3.0}
    measured = HeldOutMeasured(run="004-r1", rates=rates, baseline={"wer": 61.25, "cer": 20.0})
    text = search_ended(append(made(tmp_path), measured), OPTION)
    assert "On the test split, which chose nothing: 10.89 %, 61.25 % before." in text.splitlines()
    other = append(
        load_saved(Storage.parse(tmp_path).experiment("made")), dataclasses.replace(measured, run="001")
    )
    assert "which chose nothing" not in search_ended(other, OPTION), "measured of a run that won before"


@pytest.mark.parametrize("baseline", [10.1, 1.0])
def test_a_search_that_gained_nothing(baseline: float, tmp_path: Path) -> None:
    """One lucky seed below the base model, 10.0 %, is no gain."""
    text = search_ended(made(tmp_path, baseline=baseline), OPTION)
    told = f"**No trial beat `demo` untouched**: WER {baseline:.2f} %, the winner, trial 004, 10.20 %. "
    assert text.startswith(f"{told}Keep that model, or widen the space or the budget.")


def test_nothing_was_measured(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=1)
    log.begin("001")
    log.end("001", "failed", "ValueError: no such column")
    log.finish("failed")
    text = search_ended(log.saved, OPTION)
    assert text.startswith("No trial reached an evaluation.\n")
    assert "\n1 trials in 00:0" in text
    assert "1 failed." in text
    assert "export" not in text


def test_all_trials_diverged(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path, [made_trial(n, [], rate=n / 1e3) for n in (1, 2)])
    assert search_ended(load_saved(folder), OPTION).startswith("All trials diverged.\n")


def test_what_ended_it_before_all_trials(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=1)
    log.trial("001", 50.0, 30.0, 12.0)
    reason: Any = {"reason": "plateau", "text": "5 trials in a row were no better"}
    log.append(TrialsOver(**reason))
    log.finish(**reason)
    text = search_ended(log.saved, OPTION)
    assert " It ended because 5 trials in a row were no better." in text
    assert "--resume" not in text


def test_an_interrupted_search(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=5)
    log.trial("001", 50.0, 30.0, 12.0)
    log.begin("002")
    log.finish("interrupted")
    text = search_ended(log.saved, OPTION)
    assert "2 of 5 trials in 00:" in text
    assert ": 1 completed, 1 interrupted. **It was interrupted**; `--resume` goes on with it." in text
    assert f"\ntune-whisper --resume made{OPTION}\ntune-whisper report made{OPTION}\n" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "normaliser auto-en, unit: words. English: case and"),
        ({"language": "ja"}, "normaliser auto-ja, unit: characters, so that it is the CER here. Japanese: "),
        (
            {"language": "ja", "normalizer": "none"},
            "normaliser none, unit: words. Texts as they are, but for white space.",
        ),
    ],
)
@pytest.mark.parametrize("describe", [search_ended, training_ended])
def test_what_is_counted_is_told(
    describe: Callable[[SavedExperiment, str], str],
    changes: dict[str, Any],
    told: str,
    saved: SavedExperiment,
) -> None:
    train = {**saved.settings.train_config, **changes}
    settings = dataclasses.replace(saved.settings, train_config=train)
    text = describe(dataclasses.replace(saved, settings=settings), OPTION)
    assert [line for line in text.splitlines() if told in line]


def test_a_single_training(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "alone", **training_settings())
    log.session(kind="training", trials=1)
    log.begin("001")
    assert training_begins(log.saved.base) == (
        "One training of `demo` on `demo`, language `en`, outside a search, still running."
    )
    log.evaluate("001", 50.0, 20.0, 25.5)
    log.end("001")
    log.finish()
    text = training_ended(log.saved, OPTION)
    assert text.startswith("One training of `demo` on `demo`, language `en`, outside a search.\n")
    assert cells(text)[1:] == [["`demo` untouched", "60.00"], ["**after 1,088 samples**", "**20.00**"]]
    assert "\nCompleted after 00:" in text
    assert "3,200 samples.\n" in text
    assert text.endswith(f"tune-whisper export alone --output my-model{OPTION}\n```")
    log.session(kind="training", trials=1)
    log.finish("interrupted")
    assert "\nInterrupted after 00:" in training_ended(log.saved, OPTION)


def ended(status: Any, **changes: Any) -> TrialRecord:
    """A trial whose best evaluation was not its last."""
    record = TrialRecord("001", {}, 8, status, 25.5, 20.0, 7.0, 1088, 3200)
    return dataclasses.replace(record, **changes)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (ended("completed"), "Completed: WER 25.50 % at 3,200 samples; the best was 20.00 % at 1,088."),
        (ended("completed", value=20.0), "Completed: WER 20.00 % at 3,200 samples."),
        (ended("interrupted"), "Interrupted: WER 25.50 % at 3,200 samples; the best was 20.00 % at 1,088."),
        (
            ended("interrupted", value=None, best_value=None),
            "Interrupted after 3,200 samples, before any evaluation.",
        ),
        (ended("failed", error="ValueError: no such column"), "Failed: ValueError: no such column"),
        (ended("failed"), "Failed: no reason is known"),
        (
            ended("early_stopped", stop=Stop("asha", 384, 43.45, 39.0, 4)),
            "Stopped early: WER 43.45 % at 384 samples is above 39.00 %, the cutoff among 4 trials.",
        ),
        (
            ended("diverged", stop=Stop("diverged", 384)),
            "Diverged: loss or WER was no finite number at 384 samples.",
        ),
    ],
)
def test_one_line_on_every_trial(record: TrialRecord, line: str) -> None:
    assert trial_note(record) == line


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            "Failure # 1 (occurred at 10:00)\nray::Trial()\n  File x\nValueError: first\n"
            "Failure # 2 (occurred at 10:05)\nray::Trial()\n  File x\ntorch.OutOfMemoryError: CUDA out of memory\n"
            "  it happened there",
            "torch.OutOfMemoryError: CUDA out of memory",
        ),
        ("Failure # 1 (at 10:00)\nthe node has gone\nand more", "the node has gone"),
        ("Failure # 1 (at 10:00)\nTraceback ...\n  at x\nValueError: odd\n", "ValueError: odd"),
        ("the card is lost\nsee the driver's log", "the card is lost"),
        ("\n", "unknown error"),
    ],
)
def test_the_line_that_names_an_error(report: str, line: str) -> None:
    assert error_line(report) == line
