"""From the command line of `tune-whisper train` to a validated plan of one training."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from tune.arguments import check_least
from tune.cluster import TrialResources, alive_nodes, trial_resources
from tune.errors import ConfigError, ExperimentError, ResourceError
from tune.experiments.plan import SearchPlan, SearchRequest, absolute_source, dated_name, new_experiment
from tune.experiments.saved import load_results
from tune.runs.finish import find_finished
from tune.search_space import SearchSpace
from tune.space_settings import SchedulerSettings, SearcherSettings
from tune.storage import Storage
from tune.workers.trainable import check_model, read_settings

_BUDGET = ("epochs", "max_steps")
_NOT_TAKEN = ("evaluate_at", "workers", "output_dir")
"""What belongs to how a trial of a search ran, not to what it learned."""
_TOLD = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")
"""Settings that are always told; others where they are not the default."""
_NOT_TOLD = (
    *("model", "data", "data_config", "language", "task", "train_split", "validation_split", "test_split"),
    *("audio_column", "text_column", "cache_dir", "output_dir", "deepspeed", "workers", "evaluate_at"),
    *("epochs", "max_steps", "seed", "log_every_seconds", "dataloader_workers"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What was asked for on the command line, unchecked."""

    config: Path | None
    """YAML file of settings."""
    origin: str | None
    """The experiment whose best trial's settings are taken."""
    trial: str | None
    """Another trial of it than the best."""
    settings: Mapping[str, Any]
    """`TrainConfig` fields given by flags and `--set`; they go before the file's, and those before `origin`'s."""
    workers: int | None
    gpus_per_worker: float | None
    cpus_per_worker: float | None
    storage: Storage
    name: str | None
    tracking_uri: str | None
    address: str | None
    max_failures: int
    track: tuple[str, ...] = ("mlflow",)
    """Where results are shown."""
    take_over: bool = False
    """Go on also where another machine seems to run it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainPlan(SearchPlan):
    """One training: a search of one trial that has nothing left to search."""

    trial_config: dict[str, Any]
    """The settings of the trial in `results.json` and on the screen."""
    notes: tuple[str, ...] = ()
    """What the user should know before it starts."""
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None

    @property
    def is_training(self) -> bool:
        """Nothing is searched."""
        return True

    def resources(self) -> TrialResources:
        """What the workers take of the cluster. Ray must be running.

        Raises:
            ResourceError: there is not enough.
        """
        workers = self.base.workers
        request = dataclasses.replace(
            self.request,
            gpus_per_trial=None if self.gpus_per_worker is None else self.gpus_per_worker * workers,
            cpus_per_trial=None if self.cpus_per_worker is None else self.cpus_per_worker * workers,
        )
        try:
            return trial_resources(request, alive_nodes())
        except ResourceError as error:
            text = str(error).replace(f"--workers-per-trial {workers}", f"--workers {workers}")
            for kind in ("gpus", "cpus"):
                # There each number is that of all workers together.
                text = re.sub(
                    rf"--{kind}-per-trial ([\d.e+-]+)",
                    lambda found, kind=kind: f"--{kind}-per-worker {float(found[1]) / workers:g}",  # type: ignore[misc]
                    text,
                )
            raise ResourceError(text) from error


def make_train_plan(request: TrainRequest) -> TrainPlan:
    """Check everything that can be checked without reading audio or starting Ray.

    Raises:
        UserError: a setting, the file, the experiment to take settings from, the model or the name cannot be used.
    """
    _check_numbers(request)
    settings, notes, taken_batch = _merge(request)
    workers = request.workers or settings.pop("workers", None) or 1
    settings["workers"] = int(workers)
    check_gpus(request, settings["workers"])
    base = TrainConfig.from_dict({"cache_dir": str(request.storage.feature_cache), **settings})
    base = base.replace(
        **{key: absolute_source(getattr(base, key)) for key in ("model", "data")},
        cache_dir=str(Path(base.cache_dir).expanduser().absolute()),
    )
    name = _free_name(request, base)
    default = check_model(base)
    if base.learning_rate is None:
        base = base.replace(learning_rate=default)
    if taken_batch is not None:
        notes += _notes_on_taken(request, base, taken_batch, default)
    return TrainPlan(
        request=search_request(request, name, base),
        name=name,
        experiment_folder=request.storage.experiment(name),
        space=no_space(settings),
        base=base,
        trial_config=told_settings(base),
        notes=tuple(notes),
        gpus_per_worker=request.gpus_per_worker,
        cpus_per_worker=request.cpus_per_worker,
    )


def search_request(request: TrainRequest, name: str, base: TrainConfig) -> SearchRequest:
    """The training as a request for a search of one trial."""
    return SearchRequest(
        space="",
        trials=1,
        storage=request.storage,
        experiment=name,
        tracking_uri=request.tracking_uri,
        workers_per_trial=base.workers,
        address=request.address,
        max_failures=request.max_failures,
        seed=base.seed,
        finalists=0,
        track=request.track,
    )


def no_space(settings: Mapping[str, Any]) -> SearchSpace:
    """A space with everything fixed."""
    return SearchSpace(
        parameters={},
        fixed=dict(settings),
        try_first=[],
        scheduler=SchedulerSettings(),
        searcher=SearcherSettings(),
        path=Path("training"),
        source_text="",
    )


def told_settings(base: TrainConfig) -> dict[str, Any]:
    """The settings by which one training is told from another: the usual four, and what is not the default."""
    usual = TrainConfig()
    changed = [
        field.name
        for field in dataclasses.fields(TrainConfig)
        if field.name not in (*_TOLD, *_NOT_TOLD) and getattr(base, field.name) != getattr(usual, field.name)
    ]
    return {name: getattr(base, name) for name in (*_TOLD, *changed)}


def _merge(request: TrainRequest) -> tuple[dict[str, Any], list[str], int | None]:
    """All settings by their precedence, notes on them, and the effective batch of the trial they are from."""
    taken, batch = _taken(request) if request.origin is not None else ({}, None)
    given = read_settings(request.config) if request.config is not None else {}
    notes = []
    if "output_dir" in given:
        notes.append(
            f"note: output_dir of {request.config} is not used; --storage and --name say where it goes"
        )
    settings: dict[str, Any] = {}
    for layer in (taken, given, dict(request.settings)):
        if any(layer.get(name) is not None for name in _BUDGET):
            for name in _BUDGET:
                settings.pop(name, None)
        settings |= layer
    settings.pop("output_dir", None)
    return settings, notes, batch


def _taken(request: TrainRequest) -> tuple[dict[str, Any], int]:
    """The settings of a trial of an earlier experiment, and its effective batch.

    Raises:
        ExperimentError: there is no such experiment or trial, or no trial reached an evaluation.
    """
    origin = str(request.origin)
    settings, results = load_results(find_finished(origin, request.storage))
    wanted = request.trial.zfill(3) if request.trial else (results["best"] or {}).get("trial_id")
    if wanted is None:
        raise ExperimentError(
            f"--from {origin}: no trial of it reached an evaluation; --trial takes one all the same"
        )
    trials = {trial["trial_id"]: trial for trial in results["trials"]}
    if wanted not in trials:
        raise ExperimentError(f"--trial {wanted}: experiment {origin!r} has trials {', '.join(trials)}")
    trained = TrainConfig.from_dict({**settings["train_config"], **trials[wanted]["config"]})
    values = {name: value for name, value in trained.to_dict().items() if name not in _NOT_TAKEN}
    if not Path(trained.cache_dir).is_dir():  # it ran elsewhere
        del values["cache_dir"]
    return values, trained.effective_batch_size


def _notes_on_taken(request: TrainRequest, base: TrainConfig, batch: int, default: float) -> list[str]:
    """What differs from the trial whose settings are taken in ways that are easily overlooked."""
    notes = []
    if base.effective_batch_size != batch:
        notes.append(
            f"note: the effective batch is {base.effective_batch_size} here, it was {batch} in {request.origin}; "
            "--set gradient_accumulation_steps=N or train_batch_size=N changes it"
        )
    if (
        "model" in request.settings
        and "learning_rate" not in request.settings
        and base.learning_rate != default
    ):
        notes.append(
            f"note: learning_rate {base.learning_rate:g} is {request.origin}'s; {base.model} usually takes about "
            f"{default:g}, as --set learning_rate=null does"
        )
    return notes


def _free_name(request: TrainRequest, base: TrainConfig) -> str:
    name = request.name or dated_name(f"train-{base.model.rstrip('/').rsplit('/', 1)[-1]}")
    new_experiment("--name", name, request.storage)
    return name


def _check_numbers(request: TrainRequest) -> None:
    check_least(request, workers=1, max_failures=0)
    cpus = request.cpus_per_worker
    if cpus is not None and not 0 < cpus < float("inf"):
        raise ConfigError(f"--cpus-per-worker {cpus:g}: must be above 0")


def check_gpus(request: TrainRequest, workers: int) -> None:
    """Raise `ConfigError` where a worker would hold GPUs that it does not use, or several a share of one."""
    gpus = request.gpus_per_worker
    if gpus is None or gpus in (0, 1) or (workers == 1 and 0 < gpus < 1):
        return
    raise ConfigError(
        f"--gpus-per-worker {gpus:g}: must be 1 or 0; several GPUs are used by as many --workers"
        if workers == 1 or gpus > 1 or not gpus > 0
        else f"--gpus-per-worker {gpus:g}: must be 1 or 0; a share of a GPU is only for a single worker"
    )
