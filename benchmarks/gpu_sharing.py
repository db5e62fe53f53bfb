"""Several small trainings on one card at a time, beside one after the other.

    python benchmarks/gpu_sharing.py [--trainings 4] [--shape tiny] [--steps 40] [--batch 16] [--repeats 3]

Processes are started and warmed up before the clock runs. Where there is no GPU the CPUs are shared, which shows that
it works and nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]


class Worker:
    """A process with its share of the card."""

    def __init__(self, path: list[str]) -> None:
        sys.path[:0] = path

    def train(self, settings: dict[str, Any]) -> float:
        """One training; its seconds."""
        from trainer.config import TrainConfig
        from trainer.train import train

        begun = time.monotonic()
        train(TrainConfig(**settings))
        return time.monotonic() - begun


def once(settings: dict[str, Any], count: int, gpus: int, cpus: float) -> tuple[float, float]:
    """Seconds of `count` trainings one after the other in one process, and at a time in as many."""
    import ray

    found = []
    for at_once in (1, count):
        make = ray.remote(num_gpus=gpus / at_once, num_cpus=cpus / at_once)(Worker)
        workers = [make.remote(sys.path[:2]) for _ in range(at_once)]
        ray.get([worker.train.remote({**settings, "max_steps": 1}) for worker in workers])
        begun = time.monotonic()
        ray.get([workers[number % at_once].train.remote(settings) for number in range(count)])
        found.append(time.monotonic() - begun)
        for worker in workers:
            ray.kill(worker)
    return found[0], found[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainings", type=int, default=4)
    parser.add_argument("--shape", default="tiny")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    import ray
    import shapes
    import torch

    from trainer.config import TrainConfig
    from trainer.data.prepared import prepare

    gpus = min(1, torch.cuda.device_count())
    ray.init(log_to_driver=False, include_dashboard=False)
    cpus = float(ray.cluster_resources()["CPU"])
    with tempfile.TemporaryDirectory() as scratch:
        settings = {
            "model": str(shapes.make_model(Path(scratch) / "model", arguments.shape)),
            "cache_dir": str(Path(scratch) / "cache"),
            "learning_rate": 1e-5,
            "train_batch_size": arguments.batch,
            "max_steps": arguments.steps,
            "evaluations": 1,
            "max_eval_clips": 2,
            "generation_max_length": 8,
        }
        prepare(TrainConfig(**settings))
        rows = [once(settings, arguments.trainings, gpus, cpus) for _ in range(arguments.repeats)]
    ratios = [shared / alone for alone, shared in rows]
    device = torch.cuda.get_device_name() if gpus else f"{cpus:g} CPUs, no GPU"
    print(f"{device}: {arguments.trainings} trainings of {arguments.shape}, {arguments.steps} steps each")
    for alone, shared in rows:
        print(f"one after the other {alone:.1f} s, at a time {shared:.1f} s")
    print(
        f"at a time / one after the other: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
