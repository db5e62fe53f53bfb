"""How soon a search has what others come to: `ray-plain`, `hf-search` and ours on the same data, model and machine.

    python benchmarks/search_speed.py [--trials 8] [--epochs 4] [--clips 800] [--seeds 0 1 2] [--window demo]

For each seed the three searches run one after the other, the peers to the end of their trials. Ours has as many
trials as it needs, and ends once it has what both came to, or after the time that the slower of them took. Told are
the seconds from the start of the process until the WER that a peer ended with is reached, and from a trial's start to
its first optimiser step. Our trials evaluate with Whisper's whole window here (`--finalists 0`), as the peers' do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers"
LONG_MODEL = ROOT / "build" / "bench" / "model-30s"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import long_window  # noqa: E402
import shapes  # noqa: E402

Timeline = list[tuple[float, float]]
"""Seconds since the search's start, and the best WER by then."""


@dataclasses.dataclass(frozen=True)
class Search:
    """What was seen of one search."""

    timeline: Timeline
    first_step: list[float]
    """Seconds from each trial's start to its first optimiser step, where they are known."""
    seconds: float
    """Of the whole process."""


def run_peer(name: str, folder: Path, words: list[str]) -> Search:
    """A peer to its end."""
    output = folder / f"{name}.jsonl"
    command = [sys.executable, str(PEERS / f"{name}.py"), *words, str(output)]
    begun = time.time()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, check=False, cwd=folder, env=environment(), stdout=log, stderr=log)
    if done.returncode:
        raise SystemExit((folder / "log.txt").read_text()[-3000:])
    seconds = time.time() - begun
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    points = [(row["seconds"], row["wer"]) for row in rows if "wer" in row]
    return Search(improving(points), [row["first_step"] for row in rows if "first_step" in row], seconds)


def run_ours(
    folder: Path, model: str, arguments: argparse.Namespace, seed: int, wanted: float, most: float
) -> Search:
    """Ours until it has the `wanted` WER, or `most` seconds; evaluations are timed when they are in `state.json`."""
    words = [
        "--space",
        "lr_batch",
        "--trials",
        "1000",
        "--epochs",
        str(arguments.epochs),
        "--seed",
        str(seed),
    ]
    words += ["--model", model, "--data", "demo", "--experiment", "ours", "--finalists", "0"]
    words += ["--set", "generation_max_length=40", "--set", "log_every_seconds=0"]
    words += ["--set", f"max_train_clips={arguments.clips}"]
    begun = time.time()
    process = subprocess.Popen(
        [sys.executable, "-m", "tune", *words], cwd=folder, env=environment(), stdout=subprocess.DEVNULL
    )
    state = folder / "experiments" / "ours" / "state.json"
    points: Timeline = []
    started: dict[str, float] = {}
    while process.poll() is None:
        time.sleep(0.1)
        if time.time() - begun > most or any(wer <= wanted for _, wer in points):
            process.send_signal(signal.SIGINT)
            process.wait(120)
            break
        if not state.is_file():
            continue
        now = time.time()
        for trial in json.loads(state.read_text())["trials"]:
            started.setdefault(trial["trial_id"], now)
            points += [(now - begun, wer) for _, wer in trial["evaluations"]]
    if process.returncode not in (0, 130):
        raise SystemExit(f"our search failed with exit code {process.returncode}")
    seconds = time.time() - begun
    # The first row of a trial's loss in MLflow, with log_every_seconds=0, is that of its first step.
    stepped = first_steps(folder / "experiments" / "ours" / "mlflow.db")
    starts = [stepped[name] - started[name] for name in stepped if name in started]
    return Search(improving(points), starts, seconds)


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


def once(arguments: argparse.Namespace, seed: int) -> dict[str, Search]:
    """All three searches."""
    found: dict[str, Search] = {}
    for name in ("ray_plain", "hf_search", "ours"):
        if name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            model = "demo" if arguments.window == "demo" else str(long_window.make(LONG_MODEL))
            if name == "ours":
                wanted = min((each.timeline[-1][1] for each in found.values()), default=0.0)
                most = max((each.seconds for each in found.values()), default=600.0)
                found[name] = run_ours(folder, model, arguments, seed, wanted, most)
            else:
                where = str(shapes.DEMO / "model") if model == "demo" else model
                numbers = [
                    str(number) for number in (arguments.trials, arguments.epochs, seed, arguments.clips)
                ]
                found[name] = run_peer(name, folder, [where, str(shapes.DEMO / "data"), *numbers])
        seconds, wer = found[name].timeline[-1]
        print(
            f"seed {seed} {name}: {wer:.2f} % after {seconds:.0f} of {found[name].seconds:.0f} s", flush=True
        )
    return found


def main() -> None:
    """Measure and print; JSON where asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clips", type=int, default=800, help="to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--window", choices=("demo", "30"), default="demo", help="of the model, in seconds")
    parser.add_argument("--only", nargs="+", default=["ray_plain", "hf_search", "ours"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = {seed: once(arguments, seed) for seed in arguments.seeds}
    if arguments.output:
        plain = {
            seed: {name: dataclasses.asdict(each) for name, each in row.items()} for seed, row in rows.items()
        }
        arguments.output.write_text(json.dumps(plain, indent=1) + "\n")
    for peer in ("ray_plain", "hf_search"):
        ratios = []
        for seed, row in rows.items():
            if peer not in row or "ours" not in row:
                continue
            wer, whole = row[peer].timeline[-1][1], row[peer].seconds
            first, ours = reached(row[peer].timeline, wer), reached(row["ours"].timeline, wer)
            ratios.append(whole / ours)
            print(
                f"seed {seed}: {wer:.2f} % of {peer}: whole search {whole:.0f} s, first there after {first:.0f} s; "
                f"ours after {ours:.0f} s"
            )
        if ratios:
            print(
                f"{peer}, whole search / ours until its WER: median {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )
    for name in ("ray_plain", "ours"):
        starts = [value for row in rows.values() if name in row for value in row[name].first_step]
        if starts:
            middle = statistics.median(starts)
            print(f"{name}: start of a trial to its first step {middle:.1f} s (median of {len(starts)})")


if __name__ == "__main__":
    main()
