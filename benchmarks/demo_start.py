"""How soon the demo trains, how long it takes and what it holds, beside another commit: `tune-whisper --trials 8`.

    git worktree add ../before 5857576
    python benchmarks/demo_start.py --other ../before [--runs 3] [--trials 8] [--warm] [--output FILE]

Both run with this Python, in turns, each time in a folder and with a cache of their own (`--warm`: with the features
and the base model's rates of a search before). Told are the seconds from the start of the command to the end of the
first training step and to its own end, those that it takes after its last training, the largest sum of memory (PSS,
which counts what processes share once) over all its processes, and the CPU seconds that they had taken by the first
step; medians, and ratios within a turn. At the end both search once more with one trial at a time, and every WER of
both is compared (`--no-results`: not).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
_MARK = "DEMO_START_RUN"
"""Environment variable by which a run's processes are known, whoever their parents are."""
_LOOK_SECONDS = 1.0


@dataclasses.dataclass
class Run:
    """What was seen of one search."""

    first_step: float
    """Seconds from the command's start to the end of the first optimiser step of a trial."""
    seconds: float
    """Of the whole command."""
    end: float
    """Seconds from the end of the last trial or repeat to the command's."""
    peak_mb: float
    """The largest sum of PSS over its processes."""
    peak_of: dict[str, float]
    """MB by kind of process at that moment."""
    cpu: dict[str, float]
    """CPU seconds by kind of process until the first step."""
    wers: dict[str, list[float]]
    """Of every trial and repeat at its rungs."""


class Meter(threading.Thread):
    """Looks at all processes of a run every second."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = f"{_MARK}={mark}".encode()
        self._done = threading.Event()
        self._known: dict[int, bool] = {}
        self._cpu: dict[int, tuple[str, float]] = {}
        self.looks: list[tuple[float, dict[str, float], dict[str, float]]] = []
        """Unix time, MB and CPU seconds so far by kind of process."""

    def run(self) -> None:
        """The thread's life."""
        while not self._done.wait(_LOOK_SECONDS):
            self._look()

    def stop(self) -> None:
        """End the thread."""
        self._done.set()
        self.join()

    def _look(self) -> None:
        memory: Counter[str] = Counter()
        for process in psutil.process_iter():
            try:
                if not self._ours(process.pid):
                    continue
                kind, times = _kind(process), process.cpu_times()
                self._cpu[process.pid] = kind, times.user + times.system
                memory[kind] += _pss(process.pid)
            except (psutil.Error, OSError):
                continue  # it has just ended
        cpu: Counter[str] = Counter()
        for kind, seconds in self._cpu.values():
            cpu[kind] += seconds
        self.looks.append((time.time(), dict(memory), dict(cpu)))

    def _ours(self, pid: int) -> bool:
        if pid not in self._known:
            self._known[pid] = self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return self._known[pid]


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 2**10
    return 0.0


def _kind(process: psutil.Process) -> str:
    """One word for what a process does."""
    words = process.cmdline() or [process.name()]
    if words[0].startswith("ray::"):
        return words[0].split(".")[0]
    if "-m" in words:
        return words[words.index("-m") + 1]
    names = [Path(word).name for word in words if word.endswith((".py", "raylet", "gcs_server"))]
    if names:
        return "/".join(Path(next(word for word in words if word.endswith(names[0]))).parts[-3:])
    return Path(words[0]).name if len(words) < 2 else f"{Path(words[0]).name} {words[1]}"


def environment(tree: Path, cache: Path, mark: str) -> dict[str, str]:
    """No Ray cluster, the package from `tree`, and a cache of its own."""
    kept = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return {**kept, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(cache), _MARK: mark}


def run(tree: Path, cache: Path | None, trials: int, words: list[str]) -> Run:
    """One search by the code in `tree`."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "tune", "--space", "lr_batch", "--trials", str(trials)]
    command += ["--experiment", "demo", "--set", "log_every_seconds=0", *words]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        meter = Meter(mark)
        meter.start()
        begun = time.time()
        with (folder / "log.txt").open("w") as log:
            env = environment(tree, cache or folder / "cache", mark)
            done = subprocess.run(command, check=False, cwd=folder, env=env, stdout=log, stderr=log)
        ended = time.time()
        meter.stop()
        if done.returncode:
            raise SystemExit((folder / "log.txt").read_text()[-3000:])
        stepped, trained = first_and_last(folder / "experiments" / "demo" / "mlflow.db")
        wers = read_wers(folder / "experiments" / "demo" / "results.json")
    _, peak, _ = max(meter.looks, key=lambda look: sum(look[1].values()))
    cpu = next(cpu for at, _, cpu in meter.looks if at >= stepped)
    return Run(stepped - begun, ended - begun, ended - trained, sum(peak.values()), peak, cpu, wers)


def first_and_last(database: Path) -> tuple[float, float]:
    """When the first loss of any run was told, that of its first step, and when the last run but the search's ended."""
    with sqlite3.connect(database) as connection:
        ((first,),) = connection.execute("SELECT MIN(timestamp) FROM metrics WHERE key = 'loss'")
        ((last,),) = connection.execute(
            "SELECT MAX(end_time) FROM runs JOIN tags USING (run_uuid) "
            "WHERE key = 'role' AND value IN ('trial', 'repeat')"
        )
    return float(first) / 1000, float(last) / 1000


