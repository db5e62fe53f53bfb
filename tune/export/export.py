"""A model as a Hugging Face folder: a trial's, measured again and with a card; or one that is there already."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.conversion.decoding import read_decoding
from trainer.model.adapters import export_adapter, has_adapter
from trainer.model.pretrained import find_model, model_path
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.objectives import CHRF_ERROR, objective_name
from tune.experiments.models import SETTINGS_FILE, exported_settings, write_exported_settings
from tune.experiments.saved import Find, SavedExperiment, find_experiment, load_saved
from tune.experiments.settings_file import baseline_clips
from tune.export.formats import EVALUATION_FILE, FormatsOutcome, add_formats, print_formats
from tune.export.model_card import CardFacts, Rates, model_card
from tune.search.finalists import objective_interval
from tune.search.records import listed, role_of
from tune.util.console import say, tell_of
from tune.util.errors import ConfigError, DataError, ExperimentError
from tune.util.files import read_object, write_whole, writing

if TYPE_CHECKING:
    from trainer.conversion.formats import Target
    from trainer.data.prepared import PreparedData
    from tune.experiments.storage import Storage
    from tune.search.records import TrialRecord

CARD_FILE = "README.md"
ADAPTER_FOLDER = "adapter"
"""Of LoRA's adapters, below the model with them merged."""
TOLERANCE = 0.1
"""WER points by which the exported model may differ from what the search reported."""


def export_trial(
    storage: Storage,
    experiment: str,
    output: Path,
    trial_id: str | None,
    console: Console,
    *,
    targets: Sequence[Target] = (),
    every_clip: bool = False,
    adapter: bool = False,
    point: float | None = None,
    find: Find = find_experiment,
) -> FormatsOutcome:
    """Export a trial's best checkpoint to `output`, measure it on validation and test, and convert it.

    Where the data has gone, the model is written all the same, with the figures of the search.

    Args:
        storage: where the experiment is.
        experiment: its name.
        output: folder to write; must not exist.
        trial_id: another trial than the best.
        console: told what is done.
        targets: formats to make beside the Hugging Face one.
        every_clip: check them on all clips of validation and test.
        adapter: also write the adapters of a trial with LoRA, to a folder of their own.
        point: share of the trial in its mean with the base model, above 0 and below 1; None for the trial itself.
        find: finds the experiment.

    Raises:
        ExperimentError: experiment, trial or checkpoint is not there, or `output` cannot be written.
        StorageError: the object store cannot be read.
    """
    from trainer.conversion.hugging_face import write_model

    saved = load_saved(find(experiment, storage))
    trial = _find_trial(saved, trial_id)
    config = saved.config(trial)
    tell_of(console, config.task)
    if trial_id is None and point is None and saved.state.no_gain:
        say(console, saved.state.no_gain)
    check_point(point, adapter=adapter)
    if adapter and trial.members:
        raise ConfigError(
            f"--adapter: {trial.trial_id} has none, it is a mean of whole models; leave it out, or take one of "
            f"{listed(trial.members)} by --trial, if its weights were kept"
        )
    if adapter and config.method != "lora":
        raise ConfigError(
            f"--adapter: trial {trial.trial_id} has none, its method is {config.method}; leave it out, or take a trial "
            "with method lora"
        )
    with (
        new_folder(output.expanduser().absolute()) as partial,
        saved.checkpoint(trial) as checkpoint,
    ):
        with console.status("writing and measuring the model ..."):
            with _point_folder(config, checkpoint, point) as written:
                write_model(config, written, partial)
            if adapter:
                export_adapter(checkpoint, partial / ADAPTER_FOLDER, model_path(config))
            exported = config.replace(model=str(partial))
            measured = _measured(saved, exported, trial if point is None else None, console)
        outcome = add_formats(partial, targets, config, every_clip=every_clip, console=console)
        summary = {
            "experiment": experiment,
            "trial_id": trial.trial_id,
            **({"average_of": list(trial.members)} if trial.members else {}),
            **({} if point is None else {"point": point}),
            f"reported_validation_{saved.state.objective}": trial.best_value if point is None else None,
            "evaluations": measured.rates,
            "changed_since_search": list(measured.changed),
            "formats": outcome.made,
        }
        _write_json(partial / EVALUATION_FILE, summary)
        write_exported_settings(config, partial)
        facts = CardFacts(measured.changed, outcome.made, ADAPTER_FOLDER if adapter else None, point)
        card = model_card(saved, trial, measured.rates, read_decoding(partial).window_seconds, facts)
        write_whole(partial / CARD_FILE, f"{card}\n")
    on_all = saved.state.base_rates_for(trial)["clips"] == saved.state.base_rates["clips"]
    reported = trial.best_value if point is None and on_all else None
    _print(console, output, trial, measured, point, reported)
    print_formats(outcome, console, str(output))
    return outcome


