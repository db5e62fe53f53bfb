"""`tune-whisper report`: the results of an experiment, as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.errors import ConfigError
from trainer.files import check_room
from tune.commands.options import Parser, add_storage
from tune.experiments.object_stores.object_store import StorageError
from tune.report.analysis import analyse
from tune.report.writer import save_page, summary
from tune.runs.finish import find_finished
from tune.util.console import make_console, say, short_path
from tune.util.files import writing


def report_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper report",
        description="Write the report of an experiment, one page: figures, advice, transcripts, trials, cost.\n"
        "The experiment may be finished, running or interrupted. In an object store the page is uploaded too.",
    )
    add = parser.add_argument
    add("experiment", nargs="?", metavar="EXPERIMENT", help="name of the experiment (default: the newest)")
    add("--open", action="store_true", help="open the page in the browser")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the page alone (default: report/report.html in the experiment's folder)",
    )
    add("--no-audio", action="store_true", help="leave out the sound of the clips that the page shows")
    add_storage(parser)
    return parser


def report(words: list[str]) -> int:
    arguments = report_parser().parse_args(words)

    output: Path | None = arguments.output
    if output is not None:
        if output.is_dir():
            raise ConfigError(f"--output {output}: is a folder; give a file such as {output / 'report.html'}")
        with writing(f"--output {output}"):
            check_room(output.expanduser().absolute().parent)
    console = make_console()
    with console.status("reading the experiment and drawing ..."):
        folder = find_finished(arguments.experiment, arguments.storage)
        analysis = analyse(folder, arguments.storage.option, audio=not arguments.no_audio)
        page = save_page(analysis, None if output is None else output.expanduser().absolute())
    for line in summary(analysis):
        say(console, line)
    say(console, f"report    {short_path(page)}")
    if output is None:
        running = analysis.stage in ("running", "unfinished")  # elsewhere, where all else is written
        try:
            folder.upload(page.parent.name if running else "")
        except (StorageError, OSError) as error:  # OSError: a disk that cannot note what was uploaded
            print(f"warning: this report was not uploaded to {folder.address}: {error}", file=sys.stderr)
    if arguments.open:
        import webbrowser

        if not webbrowser.open(page.as_uri()):
            say(console, "no browser was found here; open the file yourself")
    return 0
