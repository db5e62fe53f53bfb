"""The window of each batch beside that of the longest clip of all: error rates with the whole window, time of a step.

    python benchmarks/batch_window.py FOLDER [--seeds 0 1 2] [--epochs 4] [--data demo few_speakers]

Trains the demo's model on the demo and on the few-speaker set (`few_speakers.py`), which is kept in FOLDER with all
features, once with each setting for every seed, in turns. The model is then measured as it will be used, on the
validation and the test split. Time is what the process computes, on one thread, between two steps: other work on the
machine counts less. Differences have two 95 % intervals: that of the clips, paired, of the errors of all seeds
together, and that of the seeds, by Student's t.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from scipy.special import stdtrit  # noqa: E402

from trainer.config import TrainConfig  # noqa: E402
from trainer.scoring.intervals import compare  # noqa: E402
from trainer.train import evaluate, train  # noqa: E402

SETTINGS: dict[str, str] = {"one window": "auto", "each batch's own": "batch"}
SPLITS = ("validation", "test")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training, measured with the whole window."""

    data: str
    setting: str
    seed: int
    wer: dict[str, float]
    """By split, in percent."""
    loss: dict[str, float]
    errors: dict[str, list[int]]
    """Wrong words of each clip."""
    words: dict[str, list[int]]
    step: float
    """CPU seconds of a step, in the mean."""


def run(config: TrainConfig, data: str, setting: str) -> Run:
    """Train and measure."""
    times: list[float] = []

    def report(_metrics: Mapping[str, float], checkpoint: Path | None) -> None:
        if checkpoint is None:
            times.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        result = train(config, report, output_dir=Path(folder))
        found = {split: evaluate(config.replace(model=str(result.checkpoint)), split) for split in SPLITS}
    steps = [after - before for before, after in itertools.pairwise(times)][2:]
    told = {split: one.utterances for split, one in found.items() if one.utterances is not None}
    return Run(
        data=data,
        setting=setting,
        seed=config.seed,
        wer={split: one.wer for split, one in found.items()},
        loss={split: one.loss for split, one in found.items()},
        errors={split: list(one.word_errors) for split, one in told.items()},
        words={split: list(one.words) for split, one in told.items()},
        step=statistics.mean(steps),
    )


def describe(runs: list[Run]) -> str:
    """A table of the runs on one data set."""
    one, own = ([found for found in runs if found.setting == name] for name in SETTINGS)
    rows = [["", *SETTINGS, "difference"]]
    for split in SPLITS:
        wers = [[found.wer[split] for found in part] for part in (one, own)]
        errors = [np.sum([found.errors[split] for found in part], axis=0) for part in (one, own)]
        paired = compare(errors[1], errors[0], len(own) * np.asarray(own[0].words[split]))
        low, high = paired.interval or (float("nan"), float("nan"))
        clips = f"{paired.difference:+.2f} ({low:+.2f} to {high:+.2f})"
        rows.append([f"WER, {split}", *map(_several, wers), f"{clips}, seeds ± {_reach(*wers):.2f}"])
        losses = [[found.loss[split] for found in part] for part in (one, own)]
        apart = [after - before for before, after in zip(*losses, strict=True)]
        rows.append([f"loss, {split}", *(_several(part, 3) for part in losses), _several(apart, 3)])
    steps = [[1000 * found.step for found in part] for part in (one, own)]
    ratios = [after / before for before, after in zip(*steps, strict=True)]
    rows.append(
        ["step, CPU ms", *(f"{statistics.median(part):.0f}" for part in steps), f"x {_several(ratios)}"]
    )
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]])


def _reach(before: list[float], after: list[float]) -> float:
    """Half of the 95 % interval of the mean difference, from its spread over the seeds."""
    if len(before) < 2:
        return float("nan")
    error = statistics.stdev(np.subtract(after, before)) / len(before) ** 0.5
    return float(stdtrit(len(before) - 1, 0.975)) * error


def _several(values: list[float], digits: int = 2) -> str:
    """Their mean, and each of them."""
    return f"{statistics.mean(values):.{digits}f} ({', '.join(f'{value:.{digits}f}' for value in values)})"


def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="keeps the few-speaker set, features and figures")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument(
        "--data", nargs="+", default=["demo", "few_speakers"], choices=["demo", "few_speakers"]
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    runs: list[Run] = []
    for data in asked.data:
        place = data
        if data == "few_speakers":
            import few_speakers

            place = str(few_speakers.make(asked.folder / data))
        for seed, (name, window) in itertools.product(asked.seeds, SETTINGS.items()):
            config = TrainConfig.from_dict(
                {
                    **{
                        "model": "demo",
                        "data": place,
                        "language": "en",
                        "cache_dir": str(asked.folder / "cache"),
                    },
                    **{"learning_rate": 1e-3, "epochs": asked.epochs, "evaluations": 1, "seed": seed},
                    **{"audio_window": window, "log_every_seconds": 0.0},
                }
            )
            runs.append(run(config, data, name))
            wers = ", ".join(f"{split} {wer:.2f} %" for split, wer in runs[-1].wer.items())
            print(f"{data}, seed {seed}, {name}: WER {wers}; {1000 * runs[-1].step:.0f} ms", flush=True)
            content = json.dumps([dataclasses.asdict(found) for found in runs])
            (asked.folder / "batch_window.json").write_text(content + "\n", encoding="utf-8")
        print(f"\n{data}\n\n{describe([found for found in runs if found.data == data])}\n", flush=True)


if __name__ == "__main__":
    main()
