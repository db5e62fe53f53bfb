"""What a search leaves: `experiment.yaml` (everything resolved) and `results.json`."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import json
import shlex
from typing import TYPE_CHECKING, Any, Literal

import yaml

from tune.errors import ExperimentError
from tune.experiment_folder import EXPERIMENT_FILE, ExperimentFolder
from tune.finalists import best_run, trial_of
from tune.limits import describe_duration
from tune.mlflow_store import package_versions, without_password
from tune.mlflow_story import search_ended
from tune.records import TrialRecord
from tune.scheduler import METRIC

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.config import TrainConfig
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.cluster import TrialResources
    from tune.comparison import Verdict
    from tune.final_round import FinalRound
    from tune.limits import Budgets, End
    from tune.mlflow_logging import MlflowRecorder
    from tune.plan import SearchPlan
    from tune.search_state import SearchState
    from tune.storage import Storage

RESULTS_FILE = "results.json"
BASELINE_CLIPS_FILE = "baseline_utterances.json"
"""Word errors and reference words of the untouched base model on each validation clip."""
REPORT_FOLDER = "report"
"""What `tune-whisper report` writes; it goes with the experiment's run in MLflow."""
ASKED_RESOURCES = ("gpus_per_trial", "cpus_per_trial", "max_concurrent", "max_failures")
"""What a trial takes and how many run, as it was asked for; a resumed search goes on with it."""


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
        "asked_tracking_uri": None if request.tracking_uri is None else without_password(plan.tracking_uri),
        "space": plan.space.to_dict(),
        "train_config": {**base.to_dict(), "evaluate_at": list(rungs)},
        "budget_samples": rungs[-1],
        "rungs": list(rungs),
        "resources": dataclasses.asdict(resources),
        "clips": {name: len(split) for name, split in data.splits.items()},
        "dropped": data.drop_counts(),
        "notes": list(data.notes),
        "budgets": dataclasses.asdict(request.budgets),
        "finalists": request.n_finalists,
        "repeats": request.repeats,
        "warm_start": request.warm_start,
        "optuna_storage": None
        if request.optuna_storage is None
        else without_password(request.optuna_storage),
        "keep_checkpoints": request.keep_checkpoints,
        "asked_resources": {name: getattr(request, name) for name in ASKED_RESOURCES},
        "baseline": baseline.rates(),
        "versions": package_versions(),
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (plan.folder / EXPERIMENT_FILE).write_text(text, encoding="utf-8")
    write_baseline_clips(plan.folder, baseline)


def keep_measured(plan: SearchPlan) -> None:
    """Write down what was measured of the card when a search went on: the next `--resume` does not measure again."""
    path = plan.folder / EXPERIMENT_FILE
    saved = yaml.safe_load(path.read_text(encoding="utf-8"))
    saved["asked_resources"]["gpus_per_trial"] = plan.request.gpus_per_trial
    saved["train_config"]["micro_batch"] = plan.base.micro_batch
    replace_experiment_file(path, saved)


def replace_experiment_file(path: Path, content: dict[str, Any]) -> None:
    """Write an `experiment.yaml` anew; whoever reads it meanwhile sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    temporary.replace(path)


def write_baseline_clips(folder: Path, baseline: Evaluation) -> None:
    """Write the base model's errors on each clip, from which reports take its interval."""
    if baseline.utterances is not None:
        text = json.dumps(dataclasses.asdict(baseline.utterances)) + "\n"
        (folder / BASELINE_CLIPS_FILE).write_text(text, encoding="utf-8")


def _command(plan: SearchPlan) -> str:
    """A command line that runs the same search under another name, from any folder."""
    request = plan.request
    words = ["tune-whisper", "--space", str(plan.folder / "space.yaml"), "--trials", str(request.trials)]
    words += ["--seed", str(request.seed), "--storage", request.storage.address]
    if request.tracking_uri is not None:
        words += ["--tracking-uri", without_password(plan.tracking_uri)]
    defaults = {"workers_per_trial": 1, "max_failures": 2}
    for name in ("workers_per_trial", "gpus_per_trial", "cpus_per_trial", "max_concurrent", "max_failures"):
        value = getattr(request, name)
        if value is not None and value != defaults.get(name):
            shown = value if isinstance(value, str) else f"{value:g}"
            words += [f"--{name.replace('_', '-')}", shown]
    words += ["--finalists", str(request.n_finalists), "--repeats", str(request.repeats)]
    for option, value in _budget_words(request.budgets):
        words += [option, value]
    for key, value in request.settings.items():
        shown = getattr(plan.base, key) if key in ("model", "data", "cache_dir") else value
        words += ["--set", f"{key}={'null' if shown is None else shown}"]
    return shlex.join(words)


