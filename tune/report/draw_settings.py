"""Pictures of what the settings did: importances, one setting at a time, two at a time, all at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune.pages.pictures import BLUE, GREEN, INK, MUTED, PAPER, Picture, drawing
from tune.report.draw_progress import describe_trial
from tune.report.importances import Importance
from tune.report.known import Experiment
from tune.report.scales import Scale, draw_base_line, draw_scale, draw_wer_axis, tell
from tune.search.records import TrialRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = 0.5
"""Share of a choice's width over which its trials are spread, so that equal ones do not hide each other."""
_GOLDEN = 0.618034
_ROOM = 100
"""Characters that fit below a wide picture."""
STOPPED = (
    "Hollow marks were stopped early and stand at what they would have come to, by what others gained later."
)


def shown_trials(experiment: Experiment, expected: Mapping[str, float]) -> list[TrialRecord]:
    """Trials with a WER that compares; a diverged one has none that means anything."""
    return [trial for trial in experiment.trials if trial.trial_id in expected and trial.status != "diverged"]


def spread(trial: TrialRecord, scale: Scale, turn: float = _GOLDEN) -> float:
    """Where a trial stands on a setting's axis; another `turn` spreads those of one choice otherwise."""
    place = scale.place(trial.config[scale.name])
    if scale.values is None:
        return place
    return place + ((int(trial.trial_id) * turn) % 1 - 0.5) * _SPREAD * scale.step


def draw_trial(
    axes: Axes, shown: Picture, x: float, y: float, trial: TrialRecord, chosen: bool, expected: float
) -> None:
    """A trial: filled where it had its whole budget; the winner stands out."""
    whole = trial.status == "completed"
    colour = GREEN if chosen else (BLUE if whole else MUTED)
    (mark,) = axes.plot(
        [x],
        [y],
        "*" if chosen else "o",
        color=colour,
        markersize=13 if chosen else 5,
        markerfacecolor=colour if whole or chosen else PAPER,
        markeredgecolor=PAPER if whole or chosen else colour,
        markeredgewidth=0.8 if whole or chosen else 1.1,
        zorder=5 if chosen else (4 if whole else 3),
        clip_on=False,
    )
    more = "" if whole else f"; it would have come to about {expected:.1f} %"
    shown.tip(mark, describe_trial(trial) + more)


def draw_importances(found: Sequence[Importance], trials: int) -> Picture:
    """Bars with intervals, the most important setting on top."""
    with drawing(5.2, 0.75 + 0.36 * len(found)) as figure:
        axes = figure.add_subplot()
        caption = (
            "How much of the differences in WER each setting explains (by a random forest, in shares of 100 %). The "
            f"thin lines are 90 % intervals, from drawing the {trials} trials anew: where they overlap, the order may "
            "be chance."
        )
        shown = Picture("importances", caption, figure)
        for row, importance in enumerate(reversed(found)):
            share, low, high = (100 * value for value in (importance.share, importance.low, importance.high))
            (bar,) = axes.barh([row], [share], color=BLUE, height=0.55, alpha=0.85)
            shown.tip(bar, f"{importance.name}: {share:.0f} %, 90 % interval {low:.0f} to {high:.0f} %")
            axes.plot([low, high], [row, row], color=INK, linewidth=1.0)
        axes.set_yticks(range(len(found)), [importance.name for importance in reversed(found)])
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the differences in WER, %")
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
    return shown


def draw_slices(experiment: Experiment, expected: Mapping[str, float], order: Sequence[str]) -> list[Picture]:
    """WER over each setting, a picture each."""
    trials, winner = shown_trials(experiment, expected), experiment.winner
    found = []
    for name in order:
        scale = experiment.scales[name]
        with drawing(3.3, 2.5) as figure:
            axes = figure.add_subplot()
            shown = Picture(f"slice-{name.replace('_', '-')}", _slice_caption(name, trials, expected), figure)
            low, high = draw_wer_axis(axes, [expected[trial.trial_id] for trial in trials])
            if low <= experiment.baseline <= high:
                draw_base_line(axes, experiment.baseline)
            for trial in trials:
                chosen = winner is not None and trial.trial_id == winner.trial_id
                wer = expected[trial.trial_id]
                draw_trial(axes, shown, spread(trial, scale), wer, trial, chosen, wer)
            draw_scale(axes, scale, "x")
        found.append(shown)
    return found


