"""How soon a search has what others come to: `ray-plain`, `hf-search` and ours on the same data, model and machine.

    python benchmarks/search_speed.py [--trials 8] [--epochs 4] [--clips 800] [--seeds 0 1 2] [--model FOLDER]

For each seed the three searches run one after the other on the demo's data, the peers to the end of their trials. Ours
has as many trials as it needs, and ends once it has what both came to, or after the time that the slower of them took.
Told are the seconds from the start of the process until the WER that a peer ended with is reached. Our trials evaluate
with the model's whole window here (`--finalists 0`), as the peers' do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import spread

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "trainer" / "demo"
PEERS = ("ray_plain", "hf_search")


@dataclasses.dataclass(frozen=True)
class Search:
    """What was seen of one search."""

    points: list[tuple[float, float]]
    """Seconds since the search's start, and WER, of each evaluation."""
    seconds: float
    """Of the whole process."""

    @property
    def best(self) -> float:
        return min((wer for _, wer in self.points), default=math.inf)

    def reached(self, wer: float) -> float:
        """Seconds until a WER was reached; infinite where it never was."""
        return min((seconds for seconds, rate in self.points if rate <= wer + 1e-9), default=math.inf)


def run_peer(name: str, folder: Path, asked: argparse.Namespace, seed: int) -> Search:
    """A peer to its end."""
    numbers = [str(number) for number in (asked.trials, asked.epochs, seed, asked.clips)]
    words = [str(asked.model.absolute()), str(DEMO / "data"), *numbers, str(folder / "rows.jsonl")]
    command = [sys.executable, str(ROOT / "benchmarks" / "peers" / f"{name}.py"), *words]
    begun = time.time()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, check=False, cwd=folder, stdout=log, stderr=log)
    if done.returncode:
        raise SystemExit((folder / "log.txt").read_text()[-3000:])
    seconds = time.time() - begun
    rows = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    return Search([(row["time"] - begun, row["wer"]) for row in rows], seconds)


def run_ours(folder: Path, asked: argparse.Namespace, seed: int, wanted: float, most: float) -> Search:
    """Ours until it has the `wanted` WER, or for `most` seconds."""
    words = (
        f"--space lr_batch --trials 1000 --epochs {asked.epochs} --seed {seed} --data demo --experiment ours"
    )
    words += f" --finalists 0 --set generation_max_length=40 --set max_train_clips={asked.clips} --model"
    command = [sys.executable, "-m", "tune", *words.split(), str(asked.model.absolute())]
    begun = time.time()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    log = folder / "experiments" / "ours" / "events.jsonl"
    points: list[tuple[float, float]] = []
    while process.poll() is None:
        time.sleep(0.2)
        lines = log.read_text().splitlines() if log.is_file() else []
        rows = [json.loads(line) for line in lines if '"event": "Evaluated"' in line and line.endswith("}")]
        # A trial that diverges has no WER.
        points = [
            (row["time"] - begun, row["data"]["metrics"]["wer"])
            for row in rows
            if "wer" in row["data"]["metrics"]
        ]
        if time.time() - begun > most or any(wer <= wanted for _, wer in points):
            process.send_signal(signal.SIGINT)
            process.wait(120)
    if process.returncode not in (0, 130):
        raise SystemExit(f"our search failed with exit code {process.returncode}")
    return Search(points, time.time() - begun)


def once(asked: argparse.Namespace, seed: int) -> dict[str, Search]:
    found: dict[str, Search] = {}
    for name in (*PEERS, "ours"):
        with tempfile.TemporaryDirectory() as scratch:
            if name == "ours":
                wanted = min(peer.best for peer in found.values())
                most = max(peer.seconds for peer in found.values())
                search = run_ours(Path(scratch), asked, seed, wanted, most)
            else:
                search = run_peer(name, Path(scratch), asked, seed)
        found[name] = search
        at, whole = search.reached(search.best), search.seconds
        print(f"seed {seed} {name}: {search.best:.2f} % after {at:.0f} of {whole:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--clips", type=int, default=800, help="to train on")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--model", type=Path, default=DEMO / "model", help="folder (default: the demo's)")
    asked = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    rows = [once(asked, seed) for seed in asked.seeds]
    for peer in PEERS:
        ratios = [row[peer].seconds / row["ours"].reached(row[peer].best) for row in rows]
        print(f"{peer}, whole search / ours until its WER, 0 where never: median {spread(ratios)}")


if __name__ == "__main__":
    main()
