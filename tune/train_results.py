"""What a training leaves: `experiment.yaml` and `results.json` as of a search with one trial, and its summary."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.markup import escape

from tune.display import clock, say, short_path, short_value
from tune.experiment_folder import EXPERIMENT_FILE
from tune.mlflow_store import package_versions, without_password
from tune.mlflow_story import training_ended
from tune.results import RESULTS_FILE, SearchOutcome, write_baseline_clips
from tune.scheduler import METRIC, TIME_ATTRIBUTE
from tune.search_callback import error_line
from tune.train_workers import TRIAL

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.cluster import TrialResources
    from tune.mlflow_logging import MlflowRecorder, SearchStatus
    from tune.records import TrialRecord
    from tune.search_state import SearchState
    from tune.train_plan import TrainPlan

KIND = "training"
ERROR_FILE = "error.txt"


def write_training_file(
    plan: TrainPlan,
    data: PreparedData,
    resources: TrialResources,
    points: tuple[int, ...],
    baseline: Evaluation,
) -> None:
    """Write everything that was resolved: enough to run the training again, to resume it and to export from it."""
    asked = plan.request.tracking_uri
    content = {
        "experiment": plan.name,
        "kind": KIND,
        "created": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "run_again": (
            f"tune-whisper train --from {plan.name} --workers {plan.base.workers}{plan.request.storage.option}"
        ),
        "trials": 1,
        "seed": plan.base.seed,
        "tracking_uri": without_password(plan.tracking_uri),
        "asked_tracking_uri": None if asked is None else without_password(asked),
        "space": {},
        "train_config": plan.base.to_dict(),
        "budget_samples": points[-1],
        "rungs": list(points),
        "resources": dataclasses.asdict(resources),
        "clips": {name: len(split) for name, split in data.splits.items()},
        "dropped": data.drop_counts(),
        "notes": list(data.notes),
        "baseline": baseline.rates(),
        "versions": package_versions(),
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    (plan.folder / EXPERIMENT_FILE).write_text(text, encoding="utf-8")
    write_baseline_clips(plan.folder, baseline)


@dataclasses.dataclass
class TrainingOutcome(SearchOutcome):
    """A training that has ended, or was interrupted."""

    @classmethod
    def of(
        cls, plan: TrainPlan, state: SearchState, baseline: Evaluation, result: Any, *, seconds: float
    ) -> TrainingOutcome:
        """Close the record. `result` is Ray Train's, `"failed"`, or None after an interruption."""
        record = state.records[TRIAL]
        if result is None:
            state.save()  # as running: it can go on
            record.end("early_stopped")
        elif result == "failed":
            record.end("failed")
            (plan.folder / ERROR_FILE).write_text(f"{record.error}\n", encoding="utf-8")
        else:
            _correct(record, result, plan)
            record.end("completed")
            record.error = None
        if result is not None:
            state.save()
        root = plan.experiment_folder.ray_storage()["storage_path"]
        kept = record.checkpoint
        address = {} if kept is None else {TRIAL: plan.experiment_folder.checkpoint_address(f"{root}/{kept}")}
        best = state.records.best()
        return cls(plan, [record], best, baseline, address, seconds, interrupted=result is None)

    @property
    def record(self) -> TrialRecord:
        """The training's only trial."""
        return self.trials[0]

    def finish(self, recorder: MlflowRecorder) -> None:
        """Write `results.json` and close the MLflow run."""
        self.run_ids = {TRIAL: recorder.parent_run_id}
        folder = self.plan.folder
        temporary = folder / f".{RESULTS_FILE}"
        temporary.write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(folder / RESULTS_FILE)
        files = [folder / EXPERIMENT_FILE, folder / RESULTS_FILE, *folder.glob("dropped_clips.jsonl")]
        metrics = {"baseline_wer": self.baseline.wer}
        if self.record.best_wer is not None:
            gain = self.baseline.wer - self.record.best_wer
            metrics |= {"best_wer": self.record.best_wer, "wer_gain": gain}
        status: SearchStatus = "interrupted" if self.interrupted else "failed"
        if self.record.status == "completed":
            status = "completed"
        self.mlflow_problem = recorder.finish(
            status,
            metrics=metrics,
            tags={"outcome": self.record.status},
            artifacts=files,
            description=training_ended(self),
        )


def _correct(record: TrialRecord, result: Any, plan: TrainPlan) -> None:
    """Let the record name the checkpoint that Ray kept as the best, also if a killed driver missed its report."""
    if not result.best_checkpoints:
        return
    # Of equal ones the last, as in the record.
    checkpoint, metrics = min(reversed(result.best_checkpoints), key=lambda pair: pair[1][METRIC])
    record.best_wer, record.best_cer = float(metrics[METRIC]), float(metrics["cer"])
    record.best_samples_seen = int(metrics[TIME_ATTRIBUTE])
    root = plan.experiment_folder.ray_storage()["storage_path"]
    record.checkpoint = str(checkpoint.path).removeprefix(f"{root}/")


def print_training_summary(outcome: TrainingOutcome, console: Console) -> None:
    """Print how it ended, WER before and after, and the commands that come next."""
    plan, record, baseline = outcome.plan, outcome.record, outcome.baseline
    name, storage = plan.name, plan.request.storage.option
    console.print()
    if outcome.interrupted:
        say(console, f"interrupted at epoch {record.epoch:.2f}; go on with it:")
        say(console, f"resume    tune-whisper train --resume {name}{storage}")
    elif record.status == "diverged":
        console.print(
            f"[red]diverged[/] after {record.samples_seen:,} samples: the loss is no finite number; lower the "
            f"learning rate: tune-whisper train --from {escape(name)} --trial {TRIAL} --set learning_rate=...",
            soft_wrap=True,
        )
    elif record.status == "failed":
        error = error_line(record.error or "").rstrip(".")
        where = short_path(plan.folder / ERROR_FILE)
        console.print(f"[red]failed[/]: {escape(error)}; all of it is in {escape(where)}", soft_wrap=True)
        say(console, f"resume    tune-whisper train --resume {name}{storage}")
    else:
        say(
            console,
            f"trained   {record.epoch:.2f} epochs, {record.samples_seen:,} samples in {clock(outcome.seconds)}",
        )
    if record.best_wer is None:
        console.print("[red]no evaluation was reached[/]")
        return
    settings = ", ".join(f"{key} {short_value(value)}" for key, value in record.config.items())
    say(console, f"before    WER {baseline.wer:6.2f} %  {plan.base.model} untouched")
    console.print(f"[bold]after     WER {record.best_wer:6.2f} %  {escape(settings)}[/]", soft_wrap=True)
    if outcome.gained:
        gain = baseline.wer - record.best_wer
        console.print(f"gain      {gain:10.2f} points: {100 * gain / baseline.wer:.0f} % fewer errors")
    else:
        console.print("[yellow]no better than the untouched base model[/]: keep that one, or train otherwise")
    say(console, f"results   {plan.where}/{RESULTS_FILE}")
    say(console, f"compare   tune-whisper ui {name}{storage}")
    say(console, f"export    tune-whisper export {name} --output my-model{storage}")
