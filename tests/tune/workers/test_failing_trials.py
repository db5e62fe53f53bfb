"""Trials that fail, diverge, have too little memory or lose a checkpoint: what the search makes of it."""

import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import ray.exceptions
import torch
from looping_whisper import make_looping_whisper
from processes import family
from search_process import ONE_CPU, QUICK, Search, results

import trainer
from trainer.config import TrainConfig
from tune.cluster.progress_channel import Start
from tune.experiments.experiment import Experiment
from tune.experiments.folder import ExperimentFolder
from tune.util.errors import error_line
from tune.workers.retries import ACCUMULATION, MICRO_BATCH, train_persistently
from tune.workers.trainable import train_worker

RATES = "learning_rate: {type: float, low: 2e-3, high: 3e-3, log: true}\n"


def train(work: Callable[[TrainConfig, str, Any], Any], told: list[dict[str, float]]) -> Any:
    driver: Any = SimpleNamespace(start=lambda: Start("", []), progress=told.append)
    return train_persistently(work, TrainConfig(train_batch_size=16), driver)


def here() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def in_another_process() -> None:
    """As Ray passes on what a worker of the trial raised."""
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    text = "".join(traceback.format_exception(error))
    raise ray.exceptions.RayTaskError("run", text, error).as_instanceof_cause()


@pytest.mark.parametrize("run_out_of_memory", [here, in_another_process])
def test_memory_that_runs_out_halves_the_micro_batch(run_out_of_memory: Callable[[], None]) -> None:
    def work(config: TrainConfig, folder: str, checkpoint: Any) -> int:
        if config.train_batch_size > 4:
            run_out_of_memory()
        return config.train_batch_size

    told: list[dict[str, float]] = []
    assert train(work, told) == 4
    assert told == [{MICRO_BATCH: 8.0, ACCUMULATION: 2.0}, {MICRO_BATCH: 4.0, ACCUMULATION: 4.0}]


RAYS_MONITOR = """\
Task was killed due to the node running low on memory.
Memory on the node (IP: 10.0.0.7, ID: ab12) where the task (actor ID: cd34, name=Worker.run, memory used=9.1GB) \
was running was 61.2GB / 64.0GB (0.956), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: \
ef56) because it was the most recently scheduled task; to see more information use `ray logs raylet.out -ip 10.0.0.7`.
"""


@pytest.mark.parametrize(
    "error", [KeyError("CUDA out of memory"), ray.exceptions.OutOfMemoryError(RAYS_MONITOR)]
)
def test_other_errors_end_the_training_at_once(error: Exception) -> None:
    """Main memory that Ray's monitor finds full holds no fewer clips for a smaller batch."""

    def work(config: TrainConfig, folder: str, checkpoint: Any) -> None:
        raise error

    told: list[dict[str, float]] = []
    with pytest.raises(type(error)):
        train(work, told)
    assert told == []


def test_rays_memory_monitor_is_told_as_main_memory() -> None:
    report = (
        f"Failure # 1 (occurred at 2026-01-01_12-00-00)\n{RAYS_MONITOR}\nray.exceptions.RayActorError: x\n"
    )
    assert error_line(report).startswith(
        "main memory (RAM) ran out on node 10.0.0.7, and Ray ended the process; "
    )


def test_a_worker_that_fails_does_not_wait_for_the_others_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NCCL nobody leaves the process group before all do, and the others are in the middle of a step."""
    left: list[None] = []
    monkeypatch.setattr("trainer.training.distributed.leave_group", lambda: left.append(None))
    inputs: Any = SimpleNamespace(open=here)
    with pytest.raises(RuntimeError):
        train_worker(inputs, Mock(), files=Mock(), driver=Mock(), folder="", checkpoint=None)
    assert left == []


FAILING = """
import sys
import tune.runs.trials
from tune.cli import main

def make_trainable(inputs, channel, resources, files):
    import ray.tune

    def trial(sampled):
        raise ValueError("the data have no column 'sentence'")

    return ray.tune.with_resources(trial, resources.request())

