"""`tune-whisper train`: mistakes, precedence of settings, and whole small trainings on Ray Train."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from demo_search import NAME, demo_experiment
from made_experiments import TRAINING, MadeLog
from plans import training_plan
from processes import tune_whisper
from search_process import Search, results, state

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from tune.cli import main
from tune.experiments.events import Data, TrialEnded
from tune.experiments.experiment import Experiment
from tune.experiments.folder import ExperimentFolder
from tune_whisper import ExperimentError, train

SMALL = ["--set", "max_train_clips=32", "--set", "max_eval_clips=16", "--set", "generation_max_length=40"]


def earlier_search(folder: Path) -> None:
    """What a finished search of two trials leaves, without its checkpoints."""
    base = TrainConfig(epochs=2.0, max_train_clips=120, weight_decay=0.01, seed=5, evaluate_at=(64, 240))
    made = MadeLog(folder / "experiments" / "earlier", train_config=base.to_dict())
    made.session(trials=2)
    made.trial("001", 50.0, 30.0, 20.0, learning_rate=1e-4, train_batch_size=8)
    made.trial("002", 40.0, 20.0, 10.0, learning_rate=2e-4, train_batch_size=4)
    made.finish()
    made.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "file missing": (["none.yaml"], ["none.yaml", "cannot be read"]),
    "unknown setting": (["wrong.yaml"], ["wrong.yaml", "learning_rat", "learning_rate"]),
    "workers by set": (["--set", "workers=2"], ["--workers"]),
    "file and resume": (["good.yaml", "--resume", "earlier"], ["CONFIG", "--resume", "earlier"]),
    "resume of a search": (
        ["--resume", "earlier"],
        ["earlier: is a search; use tune-whisper search --resume earlier"],
    ),
    "resume of nothing": (["--resume", "earler"], ["earler", "earlier"]),
    "from nothing": (["--from", "earler"], ["earler", "earlier"]),
    "no such trial": (["--from", "earlier", "--trial", "7"], ["007", "001, 002"]),
    "on alone": (["--on", "train+validation"], ["--on", "--from"]),
    "train_on by set": (["--set", "train_on=train+validation"], ["--set train_on", "--from and --on"]),
    "on without test": (
        ["--from", "earlier", "--on", "train+validation"],
        ["--on train+validation", "no test split", "remove --on"],
    ),
    "shared gpu": (["--gpus-per-worker", "0.5", "--workers", "2"], ["--gpus-per-worker 0.5", "--workers 1"]),
    "name taken": (["--name", "earlier"], ["--name earlier", "exists", "--resume earlier"]),
    "no deepspeed file": (["--deepspeed", "none.json"], ["--deepspeed", "none.json", "ds_config.json"]),
}
"""Arguments of each mistake, and what its line must say."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(name: str, here: Path, refused: Callable[..., str]) -> None:
    (here / "wrong.yaml").write_text("learning_rat: 1e-4\n")
    (here / "good.yaml").write_text("dropout: 0.1\n")
    earlier_search(here)
    words, expected = MISTAKES[name]
    line = refused("train", *words)
    assert all(text in line for text in expected), line


def test_flags_go_before_the_file_and_that_before_the_experiment(here: Path) -> None:
    earlier_search(here)
    (here / "own.yaml").write_text("learning_rate: 5e-4\ndropout: 0.1\nmax_steps: 7\nworkers: 2\n")
    taken = training_plan("--from", "earlier").base
    assert (taken.learning_rate, taken.train_batch_size, taken.weight_decay) == (2e-4, 4, 0.01)
    assert (taken.epochs, taken.seed, taken.workers, taken.evaluate_at) == (2.0, 5, 1, None)
    assert training_plan("--from", "earlier", "--trial", "1").base.learning_rate == 1e-4

    both = training_plan("own.yaml", "--from", "earlier").base
    assert (both.learning_rate, both.dropout, both.train_batch_size, both.workers) == (5e-4, 0.1, 4, 2)
    assert (both.epochs, both.max_steps) == (None, 7), "the file's budget takes the place of the other"

    words = ["--set", "learning_rate=null", "--set", "max_train_clips=null", "--epochs=1", "--workers=3"]
    flags = training_plan("own.yaml", "--from", "earlier", *words).base
    assert (flags.dropout, flags.max_train_clips, flags.workers) == (0.1, None, 3)
    assert (flags.epochs, flags.max_steps) == (1.0, None)
    assert flags.learning_rate == training_plan().base.learning_rate, "the default of the model's size"


def test_another_effective_batch_is_told(here: Path) -> None:
    earlier_search(here)
    (note,) = training_plan("--from", "earlier", "--workers", "2").notes
    assert "8 here, it was 4 in earlier" in note
    assert training_plan("--from", "earlier", "--workers", "2", "--set", "train_batch_size=2").notes == ()


