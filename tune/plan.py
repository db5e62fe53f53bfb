"""From the command line to a validated plan of a search, before anything expensive starts."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from tune.errors import ConfigError, ExperimentError
from tune.mlflow_store import absolute_tracking_uri, default_tracking_uri
from tune.scheduler import rung_grid
from tune.search_space import ChoiceParameter, load_space

if TYPE_CHECKING:
    from tune.search_space import SearchSpace

FEATURE_CACHE = ".feature-cache"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """What was asked for on the command line, unchecked."""

    space: str
    trials: int
    storage: Path
    experiment: str | None = None
    tracking_uri: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """`TrainConfig` fields given by flags and `--set`; they go before the space file's fixed values."""
    gpus_per_trial: float | None = None
    cpus_per_trial: float | None = None
    max_concurrent: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """A search whose settings are known to be sound."""

    request: SearchRequest
    name: str
    folder: Path
    """The experiment's folder, absolute; not there yet."""
    space: SearchSpace
    """Bounds resolved to numbers."""
    base: TrainConfig
    """The settings that all trials share; paths absolute."""

    @property
    def tracking_uri(self) -> str:
        """The MLflow store: the one asked for, else a database in the experiment's folder."""
        if self.request.tracking_uri is None:
            return default_tracking_uri(self.folder)
        return absolute_tracking_uri(self.request.tracking_uri)

    @property
    def batch_sizes(self) -> list[int]:
        """All effective batch sizes in the space, in rising order."""
        sizes = (self._values("train_batch_size"), self._values("gradient_accumulation_steps"))
        return sorted({batch * accumulation for batch in sizes[0] for accumulation in sizes[1]})

    def _values(self, name: str) -> list[int]:
        parameter = self.space.parameters.get(name)
        if parameter is None:
            return [int(getattr(self.base, name))]
        if isinstance(parameter, ChoiceParameter):
            return [int(value) for value in parameter.values]
        low, high = int(parameter.low or 1), int(parameter.high or 1)
        return list(range(low, high + 1, int(parameter.step or 1)))

    def budget(self, n_train: int) -> int:
        """Samples seen by a trial that is not stopped, the longest one where `max_steps` is the budget."""
        from tune.trainable import full_budget

        if self.base.max_steps is not None:
            return self.base.max_steps * self.batch_sizes[-1]
        return full_budget(self.base, n_train)

    def rungs(self, n_train: int) -> tuple[int, ...]:
        """Samples seen at which trials are measured; the last one is the full budget."""
        settings = self.space.scheduler
        common = math.lcm(*self.batch_sizes)
        return rung_grid(self.budget(n_train), settings.reduction_factor, settings.rungs, common)


def make_plan(request: SearchRequest) -> SearchPlan:
    """Check everything that can be checked without reading audio or starting Ray.

    Raises:
        UserError: the space, a setting, the model or the experiment's name cannot be used.
    """
    space = load_space(request.space, request.settings)
    name = request.experiment or _default_name(space.path)
    if not _NAME.fullmatch(name):
        raise ExperimentError(
            f"--experiment {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    storage = request.storage.expanduser().absolute()
    folder = storage / name
    if storage.exists() and not storage.is_dir():
        raise ExperimentError(f"--storage {request.storage}: is a file; give a folder")
    if folder.exists():
        raise ExperimentError(
            f"--experiment {name}: exists already in {request.storage}; choose another name or remove {folder}"
        )
    base = TrainConfig.from_dict(
        {"cache_dir": str(storage / FEATURE_CACHE), "seed": request.seed, **space.fixed}
    )
    paths = {key: _absolute(getattr(base, key)) for key in ("model", "data")}
    base = base.replace(**paths, cache_dir=str(Path(base.cache_dir).expanduser().absolute()))
    from tune.trainable import check_model

    default = check_model(base)
    space = space.resolve(default)
    if base.learning_rate is None:
        base = base.replace(learning_rate=default)
    return SearchPlan(request=request, name=name, folder=folder, space=space, base=base)


def check_numbers(request: SearchRequest) -> None:
    """Check the request's own numbers.

    Raises:
        ConfigError: one of them is out of range.
    """
    gpus = request.gpus_per_trial
    if request.trials < 1:
        raise ConfigError(f"--trials {request.trials}: must be at least 1")
    for name in ("gpus_per_trial", "cpus_per_trial"):
        if not math.isfinite(getattr(request, name) or 0.0):
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(request, name)}: must be a finite number")
    if gpus is not None and (gpus < 0 or (gpus > 1 and gpus != int(gpus))):
        raise ConfigError(f"--gpus-per-trial {gpus:g}: must be a share of one GPU up to 1, or a whole number")
    if request.cpus_per_trial is not None and request.cpus_per_trial <= 0:
        raise ConfigError(f"--cpus-per-trial {request.cpus_per_trial:g}: must be above 0")
    if request.max_concurrent is not None and request.max_concurrent < 1:
        raise ConfigError(f"--max-concurrent {request.max_concurrent}: must be at least 1")


def _default_name(space: Path) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', space.stem)}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def _absolute(source: str) -> str:
    """A path made absolute, since trials run in folders of their own; names of models and data sets unchanged."""
    path = Path(source).expanduser()
    return str(path.absolute()) if path.exists() or path.is_absolute() else source
