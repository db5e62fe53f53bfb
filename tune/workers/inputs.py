"""What each process of a training, a measurement or a probe is given, on whatever node it runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trainer.config import SOUNDS, TEXT_SETTINGS, TrainConfig
from trainer.memory import PRETENDED_GPUS, use_share_of_gpu
from tune.util.errors import ResourceError

if TYPE_CHECKING:
    from ray import ObjectRef

    from trainer.data.prepared import PreparedData
    from tune.workers.node_copies import NodeCopies


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialInputs:
    """Settings, data, and where nodes find the driver's folders.

    The data goes through Ray's object store once: a trial that looked for it anew would read the tables, ask the hub
    and look at every audio file again, and see other data if those had changed meanwhile.
    """

    config: TrainConfig
    data: ObjectRef[PreparedData]
    copies: NodeCopies | None
    """None where all runs on the driver's node."""
    cpus: float
    """Of each process: threads of PyTorch."""
    gpus: float
    """Of each process; of a share evaluations take no more memory than is theirs."""
    eval_clips: int | None = None
    """Validation clips that are measured, always the same; None for all."""
    relabelled: bool = False
    """Whether the texts are to be made anew, as the settings are not those of the data."""

    def with_settings(self, values: Mapping[str, Any]) -> TrialInputs:
        """The inputs of a trial with these settings in place of those of all trials."""
        config = self.config.replace(**values)
        changed = any(getattr(config, name) != getattr(self.config, name) for name in TEXT_SETTINGS)
        return dataclasses.replace(self, config=config, relabelled=self.relabelled or changed)

    def open(self) -> tuple[TrainConfig, PreparedData]:
        """Settings and data with the folders that this node has, once a process of Ray's is there to use them."""
        config, data = self.open_config(), ray.get(self.data)
        if self.copies is not None:
            data = data.moved_to(self.copies.local(data.folder))
        return config, data.with_texts(config) if self.relabelled else data

    def open_config(self) -> TrainConfig:
        """The settings alone, with threads and memory of this process set as they are for a trial.

        Raises:
            ResourceError: PyTorch cannot use the GPU that Ray gave.
        """
        import torch

        if not self.gpus:  # Ray leaves GPUs visible from 2026 on (ray#62492)
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        check_gpu()
        # Ray itself sets one thread for all.
        torch.set_num_threads(max(1, int(self.cpus)))
        # A worker that has a whole one sees its node's others, too, and would open the first.
        if 0 < self.gpus < 1:
            use_share_of_gpu(self.gpus)
        config = self.config
        if (copies := self.copies) is not None:
            named = [name for name in SOUNDS if config.augments and getattr(config, name) is not None]
            for name in [*named, *(["model"] if Path(config.model).is_absolute() else [])]:
                config = config.replace(**{name: str(copies.local(Path(getattr(config, name))))})
        return config


def check_gpu() -> None:
    """Check that PyTorch can use the GPU that Ray, which counts them by the driver alone, gave this process."""
    import torch

    if not ray.get_runtime_context().get_accelerator_ids().get("GPU") or os.environ.get(PRETENDED_GPUS):
        return
    where, cuda = f"GPU: Ray found one on node {ray.util.get_node_ip_address()}", torch.version.cuda
    out = "or train on the CPU with --gpus-per-trial 0 (train: --gpus-per-worker 0)"
    if torch.cuda.is_available():
        capability, built = torch.cuda.get_device_capability(), torch.cuda.get_arch_list()
        if cuda and not runs_on(capability, built):  # AMD's architectures have other names
            name = f"{torch.cuda.get_device_name()} (sm_{capability[0]}{capability[1]})"
            raise ResourceError(
                f"{where}, {name}, and torch {torch.__version__} has no code for it (built for {', '.join(built)}); "
                f"install a torch for an older CUDA, {out}"
            )
        return
    build = f"built for CUDA {cuda}" if cuda else "a CPU build"
    advice = (
        "a newer driver, or a torch for an older CUDA" if cuda else "torch from PyPI, which is built for CUDA"
    )
    driver = Path("/sys/module/nvidia/version")
    version = f" {driver.read_text(encoding='utf-8').strip()}" if driver.is_file() else ""
    raise ResourceError(
        f"{where}, but torch {torch.__version__}, {build}, cannot use it with the driver{version} there; install "
        f"{advice}, {out}"
    )


def runs_on(capability: tuple[int, int], built: Sequence[str]) -> bool:
    """Whether code for these architectures, such as `sm_80` or `compute_90`, runs on a GPU of a compute capability.

    Machine code runs where the major number is the same and the minor no lower, PTX on all that is newer.
    """
    for architecture in built:
        kind, number = architecture.rstrip("af").split("_")
        major, minor = int(number[:-1]), int(number[-1])
        if (kind == "sm" and major == capability[0] and minor <= capability[1]) or (
            kind == "compute" and (major, minor) <= capability
        ):
            return True
    return False


def shared_folders(config: TrainConfig, *, augments: bool) -> list[Path]:
    """Folders of this machine that trials read beside the features: a model, and sounds where clips are changed."""
    folders = [Path(config.model)] if Path(config.model).is_absolute() else []
    sounds = (getattr(config, name) for name in SOUNDS) if augments else ()
    return folders + [Path(folder) for folder in sounds if folder is not None]
