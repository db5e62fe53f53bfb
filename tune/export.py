"""`tune-whisper export`: the best trial's model as a Hugging Face folder, measured again, with a model card."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from trainer.config import TrainConfig
from tune.errors import ExperimentError
from tune.model_card import model_card
from tune.results import load_results
from tune.trainable import evaluate_model, export_model, prepare_data

if TYPE_CHECKING:
    from trainer.train import Evaluation

TOLERANCE = 0.1
"""WER points by which the exported model may differ from what the search reported."""


def export_trial(
    storage: Path, experiment: str, output: Path, trial_id: str | None, console: Console
) -> dict[str, Any]:
    """Export a trial's best checkpoint to `output` and measure it and the base model on validation and test.

    Returns:
        What `evaluation.json` in the folder holds.

    Raises:
        ExperimentError: experiment, trial or checkpoint is not there, or `output` cannot be written.
        DataError: the experiment's data has gone.
    """
    folder, settings, results = load_results(storage, experiment)
    trial = _find_trial(results, trial_id, experiment)
    checkpoint = _find_checkpoint(folder, trial)
    output = output.expanduser().absolute()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ExperimentError(f"--output {output}: exists already; choose another folder or remove it")
    base = TrainConfig.from_dict(settings["train_config"])
    config = base.replace(**trial["config"])
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f".{output.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    except OSError as error:
        raise ExperimentError(f"--output {output}: cannot be written: {error.strerror}") from error
    try:
        export_model(config, checkpoint, partial)
        with console.status("measuring the exported model and the base model ..."):
            rates = _measure(base, config, partial)
        summary = {
            "experiment": experiment,
            "trial_id": trial["trial_id"],
            "reported_validation_wer": trial["best_wer"],
            "evaluations": {
                split: {name: evaluation.rates() for name, evaluation in pair.items()}
                for split, pair in rates.items()
            },
        }
        (partial / "evaluation.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        (partial / "train_config.json").write_text(
            json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8"
        )
        (partial / "README.md").write_text(
            model_card(settings, results, trial, config, rates), encoding="utf-8"
        )
        if output.exists():
            output.rmdir()
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _print(console, output, trial, rates)
    return summary


def _measure(base: TrainConfig, config: TrainConfig, model: Path) -> dict[str, dict[str, Evaluation]]:
    """Error rates before and after, by split."""
    data = prepare_data(base)
    cpus = float(os.cpu_count() or 1)
    after = config.replace(model=str(model))
    return {
        split: {
            "before": evaluate_model(base, split, cpus, data=data),
            "after": evaluate_model(after, split, cpus, data=data),
        }
        for split in ("validation", "test")
        if split in data.splits
    }


def _find_trial(results: dict[str, Any], trial_id: str | None, experiment: str) -> dict[str, Any]:
    if trial_id is None:
        if results["best"] is None:
            raise ExperimentError(
                f"experiment {experiment!r}: no trial reached an evaluation; nothing to export"
            )
        trial_id = results["best"]["trial_id"]
    trials: dict[str, dict[str, Any]] = {trial["trial_id"]: trial for trial in results["trials"]}
    if trial_id not in trials:
        raise ExperimentError(f"--trial {trial_id}: experiment {experiment!r} has trials {', '.join(trials)}")
    return trials[trial_id]


def _find_checkpoint(folder: Path, trial: dict[str, Any]) -> Path:
    """The trial's checkpoint, also where the experiment's folder was moved since."""
    saved = trial.get("checkpoint")
    if saved:
        for path in (Path(saved), folder / "trials" / trial["trial_id"] / Path(saved).name):
            if (path / "config.json").is_file():
                return path
    raise ExperimentError(
        f"trial {trial['trial_id']}: has no checkpoint ({saved or 'it never reached an evaluation'})"
    )


def _print(
    console: Console, output: Path, trial: dict[str, Any], rates: dict[str, dict[str, Evaluation]]
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("split", "clips", "WER before", "WER after", "CER before", "CER after"):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split, pair in rates.items():
        before, after = pair["before"], pair["after"]
        table.add_row(
            split,
            str(after.clips),
            *(f"{rate:.2f} %" for rate in (before.wer, after.wer, before.cer, after.cer)),
        )
    console.print(f"exported trial {trial['trial_id']} to {output}", soft_wrap=True)
    console.print(table)
    drift = abs(rates["validation"]["after"].wer - trial["best_wer"])
    if drift > TOLERANCE:
        console.print(
            f"[yellow]warning[/]: the search reported a validation WER of {trial['best_wer']:.2f} %; here it is "
            f"{drift:.2f} points off, as other hardware or precision can make it",
            soft_wrap=True,
        )
    console.print(
        f'use it: transformers.pipeline("automatic-speech-recognition", "{output}")', soft_wrap=True
    )
