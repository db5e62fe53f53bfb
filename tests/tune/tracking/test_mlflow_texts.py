"""What MLflow's own pages say of a search and of every trial."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from made_experiments import search_outcome
from made_logs import MadeLog

from tune.experiments.experiment import Experiment
from tune.experiments.storage import Storage
from tune.search.records import Stop, TrialRecord
from tune.tracking.mlflow_texts import experiment_note, trial_note

OPTION = " --storage elsewhere"


def made(folder: Path, **kinds: Any) -> Experiment:
    """A search of 12 trials, of which the first has the usual settings, and 003 and 004 are finalists."""
    search_outcome(folder, **kinds)
    return Experiment.read(Storage.parse(folder).experiment("made"))


def test_a_search_that_gained_nothing(tmp_path: Path) -> None:
    """One lucky seed below the base model, 10.0 %, is no gain."""
    text = experiment_note(made(tmp_path, baseline=10.1), OPTION)
    assert "\n**No gain**: WER 10.10 % untouched, 10.20 % here (settings of trial 004: `" in text


def test_a_search_that_measured_nothing_and_was_interrupted(tmp_path: Path) -> None:
    log = MadeLog(tmp_path / "made")
    log.session(trials=1)
    text = experiment_note(log.saved, OPTION)
    assert text.endswith("fine-tune `demo` on `demo`, language `en` best by WER, still running.")
    log.begin("001")
    log.end("001", "failed", "ValueError: no such column")
    log.finish("interrupted")
    text = experiment_note(log.saved, OPTION)
    assert "\nNo trial reached an evaluation.\n" in text
    assert ". **It was interrupted**; `--resume` goes on with it." in text
    assert f"\ntune-whisper --resume made{OPTION}\ntune-whisper report made{OPTION}\n" in text
    assert "export" not in text


def ended(status: Any, **changes: Any) -> TrialRecord:
    """A trial whose best evaluation was not its last."""
    record = TrialRecord("001", {}, 8, status, 25.5, 20.0, 7.0, 1088, 3200)
    return dataclasses.replace(record, **changes)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (ended("completed"), "Completed: WER 25.50 % at 3,200 samples; the best was 20.00 % at 1,088."),
        (
            ended("interrupted", value=None, best_value=None),
            "Interrupted after 3,200 samples, before any evaluation.",
        ),
        (
            ended("diverged", stop=Stop("diverged", 384)),
            "Diverged: loss or WER was no finite number at 384 samples.",
        ),
    ],
)
def test_one_line_on_every_trial(record: TrialRecord, line: str) -> None:
    assert trial_note(record) == line
