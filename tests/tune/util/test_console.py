"""The progress of long work: a line now and then where no bar can be drawn."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tune.util.console import ProgressBar


def test_a_line_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tune.util.console.time.monotonic", lambda: now)
    written = io.StringIO()
    with ProgressBar(Console(file=written, width=200), "reading [x]") as progress:
        for now in range(0, 100, 10):
            progress.update(100 * now, 10_000)
        progress.show("counting", 1, 2)
        with progress.hidden():
            pass
        now = 140.0
        progress.show("counting", 2, 2)  # the end needs no line
    assert written.getvalue().splitlines() == [
        f"reading [x]: {done:,} of 10,000, about {left} left"
        for done, left in ((3_000, "01:10"), (6_000, "00:40"), (9_000, "00:10"))
    ]
