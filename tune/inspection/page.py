"""A data set as a page: what looks wrong and what to do, then what there is."""

from __future__ import annotations

import datetime
import random

from trainer.inspection.entries import measured_clips
from trainer.inspection.inspection import Inspection
from trainer.inspection.rates import usual_seconds
from trainer.inspection.texts import grouped
from tune.inspection.tables import headline, limits_text, long_time, quantile_rows
from tune.pages.figures import BLUE, CYCLE, INK, RED, Picture, new_figure, pointed
from tune.pages.page import render_page

_OPEN, _MOST = 6, 300
"""Clips of a finding that are seen at once, and that are on the page at all."""
_MOST_POINTS = 2000


def inspection_page(inspection: Inspection) -> str:
    name = inspection.config.data.rstrip("/").rsplit("/", 1)[-1] or inspection.config.data
    today = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    length, unit = long_time(sum(facts.seconds for facts in inspection.splits.values())).split(" ")
    return render_page(
        "inspection.html",
        f"{name}: what is in the data",
        headline(inspection),
        footer=f"tune-whisper inspect, {today}",
        tiles=[
            (f"{len(inspection.findings)}", "warning" if len(inspection.findings) == 1 else "warnings"),
            (f"{len(inspection.entries):,}", "clips"),
            (length, unit),
            (f"{sum(facts.words for facts in inspection.splits.values()):,}", "words"),
        ],
        notes=[note.removeprefix("WARNING: ") for note in inspection.notes],
        findings=inspection.findings,
        open=_OPEN,
        most=_MOST,
        splits=inspection.splits,
        durations=draw_durations(inspection),
        rates=draw_rates(inspection),
        quantiles=quantile_rows(inspection),
        limits=limits_text(inspection),
    )


def draw_durations(inspection: Inspection) -> Picture | None:
    """Clips by length, split by split; None where none was measured."""
    by_split = grouped(measured_clips(inspection.entries), lambda pair: pair[0].split)
    figure = new_figure(
        xaxis={"title": {"text": "seconds"}}, yaxis={"title": {"text": "clips"}}, barmode="stack", bargap=0.06
    )
    for (split, mine), colour in zip(by_split.items(), CYCLE, strict=False):
        seconds = [sound.seconds for _, sound in mine]
        figure.add_histogram(x=seconds, nbinsx=40, marker={"color": colour}, name=split)
    return Picture("durations", "Clips by length.", figure, 300) if by_split else None


def draw_rates(inspection: Inspection) -> Picture | None:
    """Letters against seconds of speech: texts of other audio lie far from the rest; None for fewer than two clips."""
    flagged = {
        (one.split, one.name): one.detail
        for finding in inspection.findings
        if finding.kind == "text_misfit"
        for one in finding.suspects
    }
    points = [(entry, sound) for entry, sound in measured_clips(inspection.entries) if sound.spoken]
    if len(points) < 2:
        return None
    usual = [point for point in points if (point[0].split, point[0].name) not in flagged]
    shown = random.Random(0).sample(usual, min(len(usual), _MOST_POINTS))
    odd = [point for point in points if (point[0].split, point[0].name) in flagged][:_MOST]
    figure = new_figure(
        xaxis={"title": {"text": "letters of the text"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "seconds of speech"}, "rangemode": "tozero"},
        showlegend=False,
    )
    for some, colour in ((shown, BLUE), (odd, RED)):
        texts = [f"{one.name} ({one.split}) {flagged.get((one.split, one.name), '')}" for one, _ in some]
        figure.add_scatter(
            x=[entry.units for entry, _ in some],
            y=[sound.spoken for _, sound in some],
            mode="markers",
            marker={"color": colour, "size": 6, "opacity": 0.6},
            **pointed(texts),
        )
    for rate in inspection.rates.values():
        ends = [0, max(entry.units for entry, _ in points)]
        seconds = [usual_seconds(rate, letters) for letters in ends]
        figure.add_scatter(x=ends, y=seconds, mode="lines", line={"color": INK, "width": 1}, hoverinfo="skip")
    caption = "How long texts take to speak, without pauses. Red: texts that are too long or too short for their audio."
    return Picture("rates", caption, figure, 380)
