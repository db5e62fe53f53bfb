"""What a space is worth where data is hard: `lr_batch` and another one on the same few voices, on the test split.

    python benchmarks/robust.py FOLDER [--seeds 0 1 2] [--trials 8] [--epochs 8] [--speakers 4]
        [--snr LOW HIGH] [--spaces lr_batch robust]
    python benchmarks/robust.py FOLDER --seeds 0 --spaces     # makes the data and runs nothing

For each seed a few-speaker set (`few_speakers.py`) is made in FOLDER, and searched with each space: as many trials,
epochs and finalists for both, the searches' and trainings' seeds the same. What a search exports is measured on the
test split, whose voices neither trained nor chose anything. A line of JSON is printed for each search.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import few_speakers
import pandas as pd
from tables import markdown

import tune_whisper

Row = dict[str, Any]


def search(space: str, data: Path, seed: int, asked: argparse.Namespace) -> Row:
    """Run one search to its end; error rates in percent, `test` and `validation` of what it exports."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as storage:
        found = tune_whisper.search(
            space,
            model="demo",
            language="en",
            data=str(data),
            trials=asked.trials,
            epochs=asked.epochs,
            seed=seed,
            storage=storage,
            quiet=True,
        )
    results = found.results
    runs = [*results["trials"], *results["repeats"]]
    return {
        "space": space,
        "seed": seed,
        "test": results["test"]["wer"],
        "baseline_test": results["test"]["baseline_wer"],
        "validation": results["best"]["wer"],
        "samples": sum(run["samples_seen"] for run in runs),
        "seconds": time.monotonic() - began,
        "config": results["best"]["config"],
    }


def describe(rows: list[Row]) -> str:
    """A table by space."""
    shown = []
    for space, mine in pd.DataFrame(rows).groupby("space", sort=False):
        row = {"space": f"`{space}`"}
        for heading, rates in (("WER on test, mean (each seed)", mine.test), ("validation", mine.validation)):
            row[heading] = f"{rates.mean():.2f} ({', '.join(f'{rate:.2f}' for rate in rates)})"
        shown.append(
            row | {"samples": f"{mine.samples.mean():,.0f}", "minutes": f"{mine.seconds.mean() / 60:.1f}"}
        )
    return markdown(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--spaces", nargs="*", default=["lr_batch", "robust"])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--clips", type=int, default=600, help="of each split")
    parser.add_argument("--speakers", type=int, default=4, choices=range(1, 5), help="of the training clips")
    parser.add_argument("--snr", type=float, nargs=2, help="of validation and test, dB: a noisy field")
    asked = parser.parse_args()
    found: list[Row] = []
    for seed in asked.seeds:
        noisy = "-".join(f"{ratio:g}" for ratio in asked.snr or ())
        data = few_speakers.make(
            asked.folder / f"seed-{seed}-clips-{asked.clips}-speakers-{asked.speakers}-snr-{noisy or 'own'}",
            clips=asked.clips,
            seed=seed,
            speakers=asked.speakers,
            snr=tuple(asked.snr) if asked.snr else None,
        )
        for space in asked.spaces:
            found.append(search(space, data.absolute(), seed, asked))
            print(json.dumps(found[-1]), flush=True)
    print(describe(found) if found else asked.folder)


if __name__ == "__main__":
    main()
