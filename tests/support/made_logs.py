"""Experiments of nothing but `experiment.yaml` and a log with made-up trials, and their delivery to stores."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plans import search_plan

from tune.cluster.resources import TrialResources
from tune.experiments.events import (
    Baseline,
    CheckpointSaved,
    Data,
    Entry,
    Evaluated,
    Event,
    ExportChosen,
    Prepared,
    ResultsWritten,
    SearchEnded,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialStarted,
    decode,
    encode,
)
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.log import ExperimentLog, ProgressLog, parse
from tune.experiments.mlflow_store import default_tracking_uri
from tune.experiments.options import SearchOptions
from tune.experiments.state import SearchState
from tune.experiments.storage import Storage
from tune.runs.plan import Plan
from tune.search.records import Records, Stop, Trial
from tune.tracking.sync import Log, Store, Sync, Target
from tune.util.redact import without_password

BEGAN = 1_700_000_000.0
BASELINE = 60.0
RUNGS = (384, 1088, 3200)
RATES = {"learning_rate": 1e-3, "warmup_ratio": 0.1, "train_batch_size": 8, "gradient_accumulation_steps": 1}


class MadeLog:
    """An experiment's folder, and its log with a clock of its own, which runs a second with every call."""

    def __init__(self, folder: Path, uri: str | None = None, **settings: Any) -> None:
        """`settings` are fields of `Prepared` and `SearchOptions`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.uri = uri or default_tracking_uri(folder)
        self.now = BEGAN
        self._settings = settings | ({"tracking_uri": without_password(uri)} if uri else {})
        if not (folder / "experiment.yaml").exists():
            (folder / "space.yaml").write_text(_plan().space.source_text)
            (folder / "experiment.yaml").write_text("for people\n")
        self.log = ExperimentLog(folder / EVENTS_FILE, clock=self._tick)
        self.now = max(self.now, self.log.state.last_event_time)
        self._progress = ProgressLog(folder)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.folder.name

    @property
    def saved(self) -> Experiment:
        """With the state that was written."""
        return Experiment(self.experiment, self.log.state)

    def append(self, *events: Event) -> None:
        """Write events down."""
        self.log.append(*events)

    def session(self, *, gpus_per_trial: float = 0.0, **changes: Any) -> None:
        """A process begins or goes on; `changes` are fields of `Prepared`, `Baseline` and `SearchOptions`."""
        last = self.log.state.session
        number = last.session + 1 if last else 1
        changes = {"trials": 4, **self._settings, **changes}
        asked = {field: changes[field] for field in (_fields(SearchOptions) - {"space"}) & changes.keys()}
        options = SearchOptions(**asked)
        started = SessionStarted(
            session=number, began=self.now, options=options, gpus_per_trial=gpus_per_trial
        )
        if number > 1:
            self.append(started)
            return
        rates = {"wer": BASELINE, "cer": 20.0, "loss": 1.0, "clips": 200.0}
        baseline = {"rates": rates, "seconds": 2.0}
        baseline |= {field: changes[field] for field in _fields(Baseline) & changes.keys()}
        plan = _plan()
        prepared: dict[str, Any] = {
            "train_config": plan.base.to_dict(),
            "space": plan.space.to_dict(),
            "rungs": RUNGS,
            "resources": TrialResources(gpus=0.0, cpus=1.0, concurrent=2),
            "data": Data(features_key="k", clips={"train": 800, "validation": 200}),
            "baseline": Baseline(**baseline),
            "versions": {"python": "3.11"},
        }
        prepared |= {field: changes[field] for field in _fields(Prepared) & changes.keys()}
        self.append(started, Prepared(**prepared))

    def begin(self, trial: str, **config: Any) -> str:
        """A trial, or a repeat, is proposed and started; its name."""
        kind: Any = "repeat" if "-r" in trial else "trial"
        self.append(TrialProposed(trial_id=trial, config={**RATES, **config}, kind=kind, effective_batch=8))
        self.append(TrialStarted(trial_id=trial, folder=trial))
        return trial

    def evaluate(self, trial: str, *wers: float, stop: bool = False, first: int = 0) -> None:
        """Its evaluations at the first rungs, after the last of which ASHA may stop it."""
        for rung, wer in zip(RUNGS[first:], wers, strict=False):
            self.measure(trial, rung, wer, stop=stop and wer == wers[-1])

    def measure(self, trial: str, seen: int, wer: float | None, *, stop: bool = False) -> None:
        """One evaluation; with `stop` the trial is to end there. Without a WER it has diverged."""
        told = Stop("asha", seen, wer, (wer or 0.0) - 1, 3) if stop else None
        metrics = {
            "wer": wer,
            "cer": None if wer is None else wer / 3,
            "eval_loss": 0.5,
            "loss": 1.0,
            "learning_rate": 1e-4,
            "step": seen / 8,
        }
        self.append(
            Evaluated(
                trial_id=trial,
                samples_seen=seen,
                epoch=seen / 800,
                metrics=metrics,
                finished=seen == RUNGS[-1],
                stop=Stop("diverged", seen) if wer is None else told,
                keep=None if wer is None else "all",
            )
        )
        if wer is not None:
            self.append(_saved(trial, seen, f"trials/{trial}/checkpoint_{seen}"))

    def end(self, trial: str, status: Any = "completed", error: str | None = None) -> None:
        """It ends."""
        self.append(TrialEnded(trial_id=trial, status=status, error=error))

    def trial(self, trial: str, *wers: float, status: Any = None, **config: Any) -> None:
        """A whole trial: completed with a WER at each rung, else stopped early at the last one."""
        self.begin(trial, **config)
        stopped = len(wers) < len(RUNGS) and status is None
        self.evaluate(trial, *wers, stop=stopped)
        self.end(trial, status or ("early_stopped" if stopped else "completed"))

    def progress(self, trial: str, *steps: int, **metrics: float) -> None:
        """Losses between evaluations."""
        for step in steps:
            values = {
                "samples_seen": step,
                "loss": 100.0 / step,
                "epoch": step / 800,
                "step": step / 8,
                **metrics,
            }
            self._progress.add(trial, values, self._tick())
        self._progress.flush()

    def finish(self, status: Any = "completed", **changes: Any) -> None:
        """The session ends, and its results are written."""
        self.append(SearchEnded(status=status, **changes))
        (self.folder / "results.json").write_text("{}")
        self.append(ResultsWritten())

    def four(self) -> None:
        """A session, and one trial of each end: completed with 11.0 at best, stopped at 70.0, diverged, failed."""
        self.session()
        for number in range(1, 5):
            self.begin(f"00{number}", learning_rate=number / 1000)
        self.measure("001", RUNGS[0], 30.0)
        self.measure("002", RUNGS[0], 70.0, stop=True)
        self.end("002", "early_stopped")
        self.measure("001", RUNGS[1], 11.0)
        self.measure("003", RUNGS[0], None)
        self.end("003", "diverged")
        self.end("004", "failed", "it broke")
        self.measure("001", RUNGS[2], 12.0)
        self.end("001")

    @property
    def entries(self) -> list[Entry]:
        """All events."""
        path = self.folder / EVENTS_FILE
        return list(parse(path.read_bytes(), path))

    def saved_at(self, events: int | None = None) -> Experiment:
        """The experiment as its first events leave it, all of them where no number is given."""
        state = SearchState()
        for entry in self.entries[:events]:
            state.apply(entry)
        return Experiment(self.experiment, state)

    @property
    def experiment(self) -> ExperimentFolder:
        """Its folder, as the package has it."""
        return ExperimentFolder(self.name, self.folder)

    def close(self) -> None:
        """Let go of the files, as a process that ends does."""
        self.log.close()
        self._progress.close()

    def again(self) -> None:
        """Open the log as the next process does."""
        self.close()
        self.log = ExperimentLog(self.folder / EVENTS_FILE, clock=self._tick)
        self._progress = ProgressLog(self.folder)

    def target(self, **changes: Any) -> Target:
        """Where it goes."""
        option = f" --storage {self.folder.parent}"
        return Target(**{"folder": self.experiment, "option": option, "tracking_uri": self.uri, **changes})

    def deliver(self, **changes: Any) -> Sync:
        """Sync all that is written."""
        sync = Sync(self.target(**changes))
        sync.once()
        return sync

    def log_at(self, events: int | None = None) -> Log:
        """The log as its first events leave it, all of them where no number is given."""
        log = Log(self.experiment)
        log.entries, log.saved = self.entries[:events], self.saved_at(events)
        return log


@functools.cache
def _plan() -> Plan:
    storage = Storage.parse(Path(tempfile.gettempdir(), "nothing is written here"))
    return search_plan(storage, "made", space="lr_batch", trials=4)


def _fields(kind: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _saved(trial: str, seen: int, path: str) -> CheckpointSaved:
    return CheckpointSaved(trial_id=trial, samples_seen=seen, epoch=1.0, checkpoint=path, keep="all")


TRAINING: dict[str, Any] = {"kind": "training", "trials": 1, "space": {}}
"""What is different of a single training."""


def change_settings(folder: Path, **changes: Any) -> None:
    """Other values for some fields of `Prepared` in the log of an experiment that nobody runs."""
    path = folder / EVENTS_FILE
    entries = [
        dataclasses.replace(entry, event=dataclasses.replace(entry.event, **changes))
        if isinstance(entry.event, Prepared)
        else entry
        for entry in parse(path.read_bytes(), path)
    ]
    path.write_bytes(b"".join(map(encode, entries)))


def whole_search(
    made: MadeLog,
    trials: Sequence[Sequence[float]] = ((50.0, 30.0, 12.0), (55.0,)),
    *,
    dropped: Sequence[str] = (),
) -> None:
    """A search from its first event to its last; the weights of `dropped` are gone."""
    made.session(trials=len(trials))
    for number, wers in enumerate(trials, start=1):
        made.trial(f"{number:03d}", *wers)
    if dropped:
        kept = [run.trial_id for run in made.log.state.runs if run.trial_id not in dropped]
        made.append(ExportChosen(run=kept[0] if kept else "none", keep=kept))
    made.finish()


def sync_in_steps(store: Store, made: MadeLog, ends: Iterable[int] = ()) -> None:
    """Sync once for each of these numbers of events, and all of them in the end."""
    for end in sorted({*ends, len(made.entries)}):
        store.sync(made.log_at(end))


def folded(records: Records) -> Records:
    """What the log of these trials folds to; a search that was killed in mid-trial had not written their ends."""
    state = SearchState()
    for record in records.all():
        for event in events_of(record):
            state.apply(decode(encode(Entry(state.events + 1, 1.0, event))))
    return state.records


def events_of(record: Trial, *, epoch_samples: int = 100, opened: bool = False) -> list[Event]:
    """What is written of a trial, or of a repeat: its end too where it has one.

    Args:
        record: what it came to.
        epoch_samples: samples of an epoch.
        opened: it still runs, and has its first evaluation at most.
    """
    name = record.trial_id
    kind: Any = "repeat" if "-r" in name else "trial"
    effective = record.effective_batch
    events: list[Event] = [
        TrialProposed(trial_id=name, config=record.config, kind=kind, effective_batch=effective),
        TrialStarted(trial_id=name, folder=record.folder or name),
    ]
    diverged = record.stop if record.stop and record.stop.reason == "diverged" else None
    rows = list(zip(record.evaluations, record.losses, strict=True))
    for place, ((seen, wer), loss) in enumerate(rows[:1] if opened else rows, 1):
        metrics: dict[str, float | None] = {"wer": wer, "cer": wer / 3, "eval_loss": loss}
        if record.samples_per_second is not None:
            metrics |= {"train_samples": record.samples_per_second, "train_seconds": 1.0}
        ends = place == len(rows) and not opened
        events.append(
            Evaluated(
                trial_id=name,
                samples_seen=seen,
                epoch=seen / epoch_samples,
                metrics=metrics,
                finished=ends and record.finished,
                stop=record.stop if ends and not diverged else None,
                keep="all" if (saved := record.checkpoint and seen == record.best_samples_seen) else None,
            )
        )
        if saved and record.checkpoint:
            events.append(_saved(name, seen, record.checkpoint))
    if opened:
        return events
    if diverged:
        seen = diverged.samples_seen
        events.append(
            Evaluated(
                trial_id=name,
                samples_seen=seen,
                epoch=seen / epoch_samples,
                metrics={"wer": None},
                finished=False,
                stop=diverged,
            )
        )
    if record.outcome != "running":
        told = {"error": record.error, "samples_seen": record.samples_seen, "epoch": record.epoch}
        events.append(TrialEnded(trial_id=name, status=record.outcome, **told))
    return events
