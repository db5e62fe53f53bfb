"""`tune-whisper report`: what an experiment taught, as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tune.commands.options import Parser, add_storage

if TYPE_CHECKING:
    from tune.report.experiment import Experiment


def report_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper report`."""
    parser = Parser(
        prog="tune-whisper report",
        description="Write what an experiment taught as one page: result, advice, pictures, trials, cost, data.\n"
        "It may have ended, still run, or have been interrupted. Its MLflow run and object store get the page, too.",
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help="name of the experiment")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the page alone (default: report/report.html in the experiment's folder)",
    )
    add_storage(parser)
    return parser


def report(words: list[str]) -> int:
    """Write the page, say where it is and what it advises.

    Raises:
        UserError: there is no such experiment, or the page cannot be written.
    """
    arguments = report_parser().parse_args(words)
    from tune.report.experiment import load_experiment
    from tune.report.writer import make_report, save_report
    from tune.runs.finish import find_finished
    from tune.util.console import make_console, say, short_path
    from tune.util.files import check_file

    output: Path | None = arguments.output
    if output is not None:
        check_file(f"--output {output}", output, "report.html")
    console = make_console()
    with console.status("reading the experiment and drawing ..."):
        folder = find_finished(arguments.experiment, arguments.storage)
        made = make_report(load_experiment(folder, arguments.storage.option))
        page = save_report(made, None if output is None else output.expanduser().absolute())
    for line in made.summary():
        say(console, line)
    say(console, f"report    {short_path(page)}")
    if output is None:
        for problem in _hand_on(made.experiment, page.parent):
            print(f"warning: {problem}", file=sys.stderr)
    if arguments.open:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            say(console, "no browser was found here; open the file yourself")
    return 0


def _hand_on(experiment: Experiment, report: Path) -> list[str]:
    """Add a report to the experiment's MLflow run, and bring it to its object store; what could not be done, and why.

    While the search may run, only the report is brought: MLflow's database is the machine's that runs it.
    """
    from tune.experiments.object_stores.object_store import StorageError
    from tune.util.errors import ExperimentError, TrackingError

    folder, running = experiment.folder, experiment.stage in ("running", "unfinished")
    problems = []
    try:
        _attach(experiment, report, running=running)
    except (ExperimentError, TrackingError) as error:
        problems.append(f"MLflow does not have this report: {error}")
    try:
        folder.upload(report.name if running else "")
    except (StorageError, OSError) as error:  # OSError: a disk that cannot note what was uploaded
        problems.append(f"{folder.address} does not have this report: {error}")
    return problems


def _attach(experiment: Experiment, report: Path, *, running: bool) -> None:
    """Add a report to the MLflow run, unless its database here is only a copy of one that a search may write to.

    Raises:
        ExperimentError: the experiment's store is gone.
        TrackingError: it cannot be reached, or is such a copy.
    """
    from tune.experiments.mlflow_store import sqlite_path
    from tune.experiments.settings import read_tracking_uri
    from tune.tracking.mlflow import attach_folder
    from tune.util.errors import TrackingError

    folder = experiment.folder
    if running and folder.remote and sqlite_path(read_tracking_uri(folder)) is not None:
        raise TrackingError(
            "the search may still run elsewhere, with a database of its own; run this again when it has ended"
        )
    attach_folder(folder, report)
