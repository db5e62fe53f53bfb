"""Experiments as searches leave them, with made-up learning curves: logs event by event, or with all files."""

import dataclasses
import functools
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlflow_server import empty_database
from plans import search_plan

from trainer.data.clips import load_clips
from trainer.data.drops import Drop
from trainer.data.prepared import prepare
from tune.cluster.resources import TrialResources
from tune.experiments.events import (
    Baseline,
    CheckpointSaved,
    Data,
    Entry,
    Evaluated,
    Event,
    Prepared,
    ResultsWritten,
    SearchEnded,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialStarted,
    encode,
)
from tune.experiments.experiment import Experiment, OpenExperiment
from tune.experiments.folder import EVENTS_FILE, SPLITS_FILE, ExperimentFolder
from tune.experiments.log import ExperimentLog, ProgressLog, parse
from tune.experiments.mlflow_store import default_tracking_uri
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.options import SearchOptions
from tune.experiments.results import succeeded, write_results
from tune.experiments.storage import Storage
from tune.runs.candidates import measure_average
from tune.runs.final_round import choose_export, compare
from tune.runs.plan import Plan
from tune.runs.session import data_of
from tune.search.records import Stop
from tune.tracking.sync import Log, Sync, Target
from tune.util.environment import package_versions
from tune.util.redact import without_password
from tune.workers.averages import Measured

BEGAN = 1_700_000_000.0
RUNGS = (384, 1088, 3200)
"""Of the space `lr_batch` with three rungs and a factor of 3 on the demo's 800 training clips, 4 epochs."""
EPOCH, EPOCHS = 800, 4.0
"""Samples of an epoch, and a training's budget."""
CLIPS, WORDS = 200, 10
"""Validation clips, and words of each."""
USUAL = {"learning_rate": 1e-4, "warmup_ratio": 0.1, "train_batch_size": 8, "gradient_accumulation_steps": 1}
"""Of the demo's model with the WER that it has here before fine-tuning, 60 %."""
TRAINING: dict[str, Any] = {"kind": "training", "trials": 1, "space": {}}
"""What is different of a single training."""