def read_wers(results: Path) -> dict[str, list[float]]:
    """WER in percent at each rung, of every trial and repeat."""
    told = json.loads(results.read_text())
    runs = [*told["trials"], *(told.get("repeats") or [])]
    return {run["trial_id"]: [each["wer"] for each in run["evaluations"]] for run in runs}


def table(runs: dict[str, list[Run]]) -> str:
    """Medians, their ratio, and the ratios within each turn, as Markdown."""
    rows = [
        "| | other | here | here / other | each turn |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    figures = {
        "first step, s": lambda run: run.first_step,
        "whole command, s": lambda run: run.seconds,
        "its end, s": lambda run: run.end,
        "peak memory, MB": lambda run: run.peak_mb,
        "CPU until the first step, s": lambda run: sum(run.cpu.values()),
    }
    for name, figure in figures.items():
        other, here = ([figure(each) for each in runs[side]] for side in ("other", "here"))
        ratios = [mine / its for mine, its in zip(here, other, strict=True)]
        rows.append(
            f"| {name} | {statistics.median(other):,.1f} | {statistics.median(here):,.1f} | "
            f"{statistics.median(ratios):.2f} | {', '.join(f'{ratio:.2f}' for ratio in ratios)} |"
        )
    return "\n".join(rows)


def details(run: Run, name: str) -> str:
    """Memory at the peak and CPU until the first step of one run, by kind of process."""
    lines = [f"{name}: MB at the peak, CPU seconds until the first step"]
    for kind in sorted(run.peak_of.keys() | run.cpu.keys(), key=lambda kind: -run.cpu.get(kind, 0.0)):
        lines.append(f"  {run.peak_of.get(kind, 0.0):7.0f} {run.cpu.get(kind, 0.0):6.1f}  {kind}")
    return "\n".join(lines)


def compare(other: dict[str, list[float]], here: dict[str, list[float]]) -> str:
    """Whether all WERs are the same, or the first that is not."""
    if other == here:
        return f"all {sum(map(len, here.values()))} WERs of {len(here)} trainings are the same"
    for name in sorted(other.keys() | here.keys()):
        if other.get(name) != here.get(name):
            return f"{name} differs: {other.get(name)} there, {here.get(name)} here"
    return ""


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--other", type=Path, help="folder with another commit")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--no-results", action="store_true", help="no searches with one trial at a time")
    parser.add_argument("--output", type=Path, help="JSON")
    arguments, words = parser.parse_known_args()
    trees = {"here": ROOT} if arguments.other is None else {"other": arguments.other.resolve(), "here": ROOT}
    runs: dict[str, list[Run]] = {side: [] for side in trees}
    told: dict[str, Any] = {"trials": arguments.trials, "warm": arguments.warm, "words": words}
    with tempfile.TemporaryDirectory() as caches:
        for turn in range(arguments.runs):
            # Whoever is first finds the files of Python's packages cold, or the machine cooler.
            order = list(trees) if turn % 2 == 0 else list(reversed(trees))
            for side in order:
                cache = Path(caches) / side if arguments.warm else None
                if arguments.warm and not turn:
                    run(trees[side], cache, 1, words)
                found = run(trees[side], cache, arguments.trials, words)
                runs[side].append(found)
                print(
                    f"{side:5} first step {found.first_step:6.1f} s, whole {found.seconds:6.1f} s, "
                    f"peak {found.peak_mb:6,.0f} MB, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        for side in trees:
            print(details(runs[side][-1], side), flush=True)
        if arguments.other is not None:
            print(table(runs))
            if not arguments.no_results:
                one = [*words, "--max-concurrent", "1"]
                pair = [run(tree, None, arguments.trials, one).wers for tree in trees.values()]
                told["results"] = compare(*pair)
                print(f"one trial at a time: {told['results']}")
    told["runs"] = {side: [dataclasses.asdict(each) for each in found] for side, found in runs.items()}
    if arguments.output:
        arguments.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
