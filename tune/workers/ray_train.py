"""A training on Ray Train: its workers, what they and Ray's controller tell the driver, and what they leave on disk.

`ray.train` is imported inside functions only: it reads when it is imported whether Train V2 is on (`use_train_v2`).
"""

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

from trainer.training.distributed import private_folder
from tune.cluster.progress_channel import post
from tune.experiments.folder import TRIALS_FOLDER
from tune.experiments.training_plan import TRIAL
from tune.search.scheduler import METRIC
from tune.workers.trainable import train_worker
from tune.workers.worker_group import SECONDARY_ERRORS

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.train import Checkpoint, CheckpointConfig
    from ray.train.torch import TorchTrainer

    from tune.cluster.resources import TrialResources
    from tune.experiments.folder import ExperimentFolder
    from tune.workers.inputs import TrialInputs

EVALUATION = "evaluation"
EARLIER = "earlier evaluation"
PROGRESS = "progress"
FAILURE = "failure: "
"""Kinds of messages; a failure's text follows."""
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
    inputs: TrialInputs,
    mailbox: ActorHandle,
    resources: TrialResources,
    folder: ExperimentFolder,
    max_failures: int,
) -> TorchTrainer:
    """Ray's trainer, whose `fit` begins the training or goes on with it from the folder's last checkpoint.

    Args:
        inputs: what to train.
        mailbox: receives evaluations, progress and failures.
        resources: what the workers get.
        folder: where checkpoints go; see `checkpoints_kept`.
        max_failures: times that the training goes on from its last checkpoint after a failure.
    """
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    class SendToDriver(ray.train.UserCallback):
        """Runs in Ray Train's controller; what it sends is on the storage by then."""

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            """Send the first worker's evaluation."""
            post(mailbox, EVALUATION, metrics[0])

        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            """Send what went wrong."""
            post(mailbox, FAILURE + root_failure(worker_exceptions), {})

    storage, scratch = folder.ray_storage(), scratch_name(folder)

    def train_loop() -> None:
        _work(inputs, mailbox, scratch)

    return TorchTrainer(
        train_loop,
        torch_config=TorchConfig(timeout_s=_GROUP_TIMEOUT_SECONDS),
        scaling_config=ray.train.ScalingConfig(
            num_workers=resources.workers,
            use_gpu=bool(resources.gpus),
            resources_per_worker={kind: amount for kind, amount in resources.each.items() if amount},
            placement_strategy="PACK",
        ),
        run_config=ray.train.RunConfig(
            name=TRIAL,
            storage_path=f"{storage['storage_path']}/{TRIALS_FOLDER}",
            storage_filesystem=storage.get("storage_filesystem"),
            checkpoint_config=checkpoints_kept(),
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            callbacks=[SendToDriver()],
        ),
    )


def checkpoints_kept() -> CheckpointConfig:
    """What Ray keeps: the last checkpoint and the best two.

    It removes what a new best has replaced before the driver hears of that one. The experiment's log names the best
    that it knows of, which is the second best until then.
    """
    import ray.train

    return ray.train.CheckpointConfig(
        num_to_keep=2, checkpoint_score_attribute=METRIC, checkpoint_score_order="min"
    )


def root_failure(failures: Mapping[int, Exception]) -> str:
    """The report of the worker that failed first: the others only say that they lost their connection to it."""
    reports = [_report(failures[rank]) for rank in sorted(failures)]
    first_hand = [text for text in reports if not any(sign in text for sign in SECONDARY_ERRORS)]
    return (first_hand or reports)[0]


def _report(failure: Exception) -> str:
    # Ray wraps the end of a worker's process, and says no more than that a health check failed.
    cause = getattr(failure, "health_check_failure", None)
    return f"{type(cause).__name__}: {cause}\n{failure}" if cause else str(failure).strip()


def _work(inputs: TrialInputs, mailbox: ActorHandle, scratch: str) -> None:
    """One worker's part."""
    import ray.train

    context, checkpoint = ray.train.get_context(), ray.train.get_checkpoint()
    leads = context.get_world_rank() == 0
    # A driver that was killed may have missed the last ones.
    evaluations = _evaluations_in(checkpoint) if leads and checkpoint else []
    for metrics in evaluations:
        post(mailbox, EARLIER, metrics)

    def report(metrics: Mapping[str, float], checkpoint_dir: Path) -> None:
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
        result = train_worker(
            inputs,
            report,
            checkpoint=checkpoint,
            progress=functools.partial(post, mailbox, PROGRESS),
            own_group=False,
        )
    if result.diverged:
        ray.train.report({"samples_seen": result.samples_seen, "step": result.steps, "diverged": 1.0})


def _evaluations_in(checkpoint: Checkpoint) -> list[dict[str, float]]:
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
