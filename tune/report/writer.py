"""Write the report of an experiment: one page."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.files import write_whole
from trainer.scoring.objectives import words
from tune.experiments.results import REPORT_FOLDER
from tune.report.analysis import Analysis, Winner
from tune.report.experiment import Experiment, load_experiment
from tune.report.shared import state_text
from tune.util.errors import ExperimentError

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.report.advice.advice import Advice

PAGE_FILE = "report.html"


@dataclasses.dataclass(frozen=True)
class Report:
    """What is known of an experiment, as a page and in words."""

    experiment: Experiment
    html: str
    advice: list[Advice]
    winner: Winner | None

    def summary(self) -> list[str]:
        """State, winner and advice for a terminal, a line each."""
        known = self.experiment
        lines = [
            f"{'state':<9} {state_text(known)}",
            f"{'baseline':<9} WER {known.base_value:.2f} %  {known.model} untouched",
        ]
        if self.winner is not None:
            word, seeds = "best", ""
            if known.verdict is not None:
                word, seeds = "winner", f", {self.winner.describe()}"
            lines.append(f"{word:<9} WER {self.winner.value:.2f} %  trial {self.winner.trial_id}{seeds}")
        for found in self.advice:
            lines.append(f"{'advice':<9} {found.seen} {found.follows}".rstrip().replace("`", ""))
        return [words(line, known.state.task) for line in lines]


def make_report(experiment: Experiment) -> Report:
    """Draw and write up everything, in memory; needs neither network nor Ray, unless clips are in an object store."""
    analysis = Analysis(experiment)
    if experiment.is_training:
        from tune.report.training_page import training_page

        return Report(experiment, training_page(experiment, analysis.winner), [], analysis.winner)
    from tune.report.advice.rules import advise
    from tune.report.search_page import search_page

    advice = advise(analysis)
    return Report(experiment, search_page(analysis, advice), advice, analysis.winner)


def save_report(report: Report, output: Path | None = None) -> Path:
    """Write the page into `report/` of the experiment's folder, or to a file elsewhere, and return its path.

    Raises:
        ExperimentError: it cannot be written.
    """
    page = output or report.experiment.folder.path / REPORT_FOLDER / PAGE_FILE
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, report.html)
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        if output is not None:
            raise ExperimentError(f"--output {output}: {reason}") from error
        raise ExperimentError(f"{page.parent}: {reason}; --output FILE writes the page elsewhere") from error
    return page


def write_report(folder: ExperimentFolder, storage_option: str = "") -> Path:
    """The report of a search that has just ended in this process, in `report/` of its folder.

    Needs neither network nor Ray, unless the checkpoints are in an object store: their clips' errors are read from
    there, and left out where that fails.

    Raises:
        ExperimentError: the experiment's files cannot be read, or the report cannot be written.
    """
    return save_report(make_report(load_experiment(folder, storage_option, ended=True)))
