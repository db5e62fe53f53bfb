"""What the driver of a training makes of what its workers and Ray Train tell, and from where it is resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_logs import TRAINING, MadeLog
from rich.console import Console

from tune.cluster.progress_channel import EVALUATED, FAILED, SAVED, START
from tune.experiments.events import SessionStarted, TrialEnded, TrialStarted
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import ExperimentFolder
from tune.experiments.options import TRIAL, SearchOptions
from tune.experiments.storage import Storage
from tune.runs.resume import resume
from tune.runs.training import TrainingWatch
from tune.runs.training_display import TrainDisplay


class Watched:
    """A training of which nothing runs but the driver's ears."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        made = MadeLog(storage / "alone", **TRAINING)
        made.session()
        made.begin(TRIAL)
        made.close()
        self.folder = made.folder
        self.events: list[str] = []
        self.open()

    def open(self) -> None:
        """A process runs it."""
        self.experiment = OpenExperiment(ExperimentFolder("alone", self.folder))
        plan = SimpleNamespace(folder=self.folder, options=SearchOptions())
        state = self.experiment.state
        session: Any = SimpleNamespace(experiment=self.experiment, plan=plan, state=state)
        display: Any = SimpleNamespace(
            event=self.events.append, update=lambda *_: None, told=lambda: None, restart=lambda: None
        )
        self.watch = TrainingWatch(session, display)

    def again(self) -> None:
        """The next process, which goes on."""
        self.experiment.close()
        self.open()
        last = self.log.state.session
        self.log.append(SessionStarted(session=last.session + 1, began=0.0, options=last.options))
        self.log.append(TrialStarted(trial_id=TRIAL, folder=TRIAL))

    @property
    def log(self) -> Any:
        return self.experiment.log

    def hear(self, kind: str, **content: Any) -> Any:
        return self.watch.hear(TRIAL, kind, content, 0.0)

    def evaluate(self, seen: int, wer: float, *, save: bool = True, finished: bool = False) -> None:
        keep = self.hear(EVALUATED, wer=wer, samples_seen=seen, epoch=seen / 100, finished=float(finished))[
            "keep"
        ]
        if save and keep:
            self.save(seen, keep)

    def save(self, seen: int, keep: str = "all") -> None:
        path = f"trials/{TRIAL}/checkpoint_{seen:09d}"
        (self.folder / path).mkdir(parents=True, exist_ok=True)
        self.hear(SAVED, checkpoint=path, samples_seen=seen, keep=keep)

    @property
    def starts(self) -> list[int]:
        """Samples seen at the checkpoints from which it can go on, the first choice first."""
        return [int(path.rpartition("_")[2]) for path in self.hear(START)["checkpoints"]]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    with contextlib.suppress(OSError):
        made.experiment.close()


def test_a_training_that_failed_too_often_goes_on_from_its_last_checkpoint(watched: Watched) -> None:
    for seen, wer in ((100, 10.0), (200, 12.0), (300, 11.0)):
        watched.evaluate(seen, wer)
    assert watched.starts == [300, 100]
    watched.log.append(TrialEnded(trial_id=TRIAL, status="failed", error="boom", samples_seen=310))
    watched.again()
    assert watched.starts == [300, 100], "the last, then the best"


def test_a_training_that_was_killed_in_its_last_save_can_be_resumed(watched: Watched) -> None:
    watched.evaluate(100, 10.0)
    watched.evaluate(200, 8.0, finished=True, save=False)
    watched.experiment.close()
    resumed = resume("alone", Storage.parse(watched.storage), {}, "training")
    resumed.experiment.close()
    watched.again()
    assert (watched.starts, watched.watch.record.outcome) == ([100], "running")


def test_what_is_told_after_a_failure_is_not_heard(watched: Watched) -> None:
    """One worker's failure may be known before another, in the middle of a save, is ended."""
    watched.evaluate(100, 10.0, save=False)
    watched.hear(FAILED, report="ValueError: boom")
    assert "starts again" in watched.events[-1], "there is no checkpoint yet"
    watched.save(100)
    assert watched.starts == []
    watched.evaluate(100, 10.0)
    assert (watched.starts, watched.watch.record.best_value) == ([100], 10.0)


def test_the_screen_tells_the_best_also_while_its_checkpoint_is_written(watched: Watched) -> None:
    display = TrainDisplay(Console(), budget=300, baseline=50.0, trouble=lambda: None)
    watched.evaluate(100, 10.0)
    watched.evaluate(200, 8.0, save=False)
    display.update(watched.watch.record, {})
    assert "WER 8.00 %, best 8.00 %, baseline 50.00 %" in display.summary()
