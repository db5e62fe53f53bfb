"""Experiments of nothing but `experiment.yaml` and a log with made-up trials, and their delivery to stores."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tune.experiments.events import (
    BaselineMeasured,
    DataPrepared,
    Entry,
    Evaluated,
    Event,
    ResultsWritten,
    SearchEnded,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialStarted,
    WeightsDropped,
    decode,
    encode,
)
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.log import ExperimentLog, ProgressLog, parse
from tune.experiments.mlflow_store import default_tracking_uri
from tune.experiments.plan import SearchPlan, SearchRequest, make_plan
from tune.experiments.saved import SavedExperiment
from tune.experiments.settings import read_settings
from tune.experiments.state import SearchState
from tune.experiments.storage import Storage
from tune.search.records import Records, Stop, TrialRecord
from tune.tracking.sync import Log, Store, Sync, Target
from tune.util.redact import without_password

BEGAN = 1_700_000_000.0
BASELINE = 60.0
RUNGS = (384, 1088, 3200)
RATES = {"learning_rate": 1e-3, "warmup_ratio": 0.1, "train_batch_size": 8, "gradient_accumulation_steps": 1}


class MadeLog:
    """An experiment's folder, and its log with a clock of its own, which runs a second with every call."""

    def __init__(self, folder: Path, uri: str | None = None, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.uri = uri or default_tracking_uri(folder)
        self.now = BEGAN
        if not (folder / "experiment.yaml").exists():
            write_settings(folder, self.uri, **settings)
        self.log = ExperimentLog(folder / EVENTS_FILE, clock=self._tick)
        self.now = max(self.now, self.log.state.heard)
        self._progress = ProgressLog(folder)

    def _tick(self) -> float:
        self.now += 1.0
        return self.now

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.folder.name

    @property
    def saved(self) -> SavedExperiment:
        """With the state that was written."""
        return SavedExperiment(self.experiment, read_settings(self.experiment), self.log.state)

    def append(self, *events: Event) -> None:
        """Write events down."""
        self.log.append(*events)

    def session(self, number: int | None = None, **changes: Any) -> None:
        """A process begins or goes on."""
        last = self.log.state.session
        number = number or (last.session + 1 if last else 1)
        asked: dict[str, Any] = {"trials": 4, "gpus_per_trial": 0.0, **changes}
        self.append(SessionStarted(session=number, began=self.now, **asked))
        if number == 1:
            rates = {"wer": BASELINE, "cer": 20.0, "loss": 1.0, "clips": 200.0}
            self.append(
                DataPrepared(features_key="k", clips={"train": 800}),
                BaselineMeasured(rates=rates, seconds=2.0),
            )

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
                checkpoint=f"trials/{trial}/checkpoint_{seen}",
            )
        )

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

    def saved_at(self, events: int | None = None) -> SavedExperiment:
        """The experiment as its first events leave it, all of them where no number is given."""
        state = SearchState()
        for entry in self.entries[:events]:
            state.apply(entry)
        return SavedExperiment(self.experiment, read_settings(self.experiment), state)

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


def write_settings(folder: Path, uri: str, **changes: Any) -> None:
    """`experiment.yaml` as a search of the space `lr_batch` on the demo writes it."""
    plan = _plan()
    (folder / "space.yaml").write_text(plan.space.source_text)
    settings = {
        "experiment": folder.name,
        "seed": 0,
        "tracking_uri": without_password(uri),
        "space": plan.space.to_dict(),
        "train_config": plan.base.to_dict(),
        "budget_samples": RUNGS[-1],
        "rungs": list(RUNGS),
        "resources": {"gpus": 0.0, "cpus": 1.0, "concurrent": 2, "workers": 1},
        "clips": {"train": 800, "validation": 200},
        "versions": {"python": "3.11"},
        **changes,
    }
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


@functools.cache
def _plan() -> SearchPlan:
    storage = Storage.parse(Path(tempfile.gettempdir(), "nothing is written here"))
    return make_plan(SearchRequest(space="lr_batch", trials=4, storage=storage, experiment="made"))


def training_settings(plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What is different in the file of a single training."""
    return {"kind": "training", "space": {}, **(plan or {})}


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
        made.append(WeightsDropped(runs=list(dropped)))
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


def events_of(record: TrialRecord, *, epoch_samples: int = 100, opened: bool = False) -> list[Event]:
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
                checkpoint=record.checkpoint,
            )
        )
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
