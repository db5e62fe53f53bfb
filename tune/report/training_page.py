"""The page of a single training: its learning curve, rates and settings."""

from __future__ import annotations

from tune.pages.page import Cell, render_page
from tune.report.analysis import Analysis, short_error
from tune.report.figures import draw_training
from tune.report.scales import tell
from tune.report.shared import shared_parts, tiles
from tune.search.records import OUTCOMES
from tune.util.console import clock


def training_page(analysis: Analysis) -> str:
    config, trained = analysis.settings.base, analysis.winner
    trial = analysis.trials[0] if analysis.trials else None
    outcome = analysis.stage if trial is None else OUTCOMES[trial.status]
    lead = f"Training of {analysis.model} on {analysis.data}, {config.language} · {outcome}"
    if trial is not None:
        epoch = max(trial.epoch, trial.checkpoint_epoch)  # saved between two evaluations
        lead += f" after {epoch:.2f} epochs, {clock(trial.elapsed)}"
    interval = ""
    if trained is not None and trained.interval is not None:
        interval = f", 95 % interval {trained.interval[0]:.2f} to {trained.interval[1]:.2f}"
    each = max(1, analysis.epoch_samples)
    rows: list[list[str]] = []
    best: list[int] = []
    if trial is not None:
        for seen, wer in trial.evaluations:
            loss = trial.losses[seen]
            best += [len(rows)] if seen == trial.best_samples_seen else []
            rows.append([f"{seen:,}", f"{seen / each:.2f}", f"{wer:.2f}", f"{loss:.3f}" if loss else ""])
    return render_page(
        "training.html",
        analysis.name,
        lead,
        task=analysis.state.task,
        tiles=tiles(analysis, f"validation WER{interval}"),
        error=short_error(trial.error) if trial is not None and trial.error else "",
        curve=draw_training(analysis),
        evaluations=rows,
        best=best,
        settings=[
            [Cell(name, "code"), tell(value)]
            for name, value in (trial.config if trial else config.to_dict()).items()
        ],
        **shared_parts(analysis),
    )
