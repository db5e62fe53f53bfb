"""The frame of all pages: one HTML file, no scripts, nothing from the network, light, dark and printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tune.pages.pictures import THEMES, Picture

_CSS = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
@media print { :root { LIGHT } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 4rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p, ul { margin: .5rem 0; max-width: 46rem; }
a { color: var(--blue); }
code, kbd { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { overflow-x: auto; padding: .7rem .9rem; border: 1px solid var(--grid); border-radius: 6px;
  font: .85rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.lead { color: var(--muted); margin-top: 0; }
.muted { color: var(--muted); }
.nowrap { white-space: nowrap; }
.words { display: inline-block; min-width: 18rem; }
.good { color: var(--green); } .bad { color: var(--red); } .warn { color: var(--orange); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin: 1.1rem 0; }
.tile { border: 1px solid var(--grid); border-radius: 8px; padding: .7rem .9rem; }
.tile b { display: block; font-size: 1.55rem; line-height: 1.2; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: .88rem; }
.scroll { overflow-x: auto; margin: .7rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--muted); white-space: nowrap; }
th, td { padding: .3rem .9rem .3rem 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
th.number, td.number { text-align: right; white-space: nowrap; }
tr.strong td { font-weight: 650; }
figure { margin: 1rem 0 1.6rem; }
figure svg { display: block; width: 100%; height: auto; }
figure .wide { overflow-x: auto; }
figure .wide svg { min-width: 34rem; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 0 2rem; }
.gallery.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); }
.gallery > div { min-width: 0; }
.gallery.small figure { margin: .4rem 0 1rem; }
figcaption { color: var(--muted); font-size: .9rem; max-width: 46rem; margin-top: .35rem; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif !important; }
.tip:hover { opacity: .65; cursor: default; }
.box { border-left: 4px solid var(--blue); padding: .1rem 0 .1rem 1rem; margin: 1rem 0; }
.box > h3:first-child { margin-top: .3rem; }
.box.warn { border-color: var(--orange); color: inherit; }
details { margin: .7rem 0; } summary { cursor: pointer; color: var(--muted); }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media (max-width: 40rem) { body { padding: 1rem .9rem 3rem; } h1 { font-size: 1.35rem; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; } h2, h3 { break-after: avoid; }
  figure, .tile, tr, .box { break-inside: avoid; } .scroll, figure .wide { overflow: visible; }
  figure .wide svg { min-width: 0; } details::details-content { content-visibility: visible; block-size: auto; }
  details > * { display: block; } table { font-size: 8pt; } .nowrap { white-space: normal; } }
"""
_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
<h1>{title}</h1>
<p class="lead">{lead}</p>
{body}
<footer>{footer}</footer>
</body>
</html>
"""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    number: bool = False
    """Set right, with figures of equal width."""


@dataclasses.dataclass(frozen=True)
class Html:
    """Text that is HTML already; everything else is escaped."""

    text: str


Cell = str | Html


def render_page(title: str, lead: str, parts: Iterable[str], footer: str = "") -> str:
    """A whole page.

    Args:
        title: plain text.
        lead: plain text, a line below the title.
        parts: HTML, as the functions below return it.
        footer: plain text.
    """
    light = " ".join(f"{name}: {colours[0]};" for name, colours in THEMES.items())
    dark = " ".join(f"{name}: {colours[1]};" for name, colours in THEMES.items())
    return _HTML.format(
        title=escape(title),
        lead=escape(lead),
        css=_CSS.replace("LIGHT", light).replace("DARK", dark),
        body="\n".join(parts),
        footer=escape(footer),
    )


def write_page(path: Path, html: str) -> None:
    """Write a page whole or not at all: a browser may be reading the one before."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(html, encoding="utf-8")
    temporary.replace(path)


def heading(text: str, level: int = 2) -> str:
    """A heading, `h2` by default."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: Cell, kind: str = "") -> str:
    """A paragraph; `kind` is a class of the style sheet: `muted`, `lead`, `good`, `bad`, `warn`."""
    return f"<p{_class(kind)}>{_html(text)}</p>"


def bullets(items: Sequence[Cell]) -> str:
    """A list; nothing where there are no items."""
    return "<ul>" + "".join(f"<li>{_html(item)}</li>" for item in items) + "</ul>" if items else ""


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """The numbers that matter most, large: pairs of a figure and what it is."""
    cells = [
        f'<div class="tile"><b>{escape(number)}</b><span>{escape(what)}</span></div>'
        for number, what in figures
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], strong: frozenset[int] = frozenset()
) -> str:
    """A table that scrolls sideways where it is wider than the page.

    Args:
        columns: names and kinds; a table without names has no head.
        rows: cells, as many as columns.
        strong: indices of rows in bold.
    """
    kinds = ["number" if column.number else "" for column in columns]
    pairs = zip(columns, kinds, strict=True)
    names = "".join(f"<th{_class(kind)}>{escape(column.name)}</th>" for column, kind in pairs)
    head = f"<thead><tr>{names}</tr></thead>" if any(column.name for column in columns) else ""
    body = "".join(
        f"<tr{_class('strong' if index in strong else '')}>"
        + "".join(f"<td{_class(kind)}>{_html(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for index, row in enumerate(rows)
    )
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def picture(shown: Picture, *, wide: bool = False) -> str:
    """A picture with its caption; a `wide` one scrolls sideways on a phone instead of shrinking."""
    svg = f'<div class="wide">{shown.svg()}</div>' if wide else shown.svg()
    return f"<figure>{svg}<figcaption>{escape(shown.caption)}</figcaption></figure>"


def gallery(parts: Sequence[str], *, small: bool = False) -> str:
    """Pictures and tables side by side where there is room, `small` ones three or four in a row."""
    if not parts:
        return ""
    cells = "".join(f"<div>{part}</div>" for part in parts)
    return f'<div class="gallery{" small" if small else ""}">{cells}</div>'


def folded(summary: str, inside: str) -> str:
    """HTML that is shown on a click (and printed)."""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def box(inside: str, *, warn: bool = False) -> str:
    """HTML set off from the rest."""
    return f'<div class="box{" warn" if warn else ""}">{inside}</div>'


def code(text: str) -> Html:
    """Words of a command line or names of settings, within a sentence."""
    return Html(f"<code>{escape(text)}</code>")


def _html(text: Cell) -> str:
    return text.text if isinstance(text, Html) else escape(text)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
