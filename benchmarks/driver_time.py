"""What the driver of a search costs a trial, beside bare Ray Tune's, where the trainings themselves cost nothing.

    python benchmarks/driver_time.py [--trials 1000] [--only bare logged ours] [--at-a-time 1] [--output FILE]
    python benchmarks/driver_time.py --log 10000     # the log of so many made-up trials alone: writing and folding it

One after the other, each in a process and a Ray of its own, on a pseudo-terminal: `bare` is Ray Tune with
`OptunaSearch` and `ASHAScheduler` that writes and shows nothing, `logged` the same with Ray's own loggers and table as
they come, `ours` the whole `tune-whisper`. All have the same made-up curves
(of `tests/support/synthetic.py`) and rungs.
Told are wall seconds and CPU seconds of the driver's process per trial, between the first trial's start and the last
one's end, its memory, and for ours those of the follower, which writes to MLflow and to the Optuna study,
how many events wait for them and how long the live table stood still.

One at a time nothing runs beside the driver but the trial that it waits for. Of several, Ray starts a process for each,
which takes longer than such a trial, and ends it again when the trial before has left its own: noise, for all alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATHS = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "benchmarks" / "peers")]
sys.path[:0] = PATHS

import psutil  # noqa: E402
import ray.tune  # noqa: E402

KINDS = ("bare", "logged", "ours")
CURVE = "noisy"
"""No trial fails: a new process for the next one costs all the same."""
CLIPS, EPOCHS = 32, 32
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
FOLLOWER = "tune.tracking.follower"
TABLE = b"trials ended"
"""In the live table's head."""


class Meter(ray.tune.Callback):
    """Notes time, CPU and memory of this process when the first trial starts and each time that one has ended."""

    def __init__(self, trials: int) -> None:
        self.rows: list[dict[str, float]] = []
        """One for the first trial's start, one for each trial's end."""
        self.threads: dict[str, float] = {}
        """CPU seconds by thread; those that Python does not know, Ray's and BLAS', together."""
        self.results = 0
        self._trials = trials
        self._process = psutil.Process()
        self._children: list[psutil.Process] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles its callbacks into files that are never read."""
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The first one."""
        if not self.rows:
            self.threads = self._thread_seconds()
            self.note()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """One evaluation."""
        self.results += 1

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial has ended."""
        self.note()

    def note(self, waiting: int = 0) -> None:
        """What this process has come to; `waiting` are the events that MLflow was not told yet."""
        row = {"at": time.time(), "cpu": _seconds(self._process), "loop": time.thread_time()}
        row |= {"forked": sum(map(_seconds, self._forked())), "waiting": waiting}
        memory = [process.memory_info().rss for process in (self._process, *self._forked())]
        self.rows.append({**row, "rss": memory[0], "forked_rss": sum(memory[1:])})
        if len(self.rows) == self._trials + 1:
            before = self.threads
            self.threads = {n: s - before.get(n, 0.0) for n, s in self._thread_seconds().items()}

    def write(self, path: Path) -> None:
        """All of it as JSON."""
        path.write_text(
            json.dumps(
                {"rows": self.rows, "results": self.results, "threads": self.threads, "end": time.time()}
            )
        )

    def _forked(self) -> list[psutil.Process]:
        """The follower."""
        if self._children is None:
            self._children = [
                child for child in self._process.children() if FOLLOWER in " ".join(child.cmdline())
            ]
        return self._children

    def _thread_seconds(self) -> dict[str, float]:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        found: dict[str, float] = {}
        for thread in self._process.threads():
            name = names.get(thread.id, "Ray and BLAS")
            found[name] = found.get(name, 0.0) + thread.user_time + thread.system_time
        return found


def _seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system


def drive_bare(trials: int, at_a_time: int, output: Path, *, logs: bool) -> None:
    """Bare Ray Tune in this process."""
    import ray_bare

    from tune.search.scheduler import rung_grid
    from tune.space.space import load_space

    settings = load_space("lr_batch").scheduler
    rungs = rung_grid(CLIPS * EPOCHS, settings.reduction_factor, settings.rungs, 64, least=128)
    meter = Meter(trials)
    ray_bare.search(trials, at_a_time, rungs, CURVE, meter, logs=logs)
    meter.write(output)


def drive_ours(trials: int, at_a_time: int, output: Path) -> None:
    """`tune-whisper` in this process, its callback metered."""
    import synthetic

    import tune.runs.trials
    from tune.runs.callback import SearchCallback

    meter = Meter(trials)

    class MeteredCallback(SearchCallback):
        """Notes an event once the search's own callback has done its part."""

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            meter.on_trial_start(iteration, trials, trial, **info)
            super().on_trial_start(iteration, trials, trial, **info)

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            meter.on_trial_result(iteration, trials, trial, result, **info)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            super().on_trial_complete(iteration, trials, trial, **info)
            meter.note(self._log.state.events - delivered(self._experiment.folder.path))

    tune.runs.trials.SearchCallback = MeteredCallback  # type: ignore[misc]
    words = ["--space", "lr_batch", "--trials", str(trials), "--experiment", "ours", "--epochs", str(EPOCHS)]
    words += ["--max-concurrent", str(at_a_time), "--cpus-per-trial", "1", "--finalists", "0"]
    for setting in (f"max_train_clips={CLIPS}", "max_eval_clips=2", "generation_max_length=8"):
        words += ["--set", setting]
    code = synthetic.main(CURVE, words)
    meter.write(output)
    sys.exit(code)


