"""A search or a single training from its options to a validated plan, before anything expensive starts."""

from __future__ import annotations

import dataclasses
import datetime
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainer.config import BUDGETS, TrainConfig
from trainer.errors import ConfigError
from trainer.mix import is_mix
from trainer.optimizers import check_installed, notes_on_methods
from trainer.training.report import Kept
from tune.cluster.resources import TrialResources
from tune.experiments.events import Prepared
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EXPERIMENT_FILE, SPACE_FILE, ExperimentFolder
from tune.experiments.mlflow_store import absolute_tracking_uri, check_store, default_tracking_uri
from tune.experiments.options import SearchOptions, resume_command
from tune.experiments.paths import PATH_SETTINGS, absolute_guards, settled
from tune.experiments.storage import Storage, dated_name
from tune.experiments.warm_start import read_warm_start
from tune.search.budgets import describe_duration
from tune.search.scheduler import LEAST_STEPS, rung_grid
from tune.search.searcher import WarmStart
from tune.space.parameters import FloatParameter, Parameter
from tune.space.space import SearchSpace
from tune.util.console import short_path, short_value
from tune.util.errors import ResourceError, SpaceError, option_words

_AUGMENT = ("augment", "augment_strength")
_OF_ENGINE = ("optimizer", "method")
"""Settings of which DeepSpeed does not run all values."""
_LARGEST_FIRST = {"method": ["full", "decoder", "lora"], "optimizer": ["adamw", "adamw_8bit", "adafactor"]}
"""Settings of which a checkpoint's size depends on the value."""
_ALWAYS_SHOWN = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")
"""Settings of a training that are always shown; others where they are not the default."""
_NEVER_SHOWN = (
    *("model", "data", "data_config", "language", "task", "train_split", "validation_split", "test_split"),
    *("audio_column", "text_column", "language_column", "task_column"),
    *("train_on", "cache_dir", "output_dir", "deepspeed"),
    *("workers", "evaluate_at", *BUDGETS, "seed", "log_every_seconds", "dataloader_workers"),
    *("eval_batch_size", "splits"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A search, or a single training, whose settings are known to be sound."""

    options: SearchOptions
    name: str
    experiment_folder: ExperimentFolder
    """Where its files go; not there yet where it is new."""
    storage: Storage
    address: str | None = None
    """The Ray cluster to join; `$RAY_ADDRESS` where it is not given, else one is started."""
    base: TrainConfig
    """The settings that all trials share; paths absolute."""
    space: SearchSpace
    """Bounds resolved to numbers; without ranges for a training."""
    space_as_read: SearchSpace | None = None
    """The same with `auto`, until the base model's WER says what that is; None from then on."""
    warm_starts: tuple[WarmStart, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_training(self) -> bool:
        return self.options.kind == "training"

    @property
    def folder(self) -> Path:
        """Where this machine reads and writes the experiment's files, absolute."""
        return self.experiment_folder.path

    @property
    def where(self) -> str:
        """The experiment's place as people read it."""
        return self.experiment_folder.address if self.experiment_folder.remote else short_path(self.folder)

    @property
    def resume_command(self) -> str:
        """What goes on with it, from this folder."""
        return resume_command(self.name, self.options.kind, self.storage.option)

    @property
    def tracking_uri(self) -> str:
        """The MLflow store: the one asked for, else a database in the storage."""
        if self.options.tracking_uri is None:
            return default_tracking_uri(self.experiment_folder.mlflow_home)
        return absolute_tracking_uri(self.options.tracking_uri)

    @property
    def trackers(self) -> list[str]:
        return list(dict.fromkeys([*self.options.track, *([] if self.is_training else ["optuna"])]))

    def check_stores(self) -> None:
        """Check before anything expensive that the stores can be used.

        Raises:
            TrackingError: one cannot.
        """
        if "mlflow" in self.trackers:
            check_store(self.tracking_uri)
        if "wandb" in self.trackers:
            from tune.tracking.wandb import check_account

            check_account()

    @property
    def augments(self) -> bool:
        """Whether a trial may change the waveforms of clips."""
        if self.is_training:
            return self.base.augments
        return all(name in self.space.ranges or getattr(self.base, name) > 0 for name in _AUGMENT)

    @property
    def whole_window_trials(self) -> bool:
        """Whether trials are measured in the model's whole window, not in the one that they train with.

        Where finalists follow, these are measured as the model will be used.
        """
        given = "full_window_evaluation" in self.space.fixed or "audio_window" in self.space.ranges
        return self.base.full_window_evaluation and (given or not self.options.n_finalists)

    @property
    def shown_settings(self) -> dict[str, Any]:
        """The settings that tell one training from another: the usual four, and what is not the default."""
        usual = TrainConfig()
        changed = [
            field.name
            for field in dataclasses.fields(TrainConfig)
            if field.name not in (*_ALWAYS_SHOWN, *_NEVER_SHOWN)
            and getattr(self.base, field.name) != getattr(usual, field.name)
        ]
        return {name: getattr(self.base, name) for name in (*_ALWAYS_SHOWN, *changed)}

    def describe(self, resources: TrialResources | None = None) -> list[str]:
        """The head of the output, line by line; `resources` are what its trials get, where that is known."""
        base = self.base
        model = f"model {base.model} · data {base.data} · language {base.language} · {base.task}"
        methods = list(dict.fromkeys(self.values_of("method")))
        notes = [*self.notes, *notes_on_methods(base.to_dict(), TrainConfig().to_dict(), methods)]
        if self.is_training:
            return [
                f"training {self.name} in {self.where}",
                model,
                self._describe_training(),
                *notes,
                *_describe_workers(base, resources),
            ]
        space = self.space
        if self.space_as_read is not None and self.rates_depend_on_baseline:
            space = self.space_as_read
        # As the space has it, too: `auto` before the base model is measured.
        open_rate = {"learning_rate": "auto"} if space.fixed.get("learning_rate", 0.0) is None else {}
        fixed = [
            f"{name}={open_rate.get(name, getattr(base, name, value))}"
            for name, value in self.space.fixed.items()
            if name not in ("model", "data", "language", "task")
        ]
        return [
            f"experiment {self.name} in {self.where}",
            model,
            f"space {self.space.path.name}:",
            *(f"  {name}: {text}" for name, text in space.describe()),
            *([f"fixed: {', '.join(fixed)}"] if fixed else []),
            *notes,
        ]

    def _describe_training(self) -> str:
        settings = self.shown_settings
        if self.rates_depend_on_baseline:
            from trainer.model.rates import learning_rates

            usual = ", ".join(f"{rate:g}" for rate in learning_rates(self.base))
            settings["learning_rate"] = f"by the base model's WER one of {usual}"
        return ", ".join(f"{name} {short_value(value)}" for name, value in settings.items())

    def check_fit(self, resources: TrialResources) -> None:
        """Refuse what no trial could run.

        Raises:
            ResourceError: half precision is asked for, and trials have no GPU.
            ConfigError: GPU-hours are limited, and trials have no GPU.
        """
        if "fp16" in self.values_of("precision") and not resources.gpus:
            raise ResourceError("precision='fp16': needs a GPU, and trials have none; use auto, fp32 or bf16")
        hours = self.options.budgets.gpu_hours
        if hours is not None and not resources.gpus:
            raise ConfigError(f"--gpu-hours {hours:g}: the trials take no GPU here; use --time-budget")

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
            from trainer.model.pretrained import load_model_config
            from trainer.model.whisper import check_depth

            check_depth(self.base.replace(freeze_encoder_layers=frozen), load_model_config(self.base.model))

    def after_baseline(self, base_wer: float | None) -> Plan:
        """The plan with numbers for learning rates; the WER is in percent, None where it does not count.

        Raises:
            SpaceError: with these rates a range is empty, or a point to try first lies outside.
        """
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
        plan = dataclasses.replace(self, base=base, space_as_read=None)
        return plan.with_space(found)

    def with_space(self, space: SearchSpace) -> Plan:
        """The same with another resolved space, and of the earlier experiments those trials that lie in it."""
        warm_starts = tuple(each.within(space) for each in self.warm_starts)
        return dataclasses.replace(self, space=space, warm_starts=warm_starts)

    @property
    def searched_rates(self) -> str:
        return dict(self.space.describe()).get("learning_rate", "")

    @property
    def rates_depend_on_baseline(self) -> bool:
        """Whether learning rates go by the base model's WER, which is not known yet."""
        return self.space_as_read is not None and len(self.by_base_wer()) > 1

    def by_base_wer(self) -> list[tuple[float, Plan]]:
        """What the plan will be below each of some WERs of the base model in percent, where that matters.

        Raises:
            SpaceError: with some of these rates a range is empty, or a point to try first lies outside.
        """
        from trainer.model.rates import STEPS

        plans, known = list[tuple[float, Plan]](), set[str]()
        for below, _ in STEPS:
            try:
                plan = self.after_baseline(min(below, 1e6) - 1e-6)
            except SpaceError as error:
                which = f"below {below:g}" if math.isfinite(below) else f"of {STEPS[-2][0]:g} or more"
                raise SpaceError(
                    f"{error} (auto depends on the base model's WER, and this is for one {which} %; write numbers "
                    "instead of auto)"
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

    def checkpoint_bytes(self, keep: Kept = "all") -> int:
        """What the largest checkpoint of a trial takes on the disk."""
        from trainer.training.checkpoints import estimated_checkpoint_bytes

        largest = {name: max(self.values_of(name)) for name in ("lora_rank", "lora_targets")}
        for name, order in _LARGEST_FIRST.items():
            largest[name] = min(self.values_of(name), key=order.index)
        return estimated_checkpoint_bytes(self.base.replace(**largest), keep)

    def budget(self, epoch: float) -> int:
        """Samples seen by a trial that is not stopped, the longest one where `max_steps` is the budget.

        `epoch` is how many samples an epoch has.
        """
        from trainer.train import budget_samples

        if self.base.max_steps is not None:
            return self.base.max_steps * self.batch_sizes[-1]
        return budget_samples(self.base, epoch)

    def rungs(self, epoch: float) -> tuple[int, ...]:
        """Samples seen at which trials of a search are measured; the last one is the full budget.

        `epoch` is how many samples an epoch has.
        """
        settings = self.space.scheduler
        return rung_grid(
            self.budget(epoch),
            settings.reduction_factor,
            settings.rungs,
            multiple=math.lcm(*self.batch_sizes),
            least=LEAST_STEPS * self.batch_sizes[-1],
        )


def _describe_workers(base: TrainConfig, resources: TrialResources | None) -> list[str]:
    if resources is None:
        return []
    each = f"{resources.gpus_per_worker:g} GPU and {resources.cpus_per_worker:g} CPU"
    workers = f"1 worker with {each}" if base.workers == 1 else f"{base.workers} workers with {each} each"
    return [
        f"{workers}{', DeepSpeed' if base.deepspeed else ''}; effective batch "
        f"{base.train_batch_size} x {base.gradient_accumulation_steps} x {base.workers} = "
        f"{base.effective_batch_size} (train_batch_size x gradient_accumulation_steps x workers)"
    ]


def _points_of(parameter: Parameter) -> Sequence[Any]:
    if isinstance(parameter, FloatParameter) and parameter.step is None:
        return [parameter.low, parameter.high]
    return parameter.points() or []


def make_plan(
    options: SearchOptions,
    space: SearchSpace,
    storage: Storage,
    name: str | None = None,
    *,
    address: str | None = None,
    earlier: Sequence[Experiment] = (),
    notes: Sequence[str] = (),
) -> Plan:
    """Check everything that can be checked without reading audio or starting Ray.

    Args:
        space: what is searched, as its file has it; without ranges for a training.
        name: its name; by default that of the space or the model, with the time.
        earlier: the experiments of `options.warm_start`.
        notes: what the user should know of the settings.

    Raises:
        UserError: an option, a setting, the model or the experiment's name cannot be used.
    """
    from trainer.model.processor import load_processor

    options.check()
    training = options.kind == "training"
    base = TrainConfig.from_dict(
        {"cache_dir": str(storage.feature_cache), "seed": options.seed, **space.fixed}
    ).replace(workers=options.workers_per_trial)
    base = settled(base)
    stem = f"train-{base.model.rstrip('/').rsplit('/', 1)[-1]}" if training else space.path.stem
    name = name or dated_name(stem)
    folder = storage.new_experiment("--name" if training else "--experiment", name)
    load_processor(base)
    # Both are settled here: more trials on resume change neither.
    guards = absolute_guards(options.guard, base.data)
    options = dataclasses.replace(options, guard=guards, finalists=options.n_finalists)
    plan = Plan(
        options=options,
        name=name,
        experiment_folder=folder,
        storage=storage,
        address=address,
        space=space,
        base=base,
        space_as_read=space,
        notes=tuple(notes),
    )
    by_wer = plan.by_base_wer()  # none of them may fail once the base model is measured
    plan = dataclasses.replace(plan.after_baseline(None), space_as_read=space)
    spaces = [known.space for _, known in by_wer]
    ours = plan.base.to_dict() | space.usual_weights(plan.base.data)
    warm_starts = tuple(read_warm_start(each, spaces, ours) for each in earlier)
    plan = dataclasses.replace(plan, warm_starts=warm_starts)
    plan.check_settings()
    _check_data_given(space.fixed)
    return plan


def _check_data_given(settings: Mapping[str, Any]) -> None:
    """The demo's model, English and clips stand in for what nobody has named only where nothing else is named."""
    own = {
        name: settings[name]
        for name in ("data", "model", "language")
        if settings.get(name) not in (None, "demo")
    }
    needed = {"data": "--data demo for the clips of the demo"} if own else {}
    if "data" in own:
        needed = {"model": "--model demo for that of the demo"}
        if "language_column" not in settings and not is_mix(own["data"]):
            needed["language"] = "--language en for English"
    for name, example in needed.items():
        if name not in settings:
            given, value = next(iter(own.items()))
            raise ConfigError(
                f"--{name}: is missing, and --{given} {value} is given; name yours, or {example}"
            )


def write_experiment_file(plan: Plan, prepared: Prepared) -> None:
    """Write what was asked for and resolved, with a command that does the same under another name."""
    content = {
        "experiment": plan.name,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "run_again": _command(plan),
        "options": dataclasses.asdict(plan.options),
        **dataclasses.asdict(prepared),
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (plan.folder / EXPERIMENT_FILE).write_text(text, encoding="utf-8")


def _command(plan: Plan) -> str:
    """A command line that runs the same under another name, from any folder."""
    options, usual = plan.options, SearchOptions()
    if options.kind == "training":
        words = option_words(workers=options.workers_per_trial)
        return shlex.join(["tune-whisper", "train", f"--from={plan.name}", *words]) + plan.storage.option
    given: dict[str, Any] = {
        field.name: value
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != getattr(usual, field.name)
        and field.name not in ("space", "settings", "trials", "budgets", "guard")
    }
    budgets = options.budgets
    if not options.n_finalists:
        given.pop("repeats", None)
    settings = {
        key: getattr(plan.base, key) if key in PATH_SETTINGS else value
        for key, value in options.settings.items()
    }
    plateau = budgets.plateau_trials
    words = option_words(
        space=plan.folder / SPACE_FILE,
        trials=options.trials,
        **given,
        time_budget=None if budgets.seconds is None else describe_duration(budgets.seconds),
        gpu_hours=budgets.gpu_hours,
        target_wer=budgets.target_wer,
        plateau=plateau,
        plateau_points=budgets.plateau_points if plateau is not None else None,
        guard=list(map(str, options.guard)),
        storage=plan.storage.address,
        address=plan.address,
        settings=settings,
    )
    return shlex.join(["tune-whisper", "search", *words])
