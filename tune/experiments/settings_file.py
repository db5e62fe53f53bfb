"""What a session writes beside the log: `experiment.yaml`, and the base model's errors by clip."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.scoring.alignment import ClipErrors
from tune.experiments.plan import PATH_SETTINGS
from tune.experiments.settings import ExperimentSettings
from tune.search.budgets import describe_duration
from tune.util.environment import package_versions
from tune.util.redact import without_password

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.data.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.cluster.resources import TrialResources
    from tune.experiments.plan import Plan, SearchPlan
    from tune.experiments.training_plan import TrainPlan
    from tune.search.budgets import Budgets

BASELINE_CLIPS_FILE = "baseline_utterances.json"
"""Word errors and reference words of the untouched base model on each validation clip."""
DROPPED_FILE = "dropped_clips.jsonl"
_SINGLE = {
    *("workers_per_trial", "gpus_per_trial", "cpus_per_trial", "max_concurrent", "max_failures"),
    *("address", "keep_checkpoints", "warm_start"),
}
"""Options with one value, which are named as what was asked for."""


def write_search_file(
    plan: SearchPlan, base: TrainConfig, data: PreparedData, resources: TrialResources, full_window: bool
) -> None:
    """Write what a search resolved: enough to run it again, to go on with it and to export from it.

    Args:
        plan: of the search.
        base: what all its trials share, its rungs among it.
        data: the prepared data.
        resources: of a trial.
        full_window: whether trials are measured as the model will be used, or with the window that they train with.
    """
    request = plan.request
    _write(
        plan,
        base,
        data,
        rungs=base.evaluate_at or (),
        resources=resources,
        run_again=_command(plan),
        seed=request.seed,
        space=plan.space.to_dict(),
        trials_full_window=full_window,
        warm_start=request.warm_start,
    )


def write_training_file(
    plan: TrainPlan, points: tuple[int, ...], data: PreparedData, resources: TrialResources
) -> None:
    """The same of a single training; `points` are the samples seen at which it is evaluated."""
    base = plan.base
    again = f"tune-whisper train --from {plan.name} --workers {base.workers}{plan.request.storage.option}"
    _write(plan, base, data, rungs=points, resources=resources, run_again=again, seed=base.seed)


def _write(plan: Plan, base: TrainConfig, data: PreparedData, *, rungs: tuple[int, ...], **more: Any) -> None:
    asked = plan.request.tracking_uri
    ExperimentSettings(
        experiment=plan.name,
        created=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        kind=plan.kind,
        track=plan.trackers,
        tracking_uri=without_password(plan.tracking_uri),
        asked_tracking_uri=None if asked is None else without_password(asked),
        train_config=base.to_dict(),
        budget_samples=rungs[-1],
        rungs=rungs,
        clips=data.clips,
        dropped=data.drop_counts(),
        notes=tuple(data.notes),
        versions=package_versions(),
        **more,
    ).write(plan.folder)


def write_baseline_clips(folder: Path, baseline: Evaluation) -> None:
    """Write the base model's errors on each clip, from which reports take its interval."""
    if baseline.utterances is not None:
        (folder / BASELINE_CLIPS_FILE).write_text(baseline.utterances.to_json(), encoding="utf-8")


def _command(plan: SearchPlan) -> str:
    """A command line that runs the same search under another name, from any folder."""
    request = plan.request
    words = ["tune-whisper", "--space", str(plan.folder / "space.yaml"), "--trials", str(request.trials)]
    words += ["--seed", str(request.seed), "--storage", request.storage.address, "--track", *request.track]
    if request.tracking_uri is not None:
        words += ["--tracking-uri", without_password(plan.tracking_uri)]
    for field in dataclasses.fields(request):
        value = getattr(request, field.name)
        if field.name in _SINGLE and value != field.default:
            shown = value if isinstance(value, str) else f"{value:g}"
            words += [f"--{field.name.replace('_', '-')}", shown]
    words += ["--finalists", str(request.n_finalists)]
    words += ["--repeats", str(request.repeats)] if request.n_finalists else []
    for guard in request.guard:
        words += ["--guard", str(guard)]
    for option, value in _budget_words(request.budgets):
        words += [option, value]
    for key, value in request.settings.items():
        shown = getattr(plan.base, key) if key in PATH_SETTINGS else value
        words += ["--set", f"{key}={'null' if shown is None else shown}"]
    return shlex.join(words)


def _budget_words(budgets: Budgets) -> list[tuple[str, str]]:
    found = []
    if budgets.seconds is not None:
        found.append(("--time-budget", describe_duration(budgets.seconds)))
    if budgets.gpu_hours is not None:
        found.append(("--gpu-hours", f"{budgets.gpu_hours:g}"))
    if budgets.plateau_trials is not None:
        found += [
            ("--plateau", str(budgets.plateau_trials)),
            ("--plateau-points", f"{budgets.plateau_points:g}"),
        ]
    return found


def baseline_clips(folder: Path) -> ClipErrors | None:
    """The base model's, of the experiment in a folder; None where they were not kept."""
    path = folder / BASELINE_CLIPS_FILE
    return parse_clips(path.read_bytes()) if path.is_file() else None


def parse_clips(content: bytes) -> ClipErrors | None:
    """The errors of each clip that a file holds; None where it is damaged."""
    import numpy as np

    try:
        saved = json.loads(content)
        found = ClipErrors(np.asarray(saved["word_errors"], float), np.asarray(saved["words"], float))
    except (ValueError, KeyError, TypeError):
        return None
    usable = found.words.shape == found.word_errors.shape and found.words.sum() > 0
    return found if usable else None