def check_point(point: float | None, *, adapter: bool = False) -> None:
    """Raise `ConfigError` for a point that is none between base model and run, or cannot go with adapters."""
    if point is not None and not 0.0 < point < 1.0:
        raise ConfigError(f"--point {point:g}: must be above 0 (the base model) and below 1 (the run itself)")
    if point is not None and adapter:
        raise ConfigError(f"--adapter: a model at --point {point:g} has none; leave one of them out")


@contextlib.contextmanager
def _point_folder(config: TrainConfig, checkpoint: Path, point: float | None) -> Iterator[Path]:
    """The checkpoint, or its mean with the base model."""
    if point is None:
        yield checkpoint
        return
    from trainer.conversion.quiet import quiet_libraries
    from trainer.model.averaging import load_mean

    quiet_libraries()
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        mean, processor = load_mean(config, [(config.model, 1.0 - point), (str(checkpoint), point)])
        mean.save_pretrained(scratch)
        processor.save_pretrained(Path(scratch))
        yield Path(scratch)


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name only once it is complete.

    Raises:
        ExperimentError: there is something of that name already, or it cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ExperimentError(f"--output {output}: exists already; choose another folder or remove it")
    partial = output.with_name(f".{output.name}.partial")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    except OSError as error:
        raise ExperimentError(f"--output {output}: cannot be written: {error.strerror}") from error
    try:
        with writing(f"--output {output}", full=True):
            yield partial
            if output.exists():
                output.rmdir()
            partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _interval(clips: ClipErrors | None, objective: str) -> dict[str, Any]:
    """The objective's 95 % interval, to go with the rates; empty where it is not known."""
    found = None if clips is None else objective_interval([clips])
    return {} if found is None else {f"{objective}_interval": list(found)}


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Error rates of the exported model and of the base model."""

    rates: Rates
    changed: tuple[str, ...] = ()
    """Splits whose clips, texts or audio are not the search's: both models were measured on what is there now."""


def _measured(
    saved: SavedExperiment, exported: TrainConfig, trial: TrialRecord | None, console: Console
) -> _Measured:
    """Measured now; or as the search did, where the data is gone.

    `trial` is None for a point between it and the base model, which no search measures.
    """
    from trainer.data.prepared import prepare

    baseline = _whole(saved.state.base_rates) | _interval(
        baseline_clips(saved.folder.path), saved.state.objective
    )
    try:
        data = prepare(saved.base)
        changed = _changed(saved, data)
        return _Measured(_measure(saved.base, exported, baseline, data, changed), changed)
    except DataError as error:
        if trial is None:
            raise
        say(console, f"warning: not measured again, the figures are those of the search: {error}")
    before = _whole(saved.state.base_rates_for(trial))
    before = baseline if before["clips"] == baseline["clips"] else before
    after = {saved.state.objective: trial.best_value, "clips": before["clips"]}
    after |= {} if trial.best_cer is None else {"cer": trial.best_cer}
    rates: Rates = {"validation": {"before": before, "after": after}}
    held = saved.state.held_out
    if held is not None and held.run == trial.trial_id:
        rates["test"] = {"before": _whole(held.baseline), "after": _whole(held.rates)}
    return _Measured(rates)


