"""Experiments of tune-whisper 0.1, which kept `state.json` and `results.json` and no log: read, and never written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tune.experiments.events import (
    BaselineMeasured,
    ExportChosen,
    FinalistsCompared,
    SearchEnded,
    SessionStarted,
    TrialsOver,
)
from tune.experiments.folder import RESULTS_FILE
from tune.experiments.state import SearchState
from tune.search.budgets import Budgets
from tune.search.finalists import Verdict
from tune.search.records import TrialRecord, trial_order
from tune.util.errors import ExperimentError
from tune.util.plain import restored

if TYPE_CHECKING:
    from tune.experiments.folder import ExperimentFolder
    from tune.experiments.settings import ExperimentSettings

STATE_FILE = "state.json"
_UNUSED = ("started", "loss", "epoch_now")


def old_state(folder: ExperimentFolder, settings: ExperimentSettings, heard: float) -> SearchState:
    """What the log of an experiment would have folded to, had it been kept.

    Args:
        folder: of the experiment.
        settings: `experiment.yaml`.
        heard: when the newer of its files was written, in seconds since the epoch.

    Raises:
        ExperimentError: nothing of it was measured yet, or a file cannot be read or is of another version.
    """
    saved, results = (_parse(folder, name) for name in (STATE_FILE, RESULTS_FILE))
    if saved is None and results is None:
        raise ExperimentError(
            f"experiment {folder.name!r}: has no {RESULTS_FILE} and no events.jsonl; wait until its search has begun"
        )
    asked = settings.first_form
    state, source = SearchState(), saved or results or {}
    try:
        for records, key in ((state.records, "trials"), (state.repeats, "repeats")):
            found = [
                _from_state(run) if saved else _from_results(settings, run) for run in source.get(key, [])
            ]
            for run in sorted(found, key=lambda run: trial_order(run.trial_id)):
                records.add(run)
        state.session = SessionStarted(
            session=1,
            owner="",
            began=heard,
            kind=settings.kind,
            trials=int(asked["trials"]),
            finalists=asked.get("finalists") or 0,
            repeats=asked.get("repeats") or 0,
            budgets=restored(Budgets, asked.get("budgets") or {}),
            keep_checkpoints=asked.get("keep_checkpoints", "best"),
            asked_resources=dict(asked.get("asked_resources") or {}),
            gpus_per_trial=settings.resources.gpus,
        )
        state.baseline = BaselineMeasured(rates=dict(asked["baseline"]))
        state.restore_seconds(float(source.get("seconds", 0.0)), heard)
        if results is not None and _is_current(results, state):
            _end(state, results)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ExperimentError(
            f"experiment {folder.name!r}: its trials are of another version: {error}"
        ) from error
    return state


def _is_current(results: Mapping[str, Any], state: SearchState) -> bool:
    """Whether nothing happened after the results were written, as when an ended search got more trials."""
    written = [run["status"] for run in (*results["trials"], *results.get("repeats", []))]
    # Runs that were broken off stay open in the state, so that they can go on.
    return [status.replace("interrupted", "running") for status in written] == [r.status for r in state.runs]


def _end(state: SearchState, results: Mapping[str, Any]) -> None:
    """What the results say of the end."""
    ended, verdict, best = results.get("ended_by"), results.get("finalists"), results.get("best")
    if ended:
        state.over = TrialsOver(reason=ended["reason"], text=ended["text"])
    if verdict:
        state.compared = FinalistsCompared(verdict=restored(Verdict, verdict))
    if best:
        state.chosen = ExportChosen(run=best.get("run") or best["trial_id"])
    for entry in (*results["trials"], *results.get("repeats", [])):
        state.run(entry["trial_id"]).weights_dropped = entry.get("checkpoint") is None
    state.ended = SearchEnded(status="interrupted" if results.get("interrupted") else "completed")
    if state.session is not None and not results.get("interrupted"):
        state.session = dataclasses.replace(state.session, repeats=0)  # none is left, whatever had cut them


def _parse(folder: ExperimentFolder, name: str) -> dict[str, Any] | None:
    """A file's mapping; None where there is no such file.

    Raises:
        ExperimentError: it cannot be read, or holds something else.
    """
    content, path = folder.read(name), folder.path / name
    if content is None:
        return None
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ExperimentError(f"{path}: is not the file of an experiment")
    return found


def _from_state(values: Mapping[str, Any]) -> TrialRecord:
    found: TrialRecord = restored(
        TrialRecord,
        {
            **{key: value for key, value in values.items() if key not in _UNUSED},
            "losses": values.get("losses") or [0.0] * len(values["evaluations"]),
        },
    )
    return found


def _from_results(settings: ExperimentSettings, entry: Mapping[str, Any]) -> TrialRecord:
    """A trial where its state is gone; losses are not told there."""
    seen, clips = int(entry["samples_seen"]), settings.clips["train"]
    _, found, checkpoint = (entry.get("checkpoint") or "").rpartition("/trials/")
    rows = entry["evaluations"]
    return _from_state(
        {
            **entry,
            "effective_batch": entry.get("effective_batch_size", 0),
            "status": "running" if entry["status"] == "interrupted" else entry["status"],
            "epoch": seen / clips if clips else 0.0,
            "evaluations": [(row["samples_seen"], row["wer"]) for row in rows],
            "finished": entry["status"] == "completed",
            "checkpoint": f"trials/{checkpoint}" if found else None,
        }
    )
