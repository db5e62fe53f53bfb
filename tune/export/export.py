"""A model as a Hugging Face folder: a trial's, measured again and with a card; or one that is there already."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.config import TrainConfig
from trainer.conversion.formats import Target, read_decoding
from trainer.errors import ConfigError, DataError, ModelError
from trainer.files import whole_folder, write_whole
from trainer.model.adapters import export_adapter, has_adapter
from trainer.model.pretrained import find_model, load_model_config, model_path
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.objectives import objective_name
from tune.experiments.experiment import Experiment, Find, find_experiment
from tune.experiments.folder import SPLITS_FILE
from tune.experiments.models import SETTINGS_FILE, exported_settings, write_exported_settings
from tune.experiments.results import baseline_clips, no_gain_line
from tune.experiments.storage import Storage
from tune.export.formats import FormatsOutcome, add_formats, print_formats
from tune.export.model_card import Rates, model_card
from tune.search.finalists import objective_interval
from tune.search.records import Trial, listed, role_of
from tune.util.console import doing, say, set_task
from tune.util.errors import ExperimentError
from tune.util.files import read_object, writing

CARD_FILE = "README.md"
EVALUATION_FILE = "evaluation.json"
"""In an exported folder: error rates before and after, and the other formats with what they were checked by."""
ADAPTER_FOLDER = "adapter"
"""Of LoRA's adapters, below the model with them merged."""
TOLERANCE = 0.1
"""WER points by which the exported model may differ from what the search reported."""


def export_trial(
    storage: Storage,
    experiment: str | None,
    output: Path,
    trial_id: str | None,
    console: Console,
    *,
    targets: Sequence[Target] = (),
    adapter: bool = False,
    point: float | None = None,
    find: Find = find_experiment,
) -> FormatsOutcome:
    """Export a trial's best checkpoint to a new folder, measure it on validation and test, and convert it.

    Where the data has gone, the model is written all the same, with the figures of the search.

    Args:
        experiment: its name or the beginning of it; None for the newest.
        output: folder to write; must not exist.
        trial_id: another trial than the best.
        adapter: also write the adapters of a trial with LoRA, to a folder of their own.
        point: share of the trial in its mean with the base model, above 0 and below 1; None for the trial itself.

    Raises:
        ConfigError: the trial has no adapters.
        ExperimentError: experiment, trial or checkpoint is not there, or `output` cannot be written.
    """
    from trainer.conversion.hugging_face import write_model

    saved = Experiment.read(find(experiment, storage))
    trial = _find_trial(saved, trial_id)
    config = saved.config(trial)
    set_task(console, config.task)
    if trial_id is None and point is None and (line := no_gain_line(saved.state)):
        say(console, line)
    if adapter and (trial.members or config.method != "lora"):
        why = "it is a mean of full models" if trial.members else f"its method is {config.method}"
        raise ConfigError(
            f"--adapter: {trial.trial_id} has none, {why}; remove it, or choose a trial with method lora by --trial"
        )
    with _new_folder(output) as partial, saved.checkpoint(trial) as checkpoint:
        with doing(console, "writing and measuring the model"):
            write_model(config, checkpoint, partial, point)
            if adapter:
                export_adapter(checkpoint, partial / ADAPTER_FOLDER, model_path(config.model))
            exported = config.replace(model=str(partial))
            try:
                rates, changed = _measure(saved, exported)
            except (DataError, ModelError) as error:  # the data or the base model's folder may have gone
                if point is not None:
                    raise
                say(
                    console,
                    f"warning: could not be measured again, so the figures are those of the search: {error}",
                )
                rates, changed = _rates_of_search(saved, trial), ()
        outcome = add_formats(partial, targets, config, console)
        summary = {
            "experiment": saved.name,
            "trial_id": trial.trial_id,
            **({"average_of": list(trial.members)} if trial.members else {}),
            **({} if point is None else {"point": point}),
            f"reported_validation_{saved.state.objective}": trial.best_value if point is None else None,
            "evaluations": rates,
            "changed_since_search": list(changed),
            "formats": outcome.made,
        }
        _write_evaluation(partial, summary)
        write_exported_settings(config, partial)
        card = model_card(
            saved,
            trial,
            rates,
            read_decoding(partial).window_seconds,
            changed=changed,
            formats=outcome.made,
            adapter=ADAPTER_FOLDER if adapter else None,
            point=point,
        )
        write_whole(partial / CARD_FILE, f"{card}\n")
    of = f", the mean of {listed(trial.members)}," if trial.members else ""
    between = "" if point is None else f", interpolated with the base model (--point {point:g}),"
    say(
        console,
        f"exported {role_of(trial.trial_id)} {trial.trial_id}{of}{between} of {saved.name} to {output}",
    )
    _print_rates(console, rates, changed)
    alike = saved.state.base_rates_for(trial) == saved.state.base_rates and saved.base.full_window_evaluation
    if point is None and alike and "validation" not in changed and trial.best_value is not None:
        drift = abs(rates["validation"]["after"][saved.state.objective] - trial.best_value)
        if drift > TOLERANCE:
            say(
                console,
                f"warning: the search reported a validation WER of {trial.best_value:.2f} %; here it is {drift:.2f} "
                "points off; other hardware or precision can cause this",
            )
    say(console, f'use it: transformers.pipeline("automatic-speech-recognition", "{output}")')
    print_formats(outcome, console, output)
    return outcome


