"""From the command line of `tune-whisper train` to a validated plan of one training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BUDGETS, SPLIT_SETTINGS, TrainConfig
from tune.cluster.resources import TRAINING_OPTIONS, ResourceRequest, TrialResources
from tune.experiments.plan import (
    ASKED_RESOURCES,
    Plan,
    RunRequest,
    dated_name,
    new_experiment,
    same_source,
    settled,
)
from tune.experiments.saved import Find, SavedExperiment, find_experiment, load_saved
from tune.search.records import trial_of
from tune.util.console import short_path, short_value
from tune.util.errors import ExperimentError, check_least

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.search.records import TrialRecord

TRIAL = "001"
"""A training is the only trial of its experiment."""
_NOT_TAKEN = ("evaluate_at", "workers", "output_dir", "train_on")
"""What belongs to how a trial of a search ran, not to what it learned."""
_TOLD = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")
"""Settings that are always told; others where they are not the default."""
_NOT_TOLD = (
    *("model", "data", "data_config", "language", "task", "train_split", "validation_split", "test_split"),
    *(
        "audio_column",
        "text_column",
        "language_column",
        "task_column",
        "cache_dir",
        "output_dir",
        "deepspeed",
        "workers",
        "evaluate_at",
    ),
    *(*BUDGETS, "seed", "log_every_seconds", "dataloader_workers", "eval_batch_size", "splits"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest(RunRequest):
    """What was asked for on the command line, unchecked."""

    config: Path | None = None
    """YAML file of settings."""
    origin: str | None = None
    """The experiment whose best trial's settings are taken."""
    on: str | None = None
    """`train+validation`: the clips of both, as long as the origin's training was when it was best."""
    trial: str | None = None
    """Another trial of it than the best."""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`TrainConfig` fields given by flags and `--set`; they go before the file's, and those before `origin`'s."""
    workers: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None
    name: str | None = None
    take_over: bool = False
    """Go on also where another machine seems to run it."""

    def resources(self, workers: int) -> ResourceRequest:
        """What so many workers take."""
        return ResourceRequest(
            gpus=self.gpus_per_worker, cpus=self.cpus_per_worker, workers=workers, options=TRAINING_OPTIONS
        )

    def check_numbers(self) -> None:
        """Raise `ConfigError` where one of the request's own numbers is out of range."""
        check_least(self, workers=1, max_failures=0)
        self.resources(1).check_numbers()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainPlan(Plan):
    """One training whose settings are known to be sound."""

    request: TrainRequest
    trial_config: dict[str, Any]
    """The settings of the trial in `results.json` and on the screen."""
    rate_given: bool = True
    """Whether the learning rate holds whatever the base model's WER is."""
    notes: tuple[str, ...] = ()
    """What the user should know before it starts."""

    kind = "training"

    @property
    def resources(self) -> ResourceRequest:
        """What the workers take."""
        return self.request.resources(self.base.workers)

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, in the words of a search of one trial, as `SessionStarted` has it by default."""
        return {
            "asked_resources": {**dict.fromkeys(ASKED_RESOURCES), "max_failures": self.request.max_failures}
        }

    def with_base(self, base: TrainConfig) -> TrainPlan:
        """See `Plan.with_base`."""
        return dataclasses.replace(self, base=base, trial_config=told_settings(base))

    @property
    def rates_depend_on_baseline(self) -> bool:
        """See `Plan.rates_depend_on_baseline`."""
        from trainer.model.rates import learning_rates

        return not self.rate_given and len(learning_rates(self.base)) > 1

    def after_baseline(self, base_wer: float | None) -> TrainPlan:
        """See `Plan.after_baseline`."""
        from trainer.model.rates import default_learning_rate

        if self.rate_given:
            return self
        base = self.base.replace(learning_rate=default_learning_rate(self.base, base_wer))
        return dataclasses.replace(self.with_base(base), rate_given=True)

    def describe(self, resources: TrialResources | None = None) -> list[str]:
        """What is trained, on what, with which settings; and the workers with the effective batch."""
        base, settings = self.base, self.trial_config
        if self.rates_depend_on_baseline:
            from trainer.model.rates import learning_rates

            usual = ", ".join(f"{rate:g}" for rate in learning_rates(base))
            settings = {**settings, "learning_rate": f"by the base model's WER one of {usual}"}
        lines = [
            f"training {self.name} in {short_path(self.folder)}",
            f"model {base.model} · data {base.data} · language {base.language} · {base.task}",
            ", ".join(f"{name} {short_value(value)}" for name, value in settings.items()),
            *self.notes,
            *self.notes_on_settings(),
        ]
        if resources is not None:
            workers = "1 worker" if base.workers == 1 else f"{base.workers} workers"
            each = f"{resources.gpus_per_worker:g} GPU and {resources.cpus_per_worker:g} CPU each"
            lines.append(
                f"{workers} with {each}{', DeepSpeed' if base.deepspeed else ''}; effective batch "
                f"{base.train_batch_size} x {base.gradient_accumulation_steps} x {base.workers} = "
                f"{base.effective_batch_size} (micro-batch x accumulation x workers)"
            )
        return lines


def make_train_plan(request: TrainRequest, find: Find = find_experiment) -> TrainPlan:
    """Check everything that can be checked without reading audio or starting Ray.

    Args:
        request: what was asked for.
        find: finds the experiment to take settings from, in its end where it has one.

    Raises:
        UserError: a setting, the file, the experiment to take settings from, the model or the name cannot be used.
    """
    from trainer.model.processor import load_processor
    from trainer.model.rates import default_learning_rate

    request.check_numbers()
    settings, notes, taken_batch = _merge(request, find)
    settings["workers"] = int(request.workers or settings.get("workers") or 1)
    request.resources(settings["workers"]).check_gpus()
    base = TrainConfig.from_dict({"cache_dir": str(request.storage.feature_cache), **settings})
    base = settled(base)
    name = request.name or dated_name(f"train-{base.model.rstrip('/').rsplit('/', 1)[-1]}")
    folder = new_experiment("--name", name, request.storage)
    load_processor(base)
    usual, given = default_learning_rate(base), base.learning_rate is not None
    if not given:
        base = base.replace(learning_rate=usual)
    if taken_batch is not None:
        notes += _notes_on_taken(request, base, taken_batch)
    plan = TrainPlan(
        request=request,
        name=name,
        experiment_folder=folder,
        base=base,
        trial_config=told_settings(base),
        rate_given=given,
        notes=tuple(notes),
    )
    plan.check_settings()
    return plan


def told_settings(base: TrainConfig) -> dict[str, Any]:
    """The settings by which one training is told from another: the usual four, and what is not the default."""
    usual = TrainConfig()
    changed = [
        field.name
        for field in dataclasses.fields(TrainConfig)
        if field.name not in (*_TOLD, *_NOT_TOLD) and getattr(base, field.name) != getattr(usual, field.name)
    ]
    return {name: getattr(base, name) for name in (*_TOLD, *changed)}


def _merge(request: TrainRequest, find: Find) -> tuple[dict[str, Any], list[str], int | None]:
    """All settings by their precedence, notes on them, and the effective batch of the trial they are from."""
    from trainer.config_file import read_config_file

    taken: dict[str, Any] = {}
    batch = None
    notes: list[str] = []
    if request.origin is not None:
        taken, batch, notes = _taken(request, request.origin, find(request.origin, request.storage))
    given = read_config_file(request.config) if request.config is not None else {}
    if "output_dir" in given:
        notes.append(
            f"note: output_dir of {request.config} is not used; --storage and --name say where it goes"
        )
    settings: dict[str, Any] = {}
    for layer in (taken, given, dict(request.settings)):
        if any(layer.get(name) is not None for name in BUDGETS):
            for name in BUDGETS:
                settings.pop(name, None)
        settings |= layer
    settings.pop("output_dir", None)
    asked = {**given, **request.settings}
    if taken.get("splits") and "splits" not in asked:
        other = [
            name
            for name in ("data", "data_config", *SPLIT_SETTINGS)
            if asked.get(name, taken.get(name)) != taken.get(name)
            and not (name == "data" and same_source(asked[name], taken[name]))
        ]
        if other:  # the splits kept there are of other clips, or not what is wanted now
            settings["splits"] = None
            notes.append(
                f"note: {', '.join(other)} differs from {request.origin}, so the splits are not those kept there"
            )
    return settings, notes, batch


def _taken(
    request: TrainRequest, origin: str, folder: ExperimentFolder
) -> tuple[dict[str, Any], int, list[str]]:
    """The settings of a trial of an earlier experiment, its effective batch, and notes on them.

    Raises:
        ExperimentError: there is no such trial, or no trial reached an evaluation; with `--on` there is no test split.
    """
    saved = load_saved(folder)
    trials = saved.state.records
    best = saved.state.best() or trials.best()  # its weights may be gone: settings are all that is taken
    wanted = None if best is None else trial_of(best.trial_id)
    if request.trial:
        wanted = request.trial.zfill(3)
    if wanted is None:
        raise ExperimentError(
            f"--from {origin}: no trial of it reached an evaluation; --trial takes one all the same"
        )
    if wanted not in trials:
        known = ", ".join(trial.trial_id for trial in trials.all())
        raise ExperimentError(f"--trial {wanted}: experiment {origin!r} has trials {known}")
    trained = saved.config(trials[wanted])
    values = {name: value for name, value in trained.to_dict().items() if name not in _NOT_TAKEN}
    notes: list[str] = []
    if request.on is not None:
        run = best if best is not None and trial_of(best.trial_id) == wanted else trials[wanted]
        more, notes = _on_both(saved, run, request.on)
        values |= more
    return values, trained.effective_batch_size, notes


def _on_both(saved: SavedExperiment, run: TrialRecord, on: str) -> tuple[dict[str, Any], list[str]]:
    """Settings of a training on train and validation, which nothing is left to stop: as many passes as the run had
    seen at its best evaluation.
    """
    if "test" not in saved.settings.clips:
        raise ExperimentError(
            f"--on {on}: experiment {saved.name!r} has no test split, so that nothing would be left to measure; leave "
            "--on away"
        )
    if saved.base.streaming:
        raise ExperimentError(
            f"--on {on}: experiment {saved.name!r} streams its training split, to which validation cannot be added; "
            "leave --on away"
        )
    if not run.best_samples_seen:
        raise ExperimentError(f"--on {on}: {run.trial_id} of {saved.name!r} reached no evaluation")
    epochs = round(run.best_epoch, 4)
    note = (
        f"note: trained on train and validation together for {epochs:g} epochs, after which {run.trial_id} of "
        f"{saved.name} was best ({run.best_samples_seen:,} samples there); measured once, on the test split"
    )
    budget = {**dict.fromkeys(BUDGETS), "epochs": epochs}
    return {"train_on": on, **budget, "evaluations": 1}, [note]


def _notes_on_taken(request: TrainRequest, base: TrainConfig, batch: int) -> list[str]:
    """What differs from the trial whose settings are taken in ways that are easily overlooked."""
    from trainer.model.rates import learning_rates

    notes = []
    if base.effective_batch_size != batch:
        notes.append(
            f"note: the effective batch is {base.effective_batch_size} here, it was {batch} in {request.origin}; "
            "--set gradient_accumulation_steps=N or train_batch_size=N changes it"
        )
    asked = request.settings
    own = ("model" in asked or "method" in asked) and "learning_rate" not in asked
    usual = learning_rates(base)
    if own and base.learning_rate not in usual:
        rates = f"about {usual[0]:g}"
        if len(usual) > 1:
            rates = "by its WER one of " + ", ".join(f"{rate:g}" for rate in usual)
        notes.append(
            f"note: learning_rate {base.learning_rate:g} is {request.origin}'s; {base.model} usually takes {rates}, "
            "as --set learning_rate=null does"
        )
    return notes
