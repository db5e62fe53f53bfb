"""A training on Ray Train: its workers, their part in it, and what they leave on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.experiment_folder import TRIALS_FOLDER
from tune.mailbox import post
from tune.scheduler import METRIC
from tune.train_messages import EARLIER, PROGRESS

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.prepared import PreparedData
    from tune.cluster import TrialResources
    from tune.experiment_folder import ExperimentFolder

TRIAL = "001"
"""A training is the only trial of its experiment."""
_EVALUATIONS_FILE = "evaluations.json"
"""In each checkpoint: the metrics of all evaluations so far."""
_GROUP_TIMEOUT_SECONDS = 7200
"""How long a worker waits for the others; at a checkpoint, for as long as it takes to store it."""


def use_train_v2() -> None:
    """Switch Ray Train V2 on, which Ray 2.47 only does when told; must come before anything imports ray.train."""
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    # How often the controller asks for reports; while one waits, the next evaluation's does too.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")


def checkpoint_name(step: float) -> str:
    """The folder of the checkpoint of an optimiser step; a step that is taken again overwrites its own."""
    return f"checkpoint-{int(step):08d}"


def make_ray_trainer(
    config: TrainConfig,
    data: PreparedData,
    share: Any,
    mailbox: Any,
    resources: TrialResources,
    folder: ExperimentFolder,
    max_failures: int,
) -> Any:
    """Ray's `TorchTrainer`, whose `fit` begins the training or goes on with it from the folder's last checkpoint.

    Args:
        config: what to train.
        data: the prepared data; goes through the object store once.
        share: serves the driver's folders to nodes that lack them.
        mailbox: receives evaluations, progress and failures.
        resources: what the workers get.
        folder: where checkpoints go: the best and the last are kept.
        max_failures: times that the training goes on from its last checkpoint after a failure.
    """
    import ray
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    from tune.train_callback import SendToDriver

    storage = folder.ray_storage()
    work = functools.partial(
        _work, config, ray.put(data), share, mailbox, resources.cpus_per_worker, scratch_name(folder)
    )

    def train_loop() -> None:
        work()

    each = {"CPU": resources.cpus_per_worker}
    if resources.gpus:
        each["GPU"] = resources.gpus_per_worker
    return TorchTrainer(
        train_loop,
        torch_config=TorchConfig(timeout_s=_GROUP_TIMEOUT_SECONDS),
        scaling_config=ray.train.ScalingConfig(
            num_workers=resources.workers,
            use_gpu=bool(resources.gpus),
            resources_per_worker=each,
            placement_strategy="PACK",
        ),
        run_config=ray.train.RunConfig(
            name=TRIAL,
            storage_path=f"{storage['storage_path']}/{TRIALS_FOLDER}",
            storage_filesystem=storage.get("storage_filesystem"),
            checkpoint_config=ray.train.CheckpointConfig(
                num_to_keep=1, checkpoint_score_attribute=METRIC, checkpoint_score_order="min"
            ),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            callbacks=[SendToDriver(mailbox)],
        ),
    )


def _work(config: TrainConfig, stored: Any, share: Any, mailbox: Any, cpus: float, scratch: str) -> None:
    """One worker's part."""
    import ray
    import ray.train

    from tune.workers.trainable import train_on_ray_train

    context, checkpoint = ray.train.get_context(), ray.train.get_checkpoint()
    leads = context.get_world_rank() == 0
    # A driver that was killed may have missed the last ones.
    evaluations = _evaluations_in(checkpoint) if leads and checkpoint else []
    for metrics in evaluations:
        post(mailbox, EARLIER, metrics)

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is None:
            post(mailbox, PROGRESS, metrics)
            return
        if leads:
            evaluations.append(dict(metrics))
            (checkpoint_dir / _EVALUATIONS_FILE).write_text(json.dumps(evaluations), encoding="utf-8")
        # One worker of each node hands over what all workers there wrote; Ray brings the parts together.
        first = context.get_local_rank() == 0
        ray.train.report(
            dict(metrics),
            checkpoint=ray.train.Checkpoint.from_directory(str(checkpoint_dir)) if first else None,
            checkpoint_dir_name=checkpoint_name(metrics["step"]),
        )

    with _scratch_folder(scratch, context.get_local_rank()):
        result = train_on_ray_train(
            config,
            ray.get(stored),
            share,
            cpus=cpus,
            checkpoint=checkpoint,
            report=report,
        )
    if result.diverged:
        ray.train.report({"samples_seen": result.samples_seen, "step": result.steps, "diverged": 1.0})


def _evaluations_in(checkpoint: Any) -> list[dict[str, float]]:
    """All evaluations up to a checkpoint, its own included."""
    with checkpoint.as_directory() as folder:
        found: list[dict[str, float]] = json.loads(
            (Path(folder) / _EVALUATIONS_FILE).read_text(encoding="utf-8")
        )
    return found


def scratch_name(folder: ExperimentFolder) -> str:
    """A name for a training's temporary files on each node, the same in every attempt.

    The next one has to find and remove what a killed one left, so others can guess it too (see `private_folder`).
    """
    return f"tune-whisper-{os.getuid()}-{hashlib.sha256(folder.address.encode()).hexdigest()[:12]}"


def remove_scratch(folder: ExperimentFolder) -> None:
    """Remove what workers on this machine left that were killed while they wrote a checkpoint."""
    shutil.rmtree(Path(tempfile.gettempdir()) / scratch_name(folder), ignore_errors=True)


@contextlib.contextmanager
def _scratch_folder(name: str, local_rank: int) -> Iterator[None]:
    """Temporary files in a folder of the training's own, that the next attempt finds if this one is killed."""
    import ray
    import torch

    from tune.workers.trainable import private_folder

    # Nodes may share their disk, as several on one machine do.
    whole = Path(tempfile.gettempdir()) / name
    folder = whole / ray.get_runtime_context().get_node_id()[:12]
    if local_rank == 0:
        private_folder(whole)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    torch.distributed.barrier()
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        if local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