def _whole(rates: dict[str, float]) -> dict[str, Any]:
    """Rates of the log, where all numbers are real ones."""
    return {**rates, "clips": int(rates["clips"])}


def _changed(saved: SavedExperiment, data: PreparedData) -> tuple[str, ...]:
    """Splits that are measured and are not those of the search."""
    before = saved.state.data
    now = {role: split for role, split in data.splits.items() if role != "train"}
    if before is None:
        return tuple(now)
    return tuple(role for role, split in now.items() if before.splits.get(role) != split.digest())


def _measure(
    base: TrainConfig,
    exported: TrainConfig,
    baseline: dict[str, Any],
    data: PreparedData,
    changed: tuple[str, ...],
) -> Rates:
    """Error rates before and after, by split; the base model's on validation are known where it is the search's."""
    import torch

    from trainer.train import evaluate

    torch.set_num_threads(os.cpu_count() or 1)

    def rates(config: TrainConfig, split: str) -> dict[str, Any]:
        found = evaluate(config, split, data=data)
        return found.rates | _interval(found.utterances, objective_name(found.rates))

    before = rates(base, "validation") if "validation" in changed else baseline
    found: Rates = {"validation": {"before": before, "after": rates(exported, "validation")}}
    if "test" in data.splits:
        found["test"] = {"before": rates(base, "test"), "after": rates(exported, "test")}
    return found


def _find_trial(saved: SavedExperiment, trial_id: str | None) -> TrialRecord:
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
        reason = (
            "its weights were dropped when the search ended, for all but the best are; a search with "
            "--keep-checkpoints all keeps them"
        )
    raise ExperimentError(f"trial {trial_id}: has no checkpoint: {reason}")


