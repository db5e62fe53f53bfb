"""The page of a single training: its learning curve, rates and settings."""

from __future__ import annotations

from tune.display import clock
from tune.pages import page
from tune.pages.page import Cell, Column
from tune.pages.pictures import Picture
from tune.report.costs import OUTCOMES
from tune.report.estimates import Contender
from tune.report.known import Experiment, short_source
from tune.report.page_end import commands, data_parts, page_footer
from tune.report.page_result import gain_tile
from tune.report.scales import tell
from tune.report.words import last_line


def training_page(experiment: Experiment, found: list[Contender], curve: Picture | None) -> str:
    """The page as HTML.

    Args:
        experiment: the training.
        found: the trained model and the base model.
        curve: its learning curve; None where nothing was measured.
    """
    config = experiment.settings["train_config"]
    trial = experiment.trials[0] if experiment.trials else None
    outcome = experiment.state if trial is None else OUTCOMES[trial.status]
    lead = (
        f"Training of {experiment.model} on {short_source(str(config['data']))}, {config.get('language')} · {outcome}"
        + ("" if trial is None else f" after {trial.epoch:.2f} epochs, {clock(trial.elapsed)}")
    )
    parts = [*_result(experiment, found)]
    if trial is not None and trial.error:
        parts.append(page.paragraph(f"It failed: {last_line(trial.error)}", "bad"))
    if curve is not None:
        shown = page.gallery([page.picture(curve), _evaluations(experiment)])
        parts += [page.heading("Learning curve"), shown]
    settings: list[list[Cell]] = [
        [page.code(name), tell(value)] for name, value in (trial.config if trial else config).items()
    ]
    parts += [page.heading("Settings"), page.table([Column("setting"), Column("value")], settings)]
    parts += [*data_parts(experiment), page.heading("Going on"), commands(experiment)]
    return page.render_page(experiment.name, lead, parts, footer=page_footer(experiment))


def _result(experiment: Experiment, found: list[Contender]) -> list[str]:
    base = experiment.baseline
    trained = next((contender for contender in found if contender.kind == "winner"), None)
    if trained is None:
        return [page.tiles([(f"{base:.2f} %", f"WER of the base model, {experiment.model}")])]
    interval = ""
    if trained.interval is not None:
        interval = f", 95 % interval {trained.interval[0]:.2f} to {trained.interval[1]:.2f}"
    figures = [
        (f"{trained.wer:.2f} %", f"WER after training{interval}"),
        (f"{base:.2f} %", f"WER of the base model, {experiment.model}"),
        gain_tile(base, trained.wer),
    ]
    return [page.tiles(figures)]


def _evaluations(experiment: Experiment) -> str:
    (trial,) = experiment.trials
    columns = [
        Column("samples seen", True),
        Column("epoch", True),
        Column("WER %", True),
        Column("loss", True),
    ]
    clips = int(experiment.settings["clips"]["train"])
    rows: list[list[Cell]] = [
        [f"{seen:,}", f"{seen / clips:.2f}", f"{wer:.2f}", f"{loss:.3f}" if loss else ""]
        for (seen, wer), loss in zip(trial.evaluations, trial.losses, strict=True)
    ]
    best = {i for i, (seen, _) in enumerate(trial.evaluations) if seen == trial.best_samples_seen}
    return page.table(columns, rows, frozenset(best))
