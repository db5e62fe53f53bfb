"""A search over a large validation split: trials and base model are compared on a part of it, finalists on all."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
from make_data import RATE, tone, write_manifest
from processes import tune_whisper

from tune.experiments.saved import load_saved
from tune.experiments.storage import Storage

SPACE = """\
learning_rate: {type: float, low: 1e-12, high: 1e-11}
train_batch_size: 4
max_samples: 16
scheduler: {rungs: 2, reduction_factor: 2, min_trials_per_rung: 9}
"""


@pytest.mark.slow
def test_trials_measure_a_part_and_finalists_all(tmp_path: Path) -> None:
    rows = []
    for number in range(552):
        soundfile.write(tmp_path / f"{number}.wav", tone(0.3, pitch=100 + number), RATE)
        text = " ".join(["door"] * (1 + number % 5))
        rows.append(
            {
                "audio": f"{number}.wav",
                "text": f"{text} {number}",
                "split": "train" if number < 12 else "validation",
            }
        )
    data = write_manifest(tmp_path / "clips.csv", rows)
    (tmp_path / "space.yaml").write_text(SPACE)
    words = ["--space", "space.yaml", "--model", "demo", "--data", str(data), "--experiment", "x"]
    words += ["--trials", "1", "--finalists", "1", "--repeats", "2", "--set", "generation_max_length=12"]
    found = tune_whisper(*words, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "trials measure 500 of 540 validation clips, always the same, finalists all" in found.stdout
    state = load_saved(Storage.parse(str(tmp_path / "experiments")).experiment("x")).state
    part, every = state.trial_base_rates, state.base_rates
    assert (part["clips"], every["clips"]) == (500, 540)
    assert part["loss"] != pytest.approx(every["loss"], rel=1e-4)
    (trial,) = state.records.all()
    # With such a learning rate they are the base model still.
    assert trial.losses == [pytest.approx(part["loss"], rel=1e-5)] * 2
    assert [run.losses[-1] for run in state.repeats.all()] == [pytest.approx(every["loss"], rel=1e-5)] * 2
    best = state.best()
    assert best is not None
    assert (best.trial_id, sorted(best.members)) == ("001-a1", ["001-r1", "001-r2"])
    assert best.losses == [pytest.approx(every["loss"], rel=1e-5)]
