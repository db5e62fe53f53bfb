"""A data set as a page: what looks wrong and what to do, then what there is."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from trainer.inspection.characters import by_kind
from trainer.inspection.findings import clips
from trainer.inspection.inspection import Distribution, distributions
from tune.inspection.tables import format_name, headline, limits_text, long_time, quantile_row
from tune.pages.figures import BLUE, CYCLE, INK, MUTED, RED, Picture, label, new_figure, pointed
from tune.pages.page import render_page

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trainer.inspection.characters import Character
    from trainer.inspection.entries import Entry
    from trainer.inspection.inspection import Inspection

_OPEN, _MOST = 6, 300
"""Clips of a finding that are seen at once, and that are on the page at all."""
_MISFITS = ("text_too_long", "text_too_short")
_MOST_POINTS, _MOST_FLAGGED = 2000, 80
_ORDER = ("train", "validation", "test")
_CAPTIONS = {
    "tokens": "Tokens that the model learns for each clip, those around the text included.",
    "letters_per_second": "How fast people speak: letters a second, without silence and pauses.",
    "level": "How loud the clips are: the level that a twentieth of each is above, in dB below full scale.",
    "silence": "Silence before the first sound and after the last.",
}


def inspection_page(inspection: Inspection) -> str:
    """The page, whole."""
    found = distributions(inspection.entries)
    by_key = {one.key: one for one in found}
    name = inspection.config.data.rstrip("/").rsplit("/", 1)[-1] or inspection.config.data
    today = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return render_page(
        "inspection.html",
        f"{name}: what is in the data",
        headline(inspection),
        footer=f"tune-whisper inspect, {today}",
        tiles=_tiles(inspection),
        notes=[note.removeprefix("WARNING: ") for note in inspection.notes],
        warnings=inspection.warnings,
        worth_knowing=[finding for finding in inspection.findings if finding.level == "note"],
        open=_OPEN,
        most=_MOST,
        speakers=any(facts.speakers for facts in inspection.splits.values()),
        splits=inspection.splits,
        durations=draw_durations(inspection, by_key["seconds"]) if "seconds" in by_key else None,
        rates=draw_rates(inspection),
        histograms=[draw_histogram(by_key[key]) for key in _CAPTIONS if key in by_key],
        quantiles=[quantile_row(one) for one in found],
        formats=[
            [format_name(rate, channels, kind), f"{count:,}"]
            for (rate, channels, kind), count in inspection.formats().most_common()
        ],
        limits=limits_text(inspection),
        alphabet=[
            [name, f"{len(chars):,}", " ".join(one.shown for one in chars[:_MOST])]
            for name, chars in by_kind(inspection.alphabet).items()
        ],
        rare=_rare(inspection.alphabet),
    )


def _tiles(inspection: Inspection) -> list[tuple[str, str]]:
    length, unit = long_time(sum(facts.seconds for facts in inspection.splits.values())).split(" ")
    found = [
        (f"{len(inspection.warnings)}", "warning" if len(inspection.warnings) == 1 else "warnings"),
        (f"{len(inspection.entries):,}", "clips"),
        (length, unit),
        (f"{sum(facts.words for facts in inspection.splits.values()):,}", "words"),
    ]
    speakers = {entry.speaker for entry in inspection.entries if entry.speaker}
    return [*found, (f"{len(speakers):,}", "speakers")] if speakers else found


def _rare(alphabet: Sequence[Character]) -> list[list[str]]:
    rare = sorted((one for one in alphabet if one.texts <= 3), key=lambda one: (one.odd is None, one.texts))
    return [[one.shown, one.code, one.name, f"{one.count:,}", f"{one.texts:,}"] for one in rare]


def draw_durations(inspection: Inspection, found: Distribution) -> Picture:
    """Clips by length, split by split."""
    by_split: dict[str, list[float]] = {}
    for entry in inspection.entries:
        if entry.sound is not None and entry.sound.seconds:
            by_split.setdefault(entry.split, []).append(entry.sound.seconds)
    groups = {name: by_split[name] for name in _ORDER if name in by_split}
    caption = f"Clips by length; half of them are {found.quantile(0.5):.1f} s and longer."
    over = sum(value > inspection.limits.window for value in found.values)
    longer = f" Longer than the window of {inspection.limits.window:g} s: {clips(over)}." if over else ""
    return _draw(found, groups, "durations", "seconds", caption, longer)


def draw_histogram(found: Distribution) -> Picture:
    """Clips by one measure."""
    name = found.key.replace("_", "-")
    return _draw(found, {"": found.values}, name, found.title, _CAPTIONS[found.key])


def _draw(
    found: Distribution,
    groups: Mapping[str, Sequence[float]],
    name: str,
    title: str,
    caption: str,
    more: str = "",
) -> Picture:
    """Bars of one width, stacked by group; the outermost may stand for more than their place says."""
    import numpy as np

    edges, _ = found.histogram()
    width = edges[2] - edges[1] if len(edges) > 3 else edges[1] - edges[0]
    figure = new_figure(
        xaxis={"title": {"text": title}, "showgrid": False},
        yaxis={"title": {"text": "clips"}},
        barmode="stack",
        bargap=0.06,
        showlegend=len(groups) > 1,
    )
    for (group, values), colour in zip(groups.items(), CYCLE, strict=False):
        counts = [int(count) for count in np.histogram(values, edges)[0]]
        whose = f"{group}: " if group else ""
        told = [
            f"{whose}{clips(count)} of {low:.4g} to {high:.4g} {found.unit}".strip()
            for count, low, high in zip(counts, edges, edges[1:], strict=False)
        ]
        places = [start + width / 2 for start in (edges[1] - width, *edges[1:-1])]
        figure.add_bar(x=places, y=counts, marker={"color": colour}, name=group, **pointed(told))
    if edges[1] - edges[0] > 1.01 * width:
        caption += f" The first bar holds everything down to {edges[0]:.4g}."
    if edges[-1] - edges[-2] > 1.01 * width:
        caption += f" The last bar holds everything up to {edges[-1]:.4g}."
    return Picture(name, caption + more, figure, 300 if len(groups) > 1 else 260)


def draw_rates(inspection: Inspection) -> Picture | None:
    """Letters against seconds of speech: texts of other audio lie far from the rest; None for fewer than two clips."""
    flagged = {
        (one.split, one.name): one.detail
        for finding in inspection.findings
        if finding.kind in _MISFITS
        for one in finding.suspects
    }
    points = [entry for entry in inspection.entries if entry.heard is not None and entry.heard.spoken > 0]
    if len(points) < 2:
        return None
    odd = [entry for entry in points if (entry.split, entry.name) in flagged]
    usual = [entry for entry in points if (entry.split, entry.name) not in flagged]
    shown = random.Random(0).sample(usual, min(len(usual), _MOST_POINTS))
    several = len(inspection.languages) > 1
    figure = new_figure(
        xaxis={"title": {"text": "letters of the text"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "seconds of speech"}, "rangemode": "tozero"},
        showlegend=several,
    )
    # Red is for what is wrong.
    colours = dict(
        zip(inspection.languages, [BLUE, *(colour for colour in CYCLE[1:] if colour != RED)], strict=False)
    )
    for code in inspection.languages:
        mine = [entry for entry in shown if inspection.code_of(entry) == code]
        _add_clips(figure, mine, colours.get(code, MUTED), code, {}, several)
        if code in inspection.rates and mine:
            ends = [0, max(entry.units for entry in mine)]
            usual_seconds = [inspection.rates[code].usual_seconds(letters) for letters in ends]
            line = {"color": INK, "width": 1}
            figure.add_scatter(
                x=ends, y=usual_seconds, mode="lines", line=line, showlegend=False, hoverinfo="skip"
            )
    _add_clips(figure, odd[:_MOST_FLAGGED], RED, "", flagged, False)
    caption = "How long texts take to speak, without pauses. Red: texts that are too long or too short for their audio."
    if len(shown) < len(usual):
        caption += f" {len(shown):,} of {len(usual):,} others are drawn."
    return Picture("rates", caption, figure, 380)


def _add_clips(
    figure: Figure,
    entries: Sequence[Entry],
    colour: str,
    name: str,
    wrong: Mapping[tuple[str, str], str],
    showlegend: bool,
) -> None:
    """A mark for each clip, with its name and what is wrong with it, if anything is."""
    told = [f"{one.name} ({one.split})" for one in entries]
    if wrong:
        told = [f"{text}: {wrong[one.split, one.name]}" for text, one in zip(told, entries, strict=True)]
    figure.add_scatter(
        x=[one.units for one in entries],
        y=[one.heard.spoken if one.heard else None for one in entries],
        mode="markers",
        marker={"color": colour, "size": 8 if wrong else 5, "opacity": 1.0 if wrong else 0.6},
        name=label(name),
        showlegend=showlegend,
        **pointed(told),
    )
