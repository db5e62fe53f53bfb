"""What a search and a training have in common while they run: data, Ray, stores, and the experiment with its log."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import ray
from rich.console import Console

from trainer.data.drops import count_by_reason
from trainer.scoring.translation import TRANSLATE
from tune.cluster.progress_channel import ProgressChannel, start_channel
from tune.cluster.resources import TrialResources
from tune.cluster.session import alive_nodes, check_shared, gpu_precision, joined_address, ray_session
from tune.experiments.events import Baseline, Data, Prepared, SearchEnded, SessionStarted
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import DROPPED_FILE, RESULTS_FILE, SPACE_FILE, SPLITS_FILE
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.results import write_results
from tune.runs.data import load_guards, load_table, prepare_features, prepare_guards, what_clips_show
from tune.runs.finish import finish
from tune.runs.outcome import Outcome
from tune.runs.plan import Plan, write_experiment_file
from tune.runs.uploader import Uploader
from tune.tracking.sync import Sync, Target
from tune.util.console import doing, say, say_notes, set_task, short_path
from tune.util.environment import package_versions
from tune.util.errors import ExperimentError, ResourceError
from tune.util.redact import without_password
from tune.workers.inputs import TrialInputs, shared_folders
from tune.workers.node_copies import NodeCopies

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

    from trainer.config import TrainConfig
    from trainer.data.prepared import PreparedData
    from tune.experiments.state import SearchState


@dataclasses.dataclass
class Session:
    """A search or a training that runs in this process, whether begun or resumed."""

    console: Console
    plan: Plan
    resources: TrialResources
    data: PreparedData
    guards: Mapping[str, PreparedData]
    """Data that is not trained on, as `--guard` names it."""
    splits: bytes
    """Which clip is in which split: the content of `splits.parquet`, of a new experiment; empty of a stream."""
    copies: NodeCopies | None
    """Of features and model, for other nodes; a Ray of our own has none."""
    tracking: Sync
    stack: contextlib.ExitStack
    """Ends before Ray does."""
    began: float
    """When the command began, in seconds since the epoch."""
    _experiment: OpenExperiment | None = None

    @classmethod
    @contextlib.contextmanager
    def open(cls, plan: Plan, console: Console, *, resumed: bool = False) -> Iterator[Session]:
        """Check the data and the stores, start or join Ray, and prepare the data.

        Raises:
            UserError: the data, the cluster or a store cannot be used.
        """
        from trainer.train import with_samples

        began, guards = time.time(), plan.options.guard
        with contextlib.ExitStack() as outer:
            tracking = outer.enter_context(Sync(target_of(plan)))
            with doing(console, "looking at the data and the stores"):
                plan.check_stores()
                table = load_table(plan.base, augments=plan.augments)
                guard_clips = load_guards(plan.base, guards)
            outer.enter_context(ray_session(console, plan.address))
            stack = outer.enter_context(contextlib.ExitStack())
            if plan.storage.folder is not None:
                check_shared(plan.storage.folder, plan.storage.text)
            set_task(console, plan.base.task)
            resources = plan.options.resources.fit(alive_nodes())
            plan.check_fit(resources)
            for line in plan.describe(resources):
                say(console, line)
            if not plan.is_training and plan.base.task != TRANSLATE:
                say(console, what_clips_show(plan.base, (clip.text for clip in table.splits["validation"])))
            data = prepare_features(plan.base, console, table, augments=plan.augments)
            splits = b"" if resumed or data.stream else data.encode_splits(table)
            del table  # of a million clips it takes gigabytes
            plan = dataclasses.replace(plan, base=with_samples(plan.base, data.stream))
            prepared = prepare_guards(plan.base, guards, guard_clips, console)
            copies = None
            if joined_address(plan.address) != "local":
                folders = shared_folders(plan.base, augments=plan.augments)
                folders += [each.folder for each in (data, *prepared.values())]
                with doing(console, "copying features to the storage"):
                    copies = NodeCopies.make(plan.storage, folders)
            yield cls(console, plan, resources, data, prepared, splits, copies, tracking, stack, began)

    @property
    def experiment(self) -> OpenExperiment:
        """Nobody else writes to it meanwhile."""
        assert self._experiment is not None
        return self._experiment

    @property
    def state(self) -> SearchState:
        return self.experiment.state

    def say(self, text: str) -> None:
        say(self.console, text)

    @functools.cached_property
    def base(self) -> TrainConfig:
        """What repeats share and measurements use; trials but for their window. Known once the experiment has begun."""
        assert self.state.prepared is not None
        if self.plan.is_training:
            return self.plan.base
        return self.plan.base.replace(evaluate_at=self.state.prepared.rungs)

    @functools.cached_property
    def precision(self) -> str:
        """Arithmetic of trainings: as asked for or decided by an earlier session, else by the GPUs that are there."""
        found: str = self.plan.base.precision
        if not self.resources.gpus:
            prepared = self.state.prepared
            if found == "bf16" and prepared and prepared.train_config["precision"] == "auto":
                raise ResourceError(
                    "precision: trainings began in bf16 on GPUs, and there are none here; resume where GPUs are"
                )
            return "fp32" if found == "auto" else found
        if found != "auto":
            return found
        found = gpu_precision()
        if found != "auto":
            why = "which every GPU here has" if found == "bf16" else "since not every GPU here has bf16"
            self.say(f"precision: {found}, {why}")
        return found

    @functools.cached_property
    def _stored(self) -> dict[str | None, ObjectRef[PreparedData]]:
        """The data in Ray's object store, and that of guards by their names."""
        every: dict[str | None, PreparedData] = {None: self.data}
        every.update(self.guards)
        return {name: ray.put(data) for name, data in every.items()}

    @functools.cached_property
    def channel(self) -> ActorHandle[ProgressChannel]:
        """Between the trainings and this process."""
        return start_channel()

    def inputs(self, config: TrainConfig, guard: str | None = None) -> TrialInputs:
        """What the processes of a training are given; with a `guard` its data in place of the session's."""
        return TrialInputs(
            config=config.replace(precision=self.precision) if config.precision == "auto" else config,
            data=self._stored[guard],
            copies=self.copies,
            cpus=self.resources.cpus_per_worker,
            gpus=self.resources.gpus_per_worker,
        )

    @contextlib.contextmanager
    def new_experiment(self) -> Iterator[None]:
        """Make the experiment's folder with its log; where the block fails, nothing of them is left.

        Raises:
            UserError: the folder cannot be made, or a store refuses.
        """
        plan, data = self.plan, self.data
        with _new_folder(plan):
            self._experiment = experiment = OpenExperiment(plan.experiment_folder)
            self.stack.callback(experiment.close)
            self.tracking.start()  # the stores are opened meanwhile
            try:
                if self.splits:
                    (plan.folder / SPLITS_FILE).write_bytes(self.splits)
                if data.drops:
                    data.write_dropped(plan.folder / DROPPED_FILE)
                    self.say(f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
                yield
            except BaseException:
                self.tracking.stop()  # it may still be writing there
                with contextlib.suppress(ExperimentError, StorageError):  # what is told is why nothing began
                    experiment.discard()
                raise
        self._follow()

    def begin(self, baseline: Baseline, rungs: tuple[int, ...]) -> None:
        """Write down with what the new experiment begins.

        Raises:
            TrackingError: a store refuses.
        """
        plan, data = self.plan, self.data
        prepared = Prepared(
            train_config=(plan.base if plan.is_training else plan.base.replace(evaluate_at=rungs)).to_dict(),
            space={} if plan.is_training else plan.space.to_dict(),
            rungs=rungs,
            trials_full_window=plan.whole_window_trials,
            resources=self.resources,
            data=data_of(data, plan.base.weights),
            baseline=baseline,
            dropped=count_by_reason(data.drops),
            notes=tuple(data.notes),
            versions=package_versions(),
            warm_starts=list(plan.warm_starts),
        )
        self._keep_space_file()
        for each in plan.warm_starts:
            say_notes(self.console, each.notes)
        started = self._started()
        write_experiment_file(dataclasses.replace(plan, options=started.options), prepared)
        self._wait_for_stores()
        self.experiment.log.append(started, prepared)

    def go_on(self, experiment: OpenExperiment) -> None:
        """Take up an experiment of an earlier session.

        Raises:
            UserError: its data is another now, or a store refuses.
        """
        self._experiment = experiment
        check_same_data(experiment, self.data)
        check_same_guards(experiment, self.guards)
        self.tracking.start()
        self._wait_for_stores()
        started, space = self._started(), self.plan.space
        if self.plan.is_training or space is experiment.space:
            experiment.log.append(started)
        else:
            trials, shared = experiment.state.records.all(), experiment.shared
            inside = sum(bool(space.point_of(trial.config, shared)) for trial in trials)
            experiment.log.append(dataclasses.replace(started, space=space.to_dict()))
            self._keep_space_file()
            self.say(
                f"the space is {space.path} now: {inside} of {len(trials)} trials lie in it, and the searcher learns "
                "from them; the others can still win"
            )
        self._follow()

    def _keep_space_file(self) -> None:
        if text := self.plan.space.source_text:
            (self.plan.folder / SPACE_FILE).write_text(text, encoding="utf-8")

    def finish(self) -> Outcome:
        """Results, report and the end of the session in the log; then wait, not for ever, for the stores."""
        finish(self.experiment, self.say, storage_option=self.plan.storage.option)
        return Outcome(self.plan, self.state, sync_the_rest(self.tracking, self.experiment, self.console))

    def _started(self) -> SessionStarted:
        last = self.state.session
        return session_started(self.plan, self.resources, self.precision, self.began, last)

    def _wait_for_stores(self) -> None:
        with self.console.status("opening the stores ..."):
            self.tracking.wait()

    def _follow(self) -> None:
        """Close the experiment in the end, and have its files uploaded and its log followed meanwhile."""
        experiment = self.experiment
        uploader = Uploader(experiment, lambda text: self.say(f"warning: {text}"))
        self.stack.callback(experiment.close)
        self.stack.callback(uploader.finish)
        self.stack.enter_context(_end_logged(experiment))
        experiment.upload(log_only=True)  # others see that it has begun before anything is done
        uploader.start()


def session_started(
    plan: Plan, resources: TrialResources, precision: str, began: float, last: SessionStarted | None
) -> SessionStarted:
    """What a session was asked for, `last` being the one before; `began` in seconds since the epoch."""
    uri = plan.options.tracking_uri
    kept = None if uri is None else without_password(plan.tracking_uri)
    return SessionStarted(
        session=last.session + 1 if last else 1,
        began=began,
        options=dataclasses.replace(plan.options, tracking_uri=kept, notify=None),
        gpus_per_trial=resources.gpus,
        precision=precision,
    )


def target_of(plan: Plan) -> Target:
    return Target(
        folder=plan.experiment_folder,
        option=plan.storage.option,
        stores=[*plan.trackers, *(["notify"] if plan.options.notify else [])],
        tracking_uri=plan.tracking_uri,
        notify=plan.options.notify or "",
    )


def sync_the_rest(tracking: Sync, experiment: OpenExperiment, console: Console) -> str | None:
    """Wait, not for ever, until all is delivered, and note the runs' ids in the results; what is not delivered."""
    with console.status("syncing the stores ..."):
        problem = tracking.finish()
    try:
        write_results(experiment.folder, experiment.state)
    except OSError as error:
        unwritten = f"{experiment.folder.path / RESULTS_FILE}: cannot be written again: {error.strerror}"
        problem = f"{problem}; {unwritten}" if problem else unwritten
    return problem


def finite(rates: dict[str, float]) -> dict[str, float]:
    """The rates that are numbers, for the log: a loss may be none."""
    return {name: float(rate) for name, rate in rates.items() if math.isfinite(rate)}


def data_of(data: PreparedData, weights: Mapping[str, float] | None = None) -> Data:
    """Which clips an experiment is about; `weights` are those of sources that its settings give."""
    seconds = {name: [split.seconds(i) for i in range(len(split))] for name, split in data.splits.items()}
    digests = {name: split.digest() for name, split in data.splits.items()}
    totals = {name: sum(lengths) for name, lengths in seconds.items()}
    if data.stream:
        digests["train"] = data.stream.digest()
        totals["train"] = data.stream.n_clips * data.stream.mean_seconds
    return Data(
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
            none: dict[str, Any] = {"language": [], "task": [], "weight": weight, "clips": {}}
            facts = found.setdefault(kind.source, none)
            for name in ("language", "task"):
                own = getattr(kind, name)
                facts[name] += [own] if own is not None and own not in facts[name] else []
            facts["clips"][role] = facts["clips"].get(role, 0) + numbers.count(number)
    return found


def check_same_data(experiment: OpenExperiment, data: PreparedData) -> None:
    """Raise `ExperimentError` where the data is another than that with which the experiment began.

    Its place may have changed, as on another machine: clips, texts and lengths count.
    """
    name, before, now = experiment.name, experiment.settings.data, data_of(data)
    if before.splits == now.splits:
        return
    differences = []
    for split in dict.fromkeys((*before.splits, *now.splits)):
        if before.splits.get(split) == now.splits.get(split):
            continue
        if split not in now.splits:
            differences.append(f"has no {split} split any more")
        elif split not in before.splits:
            differences.append(f"has a {split} split now")
        elif before.clips[split] != now.clips[split]:
            differences.append(
                f"has {now.clips[split]:,} {split} clips now, {before.clips[split]:,} when it began"
            )
        else:
            what = "clips, texts, languages or weights" if now.sources else "clips or texts"
            differences.append(f"has other {split} {what} now")
    raise ExperimentError(
        f"--resume {name}: the data {', '.join(differences)}; restore the old data or start a new search"
    )


def check_same_guards(experiment: OpenExperiment, guards: Mapping[str, PreparedData]) -> None:
    """Raise `ExperimentError` where a guard was measured on other clips or texts than it has now."""
    for (_, guard), before in experiment.state.guards.items():
        if (
            before.rates
            and guard in guards
            and before.clips_digest != guards[guard].splits["validation"].digest()
        ):
            raise ExperimentError(
                f"--resume {experiment.name}: the guard {guard} has other clips or texts than when models were "
                "measured on it; restore the old data or start a new search"
            )


@contextlib.contextmanager
def _end_logged(experiment: OpenExperiment) -> Iterator[None]:
    """Where the block fails, the session ends in the log, so that nobody takes it to run still."""
    try:
        yield
    except BaseException as error:
        state = experiment.state
        if experiment.problem is None and state.ended is None and not state.written:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            experiment.log.append(SearchEnded(status=status))  # type: ignore[arg-type]
        raise


@contextlib.contextmanager
def _new_folder(plan: Plan) -> Iterator[None]:
    """Make the experiment's folder, and remove it again where the search ends before its first trial."""
    made = [path for path in (plan.folder, *plan.folder.parents) if not path.exists()]
    try:
        plan.folder.mkdir(parents=True)
    except OSError as error:
        where = f"--storage {plan.storage.text}"
        raise ExperimentError(f"{where}: cannot make {plan.folder}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        shutil.rmtree(plan.folder, ignore_errors=True)
        for path in made[1:]:
            if not any(path.iterdir()):
                path.rmdir()
        raise
