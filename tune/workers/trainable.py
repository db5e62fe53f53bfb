"""The training as Ray runs it: one worker's part, a trial of Ray Tune, and what is measured beside trainings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trainer.training.distributed import leave_group
from tune.cluster.progress_channel import Driver
from tune.search.scheduler import TRIAL_ID
from tune.workers.checkpoint_store import TrialCheckpointStore
from tune.workers.retries import train_persistently
from tune.workers.worker_group import train_on_workers

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from trainer.config import TrainConfig
    from trainer.train import Evaluation, TrainResult
    from trainer.training.report import Decision, Report
    from tune.cluster.resources import TrialResources
    from tune.experiments.checkpoint_files import CheckpointFiles
    from tune.workers.inputs import TrialInputs


_GPU_SECONDS = 10.0
"""How often a trial asks its GPU, at most."""


def gpu_figures() -> dict[str, float]:
    """Use and memory of the NVIDIA GPU of this process, by MLflow's names, in percent and MB; nothing without one."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip:
        return {}
    import pynvml

    free, total = torch.cuda.mem_get_info()
    used = total - free
    figures = {"memory_usage_megabytes": used / 1e6, "memory_usage_percentage": 100 * used / total}
    # A part of a GPU (MIG) has no use of its own, nor does PyTorch find it by its name.
    with contextlib.suppress(pynvml.NVMLError, RuntimeError):
        figures["utilization_percentage"] = float(torch.cuda.utilization())
    return {f"system/gpu_0_{name}": value for name, value in figures.items()}


def with_gpu_use(
    send: Callable[[Mapping[str, float]], None], sample: Callable[[], dict[str, float]] = gpu_figures
) -> Report:
    """What sends progress, and every 10 s the use of the GPU with it."""
    sampled = -math.inf

    def progress(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        nonlocal sampled
        if time.monotonic() - sampled >= _GPU_SECONDS:
            sampled = time.monotonic()
            metrics = {**metrics, **sample()}
        send(metrics)

    return progress


def train_worker(
    inputs: TrialInputs,
    decide: Callable[[Mapping[str, float]], Decision],
    *,
    files: CheckpointFiles,
    driver: Driver,
    folder: str,
    checkpoint: str | None,
) -> TrainResult:
    """One worker's part of a training, in whatever process it has; `decide` takes each evaluation to the driver.

    The process group is left after success alone, as with NCCL all leave it together; a failed process ends.
    """
    from trainer.scoring.part import chosen_clips
    from trainer.train import train

    _free_memory()
    config, data = inputs.open()
    store = TrialCheckpointStore(files, driver, folder, decide)

    with files.fetched(checkpoint) if checkpoint else contextlib.nullcontext() as fetched:
        clips = None
        if inputs.eval_clips is not None:
            clips = chosen_clips(
                data.splits["validation"].origins.sources, inputs.eval_clips, config.data_seed
            )
        result = train(
            config, data, with_gpu_use(driver.progress), store=store, clips=clips, resume_from=fetched
        )
    leave_group()
    return result


def make_trainable(
    inputs: TrialInputs, channel: ActorHandle, resources: TrialResources, files: CheckpointFiles
) -> Any:
    """The function that Ray runs for a trial, with the resources that a trial takes.

    One worker trains in the trial's own process; several are processes of the trial's placement group.
    """
    import ray.tune

    def whisper_trial(sampled: dict[str, Any]) -> None:
        import ray.tune

        values = dict(sampled)
        driver = Driver(channel, values.pop(TRIAL_ID))
        trial = inputs.with_settings(values)

        def decide(metrics: Mapping[str, float]) -> Decision:
            decision = driver.report(metrics)
            ray.tune.report(dict(metrics))  # a trial that Tune ends, ends in it
            return decision

        def work(config: TrainConfig, folder: str, checkpoint: str | None) -> TrainResult:
            part = functools.partial(
                train_worker,
                dataclasses.replace(trial, config=config),
                files=files,
                driver=driver,
                folder=folder,
                checkpoint=checkpoint,
            )
            if resources.workers == 1:
                return part(decide)
            result: TrainResult = train_on_workers(
                part,
                decide,
                workers=resources.workers,
                cpus=resources.cpus_per_worker,
                gpus=resources.gpus_per_worker,
            )
            return result

        result = train_persistently(work, trial.config, driver)
        if result.diverged:
            decide({"samples_seen": result.samples_seen, "diverged": 1.0, "finished": 0.0})

    return ray.tune.with_resources(whisper_trial, resources.request())


def evaluate_shared(
    inputs: TrialInputs, split: str, as_in_training: bool, clips: Sequence[int] | None
) -> Evaluation:
    """What `evaluate` returns for the settings' model as it is, on whatever node this runs."""
    from trainer.train import evaluate

    config, data = inputs.open()
    return evaluate(config, data, split, as_in_training=as_in_training, clips=clips)


def evaluate_checkpoint(
    inputs: TrialInputs, files: CheckpointFiles, checkpoint: str, split: str
) -> Evaluation:
    """The same for a checkpoint of the experiment, by its path there."""
    from trainer.model.adapters import with_base
    from trainer.train import evaluate

    config, data = inputs.open()
    with files.fetched(checkpoint) as fetched, with_base(fetched, config.model) as folder:
        return evaluate(config.replace(model=str(folder)), data, split)


def time_steps(inputs: TrialInputs, files: Mapping[str, bytes], seconds: float) -> float | None:
    """What `probe_step` returns on whatever node this runs, which is given the files of a sample's features."""
    from trainer.probe import probe_step

    config = inputs.open_config()
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as folder:
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        return probe_step(config, ray.get(inputs.data).moved_to(Path(folder)), seconds=seconds)


def run_and_free(work: Callable[..., Any], *arguments: object) -> Any:
    """What `work` returns, after which its process holds no more memory than it must: Ray keeps it for other work."""
    try:
        return work(*arguments)
    finally:
        _free_memory()


def _free_memory() -> None:
    """Give back what was freed in this process: processes are reused, since their imports take seconds."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