def test_settings_of_a_training_that_diverged_are_trained_for_as_long_as_it_was_good(here: Path) -> None:
    """Once for 0.925 epochs: those of the last evaluation were divided by the samples until it diverged."""
    data = Data(clips={"train": 800, "validation": 200, "test": 200})
    base = TrainConfig(epochs=4.0).to_dict()
    made = MadeLog(here / "experiments" / "earlier", train_config=base, data=data, **TRAINING)
    made.session()
    made.evaluate(made.begin("001"), 50.0, 30.0)
    made.append(TrialEnded(trial_id="001", status="diverged", samples_seen=1600))
    made.finish()
    made.close()
    plan = training_plan("--from", "earlier", "--on", "train+validation")
    assert plan.base.epochs == 1088 / 800


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.occasional)])
def test_it_goes_on_after_the_driver_was_killed(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One worker, and two with DeepSpeed."""
    folder, experiment = tmp_path, tmp_path / "experiments" / "one"
    words = ["--name", "one", "--epochs", "2", "--set", "evaluations=2", *SMALL]
    several = ["--workers", "2", "--deepspeed", "ds_config_zero3.json"] if workers == 2 else []
    training = Search(folder, "train", *words, *several)
    checkpoint = training.wait_for(lambda: state(experiment).get("001", {}).get("last_checkpoint"))
    os.kill(training.process.pid, signal.SIGKILL)
    training.process.wait()
    if several:
        parts = (experiment / checkpoint).rglob("*optim_states.pt")
        assert len({path.name for path in parts}) == 2, "a part of each worker"
    done = tune_whisper("train", "--resume", "one", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout + done.stderr
    found = results(experiment)
    assert "the training goes on after" in printed
    (trial,) = found["trials"]
    assert (trial["trial_id"], trial["status"]) == ("001", "completed")
    assert trial["effective_batch_size"] == 8 * workers
    assert [row["samples_seen"] for row in trial["evaluations"]] == [32, 64]
    assert found["best"]["wer"] == min(row["wer"] for row in trial["evaluations"])
    assert not several or "8 x 1 x 2 = 16" in printed
    assert f"WER {found['best']['wer']:6.2f} %" in printed
    assert f"test      WER {found['test']['wer']:6.2f} % (baseline " in printed
    assert "report    experiments/one/report/report.html" in printed
    assert "Traceback" not in printed
    kept = list(Path(trial["checkpoint"]).parent.glob("checkpoint_*"))
    assert [path.name for path in kept] == [Path(trial["checkpoint"]).name], "the best"
    monkeypatch.chdir(folder)
    assert main(["train", "--resume", "one"]) == 2
    assert "completed" in capsys.readouterr().err
    assert main(["export", "one", "--output", "model"]) == 0
    again = json.loads((folder / "model" / "evaluation.json").read_text())
    assert again["evaluations"]["validation"]["after"]["wer"] == found["best"]["wer"]


@pytest.mark.slow
@pytest.mark.occasional
def test_the_winners_settings_once_more_on_train_and_validation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From Python: a search's winner, for as long as it was best."""
    shutil.copytree(
        demo_experiment(), tmp_path / "experiments" / NAME, ignore=shutil.ignore_patterns("trials")
    )
    found = train(from_experiment=NAME, on="train+validation", name="both", storage=tmp_path / "experiments")
    printed = capfd.readouterr().out
    first = results(tmp_path / "experiments" / NAME)
    (won,) = [trial for trial in first["trials"] if trial["trial_id"] == first["finalists"]["winner"]]
    assert f"after which {first['best']['run']} of {NAME} was best" in printed
    assert "measured  on the held-out test split; trained on train and validation" in printed
    before, after = (
        Experiment.read(ExperimentFolder(name, tmp_path / "experiments" / name)) for name in (NAME, "both")
    )
    assert after.state.data.splits["validation"] == before.state.data.splits["test"], (
        "what is measured is the test split"
    )
    assert "test" not in after.state.data.clips
    assert (found.status, len(found.trials)) == ("finished", 1)
    assert found.config is not None and found.config.learning_rate == won["config"]["learning_rate"]
    assert len(next(iter(found.runs.values())).evaluations) == 1
    model = found.export(tmp_path / "model")
    with pytest.raises(ExperimentError, match="exists"):
        found.export(tmp_path / "model")
    again = json.loads((model / "evaluation.json").read_text())
    assert again["evaluations"]["validation"]["after"]["wer"] == found.wer, "the same clips again"
    kept = load_clips(after.config(after.best))
    held = {clip.name for clip in kept.splits["validation"]}
    assert not held & {clip.name for clip in kept.splits["train"]}


@pytest.mark.slow
@pytest.mark.occasional
@pytest.mark.timeout(1800)
def test_interrupted_at_drawn_moments_it_ends_with_its_code_and_goes_on(tmp_path: Path) -> None:
    """While Ray starts its workers, in a step, an evaluation or a save. It once died of a segmentation fault."""
    seed = random.SystemRandom().randrange(10_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    training = Search(tmp_path, "train", "--name", "x", "--epochs", "4000", *SMALL)
    for number in range(20):
        training.wait_for("; evaluations at ")
        time.sleep(chance.uniform(0, 20))
        training.process.send_signal((signal.SIGINT, signal.SIGTERM)[number % 2])
        assert training.end() == 130, training.log
        assert "interrupted at epoch " in training.log
        assert "Traceback" not in training.log
        assert results(tmp_path / "experiments" / "x")["interrupted"]
        training = Search(tmp_path, "train", "--resume", "x")
    training.kill()
