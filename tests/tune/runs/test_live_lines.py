"""The live display of a search: every line is printed once and in order, and the table is not drawn at each of them."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from made_experiments import RUNGS, MadeLog
from rich.console import Console

from trainer.config import TrainConfig
from tune.runs.callback import SearchCallback
from tune.runs.search_display import SearchDisplay
from tune.search.records import Records
from tune.search.scheduler import NEVER_STOP, TRIAL_ID, Judge


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


def test_a_trial_that_fails_once_it_was_stopped_is_not_printed_as_diverged(tmp_path: Path) -> None:
    made, printed = MadeLog(tmp_path / "made"), list[str]()
    made.session()
    made.measure(made.begin("001"), RUNGS[0], 70.0, stop=True)
    experiment: Any = SimpleNamespace(log=made.log, folder=made.experiment, before_deletion=lambda: None)
    records, display = (
        made.log.state.records,
        SimpleNamespace(event=printed.append, print_progress=lambda: None),
    )
    callback = SearchCallback(TrainConfig(), experiment, records, Judge(NEVER_STOP, RUNGS, records), display)  # type: ignore[arg-type]
    error = tmp_path / "error.txt"
    error.write_text("Failure # 1\nValueError: made up\n")
    callback.on_trial_error(0, [], SimpleNamespace(config={TRIAL_ID: "001"}, error_file=str(error)))
    made.close()
    assert ["failed" in line for line in printed] == [True], printed
