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


def search(home: Path, name: str, *words: str) -> str:
    found = tune_whisper(
        *("--space", "space.yaml", "--experiment", name, "--model", "looping"),
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
    again = tune_whisper("--resume", "guarded", "--trials", "2", cwd=home)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "trainings use" not in again.stdout
    assert experiment(home, "guarded").base.audio_window == 4.0


@pytest.mark.slow
def test_the_judge_compares_with_the_base_model_in_the_window_of_the_trials(home: Path) -> None:
    told = search(
        home, "judged", "--trials", "2", "--finalists", "1", "--repeats", "1", "--set", "audio_window=2.7"
    )
    assert "warning: audio_window=2.7: " in told
    state = experiment(home, "judged").state
    base, in_window = state.base_rates["wer"], state.trial_base_rates["wer"]
    assert in_window > 2 * base, "the model is not what the test needs"
    for trial in state.records.all():
        assert trial.evaluations[0][1] == in_window
        assert trial.stop is None, "an untouched model is not worse than itself"
    [repeat] = state.repeats.all()
    assert repeat.best_value == base, "what is compared in the end is measured in the whole window"


@pytest.mark.slow
def test_batches_with_windows_of_their_own_are_guarded_too(home: Path) -> None:
    """One clip as long as the model's whole window: those of the others are short all the same."""
    rows = []
    for number, seconds in enumerate((3.95, *[0.5] * 19)):
        soundfile.write(home / f"{number}.wav", tone(seconds, pitch=200 + 10 * number), RATE)
        split = "train" if number < 12 else "validation" if number < 16 else "test"
        rows.append({"audio": f"{number}.wav", "text": f"door {number}", "split": split})
    data = write_manifest(home / "clips.csv", rows)
    told = search(
        *(home, "batch", "--trials", "1", "--finalists", "0", "--data", str(data)),
        *("--set", "audio_window=batch"),
    )
    [line] = [line for line in told.splitlines() if line.startswith("trainings use the whole window of 4 s")]
    assert "in windows of its clips" in line
    assert experiment(home, "batch").base.audio_window == 4.0
