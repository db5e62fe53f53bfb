"""What a search leaves: `experiment.yaml` (everything resolved) and `results.json`."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from tune.errors import ExperimentError
from tune.mlflow_store import package_versions, without_password
from tune.records import TrialRecord
from tune.scheduler import METRIC, TIME_ATTRIBUTE
from tune.searcher import TRIAL_ID

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.cluster import TrialResources
    from tune.mlflow_logging import MlflowRecorder
    from tune.plan import SearchPlan

EXPERIMENT_FILE = "experiment.yaml"
RESULTS_FILE = "results.json"


def write_experiment_file(
    plan: SearchPlan,
    base: TrainConfig,
    data: PreparedData,
    resources: TrialResources,
    rungs: tuple[int, ...],
    baseline: Evaluation,
) -> None:
    """Write everything that was resolved: enough to run the search again and to export from it."""
    request = plan.request
    content = {
        "experiment": plan.name,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "run_again": _command(plan),
        "trials": request.trials,
        "seed": request.seed,
        "tracking_uri": without_password(plan.tracking_uri),
        "space": plan.space.to_dict(),
        "train_config": {**base.to_dict(), "evaluate_at": list(rungs)},
        "budget_samples": rungs[-1],
        "rungs": list(rungs),
        "resources": dataclasses.asdict(resources),
        "clips": {name: len(split) for name, split in data.splits.items()},
        "dropped": data.drop_counts(),
        "notes": list(data.notes),
        "baseline": baseline.rates(),
        "versions": package_versions(),
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (plan.folder / EXPERIMENT_FILE).write_text(text, encoding="utf-8")


def _command(plan: SearchPlan) -> str:
    """A command line that runs the same search under another name, from any folder."""
    request = plan.request
    words = ["tune-whisper", "--space", str(plan.folder / "space.yaml"), "--trials", str(request.trials)]
    words += ["--seed", str(request.seed), "--storage", str(plan.folder.parent)]
    if request.tracking_uri is not None:
        words += ["--tracking-uri", without_password(plan.tracking_uri)]
    for name in ("gpus_per_trial", "cpus_per_trial", "max_concurrent"):
        value = getattr(request, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", f"{value:g}"]
    for key, value in request.settings.items():
        shown = getattr(plan.base, key) if key in ("model", "data", "cache_dir") else value
        words += ["--set", f"{key}={'null' if shown is None else shown}"]
    return shlex.join(words)


@dataclasses.dataclass
class SearchOutcome:
    """A finished or interrupted search."""

    plan: SearchPlan
    trials: list[TrialRecord]
    best: TrialRecord | None
    baseline: Evaluation
    checkpoints: dict[str, str]
    """The best checkpoint's folder of each trial that has one."""
    seconds: float
    interrupted: bool
    """Whether the search ended before all its trials had."""
    run_ids: dict[str, str | None] = dataclasses.field(default_factory=dict)
    mlflow_problem: str | None = None

    @classmethod
    def collect(
        cls, plan: SearchPlan, records: Any, baseline: Evaluation, grid: Any, seconds: float
    ) -> SearchOutcome:
        """Join the records with the checkpoints that Ray Tune kept."""
        checkpoints = {}
        for result in grid:
            if not result.best_checkpoints or not result.config:
                continue
            checkpoint, metrics = min(result.best_checkpoints, key=lambda pair: pair[1][METRIC])
            record = records[result.config[TRIAL_ID]]
            checkpoints[record.trial_id] = checkpoint.path
            # What is said of the best evaluation is what its checkpoint was measured at.
            record.best_wer, record.best_cer = float(metrics[METRIC]), float(metrics["cer"])
            record.best_samples_seen = int(metrics[TIME_ATTRIBUTE])
        # Trials that still ran were stopped by who interrupted the search, not by a failure.
        running = [record for record in records.all() if record.status == "running"]
        for record in running:
            record.end("early_stopped")
        interrupted = bool(running) or len(records.all()) < plan.request.trials
        return cls(plan, records.all(), records.best(), baseline, checkpoints, seconds, interrupted)

    @property
    def gained(self) -> bool:
        """Whether the best trial beats the untouched base model."""
        return self.best is not None and (self.best.best_wer or 0.0) < self.baseline.wer

    def to_dict(self) -> dict[str, Any]:
        """The content of `results.json`."""
        best = self.best
        return {
            "experiment": self.plan.name,
            "metric": METRIC,
            "baseline": {"wer": self.baseline.wer, "cer": self.baseline.cer},
            "best": None
            if best is None
            else {
                "trial_id": best.trial_id,
                "wer": best.best_wer,
                "cer": best.best_cer,
                "config": best.config,
                "checkpoint": self.checkpoints.get(best.trial_id),
                "samples_seen": best.best_samples_seen,
            },
            "trials": [
                {
                    "trial_id": trial.trial_id,
                    "status": trial.status,
                    "config": trial.config,
                    "wer": trial.wer,
                    "best_wer": trial.best_wer,
                    "best_cer": trial.best_cer,
                    "best_samples_seen": trial.best_samples_seen,
                    "samples_seen": trial.samples_seen,
                    "seconds": round(trial.seconds, 3),
                    "mlflow_run_id": self.run_ids.get(trial.trial_id),
                    "checkpoint": self.checkpoints.get(trial.trial_id),
                    "evaluations": [{"samples_seen": seen, "wer": wer} for seen, wer in trial.evaluations],
                    "error": trial.error,
                }
                for trial in self.trials
            ],
            "seconds": round(self.seconds, 3),
        }

    def finish(self, recorder: MlflowRecorder) -> None:
        """Write `results.json`, close the MLflow runs, and write it again with their ids."""
        self._write(recorder)
        folder = self.plan.folder
        files = [folder / EXPERIMENT_FILE, folder / RESULTS_FILE]
        files += list(folder.glob("dropped_clips.jsonl"))
        metrics = {"baseline_wer": self.baseline.wer}
        tags = {}
        if self.best is not None and self.best.best_wer is not None:
            metrics |= {"best_wer": self.best.best_wer, "wer_gain": self.baseline.wer - self.best.best_wer}
            tags["best_trial"] = self.best.trial_id
        status: Literal["interrupted", "completed", "failed"]
        status = "interrupted" if self.interrupted else ("completed" if self.best else "failed")
        self.mlflow_problem = recorder.finish(status, metrics=metrics, tags=tags, artifacts=files)
        self._write(recorder)

    def _write(self, recorder: MlflowRecorder) -> None:
        self.run_ids = {trial.trial_id: recorder.run_id(trial.trial_id) for trial in self.trials}
        temporary = self.plan.folder / f".{RESULTS_FILE}"
        temporary.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(self.plan.folder / RESULTS_FILE)