def measure(kind: str, trials: int, at_a_time: int, folder: Path) -> dict[str, Any]:
    """One search in a process of its own."""
    output = folder / "rows.json"
    words = ["--drive", kind, "--trials", str(trials), "--at-a-time", str(at_a_time), "--output", str(output)]
    kept = {
        key: value for key, value in os.environ.items() if key not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")
    }
    environment = {**kept, **TERMINAL, "PYTHONPATH": os.pathsep.join(PATHS)}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *words],
        **{"cwd": folder, "env": environment},
        **{"stdin": theirs, "stdout": theirs, "stderr": theirs},
    )
    os.close(theirs)
    frames, shown = watch(ours)
    if process.wait():
        raise SystemExit(f"{kind} failed:\n{shown.decode(errors='replace')}")
    found: dict[str, Any] = json.loads(output.read_text())
    rows = found["rows"]
    found["trials"] = len(rows) - 1
    found["after"] = found["end"] - rows[-1]["at"]
    if kind == "ours":
        within = [at for at in frames if rows[0]["at"] <= at <= rows[-1]["at"]]
        found["still"] = max(later - before for before, later in itertools.pairwise(within))
        found |= in_mlflow(folder / "experiments" / "ours")
    return found


def watch(terminal: int) -> tuple[list[float], bytes]:
    """Read a pseudo-terminal to its end: when the live table was drawn, and what was written last."""
    frames, shown = [], b""
    while True:
        try:
            text = os.read(terminal, 65536)
        except OSError:  # how Linux tells that nobody writes to it any more
            text = b""
        if not text:
            return frames, shown
        shown = (shown + text)[-8000:]
        if TABLE in text:
            frames.append(time.time())


