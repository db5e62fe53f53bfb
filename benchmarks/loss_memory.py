"""Time and memory of the loss over Whisper's vocabulary: all scores at once, and some tokens at a time.

    python benchmarks/loss_memory.py [--width 384] [--clips 16] [--tokens 100] [--repeats 5]

Last projection, cross entropy and their gradients, in float32 on the CPU; both in each repeat, so that what else the
machine does hits both. Time is that of the process on all cores; memory is what it grows by at most.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import torch
from torch.nn import functional

from trainer.training.loss import projected_cross_entropy, summed_cross_entropy

VOCABULARY = 51_866


def measure(work: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """CPU seconds of a loss with its gradients, and megabytes that the process grew by at most."""
    process, done = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    most = before

    def watch() -> None:
        nonlocal most
        while not done.wait(0.002):
            most = max(most, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.process_time()
    work().backward()
    seconds = time.process_time() - begun
    done.set()
    watcher.join()
    return seconds, (most - before) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.manual_seed(0)
    weight = (0.03 * torch.randn(VOCABULARY, asked.width)).requires_grad_()
    states = torch.randn(asked.clips, asked.tokens, asked.width, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (asked.clips, asked.tokens))
    positions = torch.arange(labels.numel())
    works = {
        "at once": lambda: summed_cross_entropy(functional.linear(states, weight), labels),
        "some at a time": lambda: projected_cross_entropy(states, weight, labels, positions),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for repeat in range(asked.repeats + 1):
        for name, work in works.items():
            states.grad = weight.grad = None
            one = measure(work)
            if repeat:  # the first one warms up
                found[name].append(one)
    for name, ones in found.items():
        seconds, megabytes = (statistics.median(part) for part in zip(*ones, strict=True))
        print(f"{name:16s} {seconds:6.2f} CPU-seconds {megabytes:7.0f} MB")
    for part, what in enumerate(("time", "memory")):
        ratios = [
            ours[part] / whole[part]
            for whole, ours in zip(found["at once"], found["some at a time"], strict=True)
        ]
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{what}, some at a time / at once: {told}")


if __name__ == "__main__":
    main()
