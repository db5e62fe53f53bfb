"""Pictures of how a search or a training went: trial after trial, and learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tune.display import best_rate, clock, key_settings
from tune.pages.pictures import BLUE, GREEN, GRID, MUTED, ORANGE, PAPER, PURPLE, RED, Picture, drawing
from tune.report.known import Experiment
from tune.report.scales import draw_base_line, draw_margin_labels, draw_wer_axis
from tune.search.records import TrialRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "completed": BLUE,
    "early_stopped": MUTED,
    "diverged": RED,
    "failed": RED,
    "interrupted": ORANGE,
    "running": ORANGE,
}
_MARKS = {
    "completed": "o",
    "early_stopped": "v",
    "diverged": "X",
    "failed": "X",
    "interrupted": "D",
    "running": "D",
}
_WORDS = {
    "completed": "completed",
    "early_stopped": "stopped early",
    "diverged": "failed or diverged",
    "failed": "failed or diverged",
    "interrupted": "broken off",
    "running": "running",
}
_CUT = 1.6
"""Learning curves are cut at so many times the base model's WER, where some go beyond."""


def describe_trial(trial: TrialRecord) -> str:
    """A trial in one line, for who points at it."""
    wer = "" if trial.best_wer is None else f", best WER {best_rate(trial)} %"
    return f"trial {trial.trial_id}: {_WORDS[trial.status]}{wer}; {key_settings(trial.config)}"


def draw_history(experiment: Experiment) -> Picture | None:
    """The best WER of each trial in the order of their start; None where nothing was measured."""
    from matplotlib.ticker import MaxNLocator

    measured = [trial for trial in experiment.trials if trial.best_wer is not None]
    if not measured:
        return None
    with drawing(5.2, 3.5) as figure:
        axes = figure.add_subplot()
        caption = (
            "The lowest WER of each trial. Those that were stopped early had less training, so their marks compare "
            "only with each other; the line is the best so far."
        )
        shown = Picture("history", caption, figure)
        ends = draw_wer_axis(
            axes, [*(trial.best_wer or 0.0 for trial in measured), experiment.baseline], label="best WER %"
        )
        best, steps = math.inf, []
        for place, trial in enumerate(experiment.trials, start=1):
            if trial.best_wer is not None and not trial.best_is_partial:
                best = min(best, trial.best_wer)
            steps.append(best)
            height = ends[1] if trial.best_wer is None else trial.best_wer
            _mark(axes, shown, place, height, trial)
        places = [place for place, step in enumerate(steps, start=1) if math.isfinite(step)]
        heights = [step for step in steps if math.isfinite(step)]
        if places:
            axes.step([*places, len(steps) + 0.4], [*heights, best], where="post", color=GREEN, zorder=2)
        draw_base_line(axes, experiment.baseline)
        axes.set_xlim(0.4, len(experiment.trials) + 0.6)
        axes.set_xlabel("trial")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
        draw_margin_labels(
            axes,
            [
                (experiment.baseline, f"base model\n{experiment.baseline:.1f}", MUTED),
                (best, f"best\n{best:.1f}", GREEN),
            ],
        )
        _legend(axes, experiment.trials)
    return shown


def _mark(axes: Axes, shown: Picture, x: float, y: float, trial: TrialRecord) -> None:
    colour, solid = _COLOURS[trial.status], trial.status == "completed"
    (mark,) = axes.plot(
        [x],
        [y],
        _MARKS[trial.status],
        color=colour,
        markersize=5.5,
        markerfacecolor=colour if solid or trial.status in ("failed", "diverged") else PAPER,
        markeredgecolor=PAPER if solid else colour,
        markeredgewidth=0.6 if solid else 1.1,
        clip_on=False,
        zorder=4 if solid else 3,
    )
    shown.tip(mark, describe_trial(trial))


def _legend(axes: Axes, trials: Sequence[TrialRecord]) -> None:
    """The marks that occur, above the picture."""
    from matplotlib.lines import Line2D

    kinds: dict[str, str] = {}
    for status, word in _WORDS.items():
        if any(trial.status == status for trial in trials):
            kinds.setdefault(word, status)
    handles = [
        Line2D(
            [],
            [],
            marker=_MARKS[status],
            linestyle="none",
            color=_COLOURS[status],
            markerfacecolor=_COLOURS[status] if status in ("completed", "failed", "diverged") else PAPER,
            markersize=5.5,
            label=word,
        )
        for word, status in kinds.items()
    ]
    axes.figure.legend(
        handles=handles, loc="outside upper left", ncols=4, handletextpad=0.1, columnspacing=1.0
    )


