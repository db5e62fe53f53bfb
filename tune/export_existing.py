"""`tune-whisper export --from-model MODEL`: other formats of a model that is there already."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.conversion.decoding import read_decoding
from tune.card_use import usage
from tune.display import say
from tune.errors import ConfigError, ExperimentError, ModelError
from tune.export import new_folder
from tune.export_formats import FormatsOutcome, add_formats, print_formats
from tune.trainable import check_model, export_model, find_model

if TYPE_CHECKING:
    from trainer.conversion.formats import Target

SETTINGS_FILE = "train_config.json"
EVALUATION_FILE = "evaluation.json"


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
    folder = Path(model).expanduser()
    config = _settings(model, folder, data, language)
    check_model(config)
    with _target_folder(model, folder, output, targets) as place:
        if output is not None:
            export_model(config, folder if folder.is_dir() else Path(config.model), place)
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


def _settings(model: str, folder: Path, data: str | None, language: str | None) -> TrainConfig:
    """The settings that the model was trained with, as far as it holds them."""
    known = _read_json(folder / SETTINGS_FILE)
    if not known:
        place = folder if folder.is_dir() else find_model(TrainConfig(model=model))
        generation = _read_json(place / "generation_config.json")
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


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file of the model's folder; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: holds no JSON object")
    return content


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
    for target in targets:
        if target.name != "hf" and (folder / target.name).exists():
            raise ExperimentError(
                f"--from-model {model}: has a folder {target.name} already; remove it, or give --output DIR"
            )
    yield folder.absolute()


def _note(folder: Path, outcome: FormatsOutcome) -> None:
    """Add the formats to the model's `evaluation.json`, and how to use them to its card."""
    path = folder / EVALUATION_FILE
    summary = _read_json(path)
    before = summary.get("formats", {})
    summary["formats"] = {**before, **outcome.to_dict()}
    _replace(path, json.dumps(summary, indent=2) + "\n")
    card = folder / "README.md"
    if card.is_file():
        text, decoding = card.read_text(encoding="utf-8"), read_decoding(folder)
        # Only what an export wrote: cards of others, and what was rewritten by hand, stay as they are.
        brought = text.replace(usage(decoding, before), usage(decoding, summary["formats"]))
        if brought != text:
            _replace(card, brought)


def _replace(path: Path, text: str) -> None:
    """Write a file that is there whole at any time."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
