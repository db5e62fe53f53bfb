"""What is evaluated and how, from the command line and from what is known of the model's training."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.config import BUDGETS, CLIP_SETTINGS, SPLIT_SETTINGS, TrainConfig
from trainer.errors import ConfigError
from trainer.mix import is_mix
from tune.experiments.models import NamedModel
from tune.experiments.paths import same_source
from tune.experiments.storage import Storage
from tune.space.reader import parse_set

_DATA = (
    *("data", "data_config", *SPLIT_SETTINGS, *CLIP_SETTINGS),
    *("audio_column", "text_column", "language_column", "task_column", "row_filter", "max_dropped_share"),
)
"""Settings that say which clips a split has; a search may have measured on fewer, for speed."""
_DECODING = ("language", "task", "normalizer", "generation_max_length", "generation_num_beams")
_MACHINE = ("eval_batch_size", "precision", "cache_dir", "max_eval_clips")
_OPTIONS = {"model": "MODEL", "data": "--data", "language": "--language", "normalizer": "--normalizer"}
"""Settings that have an argument of their own."""


@dataclasses.dataclass(frozen=True)
class EvaluationPlan:
    """One evaluation, checked as far as that goes without reading data."""

    model: NamedModel
    baseline: NamedModel | None
    config: TrainConfig
    """Of the model; the baseline differs from it in nothing but `model`."""
    split: str
    learned: Mapping[str, str]
    """Files with the splits of the trainings of model and baseline, by their names; of each where it is known."""
    by: tuple[str, ...]
    """Columns to break the result down by."""
    notes: list[str]


def plan_evaluation(
    model: NamedModel,
    baseline: NamedModel | None,
    storage: Storage,
    *,
    data: str | None,
    split: str,
    language: str | None,
    normalizer: str | None,
    by: Sequence[str],
    overrides: Sequence[str],
) -> EvaluationPlan:
    """Put the settings together: those of the model's training, what was asked for, `--set` last.

    Settings that shape the splits are taken from the training where the data is the same, so that a test split
    that was made for it is the same clips again.

    Raises:
        ConfigError: a setting is wrong or has no effect here, or nothing says which data is meant.
    """
    known = model.settings
    values = {name: known[name] for name in _DECODING if name in known}
    if data is None and "data" not in known:
        raise ConfigError(
            f"--data: is needed, since {model.shown} does not say what it was trained on; give data as for a search"
        )
    trained_on = "data" in known and (data is None or same_source(data, known["data"]))
    if trained_on:
        values |= {name: known[name] for name in _DATA if name in known}
        if known.get("streaming"):  # which stands for nothing without these
            values |= {name: known[name] for name in ("streaming", "audio_window", *BUDGETS) if name in known}
    else:
        values["data"] = data
    values["cache_dir"] = str(storage.feature_cache)
    asked = {"language": language, "normalizer": normalizer}
    values |= {name: value for name, value in asked.items() if value is not None}
    given = _checked(overrides)
    if trained_on:
        _refuse_other_splits(model, given)
    values |= given
    config = TrainConfig.from_dict({**values, "model": model.source})
    if baseline is not None and baseline.shown == model.shown:
        baseline = dataclasses.replace(baseline, shown=f"{baseline.shown} (baseline)")
    notes = _notes(model, config, split, trained_on)
    if baseline is not None:
        notes += _unknown_splits(baseline)
    models = filter(None, (model, baseline))
    learned = {found.shown: splits for found in models if (splits := found.settings.get("splits"))}
    return EvaluationPlan(model, baseline, config, split, learned, tuple(dict.fromkeys(by)), notes)


def _refuse_other_splits(model: NamedModel, given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where other splits than those of the training would be made: of its clips, partly."""
    problems = [
        f"--set {name}: would make other splits than {model.shown} was trained with, and measure it on clips that it "
        "was trained on; leave it out, or give other data with --data"
        for name in SPLIT_SETTINGS
        if name in given and given[name] != model.settings.get(name)
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _checked(overrides: Sequence[str]) -> Mapping[str, Any]:
    """The values of `--set`, of settings that change an evaluation."""
    values = parse_set(list(overrides))
    allowed = [*(name for name in (*_DATA, *_DECODING) if name not in _OPTIONS), *_MACHINE]
    problems = []
    for name in values:
        if name in _OPTIONS:
            problems.append(f"--set {name}: has an argument of its own here, {_OPTIONS[name]}")
        elif name not in allowed:
            problems.append(
                f"--set {name}: changes nothing in an evaluation; it takes {', '.join(sorted(allowed))}"
            )
    if problems:
        raise ConfigError("\n".join(problems))
    return values


def _notes(model: NamedModel, config: TrainConfig, split: str, trained_on: bool) -> list[str]:
    from trainer.data.sources import split_role

    found, role = _unknown_splits(model), split_role(split)
    tuned = model.settings.get("language")
    several = is_mix(str(model.settings.get("data")))  # it was tuned for the languages of all sources
    if tuned is not None and tuned != config.language and not several:
        found.append(
            f"WARNING: {model.shown} was tuned for language {tuned} and is evaluated in {config.language}"
        )
    if trained_on and config.splits is None and (role == "train" or split in ("all", config.train_split)):
        found.append(
            f"WARNING: {model.shown} was trained on clips of this split, so its figures are too good"
        )
    elif trained_on and (role == "validation" or split == config.validation_split):
        found.append(
            "WARNING: the settings and the checkpoint were chosen on this split, so the figures are a little too good; "
            "those of the test split are not"
        )
    return found


def _unknown_splits(model: NamedModel) -> list[str]:
    if "data" not in model.settings or model.settings.get("splits") is not None:
        return []
    return [
        f"WARNING: no list of the clips that {model.shown} was trained on was kept; if the data has changed since, "
        "some of them may be among those measured here"
    ]


def check_columns(by: Sequence[str], columns: Sequence[str], data: str) -> None:
    """Check that the data has the columns asked for; raises `ConfigError` with those that there are."""
    for name in by:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"--by {name}: no such column in data={data!r}, which has {', '.join(columns) or 'no others'} "
                f"(clip length is always shown){hint}"
            )