def find_experiment(name: str | None, storage: Path) -> Path:
    """The folder of an experiment, or of the newest one.

    Raises:
        ExperimentError: there is none; the nearest names are given.
    """
    storage = storage.expanduser()
    files = sorted(storage.glob(f"*/{EXPERIMENT_FILE}"), key=lambda file: file.stat().st_mtime)
    folders = {file.parent.name: file.parent.absolute() for file in files}
    if name is None and folders:
        return list(folders.values())[-1]
    if name in folders:
        return folders[name]
    if not folders:
        what = "no experiment" if name is None else f"no experiment {name!r}"
        raise ExperimentError(
            f"{what} in {storage}, nor any other; --storage names the folder that holds them"
        )
    near = difflib.get_close_matches(str(name), folders, n=3, cutoff=0.4) or list(folders)[-3:]
    raise ExperimentError(f"no experiment {name!r} in {storage}; there is {', '.join(near)}")


def load_results(storage: Path, experiment: str) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The folder, `experiment.yaml` and `results.json` of a finished experiment.

    Raises:
        ExperimentError: there is no such experiment, or it has no results yet.
    """
    folder = find_experiment(experiment, storage)
    if not (folder / RESULTS_FILE).is_file():
        raise ExperimentError(
            f"experiment {experiment!r}: has no {RESULTS_FILE}; wait until its search has ended"
        )
    settings = yaml.safe_load((folder / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    return folder, settings, json.loads((folder / RESULTS_FILE).read_text(encoding="utf-8"))
