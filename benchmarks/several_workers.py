"""What a search of trials with several workers costs beside its trials, and whether it gives everything back.

    python benchmarks/several_workers.py [--trials 12] [--epochs 4]

Starts a Ray head with 4 GPUs that are not there (2 trials of 2 workers at a time), runs a search on the demo data and
prints wall time / (sum of trial times / slots). Needs nothing but the development environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from ray_nodes import Nodes  # noqa: E402

SLOTS = 2


def main() -> None:
    """Run it and print one line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=float, default=4.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as storage, Nodes(cpus=2, gpus=4) as nodes:
        command = [sys.executable, "-m", "tune", "--space", "lr_batch", "--trials", str(arguments.trials)]
        command += [
            "--finalists",
            "0",
            "--workers-per-trial",
            "2",
            "--epochs",
            str(arguments.epochs),
            "--address",
            nodes.address,
        ]
        begun = time.monotonic()
        subprocess.run(
            [*command, "--storage", storage, "--experiment", "b"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wall = time.monotonic() - begun
        results = json.loads((Path(storage) / "b" / "results.json").read_text())
        waited = time.monotonic()
        total, free = nodes.resources()
        while free != total and time.monotonic() - waited < 60:
            total, free = nodes.resources()
        trials = results["trials"]
    ideal = sum(trial["seconds"] for trial in trials) / SLOTS
    stopped = sum(trial["status"] == "early_stopped" for trial in trials)
    print(f"Ray {version('ray')}: {len(trials)} trials, {stopped} stopped early")
    print(f"wall time of the command {wall:.1f} s, of its search {results['seconds']:.1f} s")
    print(f"sum of trial times / {SLOTS} slots {ideal:.1f} s")
    print(f"ratio {wall / ideal:.2f} (search alone {results['seconds'] / ideal:.2f})")
    print(f"free in the end: {free} of {total}")


if __name__ == "__main__":
    main()
