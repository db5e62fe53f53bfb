"""What the driver of a search costs a trial, beside bare Ray Tune's, where the trainings themselves cost nothing.

    python benchmarks/driver_time.py [--trials 1000]

One after the other, each in a process and a Ray of its own, on a pseudo-terminal: `bare` is Ray Tune with
`OptunaSearch` and `ASHAScheduler`, which writes and shows nothing, `ours` the whole `tune-whisper`. Both have the
same made-up curves (`curves/made_up.py`; no trial fails) and rungs, and one trial at a time, so that nothing runs
beside the driver but the trial that it waits for. Told are wall seconds and CPU seconds of the driver's process a
trial, between the first trial's start and the last one's end, and its memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray.tune
from peers.ray_plain import lr_batch
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

CLIPS, EPOCHS = 32, 32
TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", "RAY_USAGE_STATS_ENABLED": "0"}

Row = dict[str, float]


class Meter(ray.tune.Callback):
    """Notes time, CPU and memory of this process when the first trial starts and each time that one has ended."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._process = psutil.Process()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray pickles its callbacks into files that are never read."""
        return {}

    def on_trial_start(self, *_: Any, **info: Any) -> None:
        if not self.rows:
            self.on_trial_complete()

    def on_trial_complete(self, *_: Any, **info: Any) -> None:
        used = self._process.cpu_times()
        memory = self._process.memory_info().rss / 1e6
        self.rows.append({"wall": time.time(), "CPU": used.user + used.system, "MB": memory})


def evaluations(config: Mapping[str, Any], rungs: tuple[int, ...]) -> Iterator[Row]:
    """What a training with these settings comes to."""
    from curves.made_up import LearningCurves

    curve = LearningCurves("noisy", 3, rungs[-1], 1e-4)
    for rung in rungs:
        yield {**curve(config, rung, 0), "samples_seen": rung}


def drive_bare(trials: int, meter: Meter) -> None:
    """Bare Ray Tune in this process."""
    from tune.search.scheduler import rung_grid
    from tune.space.space import load_space

    settings = load_space("lr_batch").scheduler
    rungs = rung_grid(CLIPS * EPOCHS, settings.reduction_factor, settings.rungs, 64, least=128)

    def trial(config: dict[str, Any]) -> None:
        for row in evaluations(config, rungs):
            ray.tune.report(row)

    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
    ray.init("local", log_to_driver=False, include_dashboard=False)
    ray.tune.Tuner(
        ray.tune.with_resources(trial, {"cpu": 1}),
        param_space=lr_batch(),
        tune_config=ray.tune.TuneConfig(
            metric="wer",
            mode="min",
            num_samples=trials,
            max_concurrent_trials=1,
            search_alg=OptunaSearch(seed=1),
            scheduler=ASHAScheduler(
                time_attr="samples_seen",
                max_t=rungs[-1],
                grace_period=rungs[0],
                reduction_factor=settings.reduction_factor,
            ),
            reuse_actors=True,
        ),
        run_config=ray.tune.RunConfig(storage_path=str(Path.cwd()), callbacks=[meter], verbose=0),
    ).fit()


def drive_ours(trials: int, meter: Meter) -> None:
    """`tune-whisper` in this process, its callback metered; all but the trainings is real, the base model too."""
    import tune.runs.search
    import tune.runs.trials
    from tune.cli import main as tune_whisper
    from tune.runs.callback import SearchCallback

    class MeteredCallback(SearchCallback):
        """Notes an event once the search's own callback has done its part."""

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            meter.on_trial_start()
            super().on_trial_start(iteration, trials, trial, **info)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            super().on_trial_complete(iteration, trials, trial, **info)
            meter.on_trial_complete()

    tune.runs.trials.SearchCallback = MeteredCallback  # type: ignore[misc]
    tune.runs.trials.make_trainable = make_trainable
    tune.runs.search.measure_held_out = lambda *_: None  # there are no weights
    words = f"--space lr_batch --trials {trials} --experiment ours --epochs {EPOCHS} --finalists 0"
    words += " --max-concurrent 1 --cpus-per-trial 1"
    for setting in (f"max_train_clips={CLIPS}", "max_eval_clips=2", "generation_max_length=8"):
        words += f" --set {setting}"
    if code := tune_whisper(words.split()):
        sys.exit(code)


