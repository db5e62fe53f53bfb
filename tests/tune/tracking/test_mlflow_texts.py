"""What MLflow's own pages say of a search and of every trial."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from made_experiments import made_trial, search_outcome, write_experiment
from made_logs import MadeLog

from tune.experiments.events import FinalistsCompared, FinalRoundPlanned, TrialsOver
from tune.experiments.saved import SavedExperiment, load_saved
from tune.experiments.storage import Storage
from tune.search.records import Stop, TrialRecord
from tune.tracking.mlflow_texts import search_note, trial_note
from tune.util.errors import error_line

OPTION = " --storage elsewhere"


def made(folder: Path, **kinds: Any) -> SavedExperiment:
    """A search of 12 trials, of which the first has the usual settings, and 003 and 004 are finalists."""
    search_outcome(folder, **kinds)
    return load_saved(Storage.parse(folder).experiment("made"))


def test_while_it_runs_the_description_says_what_is_searched(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=12)
    text = search_note(log.saved, OPTION)
    assert "fine-tune `demo` on `demo`, language `en` best by WER, still running." in text
    assert "\n| `learning_rate` | 0.0001 to 0.01, log scale |" in text


def test_in_the_end_it_says_what_came_of_it(tmp_path: Path) -> None:
    saved = made(tmp_path)
    text = search_note(saved, OPTION)
    assert saved.state.verdict is not None
    low, high = saved.state.verdict.standing.mean_interval or (0.0, 0.0)
    assert 0 < low < 10.2 < high
    told = f"trial 004, mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f}"
    assert text.split("\n\n")[:4] == [
        f"**WER 10.20 %**, 60.00 % before: 49.80 points, 83 % fewer errors ({told}).",
        "Settings: `lr=0.0024 warmup=0.1 batch=8 accum=1`.",
        "Trial 004 has the lowest mean; no difference to 003 is shown. "
        "Run 004-r1 is the one to be exported, with 10.00 %.",
        "Mean of the repeats: 004-a1, the mean of 004-r1 and 004-r2: WER 11.00 %, left out for 004-r1 with 10.00 %.",
    ]
    assert "\n12 trials and 4 repeats in " in text
    assert "normaliser auto-en, unit: words. English: case and" in text
    commands = ["report made", "export made --output my-model"]
    assert text.endswith("".join(f"\ntune-whisper {command}{OPTION}" for command in commands) + "\n```")
    assert len(text) < 8000  # what a tag may hold


def test_without_repeats_the_best_is_told_to_be_lucky(tmp_path: Path) -> None:
    told = "trial 004, the lowest of 12 trials on the clips that chose it"
    expected = f"**WER 10.60 %**, 60.00 % before: 49.40 points, 82 % fewer errors ({told}).\n\n"
    assert search_note(made(tmp_path, repeats={}), OPTION).startswith(expected)


def test_a_search_that_gained_nothing(tmp_path: Path) -> None:
    """One lucky seed below the base model, 10.0 %, is no gain."""
    text = search_note(made(tmp_path, baseline=10.1), OPTION)
    assert text.startswith("**No gain**: WER 10.10 % untouched, 10.20 % here (trial 004, mean of 2 seeds")


def test_nothing_was_measured(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=1)
    log.begin("001")
    log.end("001", "failed", "ValueError: no such column")
    log.finish("failed")
    text = search_note(log.saved, OPTION)
    assert text.startswith("No trial reached an evaluation.\n")
    assert "\n1 trials and 0 repeats in 00:0" in text
    assert "export" not in text
    folder = write_experiment(tmp_path, [made_trial(n, [], rate=n / 1e3) for n in (1, 2)], name="diverged")
    assert search_note(load_saved(folder), OPTION).startswith("All trials diverged.\n")


def test_what_was_left_out_and_why(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=2)
    log.trial("001", 50.0, 30.0, 12.0)
    log.trial("002", 50.0, 30.0, 11.0)
    log.finish("interrupted")
    text = search_note(log.saved, OPTION)
    assert ". **It was interrupted**; `--resume` goes on with it." in text
    assert f"\ntune-whisper --resume made{OPTION}\ntune-whisper report made{OPTION}\n" in text
    log.append(TrialsOver(reason="plateau", text="5 trials in a row were no better"))
    log.append(FinalRoundPlanned(finalists=["002"], repeats={"002-r1": {"seed": 1}}))
    log.append(FinalistsCompared(verdict=None, text="trial 002 has no repeat that came to its end"))
    log.finish()
    text = search_note(log.saved, OPTION)
    assert "The finalists are not compared: trial 002 has no repeat that came to its end." in text
    assert " It ended because 5 trials in a row were no better." in text
    assert "--resume" not in text


def ended(status: Any, **changes: Any) -> TrialRecord:
    """A trial whose best evaluation was not its last."""
    record = TrialRecord("001", {}, 8, status, 25.5, 20.0, 7.0, 1088, 3200)
    return dataclasses.replace(record, **changes)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (ended("completed"), "Completed: WER 25.50 % at 3,200 samples; the best was 20.00 % at 1,088."),
        (ended("completed", value=20.0), "Completed: WER 20.00 % at 3,200 samples."),
        (
            ended("interrupted", value=None, best_value=None),
            "Interrupted after 3,200 samples, before any evaluation.",
        ),
        (ended("failed", error="ValueError: no such column"), "Failed: ValueError: no such column"),
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
        ("\n", "unknown error"),
    ],
)
def test_the_line_that_names_an_error(report: str, line: str) -> None:
    assert error_line(report) == line
