"""Figures of the pages: plotly's, drawn in the browser in the colours of the page's theme."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

THEMES = {
    "--ink": ("#1f2329", "#e3e6ea"),
    "--muted": ("#6a7079", "#9aa2ad"),
    "--grid": ("#dfe2e7", "#3a4048"),
    "--paper": ("#fefefe", "#16191d"),
    "--blue": ("#2a6fb0", "#6cb0ee"),
    "--orange": ("#d9730d", "#f0a05a"),
    "--green": ("#2f855a", "#63c08f"),
    "--red": ("#c53a3a", "#f08080"),
    "--purple": ("#7a5bb5", "#b79df0"),
    "--yellow": ("#b58900", "#e0bf50"),
}
"""CSS variables of the pages, light and dark; a figure names them, and the page's script puts the colours in."""
INK, MUTED, GRID, PAPER, BLUE, ORANGE, GREEN, RED, PURPLE, YELLOW = (f"var({name})" for name in THEMES)
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, YELLOW)
"""Told apart by people who see colours differently, in this order."""
_TIP_LETTERS = 44
_AXIS = {
    "gridcolor": GRID,
    "linecolor": MUTED,
    "tickcolor": MUTED,
    "showline": True,
    "zeroline": False,
    "automargin": True,
    "ticks": "outside",
    "ticklen": 4,
    "ticklabelstandoff": 3,
    "title": {"standoff": 8},
}
_LAYOUT: dict[str, Any] = {
    "template": "none",
    "autosize": True,
    "font": {
        "family": 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif',
        "size": 12,
        "color": INK,
    },
    "paper_bgcolor": PAPER,
    "plot_bgcolor": PAPER,
    "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
    "hovermode": "closest",
    "hoverlabel": {"bgcolor": PAPER, "bordercolor": MUTED, "font": {"color": INK}, "align": "left"},
    "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
    "modebar": {"bgcolor": PAPER, "color": MUTED, "activecolor": INK},
    "showlegend": False,
    "xaxis": _AXIS,
    "yaxis": _AXIS,
}


@dataclasses.dataclass
class Picture:
    """A figure with what a reader needs beside it."""

    name: str
    """Its place in the page: lower case, hyphens."""
    caption: str
    """One or two sentences below it: what to see in it."""
    figure: Figure
    height: int
    """CSS pixels; it is as wide as there is room."""

    def content(self) -> dict[str, Any]:
        """What plotly draws it from; what is no number there is null."""
        found: dict[str, Any] = json.loads(self.figure.to_json())
        return found


def new_figure(**layout: Any) -> Figure:
    """An empty figure in the pages' style; properties of its layout are added to those of the style."""
    from plotly.graph_objects import Figure

    return Figure(layout=_LAYOUT).update_layout(**layout)


def label(text: str, most: int = 10_000) -> str:
    """Text as it is, cut where it is long: plotly takes some tags in labels for markup."""
    return escape(text if len(text) <= most else f"{text[: most - 1]}…", quote=False)


def pointed(texts: list[str]) -> dict[str, Any]:
    """Properties of a trace that shows these texts where one points, in lines that a phone has room for."""
    tips = ["<br>".join(map(label, textwrap.wrap(text, _TIP_LETTERS))) for text in texts]
    return {"hoverinfo": "text", "hovertext": tips}
