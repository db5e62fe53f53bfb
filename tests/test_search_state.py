"""`state.json`: it says of every trial what is known now, however little of it is written anew."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tune.search_state import SearchState

from tune.search.records import Records, Stop


def evaluate(records: Records, trial_id: str, samples: int, wer: float, stop: Stop | None = None) -> None:
    metrics = {"samples_seen": samples, "wer": wer, "cer": 1.0, "epoch": 0.5, "finished": samples == 900}
    records[trial_id].add_evaluation(metrics, stop)


def saved(state: SearchState, folder: Path) -> dict[str, Any]:
    """What the file holds after it was written, which is what `json.dumps` writes."""
    state.save()
    text = (folder / "state.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    assert text == json.dumps(found, indent=1) + "\n"
    return found


def plain(records: Records) -> list[dict[str, Any]]:
    """The records as they must be in the file, but for the clocks."""
    found = json.loads(json.dumps([record.to_dict() for record in records.all()]))
    return [{**trial, "seconds": None} for trial in found]


def without_clocks(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**trial, "seconds": None} for trial in trials]


class Runs:
    """Stands in for the recorder: a run's id is known some time after its trial began."""

    def __init__(self) -> None:
        self.parent_run_id = "parent"
        self.known: dict[str, str] = {}

    def run_id(self, trial_id: str) -> str | None:
        return self.known.get(trial_id)


def test_every_change_of_every_trial_is_in_the_file(tmp_path: Path) -> None:
    state = SearchState(tmp_path)
    assert saved(state, tmp_path)["trials"] == []
    records, repeats = state.records, state.repeats
    settings = {"learning_rate": 1e-3, "name": 'two\nlines and "quotes" ünï', "nothing": None}
    for number in range(1, 6):
        records.start(f"00{number}", settings, 8)
        evaluate(records, f"00{number}", 100, 50.0 - number)
        assert without_clocks(saved(state, tmp_path)["trials"]) == plain(records)
    repeats.start("002-r1", settings, 8)
    changes: list[Any] = [
        lambda: evaluate(records, "001", 300, 40.0, Stop("asha", 300, 40.0, 30.0, 4)),
        lambda: records["001"].add_checkpoint("trials/001/checkpoint_000000"),
        lambda: records["001"].end("early_stopped"),
        lambda: setattr(records["001"], "last_checkpoint", None),
        lambda: setattr(records["002"], "error", "Traceback"),
        lambda: records["002"].end("failed"),
        lambda: setattr(records["001"], "weights_dropped", True),
        lambda: evaluate(repeats, "002-r1", 900, 20.0),
        lambda: repeats["002-r1"].end("completed"),
    ]
    for change in changes:
        change()
        found = saved(state, tmp_path)
        assert without_clocks(found["trials"]) == plain(records)
        assert without_clocks(found["repeats"]) == plain(repeats)


def test_clocks_go_on_while_trials_run(tmp_path: Path) -> None:
    state = SearchState(tmp_path)
    state.records.start("001", {}, 8)
    state.records.start("002", {}, 8)
    time.sleep(0.02)
    state.records["002"].end("failed")
    first = saved(state, tmp_path)
    time.sleep(0.02)
    second = saved(state, tmp_path)
    assert second["seconds"] > first["seconds"]
    assert second["trials"][0]["seconds"] > first["trials"][0]["seconds"]
    assert second["trials"][1] == first["trials"][1]


def test_ids_of_runs_come_when_they_are_known(tmp_path: Path) -> None:
    state, runs = SearchState(tmp_path), Runs()
    state.recorder = runs  # type: ignore[assignment]
    assert saved(state, tmp_path)["run_ids"] == {}
    state.records.start("001", {}, 8)
    state.records.start("002", {}, 8)
    runs.known = {"002": "a run"}
    assert saved(state, tmp_path)["run_ids"] == {"001": None, "002": "a run"}
    runs.known["001"] = "another"
    found = saved(state, tmp_path)
    assert (found["run_ids"], found["parent_run_id"]) == ({"001": "another", "002": "a run"}, "parent")
    assert SearchState.load(tmp_path).run_ids == found["run_ids"]