def _budget_words(budgets: Budgets) -> list[tuple[str, str]]:
    found = []
    if budgets.seconds is not None:
        found.append(("--time-budget", describe_duration(budgets.seconds)))
    if budgets.gpu_hours is not None:
        found.append(("--gpu-hours", f"{budgets.gpu_hours:g}"))
    if budgets.plateau_trials is not None:
        found += [
            ("--plateau", str(budgets.plateau_trials)),
            ("--plateau-points", f"{budgets.plateau_points:g}"),
        ]
    return found


@dataclasses.dataclass
class SearchOutcome:
    """A finished or interrupted search."""

    plan: SearchPlan
    trials: list[TrialRecord]
    best: TrialRecord | None
    baseline: Evaluation
    checkpoints: dict[str, str]
    """The best checkpoint of each trial that has one: its folder, or its address in the object store."""
    seconds: float
    interrupted: bool
    """Whether the search ended before all its trials had."""
    run_ids: dict[str, str | None] = dataclasses.field(default_factory=dict)
    mlflow_problem: str | None = None
    report_problem: str | None = None
    """Why there is no page, in one line."""
    repeats: list[TrialRecord] = dataclasses.field(default_factory=list)
    """Finalists trained again with other seeds."""
    verdict: Verdict | None = None
    """Which of them won."""
    end: End | None = None
    """What ended the search before all its trials."""

    @classmethod
    def collect(
        cls,
        plan: SearchPlan,
        state: SearchState,
        baseline: Evaluation,
        final: FinalRound,
        end: End | None,
        seconds: float,
    ) -> SearchOutcome:
        """What the records say now; they themselves stay as they are, for a search that goes on later."""
        trials = [dataclasses.replace(record) for record in state.records.all()]
        repeats = [dataclasses.replace(record) for record in state.repeats.all()]
        # Trials that still ran were stopped by who interrupted the search, not by a failure.
        open_trials = any(trial.status == "running" for trial in trials)
        for run in (*trials, *repeats):
            if run.status == "running":
                run.end("interrupted")
        best = best_run(final.verdict, state.repeats) if final.verdict else state.records.best()
        storage = plan.experiment_folder.ray_storage()["storage_path"]
        return cls(
            plan=plan,
            trials=trials,
            repeats=repeats,
            verdict=final.verdict,
            end=end or final.end,
            best=next((run for run in (*trials, *repeats) if best and run.trial_id == best.trial_id), None),
            baseline=baseline,
            checkpoints={
                run.trial_id: plan.experiment_folder.checkpoint_address(f"{storage}/{run.checkpoint}")
                for run in (*trials, *repeats)
                if run.checkpoint and not run.weights_dropped
            },
            seconds=seconds,
            interrupted=final.interrupted
            or (end is None and (open_trials or len(trials) < plan.request.trials)),
        )

    def drop_checkpoint(self, run_id: str) -> None:
        """Take note that a run's weights are gone."""
        self.checkpoints.pop(run_id, None)

    @property
    def succeeded(self) -> bool:
        """Whether there is a best trial, or the user's own budget ended the search before there could be one."""
        if self.best is not None:
            return True
        spent = self.end is not None and self.end.reason in ("time_budget", "gpu_hours")
        return spent and not any(trial.error for trial in self.trials)

    @property
    def winner(self) -> str | None:
        """The trial whose settings won: the finalists' verdict, else the lowest WER."""
        if self.verdict is not None:
            return self.verdict.winner
        return None if self.best is None else trial_of(self.best.trial_id)

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
                "trial_id": trial_of(best.trial_id),
                "run": best.trial_id,
                "wer": best.best_wer,
                "cer": best.best_cer,
                **({"wer_error": best.best_wer_error} if best.best_is_partial else {}),
                "config": best.config,
                "checkpoint": self.checkpoints.get(best.trial_id),
                "samples_seen": best.best_samples_seen,
            },
            "trials": [self._entry(trial) for trial in self.trials],
            "repeats": [self._entry(repeat) for repeat in self.repeats],
            "finalists": self.verdict.to_dict() if self.verdict else None,
            "ended_by": dataclasses.asdict(self.end) if self.end else None,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
        }

    def _entry(self, run: TrialRecord) -> dict[str, Any]:
        return {
            "trial_id": run.trial_id,
            "status": run.status,
            "config": run.config,
            "effective_batch_size": run.effective_batch,
            "wer": run.wer,
            "best_wer": run.best_wer,
            "best_cer": run.best_cer,
            "best_samples_seen": run.best_samples_seen,
            "samples_seen": run.samples_seen,
            "seconds": round(run.seconds, 3),
            "mlflow_run_id": self.run_ids.get(run.trial_id),
            "checkpoint": self.checkpoints.get(run.trial_id),
            "evaluations": [
                {
                    **{"samples_seen": seen, "wer": wer},
                    **({"wer_error": run.wer_errors[seen]} if seen in run.wer_errors else {}),
                }
                for seen, wer in run.evaluations
            ],
            "stop": dataclasses.asdict(run.stop) if run.stop else None,
            "error": run.error,
        }

    def finish(self, recorder: MlflowRecorder) -> None:
        """Write `results.json`, close the MLflow runs, and write it again with their ids."""
        self._write(recorder)
        self._report()
        folder = self.plan.folder
        files = [folder / EXPERIMENT_FILE, folder / RESULTS_FILE]
        files += [path for name in ("dropped_clips.jsonl", REPORT_FOLDER) for path in folder.glob(name)]
        metrics = {"baseline_wer": self.baseline.wer, "seconds": round(self.seconds, 1)}
        tags = {}
        if self.best is not None and self.best.best_wer is not None:
            gain = self.baseline.wer - self.best.best_wer
            metrics |= {"best_wer": round(self.best.best_wer, 4), "wer_gain": round(gain, 4)}
        if self.verdict is not None:
            winner = next(found for found in self.verdict.standings if found.trial_id == self.verdict.winner)
            metrics["winner_mean_wer"] = winner.mean
            tags["tie"] = str(self.verdict.tie).lower()
        if self.end is not None:
            tags["ended_by"] = self.end.reason
        status: Literal["interrupted", "completed", "failed"]
        status = "interrupted" if self.interrupted else ("completed" if self.succeeded else "failed")
        self.mlflow_problem = recorder.finish(
            status,
            metrics=metrics,
            tags=tags,
            artifacts=files,
            description=search_ended(self),
            best=None if self.best is None else self.best.trial_id,
            winner=self.winner,
        )
        self._write(recorder)

    def _report(self) -> None:
        from tune.report.writer import write_report

        try:
            write_report(self.plan.experiment_folder, self.plan.request.storage.option)
        except ExperimentError as error:
            self.report_problem = str(error)

    def _write(self, recorder: MlflowRecorder) -> None:
        self.run_ids = {run.trial_id: recorder.run_id(run.trial_id) for run in (*self.trials, *self.repeats)}
        temporary = self.plan.folder / f".{RESULTS_FILE}"
        temporary.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(self.plan.folder / RESULTS_FILE)