def in_mlflow(experiment: Path) -> dict[str, Any]:
    """How many trials have a run that has ended, and what is left of the queue on disk."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{experiment / 'mlflow.db'}")
    found = client.get_experiment_by_name("ours")
    runs = client.search_runs([found.experiment_id], "tags.role = 'trial'", max_results=50_000)
    trials = {run.data.tags["trial_id"] for run in runs if run.info.status != "RUNNING"}
    log = (experiment / "events.jsonl").read_bytes()
    return {"runs": len(trials), "left": log.count(b"\n") - delivered(experiment), "log_bytes": len(log)}


def delivered(experiment: Path) -> int:
    """Number of the last event that MLflow was told."""
    try:
        return int(json.loads((experiment / "tracking" / "mlflow.json").read_text())["delivered"])
    except FileNotFoundError:
        return 0


def per_trial(rows: list[dict[str, float]], key: str) -> tuple[float, float, float]:
    """Milliseconds a trial: over all, in the first quarter and in the last one."""

    def between(first: int, last: int) -> float:
        return 1000 * (rows[last][key] - rows[first][key]) / (last - first)

    last = len(rows) - 1
    return between(0, last), between(0, last // 4), between(last - last // 4, last)


def show(found: dict[str, dict[str, Any]]) -> None:
    """A table, and ours beside the others."""
    print(f"{'ms a trial (first quarter, last quarter)':42}" + "".join(f"{kind:>24}" for kind in found))
    for key, name in (
        ("at", "wall"),
        ("cpu", "CPU of the driver's process"),
        ("loop", "of its main thread"),
        ("forked", "of the follower"),
    ):
        cells = [per_trial(each["rows"], key) for each in found.values()]
        print(f"{name:42}" + "".join(f"{a:10.0f} ({b:5.0f}, {c:5.0f})" for a, b, c in cells))
    for kind, each in found.items():
        rows = each["rows"]
        quarters = [rows[round(part * (len(rows) - 1) / 4)] for part in range(5)]
        memory = ", ".join(f"{row['rss'] / 1e6:.0f} + {row['forked_rss'] / 1e6:.0f}" for row in quarters)
        print(
            f"{kind}: {each['trials']} trials, {each['results'] / each['trials']:.2f} evaluations each; MB {memory}"
        )
        most = sorted(each["threads"].items(), key=lambda entry: -entry[1])[:5]
        print("  CPU ms a trial: " + ", ".join(f"{name} {1000 * s / each['trials']:.0f}" for name, s in most))
    if "ours" in found:
        ours = found["ours"]
        waiting = max(row["waiting"] for row in ours["rows"])
        print(
            f"ours: at most {waiting} events waited for MLflow; {ours['runs']} runs of trials in it in the end,"
        )
        print(
            f"  {ours['left']} events left of {ours['log_bytes']:,} bytes; the live table stood still "
            f"{ours['still']:.1f} s"
        )
        print(f"  at most; {ours['after']:.1f} s from the last trial's end to the command's")
        for other in (kind for kind in found if kind != "ours"):
            ratios = [
                per_trial(ours["rows"], key)[0] / per_trial(found[other]["rows"], key)[0]
                for key in ("at", "cpu")
            ]
            print(f"ours / {other}: wall {ratios[0]:.2f}, CPU {ratios[1]:.2f}")


def show_log(trials: int, folder: Path) -> None:
    """What a log takes: wall milliseconds a trial of three evaluations as it is written, and seconds to fold it."""
    from tune.experiments import events
    from tune.experiments.log import ExperimentLog, read_log

    log, marks = ExperimentLog(folder / "events.jsonl"), [time.perf_counter()]
    log.append(
        events.SessionStarted(session=1, began=time.time(), trials=trials),
        events.BaselineMeasured(rates={"wer": 60.0, "cer": 20.0, "loss": 1.0}),
    )
    for number in range(1, trials + 1):
        name = f"{number:03d}"
        config = {"learning_rate": 1e-5 * number, "warmup_ratio": 0.1, "train_batch_size": 8}
        log.append(events.TrialProposed(trial_id=name, config=config, effective_batch=8))
        log.append(events.TrialStarted(trial_id=name, folder=name))
        for seen in (100, 300, 900):
            metrics = {"wer": 40.0, "cer": 13.0, "eval_loss": 0.5, "loss": 1.0, "learning_rate": 1e-5}
            log.append(
                events.Evaluated(
                    trial_id=name,
                    samples_seen=seen,
                    epoch=seen / 800,
                    metrics=dict(metrics),
                    finished=seen == 900,
                )
            )
        log.append(events.TrialEnded(trial_id=name, status="completed", samples_seen=900))
        if number in (trials // 10, trials - trials // 10, trials):
            marks.append(time.perf_counter())
    first, last = (1000 * (marks[at + 1] - marks[at]) / (trials // 10) for at in (0, 2))
    print(f"writing: {first:.2f} ms a trial for the first tenth of {trials:,}, {last:.2f} for the last")
    began, used = time.perf_counter(), time.process_time()
    state = read_log(log.path)
    wall, used = time.perf_counter() - began, time.process_time() - used
    print(f"folding: {state.events:,} events in {wall:.2f} s ({used:.2f} s of CPU)")


def main() -> None:
    """Measure and print; JSON where asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--at-a-time", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--log", type=int, metavar="TRIALS", help="measure the log of so many trials alone")
    parser.add_argument("--drive", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    where = (arguments.trials, arguments.at_a_time, arguments.output)
    if arguments.log:
        with tempfile.TemporaryDirectory() as scratch:
            show_log(arguments.log, Path(scratch))
    elif arguments.drive == "ours":
        drive_ours(*where)
    elif arguments.drive:
        drive_bare(*where, logs=arguments.drive == "logged")
    else:
        found = {}
        for kind in arguments.only:
            with tempfile.TemporaryDirectory() as scratch:
                found[kind] = measure(kind, arguments.trials, arguments.at_a_time, Path(scratch))
        if arguments.output:
            arguments.output.write_text(json.dumps(found) + "\n")
        show(found)


if __name__ == "__main__":
    main()
