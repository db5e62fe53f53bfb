"""`--resume`: a plan and a state from what an interrupted search left in its experiment's folder."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainer.config import TrainConfig
from tune.errors import ExperimentError
from tune.experiment_folder import EXPERIMENT_FILE
from tune.finalists import choose_finalists, repeat_settings
from tune.limits import Budgets
from tune.plan import SearchPlan, SearchRequest, check_auto
from tune.results import ASKED_RESOURCES, find_experiment, replace_experiment_file
from tune.search_space import SearchSpace, load_space
from tune.search_state import SearchState
from tune.trainable import restore_evaluation
from tune.warm_start import WarmStart

if TYPE_CHECKING:
    from trainer.train import Evaluation


@dataclasses.dataclass(frozen=True)
class ResumedSearch:
    """What is known of a search that goes on."""

    plan: SearchPlan
    state: SearchState
    baseline: Evaluation
    rungs: tuple[int, ...]
    n_train: int


def load_search(request: SearchRequest, name: str, given: Collection[str]) -> ResumedSearch:
    """The search `name` of `request.storage`, to go on with the request's resources and MLflow store.

    Args:
        request: where and how to run; what is searched is the experiment's.
        name: the experiment.
        given: options that were given; of the others, those that the search began with count. `--trials` is their
            number in all.

    Raises:
        ExperimentError: there is no such experiment, it never began, or it runs now.
    """
    folder = find_experiment(name, request.storage)
    saved = yaml.safe_load((folder.path / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    if saved.get("kind") == "training":
        raise ExperimentError(f"--resume {name}: is a training; use tune-whisper train --resume {name}")
    state = SearchState.load(folder.path)
    state.lock()
    begun = len(state.records.all())
    wanted = request.trials if "--trials" in given else int(saved["trials"])
    if wanted < begun:
        raise ExperimentError(f"--trials {wanted}: {begun} trials of {name!r} have begun already")
    request = dataclasses.replace(
        request,
        trials=wanted,
        seed=int(saved["seed"]),
        experiment=name,
        workers_per_trial=int(saved["resources"]["workers"]),
        tracking_uri=request.tracking_uri or saved.get("asked_tracking_uri"),
        **_as_begun(saved, given),
    )
    _check_left(request, name, state)
    check_auto(request, saved["train_config"].get("deepspeed"))
    _keep_asked(request, saved, folder.path / EXPERIMENT_FILE)
    base = TrainConfig.from_dict({**saved["train_config"], "evaluate_at": None})
    if not Path(base.cache_dir).is_dir():  # the search ran elsewhere
        base = base.replace(cache_dir=str(request.storage.feature_cache))
    plan = SearchPlan(
        request=request,
        name=name,
        experiment_folder=folder,
        space=_space(saved["space"], folder.path),
        base=base,
        warm_start=WarmStart.load(folder.path),
    )
    return ResumedSearch(
        plan,
        state,
        restore_evaluation(saved["baseline"]),
        tuple(saved["rungs"]),
        int(saved["clips"]["train"]),
    )


def _as_begun(saved: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Options that the search began with, but for those that are given anew."""
    found: dict[str, Any] = {}
    asked = {name: saved[name] for name in ("finalists", "repeats", "optuna_storage", "keep_checkpoints")}
    for name, value in (asked | saved["asked_resources"]).items():
        if f"--{name.replace('_', '-')}" not in given:
            found[name] = value
    if not {"--time-budget", "--gpu-hours", "--plateau", "--plateau-points"} & set(given):
        found["budgets"] = Budgets(**saved["budgets"])
    if "--trials" in given and "budgets" in found:  # more trials are wanted in spite of it
        found["budgets"] = dataclasses.replace(found["budgets"], plateau_trials=None)
    if "--trials" in given and "--finalists" not in given:
        found["finalists"] = None if saved["finalists"] else 0
    return found


def _keep_asked(request: SearchRequest, saved: dict[str, Any], path: Path) -> None:
    """Write down what is asked for now: the next `--resume` goes on as this one, not as the search began."""
    asked = {
        "trials": request.trials,
        "budgets": dataclasses.asdict(request.budgets),
        "finalists": request.n_finalists,
        "repeats": request.repeats,
        "keep_checkpoints": request.keep_checkpoints,
        "asked_resources": {key: getattr(request, key) for key in ASKED_RESOURCES},
    }
    replace_experiment_file(path, saved | asked)


def _check_left(request: SearchRequest, name: str, state: SearchState) -> None:
    """Raise `ExperimentError` where nothing is left to do."""
    records = state.records.all()
    repeats = state.repeats.all()
    if len(records) < request.trials or any(record.status == "running" for record in (*records, *repeats)):
        return
    finalists = choose_finalists(state.records, request.n_finalists)
    wanted = repeat_settings(finalists, request.repeats, request.seed)
    if any(run not in state.repeats for run in wanted):
        return
    raise ExperimentError(
        f"--resume {name}: all its {len(records)} trials have ended; --trials {len(records) + 8} adds 8 more"
    )


def _space(saved: dict[str, Any], folder: Path) -> SearchSpace:
    """The space as it was resolved, under the name and text of the user's own file."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "space.yaml"
        path.write_text(yaml.safe_dump(saved, sort_keys=False, allow_unicode=True), encoding="utf-8")
        space = load_space(str(path))
    own = folder / "space.yaml"
    return dataclasses.replace(space, path=own, source_text=own.read_text(encoding="utf-8"))
