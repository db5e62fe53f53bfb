"""The training as Ray runs it: one worker's part, a trial of Ray Tune, and what is measured beside trainings."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.training.checkpoints import seal
from tune.cluster.progress_channel import post
from tune.search.scheduler import TRIAL_ID
from tune.workers.retries import train_persistently, with_earlier
from tune.workers.worker_group import Report, train_on_workers

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.tune import Checkpoint

    from trainer.config import TrainConfig
    from trainer.probe import Measured
    from trainer.train import Evaluation, TrainResult
    from tune.cluster.resources import TrialResources
    from tune.workers.inputs import TrialInputs


def train_worker(
    inputs: TrialInputs,
    report: Report,
    *,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[Mapping[str, float]], None],
    own_group: bool = True,
) -> TrainResult:
    """One worker's part of a training, in whatever process it has.

    Args:
        inputs: what is trained.
        report: called with each evaluation and its checkpoint's folder.
        checkpoint: Ray's, to go on from.
        progress: called with what the training tells between evaluations.
        own_group: whether the process group that the training makes is left in the end; Ray Train has its own.
    """
    from trainer.train import train
    from trainer.training.distributed import leave_group

    _free_memory()
    config, data = inputs.open()

    def pass_on(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None:
        if checkpoint_dir is not None:
            return report(metrics, checkpoint_dir)
        progress(metrics)
        return None

    try:
        with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
            return train(config, pass_on, data=data, resume_from=Path(folder) if folder else None)
    finally:
        if own_group:
            leave_group()


def make_trainable(
    inputs: TrialInputs,
    mailbox: ActorHandle,
    resources: TrialResources,
    starts: Mapping[str, Sequence[Checkpoint]],
) -> Any:
    """The function that Ray runs for a trial, with the resources that a trial takes.

    One worker trains in the trial's own process; several are processes of the trial's placement group.

    Args:
        inputs: what all trials share.
        mailbox: receives progress.
        resources: what each trial gets.
        starts: checkpoints of an interrupted search from which trials, by number, go on; first choice first.
    """
    import ray.tune

    def whisper_trial(sampled: dict[str, Any]) -> None:
        import ray.tune

        values = dict(sampled)
        trial_id = values.pop(TRIAL_ID)
        tell = functools.partial(post, mailbox, trial_id)
        trial = inputs.with_settings(values)

        def checkpoints() -> list[Checkpoint]:
            last = ray.tune.get_checkpoint()
            return [*(with_earlier(last) if last else []), *starts.get(trial_id, [])]

        def work(config: TrainConfig, checkpoint: Checkpoint | None) -> TrainResult:
            part = functools.partial(
                train_worker,
                dataclasses.replace(trial, config=config),
                checkpoint=checkpoint,
                progress=tell,
            )
            # DeepSpeed keeps state in its modules that a second engine in the same process would trip over.
            return _run(part, _report_to_tune, resources, reuse=config.deepspeed is None)

        result = train_persistently(
            work,
            trial.config,
            checkpoints=checkpoints,
            tell=tell,
        )
        if result.diverged:
            ray.tune.report(
                {"wer": float("nan"), "samples_seen": result.samples_seen, "diverged": 1.0, "finished": 0.0}
            )

    return ray.tune.with_resources(whisper_trial, resources.request())


def evaluate_shared(inputs: TrialInputs, split: str = "validation") -> Evaluation:
    """Error rates of the settings' model as it is on a split, on whatever node this runs."""
    from trainer.train import evaluate

    config, data = inputs.open()
    return evaluate(config, split, data=data)


def probe_shared(
    inputs: TrialInputs, micro_batches: Sequence[int], seconds: float, gate: ActorHandle | None
) -> list[Measured]:
    """Train for some seconds with the largest micro-batch that fits, on whatever node this runs.

    Args:
        inputs: what is trained.
        micro_batches: sizes to try.
        seconds: of training that are timed.
        gate: an actor at which several wait until all of them train; None where this one is alone.
    """
    import ray

    from trainer.probe import probe_step

    config, data = inputs.open()
    return probe_step(
        config,
        data,
        micro_batches=micro_batches,
        seconds=seconds,
        evaluated=gate is None,
        ready=lambda: gate is None or bool(ray.get(gate.wait.remote())),
    )


def _report_to_tune(metrics: Mapping[str, float], checkpoint_dir: Path) -> None:
    """Hand an evaluation to Tune, which copies its checkpoint to the experiment's storage.

    Raises:
        DiskFullError: there is no room where the storage is a folder.
    """
    import ray.tune
    from pyarrow import fs

    from trainer.files import FULL, has_room
    from trainer.training.checkpoints import disk_full

    storage = ray.tune.get_context().get_storage()
    folder, needed = Path(storage.trial_fs_path), _bytes_below(checkpoint_dir)
    if isinstance(storage.storage_filesystem, fs.LocalFileSystem) and not has_room(folder, needed):
        raise disk_full(folder, needed)
    try:
        ray.tune.report(dict(metrics), checkpoint=ray.tune.Checkpoint.from_directory(str(checkpoint_dir)))
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise disk_full(folder, needed) from error


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _run(
    work: Callable[..., TrainResult], report: Report, resources: TrialResources, reuse: bool
) -> TrainResult:
    if resources.workers == 1:
        return work(report)

    def seal_and_report(metrics: Mapping[str, float], checkpoint_dir: Path) -> bool | None:
        seal(checkpoint_dir)  # anew: parts came from other nodes
        return report(metrics, checkpoint_dir)

    result: TrainResult = train_on_workers(
        work,
        seal_and_report,
        workers=resources.workers,
        cpus=resources.cpus_per_worker,
        gpus=resources.gpus_per_worker,
        reuse=reuse,
    )
    return result


def _free_memory() -> None:
    """Give back what the trial before left in this process: actors are reused, since their imports take seconds."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
