"""What a space is worth where data is hard: `lr_batch` and another one on the same few voices, on the test split.

    python benchmarks/robust.py FOLDER [--seeds 0 1 2] [--trials 8] [--epochs 8] [--speakers 4]
        [--snr LOW HIGH] [--spaces lr_batch robust] [words of tune-whisper ...]
    python benchmarks/robust.py FOLDER --seeds 0 --spaces     # makes the data and runs nothing

For each seed a few-speaker set (`few_speakers.py`) is made in FOLDER, and searched with each space: as many trials,
epochs and finalists for both, the searches' and trainings' seeds the same. What a search exports is measured on the
test split, whose voices neither trained nor chose anything. A line of JSON is printed for each search.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import few_speakers


@dataclasses.dataclass(frozen=True)
class Search:
    """What one search came to. Error rates in percent."""

    space: str
    seed: int
    test: float
    """WER of what was exported, on the test split."""
    baseline_test: float
    validation: float
    """WER of the winning run at its best."""
    samples: int
    """Seen in all trials and repeats."""
    seconds: float
    config: dict[str, Any]
    """Settings that won."""


def search(space: str, data: Path, seed: int, asked: argparse.Namespace, words: list[str]) -> Search:
    """Run one search to its end."""
    command = [sys.executable, "-m", "tune", "--space", space, "--trials", str(asked.trials)]
    command += ["--data", str(data), "--epochs", str(asked.epochs), "--seed", str(seed)]
    command += ["--experiment", "x", *words]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        with (Path(place) / "log").open("w") as log:
            done = subprocess.run(command, check=False, cwd=place, env=environment, stdout=log, stderr=log)
        told = (Path(place) / "log").read_text()
        if done.returncode:
            raise SystemExit(told[-3000:])
        results = json.loads((Path(place) / "experiments" / "x" / "results.json").read_text())
    runs = [*results["trials"], *(results.get("repeats") or [])]
    best = results["best"]
    return Search(
        space=space,
        seed=seed,
        test=results["test"]["wer"],
        baseline_test=results["test"]["baseline_wer"],
        validation=best["wer"],
        samples=sum(run["samples_seen"] for run in runs),
        seconds=time.monotonic() - began,
        config=best["config"],
    )


def describe(found: list[Search], spaces: list[str]) -> str:
    """A table by space."""
    lines = ["| space | WER on test, mean (each seed) | validation | samples | minutes |", "|" + " --- |" * 5]
    for space in spaces:
        mine = [each for each in found if each.space == space]
        rates = ([each.test for each in mine], [each.validation for each in mine])
        told = [f"{statistics.mean(r):.2f} ({', '.join(f'{rate:.2f}' for rate in r)})" for r in rates]
        samples, seconds = (
            statistics.mean(getattr(each, of) for each in mine) for of in ("samples", "seconds")
        )
        lines.append(f"| `{space}` | {' | '.join(told)} | {samples:,.0f} | {seconds / 60:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Search, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--spaces", nargs="*", default=["lr_batch", "robust"])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=8)
    parser.add_argument("--clips", type=int, default=600, help="of each split")
    parser.add_argument("--speakers", type=int, default=4, choices=range(1, 5), help="of the training clips")
    parser.add_argument("--snr", type=float, nargs=2, help="of validation and test, dB: a noisy field")
    asked, words = parser.parse_known_args()
    found: list[Search] = []
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
            found.append(search(space, data.absolute(), seed, asked, words))
            print(json.dumps(dataclasses.asdict(found[-1])), flush=True)
    print(describe(found, asked.spaces) if found else asked.folder)


if __name__ == "__main__":
    main()