def draw_curves(experiment: Experiment) -> Picture | None:
    """WER over samples seen for every trial, with the rungs; None where nothing was measured."""
    measured = [trial for trial in experiment.trials if trial.evaluations]
    if not measured:
        return None
    ceiling = _ceiling(experiment, measured)
    winner, recipe = experiment.winner, experiment.recipe_trial
    with drawing(5.2, 3.5) as figure:
        axes = figure.add_subplot()
        shown = Picture("curves", _curves_caption(experiment, measured, ceiling), figure)
        heights = [min(wer, ceiling) for trial in measured for _, wer in trial.evaluations]
        draw_wer_axis(axes, [*heights, experiment.baseline])
        axes.set_xscale("function", functions=(lambda x: abs(x) ** 0.5, lambda x: x**2))
        axes.set_xlim(0, experiment.budget * 1.03)
        labels = [(experiment.baseline, f"base model\n{experiment.baseline:.1f}", MUTED)]
        for trial in measured:
            chosen = winner is not None and trial.trial_id == winner.trial_id
            usual = recipe is not None and trial.trial_id == recipe.trial_id
            _curve(axes, shown, experiment, trial, ceiling, GREEN if chosen else (PURPLE if usual else None))
            last = trial.evaluations[-1]
            if trial.status == "completed" and (chosen or usual):
                name = f"trial {trial.trial_id}" if chosen else "usual settings"
                labels.append((min(last[1], ceiling), f"{name}\n{last[1]:.1f}", GREEN if chosen else PURPLE))
        draw_base_line(axes, experiment.baseline)
        counts = [
            sum(any(seen == rung for seen, _ in t.evaluations) for t in measured) for rung in experiment.rungs
        ]
        axes.set_xticks(
            experiment.rungs,
            [f"{rung:,}\n{count}" for rung, count in zip(experiment.rungs, counts, strict=True)],
        )
        axes.set_xlabel("samples seen at each rung, and trials that came there")
        axes.grid(True, axis="x", color=GRID, linewidth=1.6)
        draw_margin_labels(axes, labels)
        _legend(axes, [trial for trial in measured if trial.status != "completed"] or measured)
    return shown


def _ceiling(experiment: Experiment, measured: Sequence[TrialRecord]) -> float:
    highest = max(wer for trial in measured for _, wer in trial.evaluations)
    most = _CUT * max(experiment.baseline, 1.0)
    return most if highest > most else highest


def _curve(
    axes: Axes, shown: Picture, experiment: Experiment, trial: TrialRecord, ceiling: float, chosen: str | None
) -> None:
    colour = chosen or _COLOURS[trial.status]
    xs = [0, *(seen for seen, _ in trial.evaluations)]
    ys = [experiment.baseline, *(min(wer, ceiling) for _, wer in trial.evaluations)]
    strong = chosen is not None
    (line,) = axes.plot(
        xs,
        ys,
        color=colour,
        linewidth=2.2 if strong else 1.0,
        alpha=1.0 if strong else (0.75 if trial.status == "completed" else 0.5),
        zorder=4 if strong else 2,
    )
    shown.tip(line, describe_trial(trial))
    if trial.status != "completed":
        _mark(axes, shown, xs[-1], ys[-1], trial)


def _curves_caption(experiment: Experiment, measured: Sequence[TrialRecord], ceiling: float) -> str:
    text = "Learning curves, from the base model on; a mark is where a trial ended. The scale below is a square root."
    if experiment.early_clips:
        text += f" Before half of the budget {experiment.early_clips:,} of the validation clips are measured."
    beyond = sum(any(wer > ceiling for _, wer in trial.evaluations) for trial in measured)
    return (
        f"{text} Curves above {ceiling:.0f} % are cut ({beyond} of {len(measured)} trials)."
        if beyond
        else text
    )


def draw_training(experiment: Experiment) -> Picture | None:
    """The learning curve of a single training; None where nothing was measured."""
    if not experiment.trials or not experiment.trials[0].evaluations:
        return None
    trial = experiment.trials[0]
    with drawing(5.2, 3.3) as figure:
        axes = figure.add_subplot()
        caption = f"WER at each evaluation, from the base model on; {clock(trial.elapsed)} in all."
        shown = Picture("curve", caption, figure)
        xs = [0, *(seen for seen, _ in trial.evaluations)]
        ys = [experiment.baseline, *(wer for _, wer in trial.evaluations)]
        draw_wer_axis(axes, ys)
        axes.plot(xs, ys, color=BLUE)
        for x, y in zip(xs[1:], ys[1:], strict=True):
            (mark,) = axes.plot([x], [y], "o", color=BLUE, markersize=5.5, markeredgecolor=PAPER)
            shown.tip(mark, f"{x:,} samples: WER {y:.2f} %")
        draw_base_line(axes, experiment.baseline)
        axes.set_xlim(0, experiment.budget * 1.02)
        axes.set_xlabel("samples seen")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        best = min(ys[1:])
        draw_margin_labels(
            axes,
            [
                (experiment.baseline, f"base model\n{experiment.baseline:.1f}", MUTED),
                (best, f"best\n{best:.1f}", GREEN),
            ],
        )
    return shown
