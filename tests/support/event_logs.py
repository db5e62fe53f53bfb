"""Experiments of settings and a log of made-up events alone, and their delivery to a tracker as by a follower."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from trainer.config import TrainConfig
from tune.experiments.events import (
    BaselineMeasured,
    Entry,
    Evaluated,
    SearchEnded,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialStarted,
)
from tune.experiments.folder import ExperimentFolder
from tune.experiments.log import ExperimentLog, parse
from tune.experiments.saved import SavedExperiment
from tune.experiments.settings import read_settings
from tune.experiments.state import SearchState
from tune.search.records import Outcome, Stop
from tune.space.space import load_space
from tune.tracking.tracker import Position, Tracker

RUNGS = (100, 300, 900)
BEGAN = 1_700_000_000.0
SPACE = load_space("lr_batch").resolve(1e-3)


class MadeLog:
    """An experiment in a folder; every event comes a second after the one before it."""

    def __init__(self, folder: Path, name: str = "exp", created: str = "2024-01-01T00:00:00+00:00") -> None:
        self.folder = ExperimentFolder(name, folder / name)
        self.folder.path.mkdir(parents=True, exist_ok=True)
        settings = {
            "experiment": name,
            "created": created,
            "space": SPACE.to_dict(),
            "train_config": TrainConfig(learning_rate=1e-3).to_dict(),
            "rungs": list(RUNGS),
            "resources": {},
            "clips": {"train": 800, "validation": 200},
        }
        (self.folder.path / "experiment.yaml").write_text(yaml.safe_dump(settings))
        self.path = self.folder.path / "events.jsonl"
        self.log = ExperimentLog(self.path, lambda: BEGAN + self.log.state.events)
        self.sessions = 0

    def begin(self, trials: int = 4) -> None:
        """A session starts, the first one with its baseline."""
        self.sessions += 1
        self.log.append(
            SessionStarted(session=self.sessions, owner="made", began=self.log._clock(), trials=trials)
        )
        if self.sessions == 1:
            self.log.append(BaselineMeasured(rates={"wer": 60.0, "cer": 20.0, "loss": 1.0, "clips": 200}))

    def propose(self, trial_id: str, rate: float = 1e-3, **more: Any) -> str:
        """A trial, or the repeat of one; returns its name."""
        config = {"learning_rate": rate, "warmup_ratio": 0.1, "train_batch_size": 8}
        config |= {"gradient_accumulation_steps": 2, **more}
        kind = "repeat" if "-r" in trial_id else "trial"
        self.log.append(TrialProposed(trial_id=trial_id, config=config, kind=kind, effective_batch=16))
        self.log.append(TrialStarted(trial_id=trial_id, folder=f"ray_{trial_id}"))
        return trial_id

    def measure(self, trial_id: str, seen: int, wer: float | None, *, stop: bool = False) -> None:
        """An evaluation; with `stop` the trial is to end there."""
        why = Stop("asha", seen, wer, (wer or 0.0) - 1, 3) if stop else None
        self.log.append(
            Evaluated(
                trial_id=trial_id,
                samples_seen=seen,
                epoch=seen / 800,
                metrics={
                    "wer": wer,
                    "cer": None if wer is None else wer / 3,
                    "eval_loss": 0.5,
                    "loss": 0.7,
                    "step": seen / 16,
                    "learning_rate": 1e-4,
                    "train_seconds": 5.0,
                    "train_samples": 100.0,
                },
                finished=seen == RUNGS[-1],
                stop=Stop("diverged", seen) if wer is None else why,
            )
        )

    def end(self, trial_id: str, status: Outcome) -> None:
        """A trial is over."""
        self.log.append(
            TrialEnded(trial_id=trial_id, status=status, error="it broke" if status == "failed" else None)
        )

    def finish(self) -> None:
        """The session is over."""
        self.log.append(SearchEnded(status="completed"))

    def four(self) -> None:
        """One trial of each end: completed with 11.0 at best, stopped at 70.0, diverged, failed."""
        self.begin()
        for number, rate in enumerate((1e-3, 2e-3, 3e-3, 4e-3), start=1):
            self.propose(f"{number:03d}", rate)
        self.measure("001", 100, 30.0)
        self.measure("002", 100, 70.0, stop=True)
        self.end("002", "early_stopped")
        self.measure("001", 300, 11.0)
        self.measure("003", 100, None)
        self.end("003", "diverged")
        self.end("004", "failed")
        self.measure("001", 900, 12.0)
        self.end("001", "completed")

    @property
    def entries(self) -> list[Entry]:
        """All events."""
        return list(parse(self.path.read_bytes(), self.path))

    def saved(self, events: int | None = None) -> SavedExperiment:
        """The experiment as its first events leave it, all of them where no number is given."""
        state = SearchState()
        for entry in self.entries[:events]:
            state.apply(entry)
        return SavedExperiment(self.folder, read_settings(self.folder), state)


def follow(
    tracker: Tracker, made: MadeLog, ends: Iterable[int] = (), *, opened: bool = False, remember: bool = True
) -> Position:
    """Deliver what is missing, as a follower does.

    Args:
        tracker: of one store.
        made: the experiment.
        ends: numbers of events at which a delivery ends; the last one always ends one.
        opened: whether the tracker is open and has all before the first of `ends`.
        remember: whether the store is told how far it is.
    """
    entries = made.entries
    ends = sorted({*ends, len(entries)})
    begun = Position(ends.pop(0)) if opened else tracker.open(made.saved())
    done = begun.events
    for end in ends:
        if end > done:
            tracker.deliver(entries[done:end], made.saved(end))
            done = end
            if remember:
                tracker.delivered(Position(done))
    return begun
