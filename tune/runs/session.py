"""What a search and a training have in common while they run: data, Ray, stores, and the experiment with its log."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from trainer.data.kept_splits import SPLITS_FILE
from trainer.scoring.translation import TRANSLATE
from tune.cluster.progress_channel import start_channel
from tune.cluster.resources import TrialResources
from tune.cluster.session import alive_nodes, check_shared, gpu_precision, joined_address, ray_session
from tune.experiments.events import (
    BaselineMeasured,
    DataPrepared,
    SearchEnded,
    SessionStarted,
    TrialProposed,
)
from tune.experiments.folder import RESULTS_FILE
from tune.experiments.mlflow_store import check_store
from tune.experiments.opened import OpenExperiment
from tune.experiments.plan import Plan
from tune.experiments.results import write_results
from tune.experiments.settings_file import DROPPED_FILE
from tune.runs.data import (
    load_guards,
    load_table,
    prepare_features,
    prepare_guards,
    say_disk_needed,
    what_clips_show,
)
from tune.runs.finish import finish
from tune.runs.outcome import Outcome
from tune.runs.uploader import Uploader
from tune.tracking.sync import Sync, Target
from tune.util.console import say, short_path, tell_of
from tune.util.environment import package_versions
from tune.util.errors import ExperimentError
from tune.workers.inputs import TrialInputs, shared_folders
from tune.workers.node_copies import NodeCopies

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from trainer.config import TrainConfig
    from trainer.data.prepared import PreparedData
    from tune.cluster.progress_channel import ProgressChannel
    from tune.experiments.state import SearchState

PlanT = TypeVar("PlanT", bound=Plan)


@dataclasses.dataclass
class Session(Generic[PlanT]):
    """A search or a training that runs in this process, whether begun or resumed."""

    console: Console
    plan: PlanT
    resources: TrialResources
    """Of a trial."""
    data: PreparedData
    copies: NodeCopies | None
    """Of features and model, for other nodes; a Ray of our own has none."""
    tracking: Sync
    stack: contextlib.ExitStack
    """Ends before Ray does."""
    began: float
    """When the command began, in seconds since the epoch."""
    guards: Mapping[str, PreparedData] = dataclasses.field(default_factory=dict)
    """Data that is not trained on, as `--guard` names it."""
    splits: bytes = b""
    """Which clip is in which split: the content of `splits.parquet`, of a new experiment; empty of a stream."""
    _experiment: OpenExperiment | None = None
    baseline: BaselineMeasured | None = None
    """Of a new experiment, from `measure_baseline` on."""

    @classmethod
    @contextlib.contextmanager
    def open(cls, plan: PlanT, console: Console, *, resumed: bool = False) -> Iterator[Session[PlanT]]:
        """Check the data and the stores, start or join Ray, and prepare the data.

        Raises:
            UserError: the data, the cluster or a store cannot be used.
        """
        from trainer.train import with_samples

        began = time.time()
        with contextlib.ExitStack() as outer:
            tracking = outer.enter_context(Sync(target_of(plan)))
            with console.status("looking at the data and the MLflow store ..."):
                if "mlflow" in plan.trackers:
                    check_store(plan.tracking_uri)
                table = load_table(plan.base, augments=plan.augments)
                guard_clips = load_guards(plan.base, plan.request.guard)
                say_disk_needed(plan.base, table, guard_clips, console, augments=plan.augments)
            outer.enter_context(ray_session(console, plan.request.address))
            stack = outer.enter_context(contextlib.ExitStack())
            if plan.request.storage.folder is not None:
                check_shared(plan.request.storage.folder, plan.request.storage.text)
            tell_of(console, plan.base.task)
            resources = plan.resources.fit(alive_nodes())
            plan.check_fit(resources)
            for line in plan.describe(resources):
                say(console, line)
            if plan.kind == "search" and plan.base.task != TRANSLATE:
                say(console, what_clips_show(plan.base, table))
            data = prepare_features(plan.base, console, table, augments=plan.augments)
            splits = b"" if resumed or data.stream else data.encode_splits(table)
            del table  # of a million clips it takes gigabytes
            plan = dataclasses.replace(plan, base=with_samples(plan.base, data.stream))
            guards = prepare_guards(plan.base, plan.request.guard, guard_clips, console)
            copies = None
            if joined_address(plan.request.address) != "local":
                folders = shared_folders(plan.base, data, augments=plan.augments)
                folders += [each.folder for each in guards.values()]
                with console.status("bringing features to the storage ..."):
                    copies = NodeCopies.keep(plan.request.storage, folders)
            yield cls(console, plan, resources, data, copies, tracking, stack, began, guards, splits)

    @property
    def experiment(self) -> OpenExperiment:
        """Nobody else writes to it meanwhile."""
        assert self._experiment is not None
        return self._experiment

    @property
    def state(self) -> SearchState:
        """What the log says so far."""
        return self.experiment.log.state

    def say(self, text: str) -> None:
        """Print one line."""
        say(self.console, text)

    @functools.cached_property
    def precision(self) -> str:
        """Arithmetic of trainings: as asked for or decided by an earlier session, else by the GPUs that are there."""
        found: str = self.plan.base.precision
        if found != "auto" or not self.resources.gpus:
            return found
        found = gpu_precision()
        if found != "auto":
            why = "which every GPU here has" if found == "bf16" else "since not every GPU here has bf16"
            self.say(f"precision: {found}, {why}")
        return found

    @functools.cached_property
    def _stored(self) -> ObjectRef[PreparedData]:
        import ray

        return ray.put(self.data)

    @functools.cached_property
    def _stored_guards(self) -> dict[str, ObjectRef[PreparedData]]:
        import ray

        return {name: ray.put(data) for name, data in self.guards.items()}

    @functools.cached_property
    def channel(self) -> ActorHandle[ProgressChannel]:
        """Between the trainings and this process."""
        return start_channel()

    def inputs(self, config: TrainConfig, guard: str | None = None) -> TrialInputs:
        """What the processes of a training are given; with a `guard` its data in place of the session's."""
        return TrialInputs(
            config=config.replace(precision=self.precision) if config.precision == "auto" else config,
            data=self._stored if guard is None else self._stored_guards[guard],
            copies=self.copies,
            cpus=self.resources.cpus_per_worker,
            gpus=self.resources.gpus_per_worker,
        )

    @contextlib.contextmanager
    def new_experiment(self) -> Iterator[OpenExperiment]:
        """Make the experiment's folder with its log; where the block fails, nothing of them is left.

        The stores are opened meanwhile, for which `begin` waits.

        Raises:
            UserError: the folder cannot be made.
        """
        plan, data = self.plan, self.data
        with _new_folder(plan):
            self._experiment = experiment = OpenExperiment(plan.experiment_folder)
            self.stack.callback(experiment.close)
            self._connect()
            try:
                if self.splits:
                    (plan.folder / SPLITS_FILE).write_bytes(self.splits)
                if data.drops:
                    data.write_dropped(plan.folder / DROPPED_FILE)
                    self.say(f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
                yield experiment
            except BaseException:
                self.tracking.stop()  # it may still be writing there
                raise
            self._follow()

    def begin(self, *more: TrialProposed) -> None:
        """Write down with what the new experiment begins, once `experiment.yaml` is there.

        Raises:
            TrackingError: a store refuses.
        """
        assert self.baseline is not None
        self._wait_for_stores()
        self.experiment.log.append(
            session_started(self, self.experiment),
            data_prepared(self.data, self.plan.base.weights),
            self.baseline,
            *more,
        )

    def go_on(self, experiment: OpenExperiment) -> None:
        """Take up an experiment of an earlier session.

        Raises:
            UserError: its data is another now, or a store refuses.
        """
        self._experiment = experiment
        check_same_data(self.plan.name, experiment, self.data)
        check_same_guards(self.plan.name, experiment, self.guards)
        self._connect()
        self._wait_for_stores()
        experiment.log.append(session_started(self, experiment))
        self._follow()

    def finish(self) -> Outcome[PlanT]:
        """Results, report and the end of the session in the log; then wait, not for ever, for the stores."""
        finish(self.experiment, self.say, storage_option=self.plan.request.storage.option)
        return Outcome(self.plan, self.state, sync_the_rest(self.tracking, self.experiment, self.console))

    def _connect(self) -> None:
        self.tracking.start()

    def _wait_for_stores(self) -> None:
        with self.console.status("opening the MLflow store ..."):
            self.tracking.wait()

    def _follow(self) -> None:
        """Close the experiment in the end, and have its files uploaded and its log followed meanwhile."""
        experiment = self.experiment
        uploader = Uploader(experiment, lambda text: self.say(f"warning: {text}"))
        self.stack.callback(experiment.close)
        self.stack.callback(uploader.finish)
        self.stack.enter_context(_told_if_broken(experiment))
        experiment.upload(log_only=True)  # others see that it has begun before anything is done
        uploader.start()


def target_of(plan: Plan) -> Target:
    """Where the log of a session goes."""
    return Target(
        folder=plan.experiment_folder,
        option=plan.request.storage.option,
        stores=plan.trackers,
        tracking_uri=plan.tracking_uri,
    )


def sync_the_rest(tracking: Sync, experiment: OpenExperiment, console: Console) -> str | None:
    """Wait, not for ever, until all is delivered, and note the runs' ids in the results; what is not delivered."""
    with console.status("syncing the stores ..."):
        problem = tracking.finish()
    try:
        write_results(experiment.folder, experiment.log.state)
    except OSError as error:
        told = f"{experiment.folder.path / RESULTS_FILE}: cannot be written again: {error.strerror}"
        problem = f"{problem}; {told}" if problem else told
    return problem


def session_started(session: Session[Any], experiment: OpenExperiment) -> SessionStarted:
    """What the session was asked for."""
    plan, last = session.plan, experiment.log.state.session
    return SessionStarted(
        session=last.session + 1 if last else 1,
        began=session.began,
        kind=plan.kind,
        **plan.asked,
        gpus_per_trial=session.resources.gpus,
        precision=session.precision,
        package=package_versions().get("tune-whisper", ""),
    )


def finite(rates: dict[str, float]) -> dict[str, float]:
    """The rates that are numbers, for the log: a loss may be none."""
    return {name: float(rate) for name, rate in rates.items() if math.isfinite(rate)}


def data_prepared(data: PreparedData, weights: Mapping[str, float] | None = None) -> DataPrepared:
    """Which clips the experiment is about; `weights` are those of sources that its settings give."""
    seconds = {name: [split.seconds(i) for i in range(len(split))] for name, split in data.splits.items()}
    digests = {name: split.digest() for name, split in data.splits.items()}
    totals = {name: sum(lengths) for name, lengths in seconds.items()}
    if data.stream:
        digests["train"] = data.stream.digest()
        totals["train"] = data.stream.n_clips * data.stream.mean_seconds
    return DataPrepared(
        features_key=data.folder.name,
        clips=data.clips,
        splits=digests,
        seconds=totals,
        longest_seconds=max(seconds.get("train", ()), default=None),
        epoch_samples=data.train.epoch_samples,
        sources=_sources(data, weights or {}),
    )


def _sources(data: PreparedData, weights: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """What the data's sources are; nothing for data without."""
    found: dict[str, dict[str, Any]] = {}
    for role, split in data.splits.items():
        origins = split.origins
        numbers = origins.numbers.tolist()
        for number, kind in enumerate(origins.kinds):
            if not kind.source:
                continue
            weight = weights.get(kind.source, kind.weight)
            told = {"language": [], "task": [], "weight": weight, "clips": {}}
            facts = found.setdefault(kind.source, told)
            for name in ("language", "task"):
                own = getattr(kind, name)
                facts[name] += [own] if own is not None and own not in facts[name] else []
            facts["clips"][role] = facts["clips"].get(role, 0) + numbers.count(number)
    return found


def check_same_data(name: str, experiment: OpenExperiment, data: PreparedData) -> None:
    """Raise `ExperimentError` where the data is another than that with which the experiment began.

    Its place may have changed, as on another machine: clips, texts and lengths count.
    """
    before, now = experiment.log.state.data, data_prepared(data)
    if before is None or before.splits == now.splits:
        return
    told = []
    for split in dict.fromkeys((*before.splits, *now.splits)):
        if before.splits.get(split) == now.splits.get(split):
            continue
        if split not in now.splits:
            told.append(f"has no {split} split any more")
        elif split not in before.splits:
            told.append(f"has a {split} split now")
        elif before.clips[split] != now.clips[split]:
            told.append(f"has {now.clips[split]:,} {split} clips now, {before.clips[split]:,} when it began")
        else:
            what = "clips, texts, languages or weights" if now.sources else "clips or texts"
            told.append(f"has other {split} {what} now")
    raise ExperimentError(
        f"--resume {name}: the data {', '.join(told)}; bring the old data back or start a new search"
    )


def check_same_guards(name: str, experiment: OpenExperiment, guards: Mapping[str, PreparedData]) -> None:
    """Raise `ExperimentError` where a guard was measured on other clips or texts than it has now."""
    for (_, guard), before in experiment.log.state.guards.items():
        if (
            before.rates
            and guard in guards
            and before.clips_digest != guards[guard].splits["validation"].digest()
        ):
            raise ExperimentError(
                f"--resume {name}: the guard {guard} has other clips or texts than when models were measured on it; "
                "bring the old data back or start a new search"
            )


@contextlib.contextmanager
def _told_if_broken(experiment: OpenExperiment) -> Iterator[None]:
    """A block that fails ends the session in the log, so that nobody takes it to run still."""
    try:
        yield
    except BaseException as error:
        state = experiment.log.state
        if experiment.problem is None and state.ended is None and not state.written:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            experiment.log.append(SearchEnded(status=status, text=type(error).__name__))  # type: ignore[arg-type]
        raise


@contextlib.contextmanager
def _new_folder(plan: Plan) -> Iterator[None]:
    """Make the experiment's folder, and remove it again where the search ends before its first trial."""
    made = [path for path in (plan.folder, *plan.folder.parents) if not path.exists()]
    try:
        plan.folder.mkdir(parents=True)
    except OSError as error:
        where = f"--storage {plan.request.storage.text}"
        raise ExperimentError(f"{where}: cannot make {plan.folder}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        plan.experiment_folder.remove()
        for path in made[1:]:
            if not any(path.iterdir()):
                path.rmdir()
        raise