def _slice_caption(name: str, trials: Sequence[TrialRecord], expected: Mapping[str, float]) -> str:
    """Where the best trials lie."""
    best = sorted(trials, key=lambda trial: expected[trial.trial_id])[: max(3, len(trials) // 10)]
    values = [trial.config[name] for trial in best]
    if all(isinstance(value, float) for value in values):
        told = f"{tell(min(values))} to {tell(max(values))}"
    else:
        told = ", ".join(dict.fromkeys(tell(value) for value in values))
    return f"The {len(best)} best: {told}."


def draw_parallel(experiment: Experiment, expected: Mapping[str, float], order: Sequence[str]) -> Picture:
    """All settings side by side: a line is a trial, the stronger the better."""
    trials, winner = shown_trials(experiment, expected), experiment.winner
    scales = [experiment.scales[name] for name in order]
    ranked = sorted(trials, key=lambda trial: -expected[trial.trial_id])
    with drawing(9.0, 3.6) as figure:
        axes = figure.add_subplot()
        caption = (
            "Each line is a trial across all settings to its WER: the stronger, the better; green is the winner. "
            "Where strong lines run together, that setting's value matters. "
            + STOPPED.replace("Hollow marks", "Dashed lines")
        )
        shown = Picture("parallel", caption, figure)
        wer_place = _wer_places([expected[trial.trial_id] for trial in trials])
        for rank, trial in enumerate(ranked):
            chosen = winner is not None and trial.trial_id == winner.trial_id
            strength = (rank + 1) / len(ranked)
            heights = [*(spread(trial, scale) for scale in scales), wer_place(expected[trial.trial_id])]
            (line,) = axes.plot(
                range(len(heights)),
                heights,
                color=GREEN if chosen else BLUE,
                alpha=1.0 if chosen else 0.12 + 0.78 * strength**3,
                linewidth=2.4 if chosen else 1.2,
                linestyle="-" if trial.status == "completed" else (0, (4, 2)),
                zorder=5 if chosen else 2,
            )
            shown.tip(line, describe_trial(trial))
        _upright(axes, scales, [expected[trial.trial_id] for trial in trials], wer_place)
    return shown


def _wer_places(wers: Sequence[float]) -> Any:
    low, high = min(wers), max(wers)
    wide = low > 0 and high > 4 * low

    def place(wer: float) -> float:
        if high == low:
            return 0.5
        return math.log(wer / low) / math.log(high / low) if wide else (wer - low) / (high - low)

    return place


def _folded(name: str, columns: int) -> str:
    """A long name in two lines, where there are many columns."""
    if len(name) * columns < _ROOM:
        return name
    breaks = [place + 1 for place, letter in enumerate(name) if letter == "_"]
    middle = min(breaks, key=lambda place: abs(place - len(name) / 2), default=len(name))
    return f"{name[:middle]}\n{name[middle:]}".rstrip()


def _upright(axes: Axes, scales: Sequence[Scale], wers: Sequence[float], wer_place: Any) -> None:
    """An axis for each setting, and one for the WER, with their labels."""
    names = [*(scale.name for scale in scales), "WER %"]
    low, high = min(wers), max(wers)
    middle = math.sqrt(low * high) if low > 0 and high > 4 * low else (low + high) / 2
    ticks = [
        *(scale.ticks for scale in scales),
        [(wer_place(wer), f"{wer:.3g}") for wer in {low, middle, high}],
    ]
    for column, marks in enumerate(ticks):
        axes.axvline(column, color=MUTED, linewidth=0.8, zorder=1)
        for place, label in marks:
            axes.annotate(
                label,
                (column, place),
                (-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8.5,
                zorder=6,
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.0, "alpha": 0.85},
            )
    axes.set_xticks(range(len(names)), [_folded(name, len(names)) for name in names])
    axes.set_yticks([])
    axes.set_xlim(-0.35, len(names) - 0.9)
    axes.set_ylim(-0.04, 1.04)
    axes.grid(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", length=0)
