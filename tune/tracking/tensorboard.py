"""TensorBoard's files of an experiment: `tensorboard --logdir experiments/NAME/tensorboard`.

A run for every trial and repeat: rates over samples seen, and its settings on the page HParams. Each session writes
all anew, so nothing is there twice. SummaryWriter is not used: tensorboardX imports PyTorch, and TensorBoard's
own writer holds a thread and an open file for every run.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from typing import Any

from trainer.scoring.objectives import named_rates
from trainer.training.report import FIGURES
from tune.experiments.events import Evaluated, Prepared, TrialProposed
from tune.space.parameters import show
from tune.tracking.sync import Log, Store, Target
from tune.util.errors import TrackingError

FOLDER = "tensorboard"
_NOT_SHOWN = (*FIGURES, "step", "train_seconds", "train_samples")
"""Of evaluations. TensorBoard drops points of a tag when one with fewer samples follows, so no tag has two sources:
`FIGURES` come from `progress.jsonl`, all others from the log."""


class TensorBoardStore(Store):
    """Writes scalars and HParams at the times of their events; a new object begins with an empty folder."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._folder = target.folder.path / FOLDER
        self._file = f"events.out.tfevents.{time.time():.6f}.tune-whisper"
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        """What is to be written, by run."""

    def sync(self, log: Log) -> None:
        if not self.delivered:
            self._empty()
        saved, measured = log.saved, {}
        for entry in log.entries[self.delivered :]:
            event = entry.event
            if isinstance(event, Prepared):
                rates = {
                    name: event.baseline.rates.get(name) for name in (saved.state.objective, "chrf", "bleu")
                }
                self._scalars("baseline", entry.time, 0, rates)
            elif isinstance(event, TrialProposed):
                self._settings(event, entry.time, saved.base.seed)
            elif isinstance(event, Evaluated):
                values = {name: value for name, value in event.metrics.items() if name not in _NOT_SHOWN}
                values |= {"epoch": event.epoch, **named_rates(event.sources)}
                self._scalars(event.trial_id, entry.time, event.samples_seen, values)
                measured[event.trial_id] = entry.time
        for name, moment in measured.items():
            run = saved.state.run(name)
            best = min((value for _, value in run.evaluations), default=None)
            self._scalars(name, moment, run.samples_seen, {f"best_{saved.state.objective}": best})
        rows, progress = self._progress(log)
        for row in rows:
            metrics = row["metrics"]
            figures = {name: metrics.get(name) for name in FIGURES}
            self._scalars(row["trial_id"], row["time"], int(metrics["samples_seen"]), figures)
        self._write()
        self.delivered, self.progress = len(log.entries), progress

    def _empty(self) -> None:
        try:
            import tensorboard  # noqa: F401

            if self._folder.exists():
                shutil.rmtree(self._folder)
        except ImportError as error:
            raise TrackingError("--track tensorboard: pip install 'tune-whisper[tensorboard]'") from error
        except OSError as error:
            raise TrackingError(f"{self._folder}: cannot be removed: {error.strerror}") from error

    def _scalars(self, run: str, moment: float, step: int, values: Mapping[str, float | None]) -> None:
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        if finite:
            points = [{"tag": name, "simple_value": value} for name, value in finite.items()]
            self._add(run, moment, step=step, summary={"value": points})

    def _settings(self, event: TrialProposed, moment: float, seed: int) -> None:
        from tensorboard.plugins.hparams import summary_v2  # `api` of the same imports TensorFlow

        settings = {
            name: value if isinstance(value, bool | int | float) else show(value)
            for name, value in {"seed": seed, **event.config}.items()
        }
        name = event.trial_id
        self._add(
            name, moment, summary=summary_v2.hparams_pb(settings, trial_id=name, start_time_secs=moment)
        )

    def _add(self, run: str, moment: float, **content: Any) -> None:
        self._waiting.setdefault(run, []).append({"wall_time": moment, **content})

    def _write(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            for run, events in self._waiting.items():
                (self._folder / run).mkdir(parents=True, exist_ok=True)
                with (self._folder / run / self._file).open("ab") as file:
                    if not file.tell():
                        first = {"wall_time": events[0]["wall_time"], "file_version": "brain.Event:2"}
                        events.insert(0, first)
                    for event in events:
                        RecordWriter(file).write(Event(**event).SerializeToString())
        except OSError as error:
            raise TrackingError(f"{self._folder}: cannot be written: {error.strerror}") from error
        self._waiting = {}
