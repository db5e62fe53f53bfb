"""The page of a single training: its learning curve, rates and settings."""

from __future__ import annotations

from tune.pages.page import Cell, render_page
from tune.report.analysis import Analysis, last_line
from tune.report.costs import OUTCOMES
from tune.report.figures import draw_training
from tune.report.scales import tell
from tune.report.shared import gain_tile, shared_parts, test_tiles
from tune.util.console import clock


def training_page(analysis: Analysis) -> str:
    config, base, trained = analysis.settings.base, analysis.state.comparable_base, analysis.winner
    trial = analysis.trials[0] if analysis.trials else None
    outcome = analysis.stage if trial is None else OUTCOMES[trial.status]
    lead = f"Training of {analysis.model} on {analysis.data}, {config.language} · {outcome}"
    if trial is not None:
        epoch = max(trial.epoch, trial.checkpoint_epoch)  # saved between two evaluations
        lead += f" after {epoch:.2f} epochs, {clock(trial.elapsed)}"
    tiles = [(f"{base:.2f} %", f"WER of the base model, {analysis.model}")]
    if trained is not None:
        interval = ""
        if trained.interval is not None:
            interval = f", 95 % interval {trained.interval[0]:.2f} to {trained.interval[1]:.2f}"
        tiles.insert(0, (f"{trained.value:.2f} %", f"WER after training{interval}"))
        tiles += [gain_tile(base, trained.value), *test_tiles(analysis)]
    each = max(1, analysis.epoch_samples)
    rows: list[list[str]] = []
    best: list[int] = []
    if trial is not None:
        for (seen, wer), loss in zip(trial.evaluations, trial.losses, strict=True):
            best += [len(rows)] if seen == trial.best_samples_seen else []
            rows.append([f"{seen:,}", f"{seen / each:.2f}", f"{wer:.2f}", f"{loss:.3f}" if loss else ""])
    return render_page(
        "training.html",
        analysis.name,
        lead,
        task=analysis.state.task,
        tiles=tiles,
        error=last_line(trial.error) if trial is not None and trial.error else "",
        curve=draw_training(analysis),
        evaluations=rows,
        best=best,
        settings=[
            [Cell(name, "code"), tell(value)]
            for name, value in (trial.config if trial else config.to_dict()).items()
        ],
        **shared_parts(analysis),
    )
