"""What a search prints while it runs: on a terminal every line once and in order; elsewhere where it stands."""

import io
import re
import time

import pytest
from rich.console import Console

from tune.runs.search_display import SearchDisplay
from tune.search.records import Records
from tune.util import console as consoles
from tune.util.console import ProgressBar, doing, make_console


def display(console: Console, records: Records, trials: int) -> SearchDisplay:
    return SearchDisplay(
        console, records, n_trials=trials, budget_of=lambda trial: 900, baseline="base", trouble=lambda: None
    )


def lines_in(text: str) -> list[int]:
    """The numbers of the printed lines."""
    return [int(number) for number in re.findall(r"line (\d+)!", text)]


def test_all_lines_are_printed_once_in_their_order() -> None:
    written, records = io.StringIO(), Records()
    console = Console(file=written, force_terminal=True, width=100, height=30, _environ={"TERM": "xterm"})
    records.start("001", {"learning_rate": 1e-3})
    shown = display(console, records, 300)
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


def test_without_a_terminal_each_running_trial_has_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    written, records = io.StringIO(), Records()
    shown = display(Console(file=written, width=120), records, 8)
    with shown:
        first = records.start("001", {"learning_rate": 1e-3})
        shown.look()
        assert written.getvalue() == "", "no minute has passed"
        monkeypatch.setattr(consoles, "_MINUTE", 0.0)
        for seen in (100, 200):
            first.add_progress({"samples_seen": seen, "epoch": seen / 300, "loss": 1.5})
            shown.look()
        line, total = written.getvalue().splitlines()[-2:]
        assert re.search(
            r"trial 001: 200 of 900 samples · loss 1\.5000 · \S+ samples/s · about 0\d:\d\d to its end", line
        )
        assert "0/8 trials ended · about 0" in total
        first.add_progress({"samples_seen": 900, "epoch": 3, "loss": 1.25})
        shown.look()
        line, total = written.getvalue().splitlines()[-2:]
        assert line.endswith("trial 001: 900 of 900 samples · loss 1.2500 · last evaluation")
        for number in range(2, 6):
            records.start(f"00{number}", {}).add_progress({"samples_seen": number, "epoch": 0.01})
        shown.look()
        assert "5 trials run: 2 to 900 of 900 samples" in written.getvalue().splitlines()[-2]


def test_of_a_search_that_goes_on_the_time_left_is_that_of_this_sessions_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was once that of all samples in this session's seconds: 8 s."""
    records, now = Records(), 1000.0
    monkeypatch.setattr("tune.runs.search_display.time.monotonic", lambda: now)
    records.start("001", {}).samples_seen = 900
    records["001"].end("completed")
    with display(Console(file=io.StringIO()), records, 2) as shown:
        records.start("002", {}).add_progress({"samples_seen": 100, "epoch": 0.1})
        now += 10.0
        assert shown.parts()[-1] == "about 01:20 left"


def test_without_a_terminal_what_takes_long_has_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "_MINUTE", 0.05)
    written = io.StringIO()
    with doing(Console(file=written), "measuring"):
        time.sleep(0.3)
    begun, *later = written.getvalue().splitlines()
    assert begun == "measuring ..."
    assert later and set(later) == {"measuring: for 00:00"}


def test_a_notebook_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not make_console().is_terminal


def test_a_line_of_progress_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now, written = 0.0, io.StringIO()
    monkeypatch.setattr("tune.util.console.time.monotonic", lambda: now)
    with ProgressBar(Console(file=written, width=200), "reading [x]") as progress:
        for now in range(0, 110, 10):
            progress.update(100 * now, 10_000)
    told = ("3,000", "01:10"), ("6,000", "00:40"), ("9,000", "00:10")
    expected = [f"reading [x]: {done} of 10,000, about {left} left" for done, left in told]
    assert written.getvalue().splitlines() == expected
