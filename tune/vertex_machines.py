"""Machine types of Google Cloud: their size, and which GPUs can be attached to them.

The facts are those of Google's pages "GPU machine types" (cloud.google.com/compute/docs/gpus) and
"Accelerator-optimized machine family", read in 2026. A type that is not listed here is not refused: new ones appear,
and Vertex AI itself has the last word, also on what a region offers.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine type: vCPUs, memory in GiB and, where it always comes with GPUs, which and how many."""

    vcpus: int
    memory: float
    gpu: str | None = None
    gpus: int = 0


def _sizes(prefix: str, per_cpu: float, sizes: tuple[int, ...]) -> dict[str, Machine]:
    return {f"{prefix}-{cpus}": Machine(cpus, cpus * per_cpu) for cpus in sizes}


def _with_gpus(
    prefix: str, gpu: str, vcpus: int, memory: float, counts: tuple[int, ...]
) -> dict[str, Machine]:
    return {f"{prefix}-{n}g": Machine(vcpus * n, memory * n, gpu, n) for n in counts}


_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}

MACHINES: dict[str, Machine] = {
    **_sizes("n1-standard", 3.75, (4, 8, 16, 32, 64, 96)),
    **_sizes("n1-highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
    **_sizes("n2-standard", 4, (4, 8, 16, 32, 48, 64, 80)),
    **_sizes("n2-highmem", 8, (2, 4, 8, 16, 32, 48, 64, 80)),
    **{f"g2-standard-{cpus}": Machine(cpus, cpus * 4, "NVIDIA_L4", gpus) for cpus, gpus in _G2.items()},
    **_with_gpus("a2-highgpu", "NVIDIA_TESLA_A100", 12, 85, (1, 2, 4, 8)),
    "a2-megagpu-16g": Machine(96, 1360, "NVIDIA_TESLA_A100", 16),
    **_with_gpus("a2-ultragpu", "NVIDIA_A100_80GB", 12, 170, (1, 2, 4, 8)),
    **_with_gpus("a3-highgpu", "NVIDIA_H100_80GB", 26, 234, (1, 2, 4, 8)),
    "a3-megagpu-8g": Machine(208, 1872, "NVIDIA_H100_MEGA_80GB", 8),
    "a3-ultragpu-8g": Machine(224, 2952, "NVIDIA_H200_141GB", 8),
}
"""Machine types that are known here."""

_N1_GPUS: dict[str, dict[int, int]] = {
    "NVIDIA_TESLA_T4": {1: 48, 2: 48, 4: 96},
    "NVIDIA_TESLA_P4": {1: 24, 2: 48, 4: 96},
    "NVIDIA_TESLA_V100": {1: 12, 2: 24, 4: 48, 8: 96},
    "NVIDIA_TESLA_P100": {1: 16, 2: 32, 4: 96},
}
"""GPUs that N1 machines take: how many, and the most vCPUs with that many."""

ACCELERATORS = (
    *_N1_GPUS,
    *dict.fromkeys(machine.gpu for machine in MACHINES.values() if machine.gpu),
    "NVIDIA_B200",
)
"""Names of GPUs as the API spells them."""


def gpu_problem(machine_type: str, gpu: str | None, count: int) -> str | None:
    """What cannot be about a machine type with these GPUs; None where nothing is known against it.

    Args:
        machine_type: as `n1-standard-16`.
        gpu: as `NVIDIA_TESLA_T4`; None for none.
        count: GPUs of one machine.
    """
    machine = MACHINES.get(machine_type)
    if machine and machine.gpu:
        if (gpu, count) == (machine.gpu, machine.gpus):
            return None
        return (
            f"{machine_type} comes with {machine.gpus} {machine.gpu}; "
            f"write accelerator_type: {machine.gpu}, accelerator_count: {machine.gpus}"
        )
    if gpu is None:
        return None
    if machine_type.startswith("n1-") and gpu in _N1_GPUS:
        return _n1_problem(machine_type, machine, gpu, count)
    homes = [name for name, other in MACHINES.items() if other.gpu == gpu]
    if machine is None and not machine_type.startswith("n1-"):
        return None  # a type that we do not know: Vertex AI will say
    right = f"it comes with {', '.join(homes)}" if homes else "it goes with n1 machines"
    return f"{gpu} cannot be attached to {machine_type}; {right}"


def _n1_problem(machine_type: str, machine: Machine | None, gpu: str, count: int) -> str | None:
    most = _N1_GPUS[gpu]
    if count not in most:
        return f"{count} {gpu} cannot be attached to a machine; allowed are {', '.join(map(str, most))}"
    if machine and machine.vcpus > most[count]:
        return f"{machine_type} has too many vCPUs for {count} {gpu} (at most {most[count]})"
    return None
