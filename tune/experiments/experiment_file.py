"""What a session writes beside the log: `experiment.yaml`, for people, and the base model's errors by clip."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainer.scoring.alignment import ClipErrors
from tune.experiments.folder import EXPERIMENT_FILE
from tune.experiments.options import SearchOptions
from tune.experiments.plan import PATH_SETTINGS
from tune.search.budgets import describe_duration
from tune.util.errors import option_words

if TYPE_CHECKING:
    from trainer.train import Evaluation
    from tune.experiments.events import Prepared
    from tune.experiments.plan import Plan

BASELINE_CLIPS_FILE = "baseline_utterances.json"
"""Word errors and reference words of the untouched base model on each validation clip."""
DROPPED_FILE = "dropped_clips.jsonl"


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


def write_baseline_clips(folder: Path, baseline: Evaluation) -> None:
    """Write the base model's errors on each clip, from which reports take its interval."""
    if baseline.utterances is not None:
        (folder / BASELINE_CLIPS_FILE).write_text(baseline.utterances.to_json(), encoding="utf-8")


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
        and field.name not in ("space", "settings", "budgets", "guard")
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
        space=plan.folder / "space.yaml",
        trials=options.trials,
        **{name: value for name, value in given.items() if name != "trials"},
        time_budget=None if budgets.seconds is None else describe_duration(budgets.seconds),
        gpu_hours=budgets.gpu_hours,
        plateau=plateau,
        plateau_points=budgets.plateau_points if plateau is not None else None,
        guard=list(map(str, options.guard)),
        storage=plan.storage.address,
        address=plan.address,
        settings=settings,
    )
    return shlex.join(["tune-whisper", *words])


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
