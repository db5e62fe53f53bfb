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

import pandas as pd
import shapes
import torch
from peers import plain
from tables import spread
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode
from transformers import Seq2SeqTrainer, WhisperConfig, WhisperForConditionalGeneration

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


def training_flops(config: WhisperConfig, frames: int, tokens: int) -> float:
    """Operations of one clip in training, forward and backward: multiplications and additions of all matrix products.

    Norms, activations and softmax are left out, as is usual where a share of the peak is told (PaLM, arXiv:2204.02311,
    appendix B).

    Args:
        config: the model's.
        frames: feature frames of the window, 3000 for 30 s.
        tokens: label tokens of the clip.
    """
    settings = config.to_dict() | {"max_source_positions": frames // 2}
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = WhisperForConditionalGeneration(
            WhisperConfig.from_dict(settings, attn_implementation="eager")
        )
        features = torch.zeros(1, config.num_mel_bins, frames)
        model(input_features=features, labels=torch.zeros(1, tokens, dtype=torch.long)).loss.backward()
    return float(counter.get_total_flops())


def matrix_peak(dtype: torch.dtype, device: str, size: int) -> float:
    """Operations a second of large matrix products on the device: the median of several."""
    matrices = {name: torch.randn(size, size, device=device).to(dtype) for name in ("left", "right")}
    timer = Timer("left @ right", globals=matrices, num_threads=torch.get_num_threads())
    return 2.0 * size**3 / timer.blocked_autorange(min_run_time=1).median


class Bench:
    """One model and one set of clips."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self.asked, self.folder = asked, folder
        self.model = shapes.make_model(folder / "model", asked.shape)
        self.processor = plain.load_processor(self.model)
        self.splits = plain.load_splits(shapes.DEMO / "data", self.processor, 8 * asked.batch, asked.clips)
        self.config = TrainConfig(
            model=str(self.model),
            data="demo",
            cache_dir=str(folder / "cache"),
            learning_rate=1e-5,
            train_batch_size=asked.batch,
            eval_batch_size=asked.eval_batch,
            max_train_clips=8 * asked.batch,
            max_eval_clips=asked.clips,
            max_steps=asked.steps + 2,
            evaluations=1,
            generation_max_length=TOKENS,
        )
        train_split = prepare(self.config).splits["train"]
        self.tokens = statistics.mean(train_split.n_tokens(clip) for clip in range(len(train_split)))
        self.memory: dict[str, int] = {}

    def plain_trainer(self, *, use_cache: bool = True) -> Seq2SeqTrainer:
        """As the hand-made script has it, cuDNN's attention included, which our models switch off."""
        torch.backends.cuda.enable_cudnn_sdp(True)
        return plain.make_trainer(
            self.processor,
            self.splits,
            self.folder / "out",
            model=plain.load_model(self.model, use_cache=use_cache),
            generation_max_length=TOKENS + 4,
            max_steps=self.asked.steps + 2,
            learning_rate=1e-5,
            per_device_train_batch_size=self.asked.batch,
            per_device_eval_batch_size=self.asked.eval_batch,
            save_strategy="no",
        )

    def train_ours(self, window: float) -> None:
        config = self.config.replace(audio_window=window, max_eval_clips=1)
        train(config, prepare(config))

    def evaluate_ours(self, window: float) -> None:
        """As within a training with this window."""
        if window == 30:
            evaluate(self.config, prepare(self.config))
            return
        config = self.config.replace(
            audio_window=window, full_window_evaluation=False, max_steps=1, train_batch_size=1
        )
        train(config, prepare(config))

    def once(self) -> dict[str, float]:
        """Seconds of a training step or an evaluation, each way once."""
        works: dict[str, Callable[[], Any]] = {
            "train plain": lambda: self.plain_trainer().train(),
            "evaluate plain, no cache": lambda: self.plain_trainer(use_cache=False).evaluate(),
            "evaluate plain, cache": lambda: self.plain_trainer().evaluate(),
        }
        for window in self.asked.windows:
            works[f"train ours {window:g} s"] = functools.partial(self.train_ours, window)
            works[f"evaluate ours {window:g} s"] = functools.partial(self.evaluate_ours, window)
        return {name: self._measured(name, work) for name, work in works.items()}

    def _measured(self, name: str, work: Callable[[], Any]) -> float:
        """Seconds; on a GPU the most memory is noted too."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        seconds = step_of(work) if name.startswith("train") else evaluation_of(work)
        if torch.cuda.is_available():
            self.memory[name] = max(self.memory.get(name, 0), torch.cuda.max_memory_allocated())
        return seconds

    def efficiency(self, name: str, seconds: float, peak: float) -> dict[str, float]:
        """What a training's step of so many seconds comes to."""
        window = float(name.split()[2]) if "ours" in name else 30.0
        model_config = WhisperConfig.from_pretrained(self.model)
        rate = self.asked.batch / seconds
        done = rate * training_flops(model_config, round(100 * window), round(self.tokens))
        found = {
            "clips a second": rate,
            "tokens a second": rate * self.tokens,
            "TFLOP/s": done / 1e12,
            "share of peak": done / peak,
        }
        if name in self.memory:
            found["peak memory, GB"] = self.memory[name] / 1e9
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--shape", choices=list(shapes.SHAPES), default="tiny")
    parser.add_argument("--windows", type=float, nargs="+", default=[30.0, 15.0, 8.0, 5.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--eval-batch", type=int, default=8)
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), asked)
        for number in range(asked.repeats):
            rows.append(bench.once())
            print(f"repeat {number + 1} of {asked.repeats} done", file=sys.stderr)
        show(bench, pd.DataFrame(rows))


def show(bench: Bench, seconds: pd.DataFrame) -> None:
    """Print what was measured: a row for each repeat, a column for each way."""
    medians = seconds.median()
    for name, median in medians.items():
        print(f"{name:32s} {median:8.3f} s")
    for ours, theirs in itertools.product(seconds, seconds):
        if "ours" in ours and theirs.startswith(f"{ours.split()[0]} plain"):
            print(f"{theirs + ' / ' + ours:55s} {spread(seconds[theirs] / seconds[ours])}")
    on_gpu = torch.cuda.is_available()
    device, dtype, size = ("cuda", torch.bfloat16, 8192) if on_gpu else ("cpu", torch.float32, 2048)
    peak = matrix_peak(dtype, device, size)
    name = torch.cuda.get_device_name() if on_gpu else f"{torch.get_num_threads()} CPU threads"
    print(f"{name}: {peak / 1e12:.3f} TFLOP/s in large {dtype} matrix products")
    for work in (work for work in seconds if work.startswith("train")):
        values = bench.efficiency(work, medians[work], peak)
        print(f"{work:32s} " + ", ".join(f"{value:.3g} {what}" for what, value in values.items()))


if __name__ == "__main__":
    main()
