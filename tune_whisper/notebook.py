"""What is shown in a notebook: one output that is drawn anew, tables, and whole pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

_NESTED = ["config", "evaluations", "stop", "sources"]
"""What an entry of `results.json` has and a cell of a table does not."""
_HIDDEN = (
    "best_samples_seen",
    "effective_batch_size",
    "samples_per_second",
    "mlflow_run_id",
    "checkpoint",
    "error",
)
"""Columns that a small table is without."""
_LINES = 6
"""Printed lines that are seen while something runs."""


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return hasattr(get_ipython(), "kernel")


def trial_frame(entries: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """A row for each trial, by `trial_id`: its settings, and what its entry in `results.json` has besides."""
    import pandas

    settings = dict.fromkeys(name for entry in entries for name in entry["config"])
    rows: list[dict[str, Any]] = [
        {"trial_id": entry["trial_id"], "status": entry["status"]}
        | {name: entry["config"].get(name) for name in settings}
        | dict(entry)
        for entry in entries
    ]
    frame = pandas.DataFrame(rows or {"trial_id": [], "status": []})
    return frame.set_index("trial_id").drop(columns=_NESTED, errors="ignore")


def small_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The same as HTML, with what tells most."""
    frame = trial_frame(entries)
    columns = [name for name in frame if name not in _HIDDEN and frame[name].notna().any()]
    return str(
        frame[columns].to_html(max_rows=30, index_names=False, na_rep="", float_format="{:.4g}".format)
    )


def live_output() -> Callable[[str], None]:
    """One output of a cell, empty at first; what is returned shows other HTML there."""
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda text: handle.update(HTML(text))


def progress_page(table: str, lines: Sequence[str], *, ended: bool) -> str:
    """A table in HTML, and what a process has printed: warnings and its last lines; of one that has ended also all of
    them, folded up.
    """
    warnings = [line for line in lines[:-_LINES] if line.startswith("warning: ")]
    every = f"<details><summary>all that was printed</summary>{_text(lines)}</details>" if ended else ""
    return table + _text([*warnings, *lines[-_LINES:]]) + every


def _text(lines: Sequence[str]) -> str:
    return f"<pre>{escape(''.join(lines))}</pre>"


def show_page(page: Path) -> None:
    """Show a whole HTML page, in a frame of its own."""
    from IPython.display import HTML, display

    source = escape(page.read_text(encoding="utf-8"))
    frame = f'<iframe srcdoc="{source}" style="width: 100%; height: 50em; border: 0"></iframe>'
    display(HTML(f"<div>{frame}</div>"))  # alone it would have IPython advise a frame with an address
