"""The live display of a search: every line is printed once and in order, and the table is not drawn at each of them."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from tune.runs.search_display import SearchDisplay
from tune.search.records import Records


def display(*, terminal: bool) -> tuple[SearchDisplay, io.StringIO]:
    """A search's display with one trial, and what it writes."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100, height=30, _environ={"TERM": "xterm"})
    records = Records()
    records.start("001", {"learning_rate": 1e-3}, 8)
    shown = SearchDisplay(
        console, records, n_trials=300, budget=900, baseline="baseline 50.00 %", trouble=lambda: None
    )
    return shown, written


def lines_in(text: str) -> list[int]:
    """The numbers of the printed lines."""
    return [int(number) for number in re.findall(r"line (\d+)!", text)]


@pytest.mark.parametrize("terminal", [True, False])
def test_all_lines_are_printed_once_in_their_order(terminal: bool) -> None:
    shown, written = display(terminal=terminal)
    with shown:
        for number in range(300):
            shown.event(f"line {number}! of [green]some[/] words")
        deadline = time.monotonic() + 10
        while len(lines_in(written.getvalue())) < 300:  # within seconds, while the table is live
            assert time.monotonic() < deadline
            time.sleep(0.05)
    shown.event("line 300! after the end")
    assert lines_in(written.getvalue()) == list(range(301))
    assert ("[green]" in written.getvalue()) is False
    tables = written.getvalue().count("0/300 trials ended")
    assert tables <= 3 if terminal else tables == 0
