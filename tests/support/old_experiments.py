"""Experiments as tune-whisper 0.1 left them: `state.json` and `results.json` beside `experiment.yaml`, and no log."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer.config import TrainConfig
from tune.experiments.folder import EVENTS_FILE, RESULTS_FILE, ExperimentFolder
from tune.experiments.mlflow_store import default_artifact_root
from tune.experiments.results import results_of
from tune.experiments.saved import load_saved
from tune.search.records import TrialRecord

_NEW_SETTINGS = ("trials_full_window", "track")
_NEW_RESULTS = ("test", "not_compared")
_NEW_OF_RUNS = ("samples_per_second",)
_NEW_OF_BEST = ("mean_wer", "mean_interval")
_NEW_OF_STANDINGS = ("samples_per_second", "mean_interval")
_NEW_OF_RECORDS = ("progress", "samples_per_second", "train_seconds", "session", "started", "first_heard")


def to_old_form(
    folder: ExperimentFolder, *, run_ids: dict[str, str] | None = None, parent: str | None = None
) -> None:
    """Make a new experiment one of version 0.1: the same facts in its files.

    Args:
        folder: of an experiment with a log.
        run_ids: MLflow's runs of trials and repeats.
        parent: MLflow's run of the search.
    """
    saved, runs = load_saved(folder), run_ids or {}
    state = saved.state
    asked = ("trials", "finalists", "repeats", "budgets", "keep_checkpoints", "asked_resources")
    settings = {
        **yaml.safe_load((folder.path / "experiment.yaml").read_text()),
        **{name: dataclasses.asdict(state.session)[name] for name in asked},
        "baseline": saved.state.base_rates,
        "versions": {**saved.settings.versions, "tune-whisper": "0.1.0"},
    }
    _write_yaml(folder.path / "experiment.yaml", _without(settings, _NEW_SETTINGS))
    content = {
        "session": 1,
        "seconds": state.seconds,
        "parent_run_id": parent,
        "run_ids": runs,
        "trials": [_record(run) for run in state.records.all()],
        "repeats": [_record(run) for run in state.repeats.all()],
    }
    (folder.path / "state.json").write_text(json.dumps(content, indent=1) + "\n")
    if (folder.path / RESULTS_FILE).exists():
        results = _results(folder, results_of(folder, state), runs)
        (folder.path / RESULTS_FILE).write_text(json.dumps(results, indent=2, allow_nan=False) + "\n")
    (folder.path / EVENTS_FILE).unlink()
    shutil.rmtree(folder.path / "tracking", ignore_errors=True)


def write_old_results(
    folder: Path,
    config: TrainConfig,
    trials: Mapping[str, Mapping[str, Any]],
    *,
    model: Path | None = None,
    **settings: Any,
) -> None:
    """What a finished search of version 0.1 leaves where its state is gone.

    Args:
        folder: of the experiment.
        config: what its trials share.
        trials: the settings of each, and its `wer`.
        model: copied to the checkpoint of the one with the lowest; None where the weights are gone.
        settings: others of `experiment.yaml`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    usual = {"trials": len(trials), "baseline": {"wer": 60.0, "cer": 30.0}, "created": "2026-11-20T10:00:00"}
    usual |= {"clips": {"train": 120, "validation": 16}, "train_config": config.to_dict()}
    _write_yaml(folder / "experiment.yaml", {**usual, **settings})
    best = min(trials, key=lambda name: float(trials[name]["wer"]), default=None)
    checkpoint = folder / "trials" / str(best) / "checkpoint_000000"
    if model is not None:
        shutil.copytree(model, checkpoint)
    entries = [
        {
            **{
                "trial_id": name,
                "status": "completed",
                "seconds": 10.0,
                "samples_seen": 240,
                "best_cer": 1.0,
            },
            **{"wer": trial["wer"], "best_wer": trial["wer"]},
            "config": {key: value for key, value in trial.items() if key != "wer"},
            "evaluations": [{"samples_seen": 240, "wer": trial["wer"]}],
            "checkpoint": str(checkpoint) if name == best and model is not None else None,
        }
        for name, trial in trials.items()
    ]
    found = {"best": {"trial_id": best, "run": best} if best else None, "trials": entries, "repeats": []}
    (folder / RESULTS_FILE).write_text(json.dumps(found))


def change(file: Path, **values: Any) -> None:
    """Other values for some keys of a JSON or YAML file."""
    if file.suffix == ".json":
        file.write_text(json.dumps(json.loads(file.read_text()) | values))
    else:
        _write_yaml(file, yaml.safe_load(file.read_text()) | values)


def recorded_in_mlflow(folder: ExperimentFolder, runs: list[str]) -> tuple[str, dict[str, str]]:
    """Runs as version 0.1 began them, in the experiment's own store: that of the search, and those of `runs`."""
    from mlflow import MlflowClient

    client = MlflowClient(str(yaml.safe_load((folder.path / "experiment.yaml").read_text())["tracking_uri"]))
    experiment = client.create_experiment(folder.name, default_artifact_root(folder.path).as_uri())
    parent = client.create_run(
        experiment, tags={"role": "experiment", "status": "completed"}, run_name=folder.name
    )
    client.log_dict(parent.info.run_id, {"python": "3.11"}, "versions.json")
    ids = {}
    for name in runs:
        tags = {
            "mlflow.parentRunId": parent.info.run_id,
            "trial_id": name,
            "role": "repeat" if "-r" in name else "trial",
        }
        run = client.create_run(experiment, tags=tags, run_name=name)
        client.log_metric(run.info.run_id, "wer", 12.0, step=3200)
        client.set_terminated(run.info.run_id, "FINISHED")
        ids[name] = run.info.run_id
    client.set_terminated(parent.info.run_id, "FINISHED")
    return parent.info.run_id, ids


def _record(run: TrialRecord) -> dict[str, Any]:
    return {**_without(dataclasses.asdict(run), _NEW_OF_RECORDS), "loss": None}


def _results(folder: ExperimentFolder, results: dict[str, Any], runs: dict[str, str]) -> dict[str, Any]:
    found = _without(results, _NEW_RESULTS)
    for key in ("trials", "repeats"):
        found[key] = [
            {**_without(entry, _NEW_OF_RUNS), "mlflow_run_id": runs.get(entry["trial_id"])}
            for entry in results[key]
        ]
    if results["best"]:
        found["best"] = _without(results["best"], _NEW_OF_BEST)
    if results["finalists"]:
        standings = [_without(standing, _NEW_OF_STANDINGS) for standing in results["finalists"]["standings"]]
        found["finalists"] = {**results["finalists"], "standings": standings}
    return found


def _without(mapping: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in names}


def _write_yaml(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
