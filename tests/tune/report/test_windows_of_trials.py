"""Trials that were measured in a shorter window: whatever is set beside the base model is of the same window."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_logs import MadeLog

from tune.cli import main
from tune.experiments.events import Baseline
from tune.experiments.results import write_results
from tune.experiments.warm_start import read_warm_start


@pytest.fixture
def made(tmp_path: Path) -> MadeLog:
    """60 % in the whole window, 30 % in that of the trials, whose best has 20 %."""
    made = MadeLog(tmp_path / "experiments" / "windows")
    rates = {"rates": {"wer": 60.0, "cer": 20.0}, "trial_rates": {"wer": 30.0, "cer": 10.0}}
    made.session(trials=1, baseline=Baseline(**rates))
    made.trial("001", 25.0, 22.0, 20.0)
    made.finish()
    write_results(made.experiment, made.log.state)
    return made


def test_a_gain_is_of_one_window(made: MadeLog, capsys: pytest.CaptureFixture[str]) -> None:
    storage = ["--storage", str(made.folder.parent)]
    assert main(["list", *storage, "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["baseline_wer"] == 30.0
    assert main(["report", made.name, *storage]) == 0
    assert "30.00 %" in capsys.readouterr().out
    page = (made.folder / "report" / "report.html").read_text()
    assert "33 % fewer errors" in page
    assert "60.00" not in page
    results = json.loads((made.folder / "results.json").read_text())
    assert (results["baseline"]["wer"], results["trial_baseline"]["wer"]) == (60.0, 30.0)


def test_the_clips_that_are_told_are_those_that_were_measured(tmp_path: Path) -> None:
    """Parts of several sources are rounded up: 500 were wanted."""
    made = MadeLog(tmp_path / "experiments" / "part")
    rates = [{"wer": 60.0, "cer": 20.0, "clips": clips} for clips in (1200.0, 510.0)]
    made.session(trials=1, baseline=Baseline(rates=rates[0], trial_rates=rates[1], trial_clips=500))
    made.trial("001", 25.0, 22.0, 20.0)
    made.finish()
    assert main(["report", made.name, "--storage", str(made.folder.parent)]) == 0
    page = (made.folder / "report" / "report.html").read_text()
    assert "Trials are measured on 510 of the validation clips" in page


def test_a_warm_start_takes_trials_relative_to_the_base_model_in_their_window(made: MadeLog) -> None:
    settings = made.saved.settings.base.to_dict()
    space = made.saved.space
    assert space is not None
    assert read_warm_start(made.saved, [space], settings).baseline == 30.0
