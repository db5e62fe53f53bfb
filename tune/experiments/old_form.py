"""Experiments of tune-whisper 0.1, which kept `state.json` and `results.json` and no log: read, and never written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from tune.search.records import Stop, TrialRecord, trial_order
from tune.util.errors import ExperimentError

STATE_FILE = "state.json"
_UNUSED = ("started", "loss", "epoch_now")


def read_old_state(folder: Path, settings: Mapping[str, Any]) -> SearchState:
    """What the log of an experiment would have folded to, had it been kept.

    Raises:
        ExperimentError: nothing of it was measured yet, or a file cannot be read.
    """
    saved, results = (_read(folder / name) for name in (STATE_FILE, RESULTS_FILE))
    if saved is None and results is None:
        raise ExperimentError(
            f"experiment {folder.name!r}: has no {RESULTS_FILE} and no events.jsonl; wait until its search has begun"
        )
    files = [folder / name for name in (STATE_FILE, RESULTS_FILE) if (folder / name).is_file()]
    return old_state(folder.name, settings, saved, results, max(file.stat().st_mtime for file in files))


def old_state(
    name: str,
    settings: Mapping[str, Any],
    saved: Mapping[str, Any] | None,
    results: Mapping[str, Any] | None,
    heard: float,
) -> SearchState:
    """The same of files that were read.

    Args:
        name: of the experiment.
        settings: `experiment.yaml`.
        saved: `state.json`; None where it is gone.
        results: `results.json`; None where no session has come to its end.
        heard: when the newer of them was written, in seconds since the epoch.

    Raises:
        ExperimentError: they are of another version.
    """
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
            kind="training" if settings.get("kind") == "training" else "search",
            trials=int(settings["trials"]),
            finalists=settings.get("finalists") or 0,
            repeats=settings.get("repeats") or 0,
            budgets=dict(settings.get("budgets") or {}),
            keep_checkpoints=settings.get("keep_checkpoints", "best"),
            asked_resources=dict(settings.get("asked_resources") or {}),
            gpus_per_trial=settings.get("resources", {}).get("gpus", 0.0),
        )
        state.baseline = BaselineMeasured(rates=dict(settings["baseline"]))
        state.restore_seconds(float(source.get("seconds", 0.0)), heard)
        if results is not None and _is_current(results, state):
            _end(state, results)
    except (KeyError, TypeError, ValueError) as error:
        raise ExperimentError(f"experiment {name!r}: its trials are of another version: {error}") from error
    return state


def old_run_ids(folder: Path) -> dict[str, str]:
    """MLflow's runs by trial and repeat; empty where the files do not say."""
    saved, results = _read(folder / STATE_FILE), _read(folder / RESULTS_FILE) or {}
    if saved is not None:
        return dict(saved.get("run_ids") or {})
    runs = [*results.get("trials", []), *results.get("repeats", [])]
    return {run["trial_id"]: run["mlflow_run_id"] for run in runs if run.get("mlflow_run_id")}


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
        state.compared = FinalistsCompared(verdict=verdict)
    if best:
        state.chosen = ExportChosen(run=best.get("run") or best["trial_id"])
    for entry in (*results["trials"], *results.get("repeats", [])):
        state.run(entry["trial_id"]).weights_dropped = entry.get("checkpoint") is None
    state.ended = SearchEnded(status="interrupted" if results.get("interrupted") else "completed")
    if state.session is not None and not results.get("interrupted"):
        state.session = dataclasses.replace(state.session, repeats=0)  # none is left, whatever had cut them


def _read(path: Path) -> dict[str, Any] | None:
    """A file's mapping; None where there is no such file.

    Raises:
        ExperimentError: it cannot be read, or holds something else.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ExperimentError(f"{path}: is not the file of an experiment")
    return found


def _from_state(values: Mapping[str, Any]) -> TrialRecord:
    stop = values.get("stop")
    known = TrialRecord.__dataclass_fields__
    return TrialRecord(
        **{
            **{key: value for key, value in values.items() if key in known and key not in _UNUSED},
            "evaluations": [(seen, wer) for seen, wer in values["evaluations"]],
            "losses": values.get("losses") or [0.0] * len(values["evaluations"]),
            "wer_errors": {int(seen): error for seen, error in values.get("wer_errors", {}).items()},
            "stop": Stop(**stop) if stop else None,
        }
    )


def _from_results(settings: Mapping[str, Any], entry: Mapping[str, Any]) -> TrialRecord:
    """A trial where its state is gone; losses are not told there."""
    stop = entry.get("stop")
    evaluations = [(row["samples_seen"], row["wer"]) for row in entry["evaluations"]]
    seen, clips = int(entry["samples_seen"]), int(settings["clips"]["train"])
    _, found, checkpoint = (entry.get("checkpoint") or "").rpartition("/trials/")
    return TrialRecord(
        trial_id=entry["trial_id"],
        config=entry["config"],
        effective_batch=entry.get("effective_batch_size", 0),
        status="running" if entry["status"] == "interrupted" else entry["status"],
        wer=entry["wer"],
        best_wer=entry["best_wer"],
        best_cer=entry["best_cer"],
        best_samples_seen=entry.get("best_samples_seen", 0),
        samples_seen=seen,
        epoch=seen / clips if clips else 0.0,
        evaluations=evaluations,
        losses=[0.0] * len(evaluations),
        wer_errors={
            row["samples_seen"]: row["wer_error"] for row in entry["evaluations"] if "wer_error" in row
        },
        finished=entry["status"] == "completed",
        stop=Stop(**stop) if stop else None,
        seconds=entry["seconds"],
        error=entry.get("error"),
        checkpoint=f"trials/{checkpoint}" if found else None,
    )
