"""Pictures drawn once and shown twice: as SVG in a page, where they follow its light or dark theme, and as PNG."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import warnings
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

INK = "#1f2329"
"""Text and axes."""
MUTED = "#6a7079"
"""Text and lines of less weight: notes, trials that did not get far."""
GRID = "#dfe2e7"
PAPER = "#fefefe"
"""What is behind a picture: for edges that set marks apart."""
BLUE, ORANGE, GREEN, RED, PURPLE, YELLOW = "#2a6fb0", "#d9730d", "#2f855a", "#c53a3a", "#7a5bb5", "#b58900"
"""Told apart by people who see colours differently, in this order; `themes` has the same for a dark page."""
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, YELLOW)
THEMES = {
    "--ink": (INK, "#e3e6ea"),
    "--muted": (MUTED, "#9aa2ad"),
    "--grid": (GRID, "#3a4048"),
    "--paper": (PAPER, "#16191d"),
    "--blue": (BLUE, "#6cb0ee"),
    "--orange": (ORANGE, "#f0a05a"),
    "--green": (GREEN, "#63c08f"),
    "--red": (RED, "#f08080"),
    "--purple": (PURPLE, "#b79df0"),
    "--yellow": (YELLOW, "#e0bf50"),
}
"""CSS variables of the pages: light and dark."""
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "text.color": INK,
    # Names of people, models and columns are drawn as they are: between dollar signs there is no formula.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


@dataclasses.dataclass
class Picture:
    """A figure with what a reader needs beside it."""

    name: str
    """Of its PNG file and of its place in the page: lower case, hyphens."""
    caption: str
    """One or two sentences below it: what to see in it."""
    figure: Figure
    tips: dict[str, str] = dataclasses.field(default_factory=dict)

    def tip(self, artist: Artist, text: str) -> None:
        """Show `text` in the page while the pointer is on `artist`."""
        key = f"tip{len(self.tips)}"
        artist.set_gid(key)
        self.tips[key] = text

    def svg(self) -> str:
        """The picture as an `<svg>` element for a page: its colours are the page's, its ids its own."""
        target = io.StringIO()
        with _saving({"svg.hashsalt": self.name}):
            self.figure.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        text = target.getvalue()
        text = text[text.index("<svg") :]
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        for variable, (light, _) in THEMES.items():
            text = text.replace(light, f"var({variable})")
        for key, tip in self.tips.items():
            text = text.replace(f'<g id="{key}">', f'<g id="{key}" class="tip"><title>{escape(tip)}</title>')
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = re.sub(r'(url\(|href=")#', rf"\1#{self.name}-", text)
        # Its own size is of a printed page; in a browser it is as wide as its column.
        text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
        text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
        label = f'role="img" aria-label="{escape(self.caption, quote=True)}"'
        return text.replace("<svg", f"<svg {label}", 1)

    def save(self, folder: Path) -> Path:
        """Write `<name>.png`, on white, whole or not at all, and return its path."""
        path = folder / f"{self.name}.png"
        aside = folder / f".{path.name}.partial"
        with _saving({}):
            self.figure.savefig(aside, dpi=144, facecolor="white", format="png")
        aside.replace(path)
        return path


@contextlib.contextmanager
def _saving(settings: dict[str, Any]) -> Iterator[None]:
    """Everything drawn in the block as in `drawing`; scripts that the font does not have cost no warning.

    A page's text is drawn by the browser, whose fonts have them.
    """
    from matplotlib import rc_context

    with rc_context({**_STYLE, **settings}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph ")
        # What matplotlib before 3.11 says besides of Devanagari, Arabic and others.
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


@contextlib.contextmanager
def drawing(width: float = 9.0, height: float = 3.8) -> Iterator[Figure]:
    """An empty figure of so many inches, everything in the block drawn in the pages' style."""
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "axes.prop_cycle": cycler(color=CYCLE)}):
        yield Figure(figsize=(width, height))
