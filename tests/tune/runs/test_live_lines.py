"""The live display of a search: every line is printed once and in order, and the table is not drawn at each of them."""

from __future__ import annotations

import io
import re
import time

from rich.console import Console

from tune.runs.search_display import SearchDisplay
from tune.search.records import Records


def lines_in(text: str) -> list[int]:
    """The numbers of the printed lines."""
    return [int(number) for number in re.findall(r"line (\d+)!", text)]


def test_all_lines_are_printed_once_in_their_order() -> None:
    written, records = io.StringIO(), Records()
    console = Console(file=written, force_terminal=True, width=100, height=30, _environ={"TERM": "xterm"})
    records.start("001", {"learning_rate": 1e-3}, 8)
    shown = SearchDisplay(
        console, records, n_trials=300, budget=900, baseline="baseline 50.00 %", trouble=lambda: None
    )
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
    assert written.getvalue().count("0/300 trials ended") <= 3