def make_trainable(inputs: Any, channel: Any, resources: Any, files: Any) -> Any:
    """What takes the place of `tune.workers.trainable.make_trainable`: curves, and checkpoints without weights."""
    from tune.cluster.progress_channel import Driver
    from tune.search.scheduler import TRIAL_ID
    from tune.workers.checkpoint_store import TrialCheckpointStore

    def trial(sampled: dict[str, Any]) -> None:
        settings = dict(sampled)
        driver = Driver(channel, settings.pop(TRIAL_ID))
        store = TrialCheckpointStore(files, driver, driver.start().folder, driver.report)
        config = inputs.config.replace(**settings)
        rungs = config.evaluate_at
        for row in evaluations(settings, rungs):
            seen = int(row["samples_seen"])
            row |= {"cer": row["wer"] / 3, "epoch": seen / rungs[-1], "finished": float(seen == rungs[-1])}
            row["step"] = seen // config.effective_batch_size
            decision = store.decide(row)
            ray.tune.report(row)
            if decision.keep is not None:
                written = store.begin(seen, row["step"])
                written.mkdir(parents=True)
                (written / "config.json").write_text("{}")
                store.complete(written, store.hand_over(written), row, decision.keep)
            if not decision.goes_on:
                return

    return ray.tune.with_resources(trial, resources.request())


KINDS = {"bare": drive_bare, "ours": drive_ours}


def measure(kind: str, trials: int, folder: Path) -> list[Row]:
    """One search in a process of its own."""
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI"):
        os.environ.pop(name, None)
    shown, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, __file__, "--drive", kind, "--trials", str(trials)],
        cwd=folder,
        env={**os.environ, **TERMINAL},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    tail = b""
    with contextlib.suppress(OSError):  # how Linux tells that nobody writes to it any more
        while text := os.read(shown, 65536):
            tail = (tail + text)[-8000:]
    if process.wait():
        raise SystemExit(f"{kind} failed:\n{tail.decode(errors='replace')}")
    rows: list[Row] = json.loads((folder / "rows.json").read_text())
    if len(rows) != trials + 1:
        raise SystemExit(f"{kind}: {len(rows) - 1} of {trials} trials\n{tail.decode(errors='replace')}")
    return rows


def per_trial(rows: list[Row], key: str, first: float = 0.0, last: float = 1.0) -> float:
    """Milliseconds a trial, between two parts of all."""
    begin, end = (round(part * (len(rows) - 1)) for part in (first, last))
    return 1000 * (rows[end][key] - rows[begin][key]) / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--drive", choices=KINDS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        meter = Meter()
        KINDS[asked.drive](asked.trials, meter)
        Path("rows.json").write_text(json.dumps(meter.rows))
        return
    found: dict[str, list[Row]] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as scratch:
            rows = found[kind] = measure(kind, asked.trials, Path(scratch))
        texts = [
            f"{key} {per_trial(rows, key):.0f} ms a trial (first quarter {per_trial(rows, key, 0, 0.25):.0f}, "
            f"last {per_trial(rows, key, 0.75, 1):.0f})"
            for key in ("wall", "CPU")
        ]
        memory = " to ".join(f"{rows[name]['MB']:.0f}" for name in (asked.trials // 4, -1))
        print(f"{kind}: {'; '.join(texts)}; {memory} MB from the first quarter to the end", flush=True)
    ratios = [per_trial(found["ours"], key) / per_trial(found["bare"], key) for key in ("wall", "CPU")]
    print(f"ours / bare: wall {ratios[0]:.2f}, CPU {ratios[1]:.2f}")


if __name__ == "__main__":
    main()
