"""The settings of a single training: from its options, a file, and a trial of an earlier experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import BUDGETS, SPLIT_SETTINGS, TrainConfig
from tune.experiments.experiment import Experiment
from tune.experiments.paths import same_source
from tune.search.records import Trial, trial_of
from tune.util.errors import ExperimentError

_NOT_TAKEN = ("evaluate_at", "workers", "output_dir", "train_on")
"""What belongs to how a trial of a search ran, not to what it learned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    settings: dict[str, Any]
    notes: list[str]
    taken: TrainConfig | None
    """All settings of the trial that they are from."""


def training_settings(
    asked: Mapping[str, Any],
    config: Path | None = None,
    origin: Experiment | None = None,
    *,
    trial: str | None = None,
    on: str | None = None,
) -> TrainingSettings:
    """All settings by their precedence.

    Args:
        asked: those given by flags and `--set`; they go before the file's, and those before `origin`'s.
        origin: the experiment whose best trial's settings are taken.
        trial: another trial of it than the best.
        on: `train+validation`: the clips of both, as long as the origin's training was when it was best.

    Raises:
        ConfigError: the file is wrong.
        ExperimentError: there is no such trial, or no trial reached an evaluation; with `on` there is no test split.
    """
    from trainer.config_file import read_config_file

    found = TrainingSettings(settings={}, notes=[], taken=None)
    if origin is not None:
        found = _taken(origin, trial, on)
    values, notes = found.settings, found.notes
    given = read_config_file(config) if config is not None else {}
    if "output_dir" in given:
        notes.append(f"note: output_dir of {config} is not used; --storage and --name say where it goes")
    settings: dict[str, Any] = {}
    for layer in (values, given, asked):
        if any(layer.get(name) is not None for name in BUDGETS):
            for name in BUDGETS:
                settings.pop(name, None)
        settings |= layer
    settings.pop("output_dir", None)
    own = {**given, **asked}
    if values.get("splits") and "splits" not in own:
        other = [
            name
            for name in ("data", "data_config", *SPLIT_SETTINGS)
            if own.get(name, values.get(name)) != values.get(name)
            and not (name == "data" and same_source(own[name], values[name]))
        ]
        if other:  # the splits kept there are of other clips, or not what is wanted now
            settings["splits"] = None
            which = origin.name if origin else ""
            notes.append(
                f"note: {', '.join(other)} differs from {which}, so the splits kept there are not used"
            )
    return dataclasses.replace(found, settings=settings)


def notes_on_taken(asked: Mapping[str, Any], origin: str, taken: TrainConfig, base: TrainConfig) -> list[str]:
    """What differs from the trial whose settings are taken in ways that are easily overlooked."""
    from trainer.model.rates import learning_rates

    notes, batch = [], taken.effective_batch_size
    if base.effective_batch_size != batch:
        notes.append(
            f"note: the effective batch is {base.effective_batch_size} here, it was {batch} in {origin}; "
            "--set gradient_accumulation_steps=N or train_batch_size=N changes it"
        )
    own = ("model" in asked or "method" in asked) and "learning_rate" not in asked
    usual = learning_rates(base)
    if own and base.learning_rate not in usual:
        rates = f"about {usual[0]:g}"
        if len(usual) > 1:
            rates = "depending on its WER one of " + ", ".join(f"{rate:g}" for rate in usual)
        notes.append(
            f"note: learning_rate {base.learning_rate:g} is {origin}'s; {base.model} usually takes {rates}, "
            "as --set learning_rate=null does"
        )
    return notes


def _taken(origin: Experiment, trial: str | None, on: str | None) -> TrainingSettings:
    trials = origin.state.records
    best = origin.state.best() or trials.best()  # its weights may be gone: settings are all that is taken
    wanted = None if best is None else trial_of(best.trial_id)
    if trial:
        wanted = trial.zfill(3)
    if wanted is None:
        raise ExperimentError(
            f"--from {origin.name}: none of its trials reached an evaluation; to use one anyway give --trial ID"
        )
    if wanted not in trials:
        known = ", ".join(trial.trial_id for trial in trials.all())
        raise ExperimentError(f"--trial {wanted}: experiment {origin.name!r} has trials {known}")
    trained = origin.config(trials[wanted])
    values = {name: value for name, value in trained.to_dict().items() if name not in _NOT_TAKEN}
    notes: list[str] = []
    if on is not None:
        run = best if best is not None and trial_of(best.trial_id) == wanted else trials[wanted]
        more, notes = _on_both(origin, run, on)
        values |= more
    return TrainingSettings(settings=values, notes=notes, taken=trained)


def _on_both(origin: Experiment, run: Trial, on: str) -> tuple[dict[str, Any], list[str]]:
    """Settings of a training on train and validation, which nothing is left to stop: as many passes as the run had
    seen at its best evaluation.
    """
    if "test" not in origin.settings.data.clips:
        raise ExperimentError(
            f"--on {on}: experiment {origin.name!r} has no test split, so nothing would be left to measure on; remove "
            "--on"
        )
    if origin.base.streaming:
        raise ExperimentError(
            f"--on {on}: experiment {origin.name!r} streams its training split, to which validation cannot be added; "
            "remove --on"
        )
    if not run.best_samples_seen:
        raise ExperimentError(f"--on {on}: {run.trial_id} of {origin.name!r} reached no evaluation")
    epochs = round(run.best_epoch, 4)
    note = (
        f"note: trained on train and validation together for {epochs:g} epochs, after which {run.trial_id} of "
        f"{origin.name} was best ({run.best_samples_seen:,} samples there); measured once, on the test split"
    )
    budget = {**dict.fromkeys(BUDGETS), "epochs": epochs}
    return {"train_on": on, **budget, "evaluations": 1}, [note]
