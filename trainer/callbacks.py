"""What happens between optimiser steps: reports of progress, evaluations on the plan's points, divergence."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trainer.batches import BatchPlan
from trainer.config import TrainConfig
from trainer.report import Report


class ReportingCallback(TrainerCallback):
    """Evaluates, saves and reports exactly on the plan's points; reports loss and learning rate in between."""

    def __init__(self, config: TrainConfig, plan: BatchPlan, report: Report, keep_checkpoints: bool) -> None:
        self._config = config
        self._plan = plan
        self._report = report
        self._keep_checkpoints = keep_checkpoints
        self._last_log = 0.0
        self._evaluated: dict[str, float] = {}
        self._logged: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []
        self.checkpoints: dict[int, Path] = {}
        self.diverged = False

    def position(self, step: int) -> dict[str, float]:
        """Where the training stands: samples seen, optimiser step, epoch."""
        return {
            "samples_seen": self._plan.samples_seen(step),
            "step": step,
            "epoch": self._plan.epoch(step),
        }

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Ask for an evaluation and a checkpoint where one is due."""
        due = self._plan.is_point(state.global_step)
        waited = time.monotonic() - self._last_log
        control.should_log = due or waited >= self._config.log_every_seconds
        control.should_evaluate = control.should_save = due
        return control

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
        self._logged = {
            key: float(logs[key]) for key in ("loss", "learning_rate", "grad_norm") if key in logs
        }
        if not math.isfinite(self._logged["loss"]):
            self.diverged = True
            control.should_training_stop = True
            control.should_evaluate = control.should_save = False
            return control
        self._report({**self.position(state.global_step), **self._logged}, None)
        return control

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the rates for the report that follows the save."""
        names = ("wer", "cer", "wer_orthographic", "cer_orthographic", "loss")
        self._evaluated = {
            ("eval_loss" if name == "loss" else name): float((metrics or {})[f"eval_{name}"])
            for name in names
        }

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the evaluation together with its checkpoint, then drop the checkpoint if it is kept elsewhere."""
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        row = {
            **self.position(state.global_step),
            **self._logged,
            **self._evaluated,
            "finished": float(state.global_step == self._plan.n_steps),
        }
        self.rows.append(row)
        self._report(row, folder)
        if self._keep_checkpoints:
            self.checkpoints[state.global_step] = folder
        else:
            shutil.rmtree(folder)
