"""Training and evaluation speed beside the hand-made script, on the same clips, model and machine.

    python benchmarks/throughput.py [--shape tiny] [--windows 30 15 8 5] [--repeats 3]

Every repeat runs all methods one after the other, so that what else the machine does hits all alike; figures are
medians over the repeats, ratios are taken within a repeat. For trainings also: clips and label tokens a second, the
operations that their matrix products take a second, as a share of what the device does of large ones (bf16 on a GPU,
fp32 on the CPU), and on a GPU the most memory that tensors took.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import shapes
import torch
from flops import matrix_peak, training_flops
from peers import plain
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import Seq2SeqTrainer, WhisperConfig

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.train import evaluate, train

TOKENS = 25
"""Of each transcript: a random model never ends one."""


def step_of(work: Callable[[], Any]) -> float:
    """Median of the seconds between a training's optimiser steps, the first two not counted: they warm up."""
    times: list[float] = []

    def note(*_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    handle = register_optimizer_step_post_hook(note)
    try:
        work()
    finally:
        handle.remove()
    return statistics.median(after - before for before, after in itertools.pairwise(times[1:]))


def evaluation_of(work: Callable[[], Any]) -> float:
    """Seconds of the first evaluation, from its first batch to its error rates."""
    times: list[float] = []
    original = Seq2SeqTrainer.evaluate

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        found = original(self, *args, **kwargs)
        times.append(time.perf_counter() - begun)
        return found

    with mock.patch.object(Seq2SeqTrainer, "evaluate", timed):
        work()
    return times[0]


class Bench:
    """One model and one set of clips."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.arguments, self.folder = arguments, folder
        self.model = shapes.make_model(folder / "model", arguments.shape)
        self.model_config = WhisperConfig.from_pretrained(self.model)
        self.processor = plain.load_processor(self.model)
        limits: dict[str, int | None] = {"train": 8 * arguments.batch, "validation": arguments.clips}
        self.splits = plain.add_features(plain.load_splits(shapes.DEMO / "data", limits), self.processor)
        self.config = TrainConfig(
            model=str(self.model),
            data="demo",
            cache_dir=str(folder / "cache"),
            learning_rate=1e-5,
            train_batch_size=arguments.batch,
            eval_batch_size=arguments.eval_batch,
            max_train_clips=8 * arguments.batch,
            max_eval_clips=arguments.clips,
            max_steps=arguments.steps + 2,
            evaluations=1,
            generation_max_length=TOKENS,
        )
        data = prepare(self.config)
        train_split = data.splits["train"]
        self.tokens = statistics.mean(train_split.n_tokens(clip) for clip in range(len(train_split)))
        self.memory: dict[str, list[int]] = {}

    def plain_trainer(self, *, use_cache: bool) -> Seq2SeqTrainer:
        """As the hand-made script has it, cuDNN's attention included, which our models switch off."""
        torch.backends.cuda.enable_cudnn_sdp(True)
        return plain.make_trainer(
            plain.load_model(self.model, use_cache=use_cache),
            self.processor,
            self.splits,
            self.folder / "out",
            generation_max_length=TOKENS + 4,
            max_steps=self.arguments.steps + 2,
            learning_rate=1e-5,
            per_device_train_batch_size=self.arguments.batch,
            per_device_eval_batch_size=self.arguments.eval_batch,
            save_strategy="no",
        )

    def train_ours(self, window: float) -> float:
        """Seconds a step."""
        config = self.config.replace(audio_window=window, max_eval_clips=1)
        return step_of(lambda: train(config, prepare(config)))

    def evaluate_plain(self, *, use_cache: bool) -> float:
        """Seconds of an evaluation."""
        return evaluation_of(lambda: self.plain_trainer(use_cache=use_cache).evaluate())

    def evaluate_ours(self, window: float) -> float:
        """Seconds of an evaluation, as within a training with this window."""
        if window == 30:
            return evaluation_of(lambda: evaluate(self.config, prepare(self.config)))
        config = self.config.replace(
            audio_window=window, full_window_evaluation=False, max_steps=1, train_batch_size=1
        )
        return evaluation_of(lambda: train(config, prepare(config)))

    def once(self) -> dict[str, float]:
        """All figures once."""
        works: dict[str, Callable[[], float]] = {
            "train plain": lambda: step_of(lambda: self.plain_trainer(use_cache=True).train()),
            "evaluate plain, no cache": lambda: self.evaluate_plain(use_cache=False),
            "evaluate plain, cache": lambda: self.evaluate_plain(use_cache=True),
        }
        for window in self.arguments.windows:
            works[f"train ours {window:g} s"] = functools.partial(self.train_ours, window)
            works[f"evaluate ours {window:g} s"] = functools.partial(self.evaluate_ours, window)
        return {name: self._watched(name, work) for name, work in works.items()}

    def _watched(self, name: str, work: Callable[[], float]) -> float:
        """What `work` measures, while the memory that it takes is noted."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = work()
        if torch.cuda.is_available():
            self.memory.setdefault(name, []).append(torch.cuda.max_memory_allocated())
        return seconds

    def efficiency(self, name: str, seconds: float, peak: float) -> dict[str, float]:
        """What a training's step of so many seconds comes to."""
        window = float(name.split()[2]) if "ours" in name else 30.0
        each = training_flops(self.model_config, round(100 * window), self.tokens)
        rate = self.arguments.batch / seconds
        found = {
            "clips a second": rate,
            "tokens a second": rate * self.tokens,
            "TFLOP/s": each * rate / 1e12,
            "share of peak": each * rate / peak,
        }
        if name in self.memory:
            found["peak memory, GB"] = max(self.memory[name]) / 1e9
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--shape", choices=list(shapes.SHAPES), default="tiny")
    parser.add_argument("--windows", type=float, nargs="+", default=[30.0, 15.0, 8.0, 5.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--eval-batch", type=int, default=8)
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), arguments)
        rows = []
        for number in range(arguments.repeats):
            rows.append(bench.once())
            print(f"repeat {number + 1} of {arguments.repeats} done", file=sys.stderr)
    for name in rows[0]:
        print(f"{name:32s} {statistics.median(row[name] for row in rows):8.3f} s")
    for ours in (name for name in rows[0] if "ours" in name):
        for plain_ in (name for name in rows[0] if name.startswith(f"{ours.split()[0]} plain")):
            ratios = [row[plain_] / row[ours] for row in rows]
            text = f"{statistics.median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"{plain_ + ' / ' + ours:55s} {text}")
    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    peak = matrix_peak(dtype, device, 8192 if on_gpu else 2048, 20 if on_gpu else 5)
    name = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"{name}: {peak / 1e12:.3f} TFLOP/s in large {dtype} matrix products")
    for work in (work for work in rows[0] if work.startswith("train")):
        values = bench.efficiency(work, statistics.median(row[work] for row in rows), peak)
        print(f"{work:32s} " + ", ".join(f"{value:.3g} {what}" for what, value in values.items()))


if __name__ == "__main__":
    main()
