"""What happens between optimiser steps: reports of progress, evaluations on the plan's points, divergence."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.config import TrainConfig
from trainer.scoring.objectives import RATES, is_of_source
from trainer.training.batches import BatchPlan
from trainer.training.distributed import from_first
from trainer.training.report import FIGURES, Report
from trainer.training.saving import CheckpointSaver


class ReportingCallback(TrainerCallback):
    """Evaluates and saves exactly on the plan's points; reports loss and learning rate in between."""

    def __init__(self, config: TrainConfig, plan: BatchPlan, report: Report, saver: CheckpointSaver) -> None:
        """`report` receives progress; `saver` is told of evaluations, in all processes."""
        self._config = config
        self._plan = plan
        self._report = report
        self._saver = saver
        self._clock = TrainingClock()
        self._last_log = time.monotonic()
        self._first_step: int | None = None
        self._log_every: int | None = None
        self._logged: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []
        self.diverged = False

    def position(self, step: int) -> dict[str, float]:
        """Where the training stands: samples seen, optimiser step, epoch."""
        return {"samples_seen": self._plan.samples_seen(step), "step": step, "epoch": self._plan.epoch(step)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        due, seen = self._plan.is_point(state.global_step), self._plan.samples_seen(state.global_step)
        if due:
            self._clock.stop(seen)
        else:  # after the first step, which warms up: compilation, memory, caches
            self._clock.start(seen)
        control.should_log = due or self._log_is_due(args, state.global_step)
        control.should_evaluate = due
        return control

    def _log_is_due(self, args: TrainingArguments, step: int) -> bool:
        """Whether to log after this step: by the clock, but in the same steps on all workers.

        A log gathers the loss of all workers, so one that went by its own clock would wait for the others
        for ever. They count steps instead, as many as take the first worker `log_every_seconds`.
        """
        if args.world_size == 1:
            late = time.monotonic() - self._last_log >= self._config.log_every_seconds
            return late or self._saver.order is not None
        if self._first_step is None:
            self._first_step, self._last_log = step, time.monotonic()
        elif self._log_every is None:
            seconds = from_first(args, time.monotonic() - self._last_log)
            self._log_every = max(1, round(self._config.log_every_seconds / max(seconds, 1e-6)))
        return self._log_every is not None and (step - self._first_step) % self._log_every == 0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Report the loss since the last log; a loss that is no finite number ends the training as diverged."""
        if not logs or "loss" not in logs:
            return control
        self._last_log = time.monotonic()
        self._logged = {key: float(logs[key]) for key in FIGURES if key in logs}
        if not math.isfinite(self._logged["loss"]):
            self.diverge(state)
            control.should_training_stop = True
            control.should_evaluate = False
            return control
        position = self.position(state.global_step)
        if state.is_world_process_zero:
            self._report({**position, **self._logged}, None)
        if not self._plan.is_point(state.global_step):  # else the evaluation comes first
            control.should_training_stop |= not self._saver.obey(position)
        return control

    def diverge(self, state: TrainerState) -> None:
        """Report that the loss is no finite number any more."""
        self.diverged = True
        if state.is_world_process_zero:
            self._report({**self.position(state.global_step), "diverged": 1.0}, None)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> TrainerControl:
        """Tell of an evaluation, have its checkpoint saved, and end the training where that was decided."""
        measured = {name.removeprefix("eval_"): float(value) for name, value in (metrics or {}).items()}
        names = [name for name in RATES if name in measured]
        rates = {**{name: measured[name] for name in names}, "eval_loss": measured["loss"]}
        rates |= {name: rate for name, rate in measured.items() if is_of_source(name)}
        row = {
            **self.position(state.global_step),
            **self._logged,
            **rates,
            "train_seconds": self._clock.seconds,
            "train_samples": self._clock.samples,
            "finished": float(state.global_step == self._plan.n_steps),
        }
        self.rows.append(row)
        control.should_training_stop |= not self._saver.evaluated(row)
        self._clock.start(self._plan.samples_seen(state.global_step))
        return control


class TrainingClock:
    """Runs while steps are taken, and stands still while the model is measured, saved and reported."""

    def __init__(self) -> None:
        self._since: tuple[float, int] | None = None
        self.seconds = 0.0
        self.samples = 0
        """Samples trained in it, by all workers together."""

    def start(self, samples_seen: int) -> None:
        """Begin, unless it runs."""
        if self._since is None:
            self._since = _now(), samples_seen

    def stop(self, samples_seen: int) -> None:
        """Count what came since the start, if there was one."""
        if self._since is not None:
            self.seconds += _now() - self._since[0]
            self.samples += samples_seen - self._since[1]
            self._since = None


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a GPU's steps are only queued
    return time.monotonic()