def _print(
    console: Console,
    output: Path,
    trial: TrialRecord,
    measured: _Measured,
    point: float | None,
    reported: float | None,
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    objective = objective_name(measured.rates["validation"]["after"])
    translates = objective == CHRF_ERROR
    second = "bleu" if translates else "cer"
    heads = [f"{name} {when}" for name in ("WER", second.upper()) for when in ("before", "after")]
    for name in ("split", "clips", *heads):
        table.add_column(name, justify="left" if name == "split" else "right")
    for split, pair in measured.rates.items():
        figures = [pair[when].get(rate) for rate in (objective, second) for when in ("before", "after")]
        units = [" %", " %", *([""] * 2 if translates else [" %"] * 2)]
        told = [
            "" if figure is None else f"{figure:.2f}{unit}"
            for figure, unit in zip(figures, units, strict=True)
        ]
        table.add_row(split, str(pair["after"]["clips"]), *told)
    of = f", the mean of {listed(trial.members)}," if trial.members else ""
    between = "" if point is None else " at a point between the base model and it"
    say(console, f"exported {role_of(trial.trial_id)} {trial.trial_id}{of}{between} to {output}")
    console.print(table)
    for split in measured.changed:
        say(
            console,
            f"warning: the {split} clips, texts or audio have changed since the search; both models were measured on "
            f"the {measured.rates[split]['after']['clips']:,} that are left of it",
        )
    drift = 0.0 if reported is None else abs(measured.rates["validation"]["after"][objective] - reported)
    if drift > TOLERANCE and "validation" not in measured.changed:
        say(
            console,
            f"warning: the search reported a validation WER of {reported:.2f} %; here it is {drift:.2f} "
            "points off, as other hardware or precision can make it",
        )
    say(console, f'use it: transformers.pipeline("automatic-speech-recognition", "{output}")')


def export_existing(
    model: str,
    output: Path | None,
    console: Console,
    *,
    targets: Sequence[Target],
    data: str | None = None,
    language: str | None = None,
    every_clip: bool = False,
) -> FormatsOutcome:
    """Convert a Whisper model, and check it on the data that it was trained on or on other data.

    Args:
        model: a folder that `tune-whisper export` wrote, any other Whisper folder, a hub id or a short name.
        output: folder to write, with the Hugging Face model and its formats; None adds the formats to `model` itself.
        console: told what is done.
        targets: formats to make.
        data: clips to check on; by default those that the model was trained on.
        language: spoken language; by default the one in the model's settings.
        every_clip: check on all clips of validation and test.

    Raises:
        ConfigError: there is nowhere to write, or no language is known.
        ExperimentError: a folder to write exists already.
        ModelError: the model cannot be loaded.
    """
    from trainer.conversion.hugging_face import write_model
    from trainer.model.processor import load_processor
    from trainer.model.whisper import load_model_config

    folder = Path(model).expanduser()
    config = _known_settings(model, folder, data, language)
    load_processor(config)
    load_model_config(config)  # which refuses what is no Whisper
    with _target_folder(model, folder, output, targets) as place:
        if output is not None:
            write_model(config, folder if folder.is_dir() else Path(config.model), place)
        checked = data is not None or (folder / SETTINGS_FILE).is_file()
        if not checked:
            say(
                console,
                f"warning: {model} does not say what it was trained on; --data gives clips to check on",
            )
        outcome = add_formats(
            place, targets, config if checked else None, every_clip=every_clip, console=console
        )
        _note(place, outcome)
    where = output if output is not None else folder
    if output is not None:
        say(console, f"exported {model} to {where}")
    print_formats(outcome, console, str(where))
    return outcome


def _known_settings(model: str, folder: Path, data: str | None, language: str | None) -> TrainConfig:
    """The settings that the model was trained with, as far as it holds them."""
    known = exported_settings(folder)
    if not known:
        place = folder if folder.is_dir() else find_model(TrainConfig(model=model))
        generation = read_object(place / "generation_config.json")
        known = {name: generation[name] for name in ("language", "task") if generation.get(name)}
        if generation.get("is_multilingual") is False:
            known["language"] = "en"
    if language is None and "language" not in known and model != "demo" and not model.endswith(".en"):
        raise ConfigError(f"--from-model {model}: does not say its language; give --language")
    known |= {"workers": 1, "deepspeed": None}
    known |= {"model": str(folder.absolute()) if folder.is_dir() else model}
    known |= {"data": data} if data is not None else {}
    known |= {"language": language} if language is not None else {}
    return TrainConfig.from_dict(known)


@contextlib.contextmanager
def _target_folder(
    model: str, folder: Path, output: Path | None, targets: Sequence[Target]
) -> Iterator[Path]:
    """The folder that the formats go to: a new one, or the model's own."""
    if output is not None:
        with new_folder(output.expanduser().absolute()) as partial:
            yield partial
        return
    if not folder.is_dir():
        raise ConfigError(
            f"--from-model {model}: is no folder that formats could be added to; give --output DIR"
            + (
                ""
                if model in MODEL_SHORT_NAMES or "/" in model
                else f", and one of {', '.join(MODEL_SHORT_NAMES)}"
            )
        )
    if has_adapter(folder):
        raise ConfigError(
            f"--from-model {model}: holds adapters alone, to be merged into their base model; give --output DIR"
        )
    for target in targets:
        if (folder / target.name).exists():
            raise ExperimentError(
                f"--from-model {model}: has a folder {target.name} already; remove it, or give --output DIR"
            )
    yield folder.absolute()


def _note(folder: Path, outcome: FormatsOutcome) -> None:
    """Add the formats to the model's `evaluation.json`."""
    summary = read_object(folder / EVALUATION_FILE)
    summary["formats"] = {**summary.get("formats", {}), **outcome.made}
    _write_json(folder / EVALUATION_FILE, summary)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")
