"""From the command line to a validated plan of a search, before anything expensive starts."""

from __future__ import annotations

import abc
import dataclasses
import datetime
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.mix import is_mix, read_mix
from trainer.optimizers import check_installed, notes_on_methods
from tune.cluster.resources import ResourceRequest, TrialResources
from tune.experiments.mlflow_store import absolute_tracking_uri, default_tracking_uri
from tune.experiments.saved import Find, find_experiment
from tune.experiments.storage import Storage
from tune.search.budgets import Budgets
from tune.search.finalists import DEFAULT_COUNT, DEFAULT_REPEATS, LEAST_TRIALS
from tune.search.guards import Guard
from tune.search.scheduler import LEAST_STEPS, rung_grid
from tune.space.parameters import FloatParameter, Parameter
from tune.space.space import load_space
from tune.util.console import short_path
from tune.util.errors import ConfigError, ExperimentError, ResourceError, SpaceError, check_least

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.warm_start import WarmStart
    from tune.space.space import SearchSpace

ASKED_RESOURCES = ("gpus_per_trial", "cpus_per_trial", "max_concurrent", "max_failures")
"""What a trial takes and how many run, as it was asked for; a resumed search goes on with it."""
_OPTIONAL_PATHS = ("splits", "audio_dir", "noise_dir", "impulse_dir")
PATH_SETTINGS = ("model", "data", "cache_dir", *_OPTIONAL_PATHS)
"""Settings that may be paths, which are made absolute."""
_AUGMENT = ("augment", "augment_strength")
_OF_ENGINE = ("optimizer", "method")
"""Settings of which DeepSpeed does not run all values."""
_Plan = TypeVar("_Plan", bound="Plan")
EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What was asked for on the command line of a search or a training alike, unchecked."""

    storage: Storage
    tracking_uri: str | None = None
    track: tuple[str, ...] = ("mlflow",)
    """Where results are shown, beside the Optuna study of a search."""
    address: str | None = None
    """The Ray cluster to join; `$RAY_ADDRESS` where it is not given, else one is started."""
    max_failures: int = 2
    """Times that a training is tried again, from its last checkpoint."""
    guard: tuple[Guard, ...] = ()
    """Data that is not trained on, on which what a search exports may not lose much."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRequest(RunRequest):
    """What was asked for on the command line of a search."""

    space: str
    trials: int
    experiment: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`TrainConfig` fields given by flags and `--set`; they go before the space file's fixed values."""
    gpus_per_trial: float | None = None
    """None is one for each worker where there are any."""
    cpus_per_trial: float | None = None
    max_concurrent: int | None = None
    workers_per_trial: int = 1
    seed: int = 0
    budgets: Budgets = dataclasses.field(default_factory=Budgets)
    """What ends the search before all its trials."""
    finalists: int | None = None
    """Best trials that are trained again with other seeds; None is the default for the number of trials."""
    repeats: int = DEFAULT_REPEATS
    """Seeds of each finalist."""
    warm_start: str | None = None
    """A finished experiment of the same storage to learn from."""
    keep_checkpoints: str = "best"
    """Whose weights stay when the search has ended: `best` or `all`."""

    @property
    def n_finalists(self) -> int:
        """How many trials are trained again."""
        if self.finalists is None:
            return DEFAULT_COUNT if self.trials >= LEAST_TRIALS else 0
        return self.finalists

    @property
    def averages(self) -> bool:
        """Whether the mean of the winner's repeats is measured."""
        return self.n_finalists > 0 and self.repeats > 1

    @property
    def measured_after(self) -> int:
        """How many models are measured at most once all repeats have ended, each guard counted by itself."""
        return self.averages + len(self.guard) * self.guarded

    @property
    def guarded(self) -> int:
        """How many models are measured at most on each guard, the base model among them."""
        return 1 + max(self.n_finalists, DEFAULT_COUNT) + self.averages

    @property
    def resources(self) -> ResourceRequest:
        """What a trial takes."""
        return ResourceRequest(
            gpus=self.gpus_per_trial,
            cpus=self.cpus_per_trial,
            workers=self.workers_per_trial,
            trials=self.trials,
            max_concurrent=self.max_concurrent,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(abc.ABC):
    """A search or a training whose settings are known to be sound."""

    request: RunRequest
    name: str
    experiment_folder: ExperimentFolder
    """Where its files go; not there yet."""
    base: TrainConfig
    """The settings that all trials share; paths absolute."""

    kind: ClassVar[Literal["search", "training"]]

    @property
    def folder(self) -> Path:
        """Where this machine reads and writes the experiment's files, absolute."""
        return self.experiment_folder.path

    @property
    def augments(self) -> bool:
        """Whether a trial may change the waveforms of clips."""
        return self.base.augments

    def with_base(self: _Plan, base: TrainConfig) -> _Plan:
        """The plan with other settings that all trials share."""
        return dataclasses.replace(self, base=base)

    @property
    @abc.abstractmethod
    def rates_depend_on_baseline(self) -> bool:
        """Whether learning rates go by the base model's WER, which is not known yet."""

    @abc.abstractmethod
    def after_baseline(self: _Plan, base_wer: float | None) -> _Plan:
        """The plan with numbers for these learning rates; the WER is in percent, None where it does not count.

        Raises:
            SpaceError: with these rates a range is empty, or a point to try first lies outside.
        """

    @property
    def searched_rates(self) -> str:
        """The learning rates that are searched, in words."""
        return ""

    @property
    def whole_window_trials(self) -> bool:
        """Whether trials are measured in the model's whole window, not in the one that they train with."""
        return self.base.full_window_evaluation

    @property
    def where(self) -> str:
        """The experiment's place as people read it."""
        return self.experiment_folder.address if self.experiment_folder.remote else short_path(self.folder)

    @property
    def tracking_uri(self) -> str:
        """The MLflow store: the one asked for, else a database in the experiment's folder."""
        if self.request.tracking_uri is None:
            return default_tracking_uri(self.folder)
        return absolute_tracking_uri(self.request.tracking_uri)

    @property
    def trackers(self) -> tuple[str, ...]:
        """The stores to which the log is told."""
        return self.request.track

    @property
    @abc.abstractmethod
    def resources(self) -> ResourceRequest:
        """What a trial takes."""

    @property
    @abc.abstractmethod
    def asked(self) -> dict[str, Any]:
        """What was asked for, as the event of a session's beginning names it."""

    @abc.abstractmethod
    def describe(self, resources: TrialResources | None = None) -> list[str]:
        """The head of the output, line by line; `resources` are what its trials get, where that is known."""

    def check_fit(self, resources: TrialResources) -> None:
        """Refuse what no trial could run.

        Raises:
            ResourceError: half precision is asked for, and trials have no GPU.
            ConfigError: GPU-hours are limited, and trials have no GPU.
        """
        if "fp16" in self.values_of("precision") and not resources.gpus:
            raise ResourceError("precision='fp16': needs a GPU, and trials have none; use auto, fp32 or bf16")

    def values_of(self, name: str) -> list[Any]:
        """All that a setting can be in a trial."""
        return [getattr(self.base, name)]

    def notes_on_settings(self) -> list[str]:
        """What does nothing."""
        methods = list(dict.fromkeys(self.values_of("method")))
        return notes_on_methods(self.base.to_dict(), TrainConfig().to_dict(), methods)

    def check_settings(self) -> None:
        """Refuse what this machine cannot run or DeepSpeed does not, whatever trial would have it.

        Raises:
            ConfigError: an optimiser's package is missing, the engine takes no such setting, or the model has fewer
                layers than are not to be trained.
        """
        for name in _OF_ENGINE:
            for value in self.values_of(name):
                self.base.replace(**{name: value})
        for optimizer in self.values_of("optimizer"):
            check_installed(optimizer)
        if frozen := max(self.values_of("freeze_encoder_layers")):
            from trainer.model.whisper import check_depth, load_model_config

            check_depth(self.base.replace(freeze_encoder_layers=frozen), load_model_config(self.base))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchPlan(Plan):
    """A search whose settings are known to be sound."""

    request: SearchRequest
    space: SearchSpace
    """Bounds resolved to numbers."""
    space_as_read: SearchSpace | None = None
    """The same with `auto`, until the base model's WER says what that is; None from then on."""
    warm_start: WarmStart | None = None
    """What another experiment found."""

    kind = "search"

    @property
    def resume_command(self) -> str:
        """What goes on with the search, from this folder."""
        return f"tune-whisper --resume {shlex.quote(self.name)}{self.request.storage.option}"

    @property
    def trackers(self) -> tuple[str, ...]:
        """The stores to which the log is told."""
        return tuple(dict.fromkeys((*self.request.track, "optuna")))

    @property
    def resources(self) -> ResourceRequest:
        """What a trial takes."""
        return self.request.resources

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, as the event of a session's beginning names it."""
        request = self.request
        return {
            "trials": request.trials,
            "finalists": request.n_finalists,
            "repeats": request.repeats,
            "guards": list(request.guard),
            "budgets": request.budgets,
            "keep_checkpoints": request.keep_checkpoints,
            "asked_resources": {name: getattr(request, name) for name in ASKED_RESOURCES},
        }

    def describe(self, resources: TrialResources | None = None) -> list[str]:
        """What is searched, on what."""
        base, space = self.base, self.space
        if self.space_as_read is not None and self.rates_depend_on_baseline:
            space = self.space_as_read
        shown = {"model", "data", "language", "task"}
        # As the space has it, too: `auto` before the base model is measured.
        open_rate = {"learning_rate": "auto"} if space.fixed.get("learning_rate", 0.0) is None else {}
        fixed = [
            f"{name}={open_rate.get(name, getattr(base, name, value))}"
            for name, value in self.space.fixed.items()
            if name not in shown
        ]
        return [
            f"experiment {self.name} in {self.where}",
            f"model {base.model} · data {base.data} · language {base.language} · {base.task}",
            f"space {self.space.path.name}:",
            *(f"  {name}: {text}" for name, text in space.describe()),
            *([f"fixed: {', '.join(fixed)}"] if fixed else []),
            *self.notes_on_settings(),
        ]

    def check_fit(self, resources: TrialResources) -> None:
        """See `Plan.check_fit`."""
        super().check_fit(resources)
        hours = self.request.budgets.gpu_hours
        if hours is not None and not resources.gpus:
            raise ConfigError(f"--gpu-hours {hours:g}: the trials take no GPU here; use --time-budget")

    @property
    def augments(self) -> bool:
        """Whether a trial may change the waveforms of clips."""
        on = {name: name in self.space.ranges or getattr(self.base, name) > 0 for name in _AUGMENT}
        return all(on.values())

    @property
    def whole_window_trials(self) -> bool:
        """See `Plan.whole_window_trials`; where finalists follow, these are measured as the model will be used."""
        given = "full_window_evaluation" in self.space.fixed or "audio_window" in self.space.ranges
        return self.base.full_window_evaluation and (given or not self.request.n_finalists)

    def after_baseline(self, base_wer: float | None) -> SearchPlan:
        """See `Plan.after_baseline`."""
        from trainer.model.rates import default_learning_rate

        space = self.space_as_read
        if space is None:
            return self
        base = self.base.replace(learning_rate=space.fixed.get("learning_rate"))
        default = default_learning_rate(base, base_wer)
        by_method = {
            method: default_learning_rate(base.replace(method=method), base_wer) for method in space.methods
        }
        if base.learning_rate is None:
            base = base.replace(learning_rate=space.unsearched_rate(default, by_method))
        weights = space.usual_weights(base.data)
        found = space.resolve(default, by_method).with_recipe(default, by_method, weights)
        warm_start = self.warm_start.within(found) if self.warm_start else None
        return dataclasses.replace(self, base=base, space=found, space_as_read=None, warm_start=warm_start)

    @property
    def searched_rates(self) -> str:
        """See `Plan.searched_rates`."""
        return dict(self.space.describe()).get("learning_rate", "")

    @property
    def rates_depend_on_baseline(self) -> bool:
        """See `Plan.rates_depend_on_baseline`."""
        return self.space_as_read is not None and len(self.by_base_wer()) > 1

    def by_base_wer(self) -> list[tuple[float, SearchPlan]]:
        """What the plan will be below each of some WERs of the base model in percent, where that matters.

        Raises:
            SpaceError: with some of these rates a range is empty, or a point to try first lies outside.
        """
        from trainer.model.rates import STEPS

        plans, known = list[tuple[float, SearchPlan]](), set[str]()
        for below, _ in STEPS:
            try:
                plan = self.after_baseline(min(below, 1e6) - 1e-6)
            except SpaceError as error:
                which = f"below {below:g}" if math.isfinite(below) else f"of {STEPS[-2][0]:g} or more"
                raise SpaceError(
                    f"{error} (auto goes by the untouched model's WER, and this is for one {which} %; write numbers "
                    "in place of auto)"
                ) from error
            plans.append((below, plan))
            known.add(f"{plan.space.to_dict()} {plan.base.learning_rate}")
        return plans if len(known) > 1 else plans[:1]

    @property
    def batch_sizes(self) -> list[int]:
        """All effective batch sizes in the space, in rising order."""
        names = ("train_batch_size", "gradient_accumulation_steps")
        points = self.space.all_points(names)
        factors = ([int(point.get(name, getattr(self.base, name))) for name in names] for point in points)
        return sorted({math.prod(each) * self.base.workers for each in factors})

    def values_of(self, name: str) -> list[Any]:
        """All that a setting can be in a trial, its own value where it is not always searched.

        Of a range of real numbers its ends.
        """
        ranges = self.space.ranges.get(name, ())
        own = [] if any(not parameter.when for parameter in ranges) else [getattr(self.base, name)]
        return own + [value for one in ranges for value in _points_of(one)]

    def budget(self, epoch: float) -> int:
        """Samples seen by a trial that is not stopped, the longest one where `max_steps` is the budget.

        `epoch` is how many samples an epoch has.
        """
        from trainer.train import budget_samples

        if self.base.max_steps is not None:
            return self.base.max_steps * self.batch_sizes[-1]
        return budget_samples(self.base, epoch)

    def rungs(self, epoch: float) -> tuple[int, ...]:
        """Samples seen at which trials are measured; the last one is the full budget."""
        settings = self.space.scheduler
        return rung_grid(
            self.budget(epoch),
            settings.reduction_factor,
            settings.rungs,
            multiple=math.lcm(*self.batch_sizes),
            least=LEAST_STEPS * self.batch_sizes[-1],
        )


def _points_of(parameter: Parameter) -> list[Any]:
    """All values of a range, or its ends."""
    if isinstance(parameter, FloatParameter) and parameter.step is None:
        return [parameter.low, parameter.high]
    return parameter.points() or []


def make_plan(request: SearchRequest, find: Find = find_experiment) -> SearchPlan:
    """Check everything that can be checked without reading audio or starting Ray.

    Args:
        request: what was asked for.
        find: finds the experiment to learn from.

    Raises:
        UserError: the space, a setting, the model or the experiment's name cannot be used.
    """
    from trainer.model.processor import load_processor

    space = load_space(request.space, request.settings)
    name = request.experiment or dated_name(space.path.stem)
    folder = new_experiment("--experiment", name, request.storage)
    base = TrainConfig.from_dict(
        {"cache_dir": str(request.storage.feature_cache), "seed": request.seed, **space.fixed}
    ).replace(workers=request.workers_per_trial)
    base = settled(base)
    load_processor(base)
    request = dataclasses.replace(request, guard=absolute_guards(request.guard, base.data))
    plan = SearchPlan(
        request=request, name=name, experiment_folder=folder, space=space, base=base, space_as_read=space
    )
    by_wer = plan.by_base_wer()  # none of them may fail once the base model is measured
    plan = dataclasses.replace(plan.after_baseline(None), space_as_read=space)
    if request.warm_start is not None:
        from tune.experiments.warm_start import read_warm_start

        ours, spaces = plan.base.to_dict(), [known.space for _, known in by_wer]
        warm_start = read_warm_start(request.warm_start, request.storage, spaces, ours, find)
        plan = dataclasses.replace(plan, warm_start=warm_start)
    plan.check_settings()
    return plan


def new_experiment(option: str, name: str, storage: Storage) -> ExperimentFolder:
    """The place of an experiment that is not there yet.

    Raises:
        ExperimentError: the name, given by `option`, cannot be one, or is taken.
        StorageError: the storage cannot be used.
    """
    if not EXPERIMENT_NAME.fullmatch(name):
        raise ExperimentError(
            f"{option} {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    storage.check(write=True)
    folder = storage.experiment(name)
    if folder.exists():
        copy = f" and its working copy {folder.path}" if folder.remote and folder.path.exists() else ""
        raise ExperimentError(
            f"{option} {name}: exists already in {storage.text}; choose another name, go on with it by "
            f"--resume {name}, or remove {folder.address}{copy}"
        )
    return folder


def check_numbers(request: SearchRequest, *, resumed: bool = False) -> None:
    """Check the request's own numbers.

    Args:
        request: of a search.
        resumed: whether it goes on with a search, which knows its workers; their GPUs are left to `load_search`.

    Raises:
        ConfigError: one of them is out of range.
    """
    check_least(request, trials=1, workers_per_trial=1, max_failures=0, max_concurrent=1, finalists=0)
    request.resources.check_numbers()
    if not resumed:
        request.resources.check_gpus()
    _check_ends(request)


def _check_ends(request: SearchRequest) -> None:
    if request.repeats < 1:
        raise ConfigError(f"--repeats {request.repeats}: must be at least 1; --finalists 0 repeats nothing")
    budgets = request.budgets
    for option, number in (("--gpu-hours", budgets.gpu_hours), ("--plateau", budgets.plateau_trials)):
        if number is not None and not (0 < number < math.inf):
            raise ConfigError(f"{option} {number:g}: must be above 0")
    if not 0 <= budgets.plateau_points < 100:
        raise ConfigError(f"--plateau-points {budgets.plateau_points:g}: must be from 0 to below 100")


def dated_name(stem: str) -> str:
    """A name for an experiment where none is given: `stem` and the time."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', stem)}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def settled(base: TrainConfig) -> TrainConfig:
    """The same settings wherever a process runs, with a language of the data.

    Where a data file gives each source a language and the settings' is none of them, it is the first: the model is
    exported with it.

    Raises:
        DataError: the data file is wrong.
    """
    paths = {key: absolute_source(getattr(base, key)) for key in ("model", "data")}
    for key in _OPTIONAL_PATHS:
        if (path := getattr(base, key)) is not None:
            paths[key] = str(_home_known(path).absolute())
    base = base.replace(**paths, cache_dir=str(Path(base.cache_dir).expanduser().absolute()))
    if not is_mix(base.data):
        return base
    own = [source.settings.get("language") for source in read_mix(base.data).sources]
    return base if None in own or base.language in own else base.replace(language=own[0])


def absolute_source(source: str) -> str:
    """A path made absolute, since trials run in folders of their own; names of models and data sets unchanged."""
    if source in MODEL_SHORT_NAMES:  # also where a folder here has that name
        return source
    path = _home_known(source)
    return str(path.absolute()) if path.exists() or path.is_absolute() else source


def absolute_guards(guards: Sequence[Guard], data: str) -> tuple[Guard, ...]:
    """The same wherever a process runs; ConfigError where one is the data that is trained on, or given twice."""
    found: list[Guard] = []
    for given in guards:
        guard = dataclasses.replace(given, data=absolute_source(given.data))
        if same_source(guard.data, data):
            raise ConfigError(f"--guard {guard.data}: is the data that is trained on; give data that is not")
        if any(same_source(guard.data, other.data) for other in found):
            raise ConfigError(f"--guard {guard.data}: is given twice; give each data once")
        found.append(guard)
    return tuple(found)


def same_source(first: str, second: str) -> bool:
    """Whether two ways to name data mean the same: paths, however they are written and behind links, or names."""
    return first == second or _place(first) == _place(second)


def _place(source: str) -> str:
    path = _home_known(source)
    return str(path.resolve()) if path.exists() else source


def _home_known(path: str) -> Path:
    """The path with `~` in full; as it is where nobody has this name, which is told once it is looked for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
