"""Write the report of an experiment: one page."""

from __future__ import annotations

from pathlib import Path

from trainer.files import write_whole
from trainer.scoring.objectives import words
from tune.experiments.results import REPORT_FOLDER
from tune.report.advice.rules import advise
from tune.report.analysis import Analysis
from tune.report.costs import more_text
from tune.report.search_page import search_page
from tune.report.shared import state_text
from tune.report.training_page import training_page
from tune.util.errors import ExperimentError

PAGE_FILE = "report.html"


def summary(analysis: Analysis) -> list[str]:
    """State, winner and advice for a terminal, a line each."""
    lines = [
        f"{'state':<9} {state_text(analysis)}",
        f"{'baseline':<9} WER {analysis.state.comparable_base:.2f} %  {analysis.model} before fine-tuning",
    ]
    winner = analysis.winner
    if winner is not None:
        word, which = "best", "" if analysis.is_training else f"  trial {winner.trial_id}"
        if analysis.state.verdict is not None:
            word, which = "winner", f"{which}, {winner.describe()}"
        lines.append(f"{word:<9} WER {winner.value:.2f} %{which}")
    if analysis.gain_text:
        lines.append(f"{'gain':<9} {analysis.gain_text}")
    if analysis.search_text:
        lines.append(f"{'search':<9} {analysis.search_text}")
    if text := more_text(analysis):
        lines.append(f"{'more':<9} {text}")
    for found in advise(analysis):
        lines.append(f"{'advice':<9} {found.seen} {found.follows}".rstrip().replace("`", ""))
    return [words(line, analysis.state.task) for line in lines]


def make_page(analysis: Analysis) -> str:
    """Draw and write up everything, in memory; needs neither network nor Ray, unless clips are in an object store."""
    return training_page(analysis) if analysis.is_training else search_page(analysis)


def save_page(analysis: Analysis, output: Path | None = None) -> Path:
    """Write the page into `report/` of the experiment's folder, or to a file elsewhere, and return its path.

    Raises:
        ExperimentError: it cannot be written.
    """
    page = output or analysis.folder.path / REPORT_FOLDER / PAGE_FILE
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, make_page(analysis))
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        if output is not None:
            raise ExperimentError(f"--output {output}: {reason}") from error
        raise ExperimentError(f"{page.parent}: {reason}; --output FILE writes the page elsewhere") from error
    return page