def find_experiment(name: str | None, storage: Storage) -> ExperimentFolder:
    """An experiment, or the newest one; its small files are brought here from an object store.

    Raises:
        ExperimentError: there is none; the nearest names are given.
        StorageError: the object store cannot be read.
    """
    names = storage.names()
    chosen = names[-1] if name is None and names else name
    if chosen is not None and chosen in names:
        folder = storage.experiment(chosen)
        folder.download()
        return folder
    if not names:
        what = "no experiment" if name is None else f"no experiment {name!r}"
        raise ExperimentError(
            f"{what} in {storage.text}, nor any other; --storage names the place that holds them"
        )
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.4) or names[-3:]
    raise ExperimentError(f"no experiment {name!r} in {storage.text}; there is {', '.join(near)}")


def load_results(
    storage: Storage, experiment: str
) -> tuple[ExperimentFolder, dict[str, Any], dict[str, Any]]:
    """The folder, `experiment.yaml` and `results.json` of a finished experiment.

    Raises:
        ExperimentError: there is no such experiment, or it has no results yet.
        StorageError: the object store cannot be read.
    """
    folder = find_experiment(experiment, storage)
    if not (folder.path / RESULTS_FILE).is_file():
        raise ExperimentError(
            f"experiment {experiment!r}: has no {RESULTS_FILE}; wait until its search has ended"
        )
    settings = yaml.safe_load((folder.path / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    return folder, settings, json.loads((folder.path / RESULTS_FILE).read_text(encoding="utf-8"))
