"""Pictures of what a search came to and what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from tune.pages.pictures import BLUE, GREEN, GRID, INK, MUTED, ORANGE, PAPER, PURPLE, RED, Picture, drawing
from tune.report.costs import FINALISTS, Costs
from tune.report.estimates import Contender
from tune.report.scales import draw_margin_labels

_SHARES = {
    "completed": BLUE,
    "stopped early": MUTED,
    "diverged": RED,
    "failed": RED,
    "interrupted": ORANGE,
    "running": ORANGE,
    FINALISTS: PURPLE,
}


def draw_contenders(found: Sequence[Contender], *, won: bool) -> Picture:
    """The best beside the others, with what is known of their uncertainty.

    Args:
        found: from the best to the base model.
        won: the search has ended, so that the best is the winner.
    """
    colours = {"winner": GREEN, "finalist": BLUE, "recipe": PURPLE, "base": MUTED}
    with drawing(5.2, 0.6 + 0.4 * len(found)) as figure:
        axes = figure.add_subplot()
        shown = Picture("winner", _contenders_caption(found), figure)
        for row, contender in enumerate(reversed(found)):
            colour = colours[contender.kind]
            if contender.interval is not None:
                axes.plot(
                    contender.interval,
                    [row, row],
                    color=colour,
                    linewidth=5,
                    alpha=0.3,
                    solid_capstyle="round",
                )
            if len(contender.wers) > 1:
                axes.plot(
                    contender.wers, [row] * len(contender.wers), "o", color=colour, markersize=3.5, alpha=0.7
                )
            (mark,) = axes.plot(
                [contender.wer], [row], "D", color=colour, markersize=6.5, markeredgecolor=PAPER
            )
            shown.tip(mark, f"{contender.name}: WER {contender.wer:.2f} %")
        axes.set_yticks(
            range(len(found)), [_contender_label(contender, won) for contender in reversed(found)]
        )
        axes.set_ylim(-0.6, len(found) - 0.4)
        axes.set_xlim(left=0)
        axes.set_xlabel("WER %")
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        draw_margin_labels(
            axes,
            [(row, f"{contender.wer:.2f} %", INK) for row, contender in enumerate(reversed(found))],
            height=0.05,
        )
    return shown


def _contender_label(contender: Contender, won: bool) -> str:
    words = {
        "winner": f"{'winner' if won else 'best so far'}: {contender.name}",
        "finalist": f"finalist: {contender.name}",
        "recipe": f"usual settings: {contender.name}",
        "base": f"base model {contender.name}"[:32],
    }
    stopped = contender.unfinished and contender.kind == "recipe"
    return words[contender.kind] + ("\n(before its full budget)" if stopped else "")


def _contenders_caption(found: Sequence[Contender]) -> str:
    text = "WER on the validation clips; less is better."
    if any(len(contender.wers) > 1 for contender in found):
        text += " A diamond is the mean of all seeds, a dot each of them."
    if any(contender.interval for contender in found):
        text += (
            " A band is a 95 % interval: clips drawn anew, for trained models with the noise between seeds."
        )
    if found[-1].interval is None:
        text += " The base model's errors by clip were not kept, so it has no interval."
    return text


def draw_costs(costs: Costs) -> Picture | None:
    """What the runs held, by outcome, above what it would have been without early stopping."""
    if not costs.total:
        return None
    with drawing(5.2, 1.9) as figure:
        axes = figure.add_subplot()
        shown = Picture("cost", f"{costs.device} time by outcome, in {costs.unit}.", figure)
        left, seen = 0.0, set()
        for share in costs.shares:
            width = costs.amount(share.hours)
            colour = _SHARES[share.name]
            (bar,) = axes.barh(
                [1],
                [width],
                left=left,
                color=colour,
                height=0.55,
                edgecolor=PAPER,
                linewidth=0.8,
                label=None if colour in seen else ("failed or diverged" if colour == RED else share.name),
            )
            seen.add(colour)
            shown.tip(bar, f"{share.name}: {share.runs} runs, {costs.tell(share.hours)}")
            left += width
        rows = ["spent"]
        if costs.full is not None and costs.saved:
            full = costs.amount(costs.full + costs.total - costs.trials)
            (bar,) = axes.barh([0], [full], color=GRID, height=0.55)
            shown.tip(bar, f"without early stopping: about {full:.1f} {costs.unit}")
            rows = ["without early\nstopping", *rows]
        axes.set_yticks(range(2 - len(rows), 2), rows)
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(costs.unit)
        axes.figure.legend(
            loc="outside upper left", ncols=4, handlelength=1.0, handletextpad=0.4, columnspacing=1.0
        )
    return shown
