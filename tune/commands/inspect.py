"""`tune-whisper inspect`: a data set looked at before anything is spent on it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from tune.commands.options import Parser, add_results, add_settings, add_storage, hand_out, read_settings
from tune.util.console import ProgressBar, make_console
from tune.util.errors import check_least

if TYPE_CHECKING:
    from trainer.inspection.inspection import Inspection

_EXAMPLES = """\
examples:
  tune-whisper inspect --data recordings/ --language be --output report/
  tune-whisper inspect --data clips.csv --model small          # with the tokens and the limits of the model to tune
  tune-whisper inspect --data google/fleurs --set data_config=be_by --language be --sample 2000
"""


def inspect_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper inspect",
        description="Check a data set: what is in it, what a search would leave out, and what is suspicious: silent "
        "or clipped audio, copies, texts in two splits, texts that do not match their audio, odd characters.",
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("--data", metavar="D", help="as --data of a search (default: demo)")
    add(
        "--model",
        metavar="M",
        help="model to fine-tune, whose window and tokenizer are used (default: a window of 30 s; tokens are not "
        "counted)",
    )
    add(
        "--language",
        metavar="L",
        help="language of the clips (default: en; several with --set language_column=NAME)",
    )
    add(
        "--sample",
        type=int,
        metavar="N",
        help="check all texts, but the audio of N clips only; from a hub data set, a bucket or tar files only about "
        "N clips are downloaded",
    )
    add_results(parser, "inspection.html, inspection.json and suspicious.csv")
    add_settings(
        parser, "a setting of the data or its texts, such as text_column=raw, row_filter=gender=female"
    )
    add_storage(parser)
    return parser


def inspect(words: list[str]) -> int:
    """Run the command; the exit code is 0 whatever is found."""
    arguments = inspect_parser().parse_args(words)
    # --help does without what takes a while.
    from tune.inspection.page import inspection_page
    from tune.inspection.tables import print_inspection, suspicious_list, to_dict

    check_least(arguments, sample=1)
    config = TrainConfig.from_dict(
        {
            "cache_dir": str(arguments.storage.feature_cache),
            **read_settings(arguments, ("data", "model", "language")),
        }
    )

    inspection = _inspect(config, arguments)
    hand_out(
        arguments,
        to_dict(inspection),
        functools.partial(print_inspection, inspection, more=arguments.output is None),
        "inspection.json",
        {
            "suspicious.csv": lambda: suspicious_list(inspection),
            "inspection.html": lambda: inspection_page(inspection),
        },
    )
    return 0


def _inspect(config: TrainConfig, arguments: argparse.Namespace) -> Inspection:
    """Look at the data, with progress on standard error."""
    from trainer.data.streaming.stream import is_far, keep_sample
    from trainer.inspection.inspection import inspect_data

    given, note, sample = config, None, arguments.sample
    with ProgressBar(make_console(error=True), "reading the data") as progress:
        if sample is not None and is_far(config.data):
            config, note = keep_sample(config, sample)
            sample = None  # all that is here
        inspection = inspect_data(
            config,
            with_model=arguments.model is not None or config.data == "demo",
            sample=sample,
            on_progress=progress.show,
        )
    if note is None:
        return inspection
    return dataclasses.replace(
        inspection,
        config=inspection.config.replace(data=given.data, data_config=given.data_config),
        notes=[note, *inspection.notes],
        # That a sample is small says nothing of the data.
        findings=[one for one in inspection.findings if one.kind != "small_split"],
    )
