"""How soon a search has what others come to: `ray-plain`, `hf-search` and ours on the same data, model and machine.

    python benchmarks/search_speed.py [--trials 8] [--epochs 4] [--seeds 0 1 2] [--window demo] [--output FILE]

For each seed the three searches run one after the other. Told are the seconds from the start of the process until the
WER that a peer ended with is reached, and from a trial's start to its first optimiser step. Our trials evaluate with
Whisper's whole window here (`--finalists 0`), as the peers' do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import shapes  # noqa: E402

Timeline = list[tuple[float, float]]
"""Seconds since the search's start, and the best WER by then."""


def run_peer(name: str, folder: Path, words: list[str]) -> tuple[Timeline, list[float]]:
    """A peer's evaluations, and how long each trial took to its first step."""
    output = folder / f"{name}.jsonl"
    command = [sys.executable, str(PEERS / f"{name}.py"), *words, str(output)]
    subprocess.run(command, check=True, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    points = [(row["seconds"], row["wer"]) for row in rows if "wer" in row]
    return improving(points), [row["first_step"] for row in rows if "first_step" in row]


def run_ours(
    folder: Path, model: str, arguments: argparse.Namespace, seed: int
) -> tuple[Timeline, list[float]]:
    """The same of a search of ours; its evaluations are timed when they are in `state.json`."""
    words = ["--space", "lr_batch", "--trials", str(arguments.trials), "--epochs", str(arguments.epochs)]
    words += [
        "--seed",
        str(seed),
        "--model",
        model,
        "--data",
        "demo",
        "--experiment",
        "ours",
        "--finalists",
        "0",
    ]
    words += ["--set", "generation_max_length=40", "--set", "log_every_seconds=0"]
    begun = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "tune", *words], cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    )
    state = folder / "experiments" / "ours" / "state.json"
    points: Timeline = []
    started: dict[str, float] = {}
    while process.poll() is None:
        time.sleep(0.1)
        if not state.is_file():
            continue
        now = time.time()
        for trial in json.loads(state.read_text())["trials"]:
            started.setdefault(trial["trial_id"], now)
            points += [(now - begun, wer) for _, wer in trial["evaluations"]]
    if process.returncode:
        raise SystemExit("our search failed")
    # The first row of a trial's loss in MLflow, with log_every_seconds=0, is that of its first step.
    stepped = first_steps(folder / "experiments" / "ours" / "mlflow.db")
    return improving(points), [stepped[name] - started[name] for name in stepped if name in started]


def first_steps(database: Path) -> dict[str, float]:
    """When each trial had done its first optimiser step."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{database}")
    found = {}
    for run in client.search_runs(["1"], "tags.role = 'trial'"):
        points = client.get_metric_history(run.info.run_id, "loss")
        if points:
            found[run.data.tags["trial_id"]] = min(point.timestamp for point in points) / 1000
    return found


def improving(points: Timeline) -> Timeline:
    """Those that are better than all before."""
    kept: Timeline = []
    for seconds, wer in sorted(points):
        if not kept or wer < kept[-1][1]:
            kept.append((seconds, wer))
    return kept


def environment() -> dict[str, str]:
    """No Ray cluster, and the package from here."""
    kept = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return {**kept, "PYTHONPATH": str(ROOT)}


def reached(timeline: Timeline, wer: float) -> float:
    """Seconds until a WER was reached; infinite where it never was."""
    return next((seconds for seconds, best in timeline if best <= wer + 1e-9), math.inf)


def once(arguments: argparse.Namespace, seed: int) -> dict[str, dict[str, object]]:
    """All three searches."""
    found: dict[str, dict[str, object]] = {}
    for name in ("ray_plain", "hf_search", "ours"):
        if name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            model = "demo" if arguments.window == "demo" else str(shapes.lengthen_demo(folder / "model"))
            if name == "ours":
                timeline, starts = run_ours(folder, model, arguments, seed)
            else:
                where = str(shapes.DEMO / "model") if model == "demo" else model
                numbers = [str(number) for number in (arguments.trials, arguments.epochs, seed)]
                timeline, starts = run_peer(name, folder, [where, str(shapes.DEMO / "data"), *numbers])
        found[name] = {"timeline": timeline, "first_step": starts}
        print(f"seed {seed} {name}: {timeline[-1][1]:.2f} % after {timeline[-1][0]:.0f} s", file=sys.stderr)
    return found


def main() -> None:
    """Measure and print; JSON where asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--window", choices=("demo", "30"), default="demo", help="of the model, in seconds")
    parser.add_argument("--only", nargs="+", default=["ray_plain", "hf_search", "ours"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = {seed: once(arguments, seed) for seed in arguments.seeds}
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    for peer in ("ray_plain", "hf_search"):
        ratios = []
        for seed, row in rows.items():
            if peer not in row or "ours" not in row:
                continue
            theirs, ours = row[peer]["timeline"], row["ours"]["timeline"]
            wer = theirs[-1][1]  # type: ignore[index]
            seconds = reached(theirs, wer), reached(ours, wer)  # type: ignore[arg-type]
            ratios.append(seconds[0] / seconds[1])
            print(f"seed {seed}: WER {wer:.2f} % of {peer}: {seconds[0]:.0f} s, ours {seconds[1]:.0f} s")
        if ratios:
            print(
                f"{peer} / ours: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )
    for name in ("ray_plain", "ours"):
        starts = [value for row in rows.values() if name in row for value in row[name]["first_step"]]  # type: ignore[attr-defined]
        if starts:
            middle = statistics.median(starts)
            print(f"{name}: start of a trial to its first step {middle:.1f} s (median of {len(starts)})")


if __name__ == "__main__":
    main()
