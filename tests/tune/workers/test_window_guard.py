"""A model that repeats itself in the window of the trainings, and with what the judge compares trials there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import soundfile
from looping_whisper import make_looping_whisper
from make_data import tone, write_manifest
from processes import tune_whisper

from tune.experiments.saved import load_saved
from tune.experiments.storage import Storage

RATE = 16_000
SPACE = """\
learning_rate: {type: float, low: 1e-12, high: 1e-11}
train_batch_size: 2
max_train_clips: 12
max_eval_clips: 8
max_samples: 12
scheduler: {rungs: 2, reduction_factor: 2, min_trials_per_rung: 9}
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("looping")
    make_looping_whisper(folder / "looping")
    (folder / "space.yaml").write_text(SPACE)
    return folder


def search(home: Path, name: str, *words: str, space: str = "space.yaml") -> str:
    found = tune_whisper(
        *("--space", space, "--experiment", name, "--model", "looping"),
        *(() if "--data" in words else ("--data", "demo")),
        *words,
        cwd=home,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def experiment(home: Path, name: str) -> Any:
    return load_saved(Storage.parse(str(home / "experiments")).experiment(name))


@pytest.mark.slow
def test_trainings_use_the_whole_window_where_the_model_repeats_itself(home: Path) -> None:
    told = search(home, "guarded", "--trials", "1", "--finalists", "0")
    [line] = [line for line in told.splitlines() if line.startswith("trainings use the whole window of 4 s")]
    assert "tokens in place of" in line
    saved = experiment(home, "guarded")
    assert saved.base.audio_window == 4.0
    assert saved.state.baseline.window_problem in line
    assert not saved.state.baseline.trial_rates, "trials are measured as the base model was"


@pytest.mark.slow
@pytest.mark.occasional
def test_trials_are_compared_as_they_are_measured_and_finalists_on_all_in_the_whole_window(
    home: Path,
) -> None:
    """Trials measure a part of the clips, in their window; so is the base model for the judge."""
    rows = []
    for number in range(552):
        soundfile.write(home / f"short{number}.wav", tone(0.3, pitch=100 + number), RATE)
        text = " ".join(["door"] * (1 + number % 5))
        split = "train" if number < 12 else "validation"
        rows.append({"audio": f"short{number}.wav", "text": f"{text} {number}", "split": split})
    data = write_manifest(home / "many.csv", rows)
    (home / "many.yaml").write_text(SPACE.replace("max_eval_clips: 8\n", ""))
    told = search(
        *(home, "judged", "--data", str(data), "--trials", "1", "--finalists", "1", "--repeats", "2"),
        *("--set", "audio_window=2.7"),
        space="many.yaml",
    )
    assert "warning: audio_window=2.7: " in told
    assert "trials measure 500 of 540 validation clips, always the same, finalists all" in told
    state = experiment(home, "judged").state
    part, every = state.trial_base_rates, state.base_rates
    assert (part["clips"], every["clips"]) == (500, 540)
    assert part["wer"] > 2 * every["wer"], "the model is not what the test needs"
    (trial,) = state.records.all()
    # With such a learning rate they are the base model still.
    assert [wer for _, wer in trial.evaluations] == [part["wer"]] * 2
    assert trial.losses == [pytest.approx(part["loss"], rel=1e-5)] * 2
    assert trial.stop is None, "an untouched model is not worse than itself"
    for run in (*state.repeats.all(), state.best()):
        assert run.best_value == every["wer"]
        assert run.losses[-1] == pytest.approx(every["loss"], rel=1e-5)
    assert (state.best().trial_id, sorted(state.best().members)) == ("001-a1", ["001-r1", "001-r2"])
