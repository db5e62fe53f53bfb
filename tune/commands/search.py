"""`tune-whisper search`: the search itself, from its arguments to its exit code."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from trainer.command import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USER_ERROR
from trainer.errors import ConfigError
from tune.commands.options import (
    Parser,
    add_how,
    add_training,
    add_where,
    check_resume,
    given_options,
    read_settings,
)
from tune.util.environment import package_versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tune.runs.outcome import Outcome
    from tune.runs.plan import Plan

_EPILOG = """\
commands (search is meant where none is given):
  tune-whisper search --space SPACE             search, and go on with a search (--resume)
  tune-whisper inspect --data DATA              check a data set before you train on it
  tune-whisper train [CONFIG]                   train once, without a search
  tune-whisper list                             list all experiments, or the jobs of a cluster
  tune-whisper report EXPERIMENT                write the report of a search, one page
  tune-whisper ui [EXPERIMENT]                  compare the trials in the MLflow UI
  tune-whisper export EXPERIMENT --output DIR   write the best model, for transformers or other programs
  tune-whisper evaluate MODEL --data DATA       measure a model, and compare it with another
  tune-whisper transcribe MODEL FILE ...        write text or subtitles of recordings of any length
  tune-whisper push, register                   publish an exported model on the hub or in MLflow's registry
  tune-whisper sync EXPERIMENT                  send results to MLflow that it has not received yet
  tune-whisper submit --address URL -- ...      send a search to a cluster as a Ray job
  tune-whisper status, logs, stop               watch such a job, or stop it
  tune-whisper cluster --address URL            show a cluster; create, scale or delete one on Vertex AI
  each has its own --help

example:
  tune-whisper search --space lr_batch --trials 32 --model small --language be --data my_recordings.csv
