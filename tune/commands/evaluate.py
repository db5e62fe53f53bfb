"""`tune-whisper evaluate`: how good a model is, how sure that is, and whether it is better than another."""

from __future__ import annotations

import argparse
import contextlib
import functools

from trainer.errors import ConfigError
from tune.commands.options import Parser, add_results, add_settings, add_storage, hand_out
from tune.evaluation.evaluation import EvaluationResult, run_evaluation
from tune.evaluation.page import evaluation_page
from tune.evaluation.plan import plan_evaluation
from tune.evaluation.tables import print_evaluation
from tune.experiments.models import open_model
from tune.runs.finish import find_finished
from tune.util.console import make_console
from tune.util.errors import check_least

JSON_FILE = "evaluation.json"
PAGE_FILE = "evaluation.html"
_EXAMPLES = """\
examples:
  tune-whisper evaluate my-model --data recordings/ --baseline openai/whisper-small --by speaker accent
  tune-whisper evaluate EXPERIMENT --output report/     # the winner on the test split of its own data
  tune-whisper evaluate small --data clips.csv --split all --language be --json > small.json
"""


def evaluate_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper evaluate",
        description="Measure a model on a split: WER and CER with 95 % intervals, a comparison with another model, a "
        "breakdown by columns of the data, the worst utterances and signs of hallucination.",
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="model folder, hub id, short name (tiny ... large-v3-turbo), or experiment (its best model; if its name "
        "is also a short name, give its folder)",
    )
    add(
        "--data",
        metavar="DATA",
        help="as --data of a search (default: the data that the model was fine-tuned on)",
    )
    add(
        "--split",
        default="test",
        metavar="NAME",
        help="train, validation (or dev), test, another split of the data, or all (default: test)",
    )
    add("--baseline", metavar="OTHER", help="a second model to compare with, on the same clips")
    add("--language", metavar="CODE", help="spoken language (default: the model's own, else en)")
    add(
        "--normalizer",
        choices=("auto", "whisper", "basic", "none"),
        help="text normaliser: auto (by language), whisper (for comparison with published figures), basic, none",
    )
    add(
        "--by",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="break down by columns of the data",
    )
    add("--worst", type=int, default=5, metavar="N", help="number of worst utterances to show (default: 5)")
    add_results(parser, f"{JSON_FILE} and {PAGE_FILE}")
    add_settings(
        parser,
        "a setting of the data, the decoding or the machine, such as eval_batch_size=64, max_eval_clips=200",
    )
    add_storage(parser)
    return parser


def evaluate(words: list[str]) -> int:
    arguments, result = run(words)
    hand_out(
        arguments,
        result.to_dict(),
        functools.partial(print_evaluation, result, arguments.worst),
        JSON_FILE,
        {PAGE_FILE: lambda: evaluation_page(result)},
    )
    return 0


def run(words: list[str]) -> tuple[argparse.Namespace, EvaluationResult]:
    """The evaluation that the words ask for, and what they say of showing it."""
    arguments = evaluate_parser().parse_args(words)
    check_least(arguments, worst=0)
    if arguments.output is not None and (arguments.output / "config.json").exists():
        raise ConfigError(
            f"--output {arguments.output}: holds a model with its evaluation.json; give another folder"
        )

    with contextlib.ExitStack() as stack:
        model = stack.enter_context(open_model(arguments.model, arguments.storage, find_finished))
        baseline = None
        if arguments.baseline is not None:
            baseline = stack.enter_context(open_model(arguments.baseline, arguments.storage, find_finished))
        plan = plan_evaluation(
            model,
            baseline,
            arguments.storage,
            data=arguments.data,
            split=arguments.split,
            language=arguments.language,
            normalizer=arguments.normalizer,
            by=arguments.by,
            overrides=arguments.set,
        )
        return arguments, run_evaluation(plan, make_console(error=True))
