"""The page of a single training: its learning curve, rates and settings."""

from __future__ import annotations

from tune.pages.page import Cell, render_page
from tune.report.analysis import Winner
from tune.report.costs import OUTCOMES
from tune.report.experiment import Experiment, last_line
from tune.report.figures import draw_training
from tune.report.scales import tell
from tune.report.shared import gain_tile, shared_parts, test_tiles
from tune.util.console import clock


def training_page(experiment: Experiment, trained: Winner | None) -> str:
    """The page as HTML.

    Args:
        experiment: the training.
        trained: the trained model; None where nothing was measured.
    """
    config, base = experiment.train_config, experiment.base_value
    trial = experiment.trials[0] if experiment.trials else None
    outcome = experiment.stage if trial is None else OUTCOMES[trial.status]
    lead = f"Training of {experiment.model} on {experiment.data}, {config.get('language')} · {outcome}"
    if trial is not None:
        lead += f" after {trial.epoch:.2f} epochs, {clock(trial.elapsed)}"
    tiles = [(f"{base:.2f} %", f"WER of the base model, {experiment.model}")]
    if trained is not None:
        interval = ""
        if trained.interval is not None:
            interval = f", 95 % interval {trained.interval[0]:.2f} to {trained.interval[1]:.2f}"
        tiles.insert(0, (f"{trained.value:.2f} %", f"WER after training{interval}"))
        tiles += [gain_tile(base, trained.value), *test_tiles(experiment)]
    epoch = max(1, experiment.epoch_samples)
    rows: list[list[str]] = []
    best: list[int] = []
    if trial is not None:
        for (seen, wer), loss in zip(trial.evaluations, trial.losses, strict=True):
            best += [len(rows)] if seen == trial.best_samples_seen else []
            rows.append([f"{seen:,}", f"{seen / epoch:.2f}", f"{wer:.2f}", f"{loss:.3f}" if loss else ""])
    return render_page(
        "training.html",
        experiment.name,
        lead,
        task=experiment.state.task,
        tiles=tiles,
        error=last_line(trial.error) if trial is not None and trial.error else "",
        curve=draw_training(experiment),
        evaluations=rows,
        best=best,
        settings=[
            [Cell(name, "code"), tell(value)] for name, value in (trial.config if trial else config).items()
        ],
        **shared_parts(experiment),
    )
