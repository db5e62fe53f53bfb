"""Pictures of an evaluation: how errors spread over the clips, and how groups of clips differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tune.evaluation_words import between
from tune.pages.pictures import BLUE, INK, MUTED, ORANGE, Picture, drawing

if TYPE_CHECKING:
    from trainer.scoring.scores import Group, Rate, Scores

_WIDTH = 5.2
"""Inches: two beside each other on a page."""
_MOST_ERRORS = 8
_MOST_GROUPS = 20
_LABEL_LETTERS = 24


def spread_picture(scores: Scores) -> Picture:
    """Clips by the number of errors in them, of one or two models."""
    models = scores.models
    shares = []
    for model in models:
        counts = model.counts["wer"]
        errors = [int(number) for number in counts.errors[counts.lengths > 0]]
        of = [sum(min(number, _MOST_ERRORS) == size for number in errors) for size in range(_MOST_ERRORS + 1)]
        shares.append([100.0 * number / len(errors) for number in of])
    last = max(size for share in shares for size in range(_MOST_ERRORS + 1) if share[size])
    with drawing(_WIDTH, 2.9) as figure:
        axes = figure.add_subplot()
        width = 0.8 / len(models)
        picture = Picture("spread", _spread_caption(scores, shares), figure)
        for place, (model, share) in enumerate(zip(models, shares, strict=True)):
            at = [size + (place - (len(models) - 1) / 2) * width for size in range(last + 1)]
            colour = (BLUE, ORANGE)[place]
            bars = axes.bar(
                at, share[: last + 1], width=0.92 * width, color=colour, label=_short(model.model)
            )
            for size, bar in enumerate(bars):
                picture.tip(
                    bar, f"{model.model}: {share[size]:.1f} % of the clips have {_number(size)} errors"
                )
        axes.set_xticks(range(last + 1), [_number(size) for size in range(last + 1)])
        axes.set_xlabel("errors in a clip")
        axes.set_ylabel("clips, %")
        axes.grid(axis="x", visible=False)
        axes.set_axisbelow(True)
        if len(models) > 1:
            axes.legend()
    return picture


def _spread_caption(scores: Scores, shares: Sequence[Sequence[float]]) -> str:
    text = f"{shares[0][0]:.0f} % of the clips have no error at all"
    if scores.baseline is not None:
        text += f", with {scores.baseline.model} {shares[1][0]:.0f} %"
    return f"{text}."


def groups_picture(column: str, groups: Sequence[Group], scores: Scores) -> Picture:
    """The main rate of each group with its interval."""
    shown = list(reversed(groups[:_MOST_GROUPS]))
    overall = scores.model.rates["wer"].percent
    name = "by-" + (re.sub(r"[^a-z0-9]+", "-", column.lower()).strip("-") or "column")
    caption = (
        f"{scores.main_rate} by {column} with 95 % intervals; the line is {scores.model.model} on all clips."
    )
    with drawing(_WIDTH, 1.1 + 0.34 * len(shown)) as figure:
        axes = figure.add_subplot()
        picture = Picture(name, caption, figure)
        axes.axvline(overall, color=MUTED, linewidth=1)
        offset = 0.13 if scores.baseline else 0.0
        for place, group in enumerate(shown):
            _dot(picture, place + offset, group.rate, BLUE, f"{scores.model.model}, {group.value}")
            if group.baseline is not None and scores.baseline is not None:
                _dot(
                    picture, place - offset, group.baseline, ORANGE, f"{scores.baseline.model}, {group.value}"
                )
        labels = [f"{_short(group.value)} ({len(group.rows):,})" for group in shown]
        axes.set_yticks(range(len(shown)), labels, color=INK)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_xlim(left=0)
        axes.set_xlabel(f"{scores.main_rate}, %")
        axes.grid(axis="y", visible=False)
        if scores.baseline is not None:
            for model, colour in ((scores.model, BLUE), (scores.baseline, ORANGE)):
                axes.plot([], [], "o-", color=colour, label=_short(model.model))
            figure.legend(loc="outside upper left", ncols=2)
    return picture


def _dot(picture: Picture, height: float, rate: Rate, colour: str, whose: str) -> None:
    [axes] = picture.figure.axes
    if rate.interval is not None:
        axes.plot(rate.interval, [height, height], color=colour, linewidth=2, solid_capstyle="round")
    [dot] = axes.plot([rate.percent], [height], "o", color=colour, markersize=6)
    picture.tip(dot, f"{whose}: {rate.percent:.2f} %, {between(rate.interval)}")


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_LETTERS else f"{text[: _LABEL_LETTERS - 1]}…"


def _number(size: int) -> str:
    return f"{size} or more" if size == _MOST_ERRORS else str(size)
