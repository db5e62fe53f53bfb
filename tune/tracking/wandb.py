"""Weights & Biases: a run for each trial and repeat, in a group for each experiment.

The project is `$WANDB_PROJECT`, else `tune-whisper`. With `WANDB_MODE=offline` the runs stay in `wandb/` of the
experiment's folder until `wandb sync` uploads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer.files import write_whole
from trainer.scoring.objectives import named_rates
from trainer.training.report import FIGURES
from tune.experiments.events import Entry, Evaluated
from tune.experiments.results import TRACKING_FILE
from tune.search.records import Trial, role_of
from tune.tracking.sync import Log, Store, Target
from tune.util.console import short_source
from tune.util.errors import TrackingError, first_line
from tune.util.files import read_object
from tune.util.redact import hide_password

if TYPE_CHECKING:
    import wandb

    from tune.experiments.experiment import Experiment


class WandbStore(Store):
    """Logs over samples seen, which is W&B's step: what a run has at a step is not taken twice."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._folder = target.folder.path
        self._state = self._folder / TRACKING_FILE.replace("mlflow", "wandb")
        held = read_object(self._state)
        self.delivered, self.progress = held.get("events", 0), held.get("progress", 0)
        self._runs: dict[str, wandb.Run] = {}
        """Those that are open."""
        check_account()

    def sync(self, log: Log) -> None:
        rows, progress = log.progress(self.progress)
        log.read()  # after the progress: W&B takes nothing below the step that a run has reached
        entries = log.entries[self.delivered :]
        if not rows and not entries:
            return
        state, points = log.saved.state, _points(rows, entries)
        changed = {*points, *(getattr(entry.event, "trial_id", "") for entry in entries)}
        with self._calls():
            for trial in [*state.records.all(), *state.repeats.all()]:
                if not trial.begun or trial.trial_id not in changed:
                    continue
                own = points.get(trial.trial_id, [])
                if trial.trial_id not in self._runs:
                    run = self._runs[trial.trial_id] = self._open(log.saved, trial)
                    # Offline it has a new folder, and `wandb sync` keeps of a run what its last one has.
                    if run.offline:
                        own = _points(log.progress(0)[0], log.entries).get(trial.trial_id, [])
                self._write(log.saved, trial, own)
            if state.ended:
                for name in list(self._runs):
                    self._finish(state.run(name))
        self.delivered, self.progress = len(log.entries), progress
        write_whole(self._state, json.dumps({"events": self.delivered, "progress": progress}) + "\n")

    def _write(self, saved: Experiment, trial: Trial, points: list[tuple[int, dict[str, Any]]]) -> None:
        objective, run = saved.state.objective, self._runs[trial.trial_id]
        for samples, values in sorted(points, key=lambda point: point[0]):
            if samples >= run.step:
                run.log(_finite(values), step=samples)
        rates = {
            f"best_{objective}": trial.best_value,
            f"baseline_{objective}": saved.state.base_rates_for(trial)[objective],
        }
        run.summary.update({**_finite(rates), "status": trial.outcome})
        if trial.status != "running":
            self._finish(trial)

    def _open(self, saved: Experiment, trial: Trial) -> wandb.Run:
        import wandb

        base = saved.base
        settings = {
            name: getattr(base, name) for name in ("language", "task", "method", "weight_decay", "seed")
        }
        settings |= {"model": short_source(base.model), "data": short_source(base.data)}
        unique = f"{saved.name} {saved.created} {trial.trial_id}"
        return wandb.init(
            id=hashlib.sha256(unique.encode()).hexdigest()[:16],
            resume="allow",
            reinit="create_new",
            dir=str(self._folder),
            project=os.environ.get("WANDB_PROJECT", "tune-whisper"),
            group=saved.name,
            name=f"{saved.name} {trial.trial_id}",
            job_type=role_of(trial.trial_id),
            config={**settings, **trial.config},
            allow_val_change=True,
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )

    def _finish(self, trial: Trial) -> None:
        self._runs.pop(trial.trial_id).finish(exit_code=int(trial.outcome == "failed"))

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        """Where W&B fails, the runs are left: another object opens them anew."""
        import wandb

        try:
            yield
        except wandb.Error as error:
            while self._runs:
                self._runs.popitem()[1].finish()
            raise TrackingError(f"Weights & Biases: {hide_password(first_line(error))}") from error


def check_account() -> None:
    """Check that runs can be sent, or stay here.

    Raises:
        TrackingError: the package is not installed, or nobody is logged in.
    """
    try:
        import wandb
    except ImportError as error:
        raise TrackingError("--track wandb: pip install 'tune-whisper[wandb]'") from error
    try:
        known = os.environ.get("WANDB_MODE", "online") != "online" or wandb.login(prompt=False)
    except wandb.Error as error:
        raise TrackingError(f"--track wandb: {hide_password(first_line(error))}") from error
    if not known:
        raise TrackingError(
            "--track wandb: no account; set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline"
        )


def _points(
    rows: Sequence[dict[str, Any]], entries: Sequence[Entry]
) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """What was measured, by trial, with the samples seen."""
    points: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for row in rows:
        values = {f"train/{name}": row["metrics"].get(name) for name in FIGURES}
        points.setdefault(row["trial_id"], []).append((int(row["metrics"].get("samples_seen", 0)), values))
    for entry in entries:
        if isinstance(event := entry.event, Evaluated):
            values = {"epoch": event.epoch, **event.metrics, **named_rates(event.sources)}
            points.setdefault(event.trial_id, []).append((event.samples_seen, values))
    return points


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