def _find_trial(saved: Experiment, trial_id: str | None) -> Trial:
    """The run of this name, or the best; raises `ExperimentError` where its weights are not there."""
    if trial_id is None:
        return saved.best
    trials = {run.trial_id: run for run in saved.state.runs}
    trial_id = trial_id.zfill(3)  # 7 is as good as 007
    if trial_id not in trials:
        raise ExperimentError(f"--trial {trial_id}: experiment {saved.name!r} has trials {', '.join(trials)}")
    if trials[trial_id].has_weights:
        return trials[trial_id]
    reason = "it never reached an evaluation"
    if trials[trial_id].evaluations:
        reason = "its last evaluation is not saved yet"
    if trials[trial_id].weights_dropped:
        reason = (
            "its weights were deleted when the search ended, since only the best are kept; a search with "
            "--keep-checkpoints all keeps them all"
        )
    raise ExperimentError(f"trial {trial_id}: has no checkpoint: {reason}")


@contextlib.contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name, that nothing may have yet, only once it is complete."""
    output = output.expanduser().absolute()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ExperimentError(f"--output {output}: exists already; choose another folder or remove it")
    option = f"--output {output}"
    with writing(option, full=True), whole_folder(output) as partial:
        with writing(option):
            partial.mkdir(parents=True)
        yield partial


def _measure(saved: Experiment, exported: TrainConfig) -> tuple[Rates, tuple[str, ...]]:
    """Error rates by split, before and after; and the splits whose clips, texts or audio are not the search's.

    On these both models are measured on what is there now; else the base model's rates on validation are known.
    """
    import torch

    from trainer.data.prepared import prepare
    from trainer.train import evaluate

    torch.set_num_threads(os.cpu_count() or 1)
    data, known = prepare(saved.base), saved.state.data
    splits = {role: split for role, split in data.splits.items() if role in ("validation", "test")}
    changed = tuple(
        role for role, split in splits.items() if known is None or known.splits.get(role) != split.digest()
    )

    def rates(config: TrainConfig, role: str) -> dict[str, Any]:
        result = evaluate(config, data, role)
        return _figures(result.rates, result.utterances)

    measured: Rates = {}
    for role in splits:
        # As the model is measured here: in the whole window.
        is_known = role == "validation" and role not in changed and saved.base.full_window_evaluation
        measured[role] = {
            "before": _figures(saved.state.base_rates, baseline_clips(saved.folder.path))
            if is_known
            else rates(saved.base, role),
            "after": rates(exported, role),
        }
    return measured, changed


def _figures(rates: dict[str, float], clips: ClipErrors | None = None) -> dict[str, Any]:
    """Rates with a whole number of clips, which is a real one in the log, and where the errors of the clips are known
    with the 95 % interval of the rate that decides.
    """
    interval = None if clips is None else objective_interval([clips])
    known = {} if interval is None else {f"{objective_name(rates)}_interval": list(interval)}
    return {**rates, "clips": int(rates["clips"]), **known}


def _rates_of_search(saved: Experiment, trial: Trial) -> Rates:
    """Error rates as the search measured them: of the run that is exported on test, too."""
    rates = saved.state.base_rates_for(trial)
    alike = rates == saved.state.base_rates  # in the same window, on the same clips
    before = _figures(rates, baseline_clips(saved.folder.path) if alike else None)
    after = {saved.state.objective: trial.best_value, "clips": before["clips"]}
    after |= {} if trial.best_cer is None else {"cer": trial.best_cer}
    found: Rates = {"validation": {"before": before, "after": after}}
    held = saved.state.held_out
    if held is not None and held.run == trial.trial_id:
        found["test"] = {"before": _figures(held.baseline), "after": _figures(held.rates)}
    return found


def _print_rates(console: Console, rates: Rates, changed: Sequence[str]) -> None:
    objective = objective_name(rates["validation"]["after"])
    for split, pair in rates.items():
        before, after = (pair[when][objective] for when in ("before", "after"))
        clips = pair["after"]["clips"]
        say(console, f"{split}: WER {before:.2f} % before, {after:.2f} % after, on {clips:,} clips")
        if split in changed:
            say(
                console,
                f"warning: the {split} clips, texts or audio have changed since the search; both models were measured "
                f"on the {clips:,} clips that remain",
            )


def export_existing(
    model: str,
    output: Path | None,
    console: Console,
    *,
    targets: Sequence[Target],
    data: str | None = None,
    language: str | None = None,
) -> FormatsOutcome:
    """Convert a Whisper model, and check it on the data that it was trained on or on other data.

    Args:
        model: a folder that `tune-whisper export` wrote, any other Whisper folder, a hub id or a short name.
        output: folder to write, with the Hugging Face model and its formats; None adds the formats to `model` itself.
        data: clips to check on; by default those that the model was trained on.
        language: spoken language; by default the one in the model's settings.
    """
    from trainer.conversion.hugging_face import write_model
    from trainer.model.processor import load_processor

    folder = Path(model).expanduser()
    if output is None:
        _check_addable(model, folder, targets)
    config = _known_settings(model, folder, data, language)
    set_task(console, config.task)
    load_processor(config)
    load_model_config(config.model)  # which refuses what is no Whisper
    checked = data is not None or (folder / SETTINGS_FILE).is_file()
    if targets and not checked:
        say(
            console,
            f"warning: it is not known what {model} was trained on; give clips for the check by --data",
        )
    with contextlib.nullcontext(folder.absolute()) if output is None else _new_folder(output) as target:
        summary = read_object(folder / EVALUATION_FILE)
        made = summary.get("formats", {})
        if output is not None:
            write_model(config, folder if folder.is_dir() else Path(config.model), target)
            # What it was trained on; a card that names formats, or is of adapters, would be wrong.
            for name in (SETTINGS_FILE, SPLITS_FILE, *([] if made or has_adapter(folder) else [CARD_FILE])):
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, target / name)
            made = {}
        outcome = add_formats(target, targets, config if checked else None, console)
        summary["formats"] = {**made, **outcome.made}
        _write_evaluation(target, summary)
    if output is not None:
        say(console, f"exported {model} to {output}")
    print_formats(outcome, console, folder if output is None else output)
    return outcome


def _check_addable(model: str, folder: Path, targets: Sequence[Target]) -> None:
    """Raise `ConfigError` where formats cannot be added to a model's own folder."""
    problem = None
    if not folder.is_dir():
        problem = "is not a folder, so formats cannot be added to it"
    elif has_adapter(folder):
        problem = "holds adapters only, which have to be merged into their base model"
    elif there := [target.name for target in targets if (folder / target.name).exists()]:
        problem = f"has a folder {there[0]} already; remove it"
    if problem:
        raise ConfigError(f"--from-model {model}: {problem}; give --output DIR")


def _known_settings(model: str, folder: Path, data: str | None, language: str | None) -> TrainConfig:
    """The settings that the model was trained with, as far as it holds them."""
    known = exported_settings(folder)
    if not known:
        files = folder if folder.is_dir() else find_model(model)
        generation = read_object(files / "generation_config.json")
        known = {name: generation[name] for name in ("language", "task") if generation.get(name)}
        if model == "demo" or model.endswith(".en") or generation.get("is_multilingual") is False:
            known["language"] = "en"
    if language is None and "language" not in known:
        raise ConfigError(f"--from-model {model}: its language is not known; give --language")
    given = {"data": data, "language": language}
    known |= {name: value for name, value in given.items() if value is not None}
    known |= {"model": str(folder.absolute()) if folder.is_dir() else model}
    return TrainConfig.from_dict(known | {"workers": 1, "deepspeed": None})


def _write_evaluation(folder: Path, content: dict[str, Any]) -> None:
    write_whole(folder / EVALUATION_FILE, json.dumps(content, indent=2) + "\n")
