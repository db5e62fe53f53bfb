"""`tune-whisper export`: a model to take away, as Hugging Face folder and in other formats; `push`: to the hub."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.command import EXIT_FAILED
from trainer.conversion.formats import CONVERTED, FORMATS, resolve_targets
from trainer.errors import ConfigError, ModelError
from tune.commands.options import Parser, add_storage, output_folder
from tune.export.export import export_existing, export_trial
from tune.export.hub import push_to_hub
from tune.runs.finish import find_finished
from tune.util.console import make_console, say

_EPILOG = """\
The folder is a Hugging Face model with its model card. Every other --format is written to a folder inside it, with a
README that says how to use it: DIR/ctranslate2 for faster-whisper, DIR/ggml for whisper.cpp.
Each converted model is checked: it transcribes some clips in its own runtime, and its WER is compared with that of
transformers. If the difference is larger than the tolerance, the folder is removed and the exit code is 1.

examples:
  tune-whisper export lr_batch-20261121-213246 --output my-model
  tune-whisper export EXPERIMENT --output my-model --format ctranslate2 --format ggml --quantization int8
  tune-whisper export --from-model my-model --format ggml
"""


def export_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper export",
        description="Write the best checkpoint as a Hugging Face folder with a model card, and in other formats.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("experiment", nargs="?", metavar="EXPERIMENT", help="name of the experiment (default: the newest)")
    add("--output", type=output_folder, metavar="DIR", help="folder to write; must not exist")
    add_storage(parser)
    add("--trial", metavar="ID", help="this trial instead of the best run")
    add(
        "--point",
        type=float,
        metavar="P",
        help="interpolate between the base model (0) and the run (1): P between 0 and 1 is the weight of the run; "
        "keeps more of what the base model knows",
    )
    add("--adapter", action="store_true", help="for a LoRA trial: also write the adapters, to DIR/adapter")
    add_format = parser.add_argument_group("formats").add_argument
    add_format(
        "--format",
        action="append",
        default=[],
        metavar="F",
        help=f"{', '.join(FORMATS)}; may be given several times (default: hf, which is always written)",
    )
    add_format(
        "--quantization",
        metavar="Q",
        help="how the other formats store weights: "
        + "; ".join(f"{name} {', '.join(FORMATS[name].quantizations)}" for name in CONVERTED)
        + " (default: the first)",
    )
    add_other = parser.add_argument_group("convert an existing model").add_argument
    add_other(
        "--from-model",
        metavar="MODEL",
        help="instead of EXPERIMENT: an exported folder (formats are added to it, unless --output is given), or any "
        "Whisper model: folder, hub id or short name",
    )
    add_other("--data", metavar="D", help="data for the check (default: the training data)")
    add_other("--language", metavar="L", help="spoken language (default: that of the model's settings)")
    return parser


def export(words: list[str]) -> int:
    problems = run(words)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return EXIT_FAILED if problems else 0


def run(words: list[str]) -> list[str]:
    """Export as the words ask for; a line for each format that could not be made, or drifted."""
    options = export_parser().parse_args(words)
    _check_options(options)
    targets = resolve_targets(options.format, options.quantization)

    console = make_console()
    if options.from_model is not None:
        outcome = export_existing(
            options.from_model,
            options.output,
            console,
            targets=targets,
            data=options.data,
            language=options.language,
        )
    else:
        outcome = export_trial(
            options.storage,
            options.experiment,
            options.output,
            options.trial,
            console,
            targets=targets,
            adapter=options.adapter,
            point=options.point,
            find=find_finished,
        )
    return outcome.problems


def _check_options(options: argparse.Namespace) -> None:
    """Raise `ConfigError` where options do not go together, or a value is none of those that can be."""
    existing = options.from_model is not None
    if existing and options.experiment is not None:
        raise ConfigError(f"--from-model: cannot be combined with {options.experiment}; remove one of them")
    if not existing and options.output is None:
        raise ConfigError("the following arguments are required: --output; see tune-whisper export --help")
    converts = bool(set(options.format) - {"hf"})
    if existing and options.output is None and not converts:
        raise ConfigError("--from-model: give --format to convert it, or --output for a copy")
    wrong, owner = (
        (("trial", "point", "adapter"), "EXPERIMENT") if existing else (("data", "language"), "--from-model")
    )
    for name in wrong:
        if getattr(options, name) not in (None, False):
            raise ConfigError(f"--{name}: needs {owner}; add that or remove --{name}")
    if options.point is not None and not 0.0 < options.point < 1.0:
        raise ConfigError(
            f"--point {options.point:g}: must be above 0 (the base model) and below 1 (the run itself)"
        )
    if options.point is not None and options.adapter:
        raise ConfigError(
            f"--adapter: a model written with --point {options.point:g} has no adapters; remove one of them"
        )


def push_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper push",
        description="Upload an exported model to the Hugging Face hub, or update it there.",
        epilog="The token is taken from HF_TOKEN or from `hf auth login`.",
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="folder that `tune-whisper export` wrote")
    add("repo", metavar="REPO", help="NAME or NAMESPACE/NAME of the model on the hub")
    add("--private", action="store_true", help="create a new model as private")
    add("--message", default="Upload from tune-whisper", metavar="TEXT", help="commit message")
    return parser


def push(words: list[str]) -> int:
    arguments = push_parser().parse_args(words)
    folder: Path = arguments.folder.expanduser()
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "no such folder"
        raise ModelError(f"{arguments.folder}: {what}; give a folder that `tune-whisper export` wrote")

    url = push_to_hub(folder, arguments.repo, private=arguments.private, message=arguments.message)
    say(make_console(), f"pushed {arguments.folder} to {url}")
    return 0