"""


_FIXED_BY_EXPERIMENT = (
    *("model", "data", "language", "epochs", "max_steps", "set", "seed", "warm_start", "experiment"),
    *("workers_per_trial", "deepspeed", "dry_run", "measure"),
)


def search_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper",
        description="Search hyperparameters for fine-tuning Whisper: every trial is a real fine-tuning, judged by WER.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    what = parser.add_argument_group("what to search")
    add = what.add_argument
    add(
        "--space",
        metavar="NAME_OR_PATH",
        help="search space: a YAML file, or lr_batch (start with it), large_model, lora, regularisation or robust",
    )
    add(
        "--resume",
        metavar="EXPERIMENT",
        help="go on with a search; a higher --trials, the number in all, adds trials, and --space gives new trials "
        "another space",
    )
    add("--trials", type=int, metavar="N", help="trials to run (default: 8)")
    add_training(what)
    add("--seed", type=int, metavar="S", help="seed of searcher and training (default: 0)")
    add = parser.add_argument_group("when it ends, and which model wins").add_argument
    add("--time-budget", metavar="T", help="end the search after this time: 8h, 90m, ...")
    add("--gpu-hours", type=float, metavar="H", help="end the search when it has used H GPU-hours")
    add("--plateau", type=int, metavar="N", help="end the search after N trials in a row without improvement")
    add(
        "--plateau-points",
        type=float,
        metavar="X",
        help="with --plateau: a WER must be more than X points lower to count as an improvement (default: 0.1)",
    )
    add(
        "--target-wer",
        type=float,
        metavar="X",
        help="end the search when the best trial's WER, its 95 %% interval by clips and seeds included, is below X %%",
    )
    add(
        "--finalists",
        type=int,
        metavar="K",
        help="train the settings of the best K trials (finalists) again with new seeds; the lowest mean WER wins "
        "(default: 2 if there are at least 8 trials; 0: off)",
    )
    add("--repeats", type=int, metavar="R", help="trainings of each finalist, with new seeds (default: 2)")
    add(
        "--guard",
        action="append",
        default=[],
        metavar="DATA[:MAX_LOSS]",
        help="data for a check, not for training: the exported model's WER there should be at most MAX_LOSS points "
        "(default: 1) above the base model's, so a model that passes is preferred; can be repeated",
    )
    add(
        "--warm-start",
        action="append",
        metavar="EXPERIMENT",
        help="start from the results of another experiment; can be repeated",
    )
    where = parser.add_argument_group("where results go")
    add = where.add_argument
    add("--experiment", metavar="NAME", help="name (default: the space's name and the time)")
    add_where(where)
    add(
        "--keep-checkpoints",
        choices=("best", "all"),
        help="weights that are kept when the search has ended: those of the best run, or the best ones of every "
        "trial (default: best)",
    )
    how = parser.add_argument_group("how it runs")
    add_how(how, "trial")
    add = how.add_argument
    add(
        "--workers-per-trial",
        type=int,
        metavar="N",
        help="processes that train one trial together, with one GPU each (default: 1)",
    )
    add(
        "--gpus-per-trial",
        type=float,
        metavar="F",
        help="GPUs per trial; with 0.5 two trials share one (default: 1 for each worker; 0 if there are none)",
    )
    add(
        "--cpus-per-trial",
        type=float,
        metavar="F",
        help="CPUs per trial (default: 1 for each worker, more with GPUs)",
    )
    add("--max-concurrent", type=int, metavar="N", help="trials that run at once (default: as many as fit)")
    add("--dry-run", action="store_true", help="check everything, show the plan, run nothing")
    add(
        "--measure",
        action="store_true",
        help="with --dry-run: download the model and time some steps where trials would run, for an estimate of the "
        "hours",
    )
    return parser


def search(words: list[str]) -> int:
    if not words:
        search_parser().print_help()
        return EXIT_USER_ERROR
    outcome = run(words)
    return 0 if outcome is None else exit_code(outcome)


def run(words: list[str], planned: Callable[[Plan], object] = lambda plan: None) -> Outcome | None:
    """The search that the words ask for; None where it was only planned. `planned` is called before anything starts."""
    arguments = search_parser().parse_args(words)
    if arguments.version:  # a job of the cluster may not have the package installed
        print(f"tune-whisper {package_versions().get('tune-whisper', '(not installed)')}")
        return None
    given = read_options(arguments)

    from tune.experiments.experiment import Experiment
    from tune.experiments.options import SearchOptions
    from tune.runs.finish import find_finished
    from tune.runs.plan import make_plan
    from tune.runs.resume import resume
    from tune.space.space import load_space
    from tune.util.console import make_console

    console, storage, address, resumed = make_console(), arguments.storage, arguments.address, None
    if arguments.resume is not None:
        with console.status(f"reading the experiment {arguments.resume} ..."):
            resumed = resume(arguments.resume, storage, given, address=address, take_over=arguments.take_over)
        plan = resumed.plan
    else:
        with console.status("checking the space and the model ..."):
            options = SearchOptions().changed(given)
            earlier = [Experiment.read(find_finished(each, storage)) for each in options.warm_start]
            space = load_space(options.space, options.settings)
            plan = make_plan(options, space, storage, arguments.experiment, address=address, earlier=earlier)
    planned(plan)
    if arguments.dry_run:
        from tune.runs.dry_run import show_plan

        show_plan(plan, console, trials_given=arguments.trials is not None, measure=arguments.measure)
        return None

    from tune.runs import search
    from tune.runs.search_display import print_summary

    if resumed is None:
        outcome = search.run(plan, console)
    elif resumed.only_finish:
        outcome = search.finish_search(plan, console, resumed.experiment)
    else:
        outcome = search.run(plan, console, resumed.experiment)
    print_summary(outcome, console)
    return outcome


def read_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options that are given, as `SearchOptions.changed` takes them.

    Raises:
        ConfigError: arguments that exclude each other, or a setting or number that is unknown or not allowed.
    """
    from tune.search.budgets import parse_duration
    from tune.search.guards import Guard

    check_resume(arguments, _FIXED_BY_EXPERIMENT)
    for option, value, without, needed in (
        ("--plateau-points", arguments.plateau_points, arguments.plateau is None, "--plateau N"),
        ("--repeats", arguments.repeats, arguments.finalists == 0, "--finalists of at least 1"),
    ):
        if value is not None and without and arguments.resume is None:
            raise ConfigError(f"{option}: needs {needed}; add that or remove {option}")
    if arguments.measure and not arguments.dry_run:
        raise ConfigError("--measure: needs --dry-run; add that or remove --measure")
    if arguments.space is None and arguments.resume is None:
        raise ConfigError("--space: is missing; give a search space, or --resume EXPERIMENT")
    settings = read_settings(arguments)
    if "seed" in settings:
        raise ConfigError("--set seed: use --seed")
    seconds = arguments.time_budget
    budgets = {
        "seconds": None if seconds is None else parse_duration("--time-budget", seconds),
        "gpu_hours": arguments.gpu_hours,
        "plateau_trials": arguments.plateau,
        "plateau_points": arguments.plateau_points,
        "target_wer": arguments.target_wer,
    }
    given = given_options(arguments)
    given |= {"budgets": {name: value for name, value in budgets.items() if value is not None}}
    given |= {"settings": settings} if settings else {}
    return given | ({"guard": list(map(Guard.parse, arguments.guard))} if arguments.guard else {})


def exit_code(outcome: Outcome) -> int:
    """Of a search or a training; warns of what was not delivered to the stores."""
    from tune.experiments.results import succeeded

    if outcome.tracking_problem:
        print(f"warning: {outcome.tracking_problem}", file=sys.stderr)
    if outcome.state.something_is_left:
        return EXIT_INTERRUPTED
    return 0 if succeeded(outcome.state) else EXIT_FAILED