class MadeLog:
    """An experiment's log, with a clock of its own, and no more of the experiment than that needs."""

    def __init__(self, folder: Path, uri: str | None = None, **settings: Any) -> None:
        """`settings` are fields of `Prepared` and `SearchOptions`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.folder = folder.name, folder
        self.experiment = ExperimentFolder(self.name, folder)
        self.uri = uri or default_tracking_uri(folder.parent)
        self.now, self.tick = BEGAN, 1.0
        """Seconds since the epoch, and those that pass with everything that is written."""
        self._settings = settings | ({"tracking_uri": without_password(uri)} if uri else {})
        if not (folder / "experiment.yaml").exists():
            (folder / "space.yaml").write_text(_plan().space.source_text)
            (folder / "experiment.yaml").write_text("for people\n")
        self._open()
        self.now = max(self.now, self.log.state.last_event_time)

    def _open(self) -> None:
        self.log = ExperimentLog(self.folder / EVENTS_FILE, clock=self._time)
        self._progress = ProgressLog(self.folder)

    def _time(self) -> float:
        self.now += self.tick
        return self.now

    @property
    def saved(self) -> Experiment:
        """With the state that was written."""
        return Experiment(self.experiment, self.log.state)

    @property
    def entries(self) -> list[Entry]:
        path = self.folder / EVENTS_FILE
        return list(parse(path.read_bytes(), path))

    def append(self, *events: Event) -> None:
        self.log.append(*events)

    def session(self, *, gpus_per_trial: float = 0.0, **changes: Any) -> None:
        """A process begins or goes on; `changes` are fields of `Prepared` and `SearchOptions`.

        With a `space` it goes on with another one.
        """
        last, space = self.log.state.session, changes.get("space")
        changes = {"trials": 4, **self._settings, **changes}

        def given(kind: type[Any]) -> dict[str, Any]:
            names = {field.name for field in dataclasses.fields(kind)}
            return {name: value for name, value in changes.items() if name in names}

        started = SessionStarted(
            session=last.session + 1 if last else 1,
            began=self.now,
            options=SearchOptions(**given(SearchOptions) | {"space": ""}),
            gpus_per_trial=gpus_per_trial,
            space=space if last else None,
        )
        if last:
            self.append(started)
            return
        plan = _plan()
        prepared: dict[str, Any] = {
            "train_config": plan.base.to_dict(),
            "space": plan.space.to_dict(),
            "rungs": RUNGS,
            "resources": TrialResources(gpus=0.0, cpus=1.0, concurrent=2),
            "data": Data(clips={"train": EPOCH, "validation": CLIPS}, splits={"train": "0a1b"}),
            "baseline": Baseline(rates={"wer": 60.0, "cer": 20.0, "loss": 1.0, "clips": 200.0}),
            "versions": {"python": "3.11"},
        }
        self.append(started, Prepared(**prepared | given(Prepared)))

    def begin(self, trial: str, settings: Mapping[str, Any] | None = None, **changes: Any) -> str:
        """A trial, or a repeat, is proposed and started, with the usual settings but for `changes`; its name."""
        config = dict(USUAL | changes if settings is None else settings)
        batch = config.get("train_batch_size", 8) * config.get("gradient_accumulation_steps", 1)
        self.append(TrialProposed(trial_id=trial, config=config, effective_batch=batch))
        self.append(TrialStarted(trial_id=trial, folder=trial))
        return trial

    def evaluate(self, trial: str, *wers: float, stop: bool = False, first: int = 0) -> None:
        """Its evaluations at the first rungs, after the last of which ASHA may stop it."""
        for rung, wer in zip(RUNGS[first:], wers, strict=False):
            self.measure(trial, rung, wer, stop=stop and wer == wers[-1])

    def measure(self, trial: str, seen: int, wer: float | None, *, stop: Stop | bool | None = None) -> None:
        """One evaluation; with `stop` the trial is to end there. Without a WER it has diverged."""
        if stop is True and wer is not None:
            stop = Stop("asha", seen, wer, wer - 1, 3)
        for event in measured(trial, seen, wer, stop=stop or None):
            self.append(event)

    def end(self, trial: str, status: Any = "completed", error: str | None = None) -> None:
        run = self.log.state.run(trial)
        seen, epoch = run.samples_seen, run.epoch
        self.append(TrialEnded(trial_id=trial, status=status, error=error, samples_seen=seen, epoch=epoch))

    def trial(self, trial: str, *wers: float, status: Any = None, **config: Any) -> None:
        """A whole trial: completed with a WER at each rung, else stopped early at the last one."""
        self.begin(trial, **config)
        stopped = len(wers) < len(RUNGS) and status is None
        self.evaluate(trial, *wers, stop=stopped)
        self.end(trial, status or ("early_stopped" if stopped else "completed"))

    def progress(self, trial: str, *steps: int, **metrics: float) -> None:
        """Losses between evaluations."""
        for step in steps:
            place = {"samples_seen": step, "epoch": step / EPOCH, "step": step / 8}
            self._progress.add(trial, {**place, "loss": 100.0 / step, **metrics}, self._time())
        self._progress.flush()

    def finish(self, status: Any = "completed") -> None:
        """The session ends, and its results are written."""
        self.append(SearchEnded(status=status))
        (self.folder / "results.json").write_text("{}")
        self.append(ResultsWritten())

    def four(self) -> None:
        """A session, and one trial of each end: completed with 11.0 at best, stopped at 70.0, diverged, failed."""
        self.session()
        for number in range(1, 5):
            self.begin(f"00{number}", learning_rate=number / 10_000)
        self.measure("001", RUNGS[0], 30.0)
        self.measure("002", RUNGS[0], 70.0, stop=True)
        self.end("002", "early_stopped")
        self.measure("001", RUNGS[1], 11.0)
        self.measure("003", RUNGS[0], None)
        self.end("003", "diverged")
        self.end("004", "failed", "it broke")
        self.measure("001", RUNGS[2], 12.0)
        self.end("001")

    def whole(self, *more: Event) -> None:
        """A search of 18 events from its first to its last, and what else happens before it ends."""
        self.session(trials=2)
        self.trial("001", 50.0, 30.0, 12.0)
        self.trial("002", 55.0)
        if more:
            self.append(*more)
        self.finish()

    def close(self) -> None:
        """Let go of the files, as a process that ends does."""
        self.log.close()

    def again(self) -> None:
        """Open the log as the next process does."""
        self.close()
        self._open()

    def target(self, **changes: Any) -> Target:
        """Where it goes; a database that is not there yet has its tables then, which take MLflow two seconds."""
        database = Path(self.uri.removeprefix("sqlite:///"))
        if self.uri.startswith("sqlite:///") and database.parent.is_dir() and not database.exists():
            shutil.copy(empty_database(), database)
        option = f" --storage {self.folder.parent}"
        return Target(**{"folder": self.experiment, "option": option, "tracking_uri": self.uri, **changes})

    def deliver(self) -> None:
        """Sync all that is written."""
        Sync(self.target()).once()

    def log_at(self, events: int | None = None) -> Log:
        """The log as its first events leave it, all of them where no number is given."""
        log = Log(self.experiment)
        log.entries = self.entries[:events]
        for entry in log.entries:
            log.saved.state.apply(entry)
        return log


def measured(
    trial: str, seen: int, wer: float | None, *, stop: Stop | None = None, checkpoint: str | None = None
) -> list[Event]:
    """An evaluation and, in the named checkpoint, what was kept of it; without a WER the trial has diverged."""
    named: Any = {"trial_id": trial, "samples_seen": seen, "epoch": seen / EPOCH}
    metrics: dict[str, float | None] = {
        "wer": wer,
        "cer": None,
        "loss": 1.0,
        "learning_rate": 1e-4,
        "step": seen / 8,
    }
    if wer is None:
        return [Evaluated(**named, metrics=metrics, finished=False, stop=Stop("diverged", seen))]
    metrics |= {"cer": wer / 3, "eval_loss": 0.2 + wer / 50}
    path = checkpoint or f"trials/{trial}/checkpoint_{seen}"
    return [
        Evaluated(**named, metrics=metrics, finished=seen == RUNGS[-1], stop=stop, keep="all"),
        CheckpointSaved(**named, checkpoint=path, keep="all"),
    ]


@functools.cache
def _plan() -> Plan:
    storage = Storage.parse(Path(tempfile.gettempdir(), "nothing is written here"))
    plan = search_plan(storage, "made", space="lr_batch", trials=4, settings={"epochs": EPOCHS})
    return plan.after_baseline(60.0)


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


def bring(made: ExperimentFolder, store: ObjectStore) -> None:
    """Upload an experiment of a folder, as its search would have: nothing that is hidden."""
    for file in sorted(made.path.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            store.write(f"{made.name}/{file.relative_to(made.path).as_posix()}", file.read_bytes())


@dataclasses.dataclass
class MadeTrial:
    """What a trial of `write_experiment` comes to."""

    name: str
    wers: Sequence[float]
    config: dict[str, Any]
    stop: Stop | None
    error: str | None
    status: str


def made_trial(
    number: int,
    wers: Sequence[float],
    *,
    rate: float = 1.0,
    warmup: float = 0.1,
    batch: int = 8,
    accumulation: int = 1,
    stop: Stop | None = None,
    error: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> MadeTrial:
    """A trial with these WERs in percent at the first rungs, and these settings of `lr_batch`, or others.

    `rate` is a multiple of the usual learning rate. With a WER at each rung the trial completes, without any it
    diverges, and else ASHA stops it, unless there is another reason or it fails.
    """
    if error is None and stop is None and len(wers) < len(RUNGS):
        stop = Stop("diverged", RUNGS[0])
        if wers:
            stop = Stop("asha", RUNGS[len(wers) - 1], wers[-1], wers[-1] - 1, 3)
    status = "completed" if error is None else "failed"
    if stop is not None:
        status = "diverged" if stop.reason == "diverged" else "early_stopped"
    usual = dict(zip(USUAL, (rate * USUAL["learning_rate"], warmup, batch, accumulation), strict=True))
    settings = dict(usual if config is None else config)
    return MadeTrial(f"{number:03d}", [*map(float, wers)], settings, stop, error, status)


def write_experiment(
    folder: Path,
    trials: Sequence[MadeTrial],
    *,
    baseline: float = 60.0,
    name: str = "made",
    space: str = "lr_batch",
    asked: int | None = None,
    repeats: Mapping[str, Sequence[float]] | None = None,
    base_clips: bool = False,
    gpus: float = 1.0,
    drops: Sequence[Drop] = (),
    settings: Mapping[str, Any] | None = None,
    state: str = "finished",
    real_data: bool = False,
    began: float | None = None,
) -> ExperimentFolder:
    """An experiment in `folder / name` with all that a search leaves but weights.

    Args:
        baseline: WER of the base model; the usual learning rate is that of one with 60 %.
        asked: trials that were asked for; as many as there are.
        repeats: finalists, with a WER for each seed.
        base_clips: whether the base model's errors by clip are kept.
        state: `finished`; or `running`, `interrupted` or `killed`: its last trial is open then.
        real_data: the log tells of the data as it is, and its splits are kept.
        began: when, in seconds since the epoch; an hour ago where it is not given.
    """
    repeats = repeats or {}
    options = {
        "trials": len(trials) if asked is None else asked,
        "finalists": len(repeats),
        "repeats": max((len(wers) for wers in repeats.values()), default=2),
        "settings": dict(settings or {}),
    }
    plan = search_plan(Storage.parse(folder), name, space=space, **options).after_baseline(60.0)
    made = MadeLog(plan.folder)
    made.now, made.tick = int(time.time()) - 3600.0 if began is None else began, 0.0
    ends = made.now + 3600.0
    (plan.folder / "space.yaml").write_text(plan.space.source_text)
    if drops:
        lines = [json.dumps(dataclasses.asdict(drop)) + "\n" for drop in drops]
        (plan.folder / "dropped_clips.jsonl").write_text("".join(lines))
    if base_clips:
        (plan.folder / "baseline_utterances.json").write_text(json.dumps(_clips(baseline, 99)))
    limited = plan.base.max_steps or plan.base.max_samples
    base = plan.base if limited else plan.base.replace(epochs=EPOCHS)
    made.session(
        gpus_per_trial=gpus,
        **options,
        train_config=base.replace(evaluate_at=RUNGS).to_dict(),
        space=plan.space.to_dict(),
        rungs=RUNGS,
        resources=TrialResources(gpus, 4.0, 2),
        data=_real_data(plan)
        if real_data
        else Data(clips={"train": EPOCH, "validation": CLIPS, "test": CLIPS}),
        baseline=Baseline(rates=_rates(baseline)),
        dropped=dict(Counter(drop.reason for drop in drops)),
        notes=(f"dropped {len(drops)} clips",) if drops else (),
        versions=package_versions(),
    )
    for trial in trials:
        _add(made, trial.name, trial, opened=state != "finished" and trial is trials[-1])
    if state == "finished":
        _repeat(made, {trial.name: trial for trial in trials}, repeats)
    made.close()
    experiment = OpenExperiment(plan.experiment_folder)
    experiment.log._clock = made._time
    if state == "finished":
        if compare(experiment):
            measure_average(experiment, _worse_mean, print)
        choose_export(experiment, print)
    made.now = ends
    if state in ("finished", "interrupted"):
        found = experiment.state
        word = "interrupted" if found.something_is_left else "completed" if succeeded(found) else "failed"
        experiment.log.append(SearchEnded(status=word))  # type: ignore[arg-type]
        write_results(plan.experiment_folder, found)
        experiment.log.append(ResultsWritten())
    if state == "running":
        _RUNNING.append(experiment)  # the lock lasts as long as this process
    else:
        experiment.close()
    return plan.experiment_folder


_RUNNING: list[OpenExperiment] = []


def _worse_mean(config: object, checkpoints: object, name: str, most_wer: float) -> Measured:
    return Measured(_rates(most_wer + 1.0), kept=False)


def _real_data(plan: Plan) -> Data:
    table = load_clips(plan.base)
    data = prepare(plan.base, table=table)
    (plan.folder / SPLITS_FILE).write_bytes(data.encode_splits(table))
    return data_of(data)


def _rates(wer: float) -> dict[str, float]:
    rates = {"wer": wer, "cer": wer / 2, "wer_orthographic": wer, "cer_orthographic": wer / 2}
    return {**rates, "loss": 1.0, "clips": float(CLIPS)}


def _add(made: MadeLog, name: str, trial: MadeTrial, *, opened: bool = False) -> None:
    """A run of 20 s and half a second a sample, with its errors by clip; an open one has one evaluation at most."""
    made.begin(name, trial.config)
    began, diverged = made.now, trial.status == "diverged"
    for place, wer in enumerate(trial.wers[: 1 if opened else None], 1):
        last = place == len(trial.wers) and not opened and not diverged
        made.measure(name, RUNGS[place - 1], wer, stop=trial.stop if last else None)
    if diverged and trial.stop and not opened:
        made.measure(name, trial.stop.samples_seen, None)
    run = made.log.state.run(name)
    if not opened:
        made.now = began + 20 + run.samples_seen * 0.5
        made.end(name, trial.status, trial.error)
        made.now = began + 1.0
    if run.checkpoint:
        # As after the search: the weights are gone, what was measured is not.
        checkpoint = made.folder / run.checkpoint
        checkpoint.mkdir(parents=True)
        (checkpoint / "utterances.json").write_text(json.dumps(_clips(run.best_value or 0.0, len(name))))


def _clips(wer: float, seed: int) -> dict[str, list[int]]:
    """Errors of each clip that come to this WER, or the nearest one that there is."""
    wanted = round(wer / 100 * CLIPS * WORDS)
    errors = np.random.default_rng(seed).multinomial(wanted, np.full(CLIPS, 1 / CLIPS))
    return {"word_errors": errors.tolist(), "words": [WORDS] * CLIPS}


def _repeat(made: MadeLog, trials: Mapping[str, MadeTrial], repeats: Mapping[str, Sequence[float]]) -> None:
    """Their curves are those of the trials, moved: what was lowest before is lowest again."""
    found = {}
    for name, ends in repeats.items():
        for seed, wer in enumerate(ends, start=1):
            wers = [each - trials[name].wers[-1] + wer for each in trials[name].wers]
            found[f"{name}-r{seed}"] = made_trial(0, wers, config={**trials[name].config, "seed": seed})
    for name, repeat in found.items():
        _add(made, name, repeat)
