"""Write the report of an experiment: one page, and its pictures beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from tune.errors import ExperimentError
from tune.experiments.results import REPORT_FOLDER
from tune.pages.page import write_page
from tune.report.known import Experiment
from tune.report.loading import load_experiment
from tune.report.page_end import state_text

if TYPE_CHECKING:
    from tune.experiment_folder import ExperimentFolder
    from tune.pages.pictures import Picture
    from tune.report.estimates import Contender
    from tune.report.words import Advice

PAGE_FILE = "report.html"


@dataclasses.dataclass(frozen=True)
class Report:
    """What is known of an experiment, as a page and in words."""

    experiment: Experiment
    html: str
    pictures: list[Picture]
    advice: list[Advice]
    winner: Contender | None

    def summary(self) -> list[str]:
        """State, winner and advice for a terminal, a line each."""
        marks = {True: "change", False: "know"}
        known = self.experiment
        lines = [
            f"{'state':<9} {state_text(known)}",
            f"{'baseline':<9} WER {known.baseline:.2f} %  {known.model} untouched",
        ]
        if self.winner is not None:
            word, seeds = "best", ""
            if known.verdict is not None:
                word, seeds = "winner", f", {self.winner.describe()}"
            lines.append(f"{word:<9} WER {self.winner.wer:.2f} %  {self.winner.name}{seeds}")
        return lines + [
            f"{marks[found.change]:<9} {found.seen} {found.follows}".rstrip().replace("`", "")
            for found in self.advice
        ]


def make_report(experiment: Experiment) -> Report:
    """Draw and write up everything, in memory; needs neither network nor Ray, unless clips are in an object store."""
    if experiment.is_training:
        return _training(experiment)
    from tune.report.advice.rules import advise
    from tune.report.analysis import analyse
    from tune.report.search_page import draw_search, search_page

    analysis = analyse(experiment)
    pictures, advice = draw_search(analysis), advise(analysis)
    html = search_page(analysis, pictures, advice)
    return Report(experiment, html, pictures.all(), advice, analysis.winner)


def _training(experiment: Experiment) -> Report:
    from tune.report.draw_progress import draw_training
    from tune.report.estimates import contenders
    from tune.report.training_page import training_page

    curve, found = draw_training(experiment), contenders(experiment)
    winner = next((contender for contender in found if contender.kind == "winner"), None)
    return Report(experiment, training_page(experiment, found, curve), [curve] if curve else [], [], winner)


def save_report(report: Report, folder: Path) -> list[Path]:
    """Write page and pictures into a folder of their own, and remove those of an earlier report.

    Returns:
        The page, then the pictures in its order.

    Raises:
        ExperimentError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [picture.save(folder) for picture in report.pictures]
        for old in set(folder.glob("*.png")) - set(written):
            old.unlink()
        write_page(folder / PAGE_FILE, report.html)
    except OSError as error:
        raise ExperimentError(
            f"{folder}: cannot be written: {error.strerror or error}; --output FILE writes the page elsewhere"
        ) from error
    return [folder / PAGE_FILE, *written]


def save_page(report: Report, path: Path) -> None:
    """Write the page alone.

    Raises:
        ExperimentError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(path, report.html)
    except OSError as error:
        raise ExperimentError(f"--output {path}: cannot be written: {error.strerror or error}") from error


def write_report(folder: ExperimentFolder, storage_option: str = "") -> list[Path]:
    """The report of a search that has just ended in this process, in `report/` of its folder.

    Needs neither network nor Ray, unless the checkpoints are in an object store: their clips' errors are read from
    there, and left out where that fails.

    Returns:
        The page, then its pictures: for MLflow.

    Raises:
        ExperimentError: the experiment's files cannot be read, or the report cannot be written.
    """
    report = make_report(load_experiment(folder, storage_option, ended=True))
    return save_report(report, folder.path / REPORT_FOLDER)
