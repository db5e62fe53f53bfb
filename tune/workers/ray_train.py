"""A training on Ray Train: its workers, what they and Ray's controller tell the driver, and what they leave on disk.

`ray.train` is imported inside functions only: it reads when it is imported whether Train V2 is on (`fit`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trainer.manifest import problem_of
from trainer.training.distributed import TIMEOUT_SECONDS, private_folder
from tune.cluster.progress_channel import Driver
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.folder import TRIALS_FOLDER, ExperimentFolder
from tune.experiments.options import TRIAL
from tune.util.environment import changed_environment
from tune.workers.retries import train_persistently
from tune.workers.trainable import train_worker
from tune.workers.worker_group import SECONDARY_ERRORS

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.train.torch import TorchTrainer

    from trainer.config import TrainConfig
    from trainer.train import TrainResult
    from tune.cluster.resources import TrialResources
    from tune.workers.inputs import TrialInputs


def fit(
    inputs: TrialInputs,
    channel: ActorHandle,
    resources: TrialResources,
    folder: ExperimentFolder,
    max_failures: int,
) -> str | None:
    """Begin a training or go on with it from the folder's last checkpoint; to be called in a process of its own.

    Returns:
        None, or the report of the failure that was one more than `max_failures`.
    """
    # Ray 2.47 has Train V2 only when told, which it reads when it is imported.
    os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
    # How often the controller asks for reports; while one waits, the next evaluation's does too.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.5")
    from ray.train.v2.api.exceptions import TrainingFailedError

    try:
        _ray_trainer(inputs, channel, resources, folder, max_failures).fit()
    except TrainingFailedError as error:
        failures = getattr(error, "worker_failures", None)
        return root_failure(failures) if failures else str(error)
    return None


def _ray_trainer(
    inputs: TrialInputs,
    channel: ActorHandle,
    resources: TrialResources,
    folder: ExperimentFolder,
    max_failures: int,
) -> TorchTrainer:
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    backend: Any = TorchConfig().backend_cls

    class Backend(backend):  # type: ignore[misc]
        """Ray's, which would have failed workers leave their process group, too, for which they wait for all."""

        def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
            """Nothing: a worker that succeeds has left it by itself."""

    class GroupConfig(TorchConfig):
        @property
        def backend_cls(self) -> Any:
            return Backend

    class SendToDriver(ray.train.UserCallback):
        """Runs in Ray Train's controller."""

        def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
            driver.failed(root_failure(worker_exceptions))

    driver = Driver(channel, TRIAL)
    storage, scratch, files = folder.ray_storage(), scratch_name(folder), CheckpointFiles(folder)

    def train_loop() -> None:
        _work(inputs, files, driver, scratch)

    return TorchTrainer(
        train_loop,
        torch_config=GroupConfig(timeout_s=TIMEOUT_SECONDS),
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
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            callbacks=[SendToDriver()],
        ),
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


def _work(inputs: TrialInputs, files: CheckpointFiles, driver: Driver, scratch: str) -> None:
    import ray.train

    context = ray.train.get_context()

    def work(config: TrainConfig, folder: str, checkpoint: str | None) -> TrainResult:
        own = dataclasses.replace(inputs, config=config)
        return train_worker(
            own, driver.report, files=files, driver=driver, folder=folder, checkpoint=checkpoint
        )

    with _scratch_folder(scratch, context.get_local_rank()):
        if context.get_world_size() == 1:
            result = train_persistently(work, inputs.config, driver)
        else:  # workers have to take the same checkpoint, and batches of the same size
            start = driver.start()
            result = work(inputs.config, start.folder, first_whole(files, start.checkpoints))
    if result.diverged and context.get_world_rank() == 0:
        driver.report({"samples_seen": result.samples_seen, "step": result.steps, "diverged": 1.0})


def first_whole(files: CheckpointFiles, checkpoints: Sequence[str]) -> str | None:
    """The first checkpoint that is not damaged; None where there is none, and the training starts again."""
    for checkpoint in checkpoints:
        with files.fetched(checkpoint) as folder:
            problem = problem_of(folder)
        if problem is None:
            return checkpoint
        print(f"{checkpoint}: {problem}; the training goes on from before it", flush=True)
    return None


def scratch_name(folder: ExperimentFolder) -> str:
    """A name for a training's temporary files on each node, the same in every attempt.

    The next one has to find and remove what a killed one left, so others can guess it too (see `private_folder`).
    """
    return f"tune-whisper-{os.getuid()}-{hashlib.sha256(folder.address.encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def scratch_removed(folder: ExperimentFolder) -> Iterator[None]:
    """In the end, when Ray is gone, remove what workers here left that were killed while they wrote a checkpoint."""
    try:
        yield
    finally:
        shutil.rmtree(Path(tempfile.gettempdir()) / scratch_name(folder), ignore_errors=True)


@contextlib.contextmanager
def _scratch_folder(name: str, local_rank: int) -> Iterator[None]:
    """Temporary files in a folder of the training's own, that the next attempt finds if this one is killed."""
    import torch

    # Nodes may share their disk, as several on one machine do.
    whole = Path(tempfile.gettempdir()) / name
    folder = whole / ray.get_runtime_context().get_node_id()[:12]
    if local_rank == 0:
        private_folder(whole)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    torch.distributed.barrier()
    try:
        with changed_environment({"TMPDIR": str(folder)}):
            tempfile.tempdir = None
            yield
    finally:
        tempfile.tempdir = None
        if local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
