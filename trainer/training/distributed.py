"""Several processes in one training: who this one is, and how they wait for each other.

Whoever starts the processes sets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT); the stock trainer joins them to a process group. Without them there is one process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainer.errors import ConfigError

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from trainer.config import TrainConfig

_ValueT = TypeVar("_ValueT")
TIMEOUT_SECONDS = 1800
"""How long a process waits for the others: at a checkpoint, for as long as the first one hands it over."""


def local_rank() -> int:
    """This process' number on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def share_of_node() -> float:
    """The part of all processes that run on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) / world_size()


def worker_seed(seed: int, rank: int) -> int:
    """The seed of a worker's dropout and augmentation: the training's own in the first worker.

    The others' are not the next numbers, which are the seeds of a finalist's repeats.
    """
    import numpy as np

    return int(np.random.SeedSequence((seed, rank)).generate_state(1)[0]) if rank else seed


def check_world(config: TrainConfig) -> None:
    """Compare the processes that there are with those that the settings count on.

    Raises:
        ConfigError: effective batch, budget and reports would be wrong.
    """
    size = world_size()
    if size != config.workers:
        raise ConfigError(
            f"workers={config.workers}: this training runs in {size} process{'' if size == 1 else 'es'}; "
            "tune-whisper train --workers starts as many as it says"
        )


def wait_for_all(arguments: TrainingArguments) -> None:
    """Return once all processes have come here."""
    if arguments.world_size > 1:
        arguments.distributed_state.wait_for_everyone()


def from_first(arguments: TrainingArguments, value: _ValueT) -> _ValueT:
    """The first process' `value`, in all of them."""
    if arguments.world_size == 1:
        return value
    from accelerate.utils import broadcast_object_list

    values = [value]
    broadcast_object_list(values)
    return values[0]


def any_of(arguments: TrainingArguments, value: bool) -> bool:
    """Whether `value` is true in any process, in all of them."""
    if arguments.world_size == 1:
        return value
    import torch

    any_true = torch.tensor(int(value), device=arguments.device)
    torch.distributed.all_reduce(any_true, op=torch.distributed.ReduceOp.MAX)
    return bool(any_true)


def leave_group() -> None:
    """Leave the process group, with all others, so that this process can join another one later."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def process_group_of_one() -> Iterator[None]:
    """torchrun's variables for a process by itself, where they are not set: DeepSpeed starts only with them."""
    if "RANK" in os.environ:
        yield
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def private_folder(path: Path) -> None:
    """Make a folder that only this user can enter, or take the one that a process of theirs made so before.

    Its name can be guessed, and the directory for temporary files is everybody's.

    Raises:
        ConfigError: what is there may be somebody else's.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"{path}: is there already, and not as a folder that is yours alone (mode 700); remove it, or set "
                "TMPDIR to a folder of your own"
            ) from None


@contextlib.contextmanager
def scratch_folder(config: TrainConfig) -> Iterator[Path]:
    """A temporary folder that all processes of a node share: each writes its part of a checkpoint there."""
    if config.workers == 1:
        with tempfile.TemporaryDirectory(prefix="tune-whisper-") as own:
            yield Path(own)
        return
    group = f"{os.environ['MASTER_ADDR']}-{os.environ['MASTER_PORT']}"
    folder = Path(tempfile.gettempdir()) / f"tune-whisper-{os.getuid()}-{group}"
    private_folder(folder)
    import torch

    try:
        yield folder
        if torch.distributed.is_initialized():
            torch.distributed.barrier()  # the others may still read there
    finally:
        if local_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