tune.runs.trials.make_trainable = make_trainable
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_failure_of_every_trial_ends_the_search(tmp_path: Path) -> None:
    """Its base model is measured all the same, which decides the usual learning rate and the window of trainings."""
    model = make_looping_whisper(tmp_path / "looping", width=384)
    (tmp_path / "space.yaml").write_text("learning_rate: {type: float, low: auto, high: auto, log: true}\n")
    words = ["--space", "space.yaml", "--model", str(model), "--data", "demo", "--trials", "9"]
    words += ["--experiment", "x", "--max-failures", "0", "--max-concurrent", "1", "--epochs", "2"]
    search = Search(tmp_path, *words, *QUICK, program=["-c", FAILING], **ONE_CPU)
    assert search.end() == 1, search.log
    experiment = tmp_path / "experiments" / "x"
    found = results(experiment)
    assert found["ended_by"]["reason"] == "failures"
    assert [trial["status"] for trial in found["trials"]] == ["failed"] * 3
    assert "3 trials in a row failed" in search.log
    assert found["trials"][0]["error"].strip() in search.log
    assert "the usual learning rate for this WER is 0.00015" in search.log
    saved = Experiment.read(ExperimentFolder("x", experiment))
    assert saved.base.learning_rate == 1.5e-4
    assert dict(saved.space.describe())["learning_rate"].startswith("1.5e-05 to 0.0015")
    assert found["trials"][0]["config"]["learning_rate"] == 1.5e-4, "the usual settings come first"
    # The model repeats itself in a shorter one.
    (line,) = [each for each in search.log.splitlines() if each.startswith("trainings use the whole window")]
    assert line.startswith("trainings use the whole window of 4 s") and "tokens instead of" in line
    assert saved.base.audio_window == 4.0
    assert not saved.state.baseline.trial_rates, "trials are measured as the base model was"


@pytest.mark.slow
@pytest.mark.occasional
def test_every_trial_with_deepspeed_has_a_process_of_its_own(tmp_path: Path) -> None:
    words = (
        "--space lr_batch --experiment x --trials 2 --finalists 0 --max-concurrent 1 --epochs 1 --deepspeed"
    )
    search = Search(tmp_path, *words.split(), *QUICK, "--max-failures", "0")
    assert search.end() == 0, search.log
    assert [trial["status"] for trial in results(tmp_path / "experiments" / "x")["trials"]] == [
        "completed"
    ] * 2


@pytest.mark.slow
@pytest.mark.occasional
def test_a_worker_is_killed_and_the_data_go_away(tmp_path: Path) -> None:
    """The one fails its trial and no other; the other is not noticed, the data were read once for all trials."""
    demo = Path(trainer.__file__).parent / "demo" / "data"
    shutil.copytree(demo, tmp_path / "recordings")
    (tmp_path / "space.yaml").write_text(RATES + "scheduler: {rungs: 4, reduction_factor: 2}\n")
    words = "--space space.yaml --experiment x --trials 3 --epochs 6 --max-concurrent 1 --max-failures 0"
    clips = ["--set", "max_train_clips=80", "--set", "max_eval_clips=20"]
    search = Search(
        tmp_path, *words.split(), *clips, "--data", "recordings", "--model", "demo", "--language", "en"
    )
    search.wait_for("trial 001 epoch")
    shutil.rmtree(tmp_path / "recordings")
    processes = family(psutil.Process(search.process.pid))
    (trial,) = [each for each in processes if each.name().startswith("ray::ImplicitFunc")]
    trial.kill()
    assert search.end() == 0, search.log
    found = results(tmp_path / "experiments" / "x")["trials"]
    assert [found[0]["status"], len(found)] == ["failed", 3]
    assert {each["status"] for each in found[1:]} <= {"completed", "early_stopped"}
    assert "trial 001 failed: The actor died unexpectedly" in search.log
    assert "Traceback" not in search.log
    assert "actor died" in found[0]["error"]
    assert (tmp_path / "experiments" / "x" / "trials" / "001" / "error.txt").is_file()
