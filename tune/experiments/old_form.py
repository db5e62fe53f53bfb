"""Experiments of tune-whisper 0.1, which kept `state.json` and `results.json` and no log: read, and never written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tune.errors import ExperimentError
from tune.experiments.results import RESULTS_FILE
from tune.search.records import Stop, TrialRecord

STATE_FILE = "state.json"
_UNUSED = ("started", "loss", "epoch_now")
_BUDGETS = ("time_budget", "gpu_hours")


def read_old_form(
    folder: Path, settings: Mapping[str, Any]
) -> tuple[list[TrialRecord], list[TrialRecord], dict[str, Any], float]:
    """Trials, repeats, `results.json` (empty where there is none, or it is older than the state), and wall seconds.

    Raises:
        ExperimentError: a file cannot be read.
    """
    saved, results = read_json(folder / STATE_FILE), read_json(folder / RESULTS_FILE) or {}
    source = saved or results
    try:
        trials, repeats = (
            [_from_state(entry) if saved else _from_results(settings, entry) for entry in source.get(key, [])]
            for key in ("trials", "repeats")
        )
    except (KeyError, TypeError) as error:
        raise ExperimentError(
            f"experiment {folder.name!r}: its trials are of another version: {error}"
        ) from error
    written = [run["status"] for run in (*results.get("trials", []), *results.get("repeats", []))]
    now = [run.status for run in (*trials, *repeats)]
    current = bool(results) and [status.replace("interrupted", "running") for status in written] == now
    return trials, repeats, results if current else {}, float(source.get("seconds", 0.0))


def how_it_had_ended(
    settings: Mapping[str, Any], results: Mapping[str, Any]
) -> Literal["finished", "failed"] | None:
    """How an experiment ended; None where it was interrupted, or had trials added since.

    Args:
        settings: `experiment.yaml`.
        results: `results.json`, no older than the state.
    """
    reason = (results.get("ended_by") or {}).get("reason")
    trials = results.get("trials", [])
    if results.get("interrupted") or (reason is None and len(trials) < int(settings["trials"])):
        return None
    if settings.get("kind") == "training":
        return "finished" if any(trial["status"] == "completed" for trial in trials) else "failed"
    spent = reason in _BUDGETS and not any(trial.get("error") for trial in trials)
    if reason == "failures" or (results.get("best") is None and not spent):
        return "failed"
    return "finished"


def read_json(path: Path) -> dict[str, Any] | None:
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
    )
