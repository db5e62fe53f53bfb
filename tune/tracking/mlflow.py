"""An experiment in MLflow: one run for the search and one for each trial, repeat and average.

A run is looked for by its tags before it is created, and a point that is sent again is the same point, so that
everything can be sent twice. How far the store is, is a tag of the search's run. A run that somebody deleted is left
alone.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.scoring.objectives import words
from tune.experiments.events import Prepared, ResultsWritten
from tune.experiments.folder import DROPPED_FILE, EXPERIMENT_FILE, RESULTS_FILE, SPACE_FILE
from tune.experiments.mlflow_store import TRIALS_VIEW_TAG, default_artifact_root, is_server, sqlite_path
from tune.experiments.options import TRIAL
from tune.experiments.results import REPORT_FOLDER
from tune.tracking.mlflow_connection import make_experiment, open_store, store_errors
from tune.tracking.mlflow_runs import (
    BEST,
    EXPERIMENT_KEY,
    OUTCOME,
    PARENT,
    TRIAL_ID,
    WINNER,
    Metric,
    RunContent,
    event_points,
    milliseconds,
    own_run,
    progress_points,
    run_name,
    trial_run,
)
from tune.tracking.mlflow_view import trials_view
from tune.tracking.sync import Log, Store, Target
from tune.util.console import short_source
from tune.util.errors import TrackingError
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

    from tune.experiments.experiment import Experiment

POSITION = "tune_whisper.delivered"
"""Tag of the search's run: number of the last event that the store has, bytes of progress, and time of that event."""
_MOST_RUNS = 50_000
"""As many as MLflow returns at once."""
_FILES = (EXPERIMENT_FILE, SPACE_FILE, RESULTS_FILE)
"""Artifacts of the experiment's run, beside the report."""
_TRANSCRIPTS = re.compile(r'<section id="transcripts">.*?</section>', re.DOTALL)
"""What of the report stays on this machine and the experiment's storage: texts and sound of clips."""


@dataclasses.dataclass
class HeldRun:
    """A run as the store has it."""

    run_id: str
    start_ms: int
    deleted: bool
    status: str
    """As MLflow says it: RUNNING, FINISHED, ..."""
    end_ms: int | None
    tags: dict[str, str]
    params: set[str]
    """Their names: MLflow takes no other value."""


class MlflowStore(Store):
    """The runs of one experiment in one store."""

    def __init__(
        self, target: Target, connect: Callable[[str, str], tuple[Any, str | None]] = open_store
    ) -> None:
        super().__init__()
        self._target, self._connect = target, connect
        self._client: Any = None
        """MLflow's; None before the first sync."""
        self._experiment_id: str | None = None
        self._own: HeldRun | None = None
        self._trials: dict[str, HeldRun] = {}
        """Those of its trials, repeats and averages."""
        self._view = ""

    def sync(self, log: Log) -> None:
        """See `Store.sync`: trials first, then the experiment's own run, which so ends last."""
        uri = self._target.tracking_uri
        if self._client is None:
            self._client, self._experiment_id = self._connect(uri, log.saved.name)
            if self._experiment_id is not None and log.entries:
                with store_errors(uri):
                    self._find(log, self._experiment_id)
        if not log.entries:
            return
        if self._experiment_id is None:
            folder = self._target.folder
            root = None if is_server(uri) else default_artifact_root(folder.mlflow_home, folder.name)
            self._experiment_id = make_experiment(self._client, uri, log.saved.name, root)
        with store_errors(uri):
            self._send(log, self._experiment_id)

    def _find(self, log: Log, experiment_id: str) -> None:
        """Find out what the store has; runs of trials that are not in the log, whose end was lost, are deleted."""
        state = log.saved.state
        self._own = find_own(self._client, experiment_id, state.created)
        if self._own is None:
            return
        begun = {record.trial_id: milliseconds(record.begun) for record in state.runs}
        runs = _find_runs(self._client, experiment_id, PARENT, self._own.run_id)
        for run in sorted(runs, key=lambda run: not run.deleted):
            trial = run.tags.get(TRIAL_ID, "")
            if run.start_ms == begun.get(trial):
                self._trials[trial] = run
            elif not run.deleted:
                self._client.delete_run(run.run_id)
        events, progress, moment = self._own.tags.get(POSITION, "").split() or "000"
        # Another event of that number is there where the log was brought back from an older copy.
        if any(f"{entry.time}" == moment for entry in log.entries[int(events) - 1 : int(events)]):
            self.delivered, self.progress = int(events), int(progress)

    def _send(self, log: Log, experiment_id: str) -> None:
        saved, entries = log.saved, log.entries
        state = saved.state
        if self._own is None:
            tags = {EXPERIMENT_KEY: experiment_key(state.created)}
            self._own = self._create(experiment_id, state.created, tags, saved.name)
        new = entries[self.delivered :]
        points = event_points(entries, saved, after=self.delivered) if new else {}
        rows, progress = self._progress(log)
        for row in rows:
            points.setdefault(None if saved.is_training else row["trial_id"], []).extend(progress_points(row))
        if new:
            self._show(saved, experiment_id, self._own.run_id)
        for record in [] if saved.is_training else state.runs:
            trial, new_points = record.trial_id, points.get(record.trial_id, [])
            if not record.begun or not (new or new_points):
                continue
            if trial not in self._trials:
                tags = {PARENT: self._own.run_id, TRIAL_ID: trial}
                self._trials[trial] = self._create(experiment_id, record.begun, tags, run_name(record))
            run = self._trials[trial]
            content = trial_run(record, saved, new=not run.params)
            if state.ended:  # of an earlier session
                content.tags |= dict.fromkeys({BEST, WINNER} & run.tags.keys() - content.tags.keys(), "false")
            self._write(run, content, new_points, state.task)
        if not self._own.params and not self._own.deleted:
            self._describe_data(self._own.run_id, saved.settings)
        own = own_run(saved, self._target.option)
        earlier = {*OUTCOME} & self._own.tags.keys() - own.tags.keys()  # of a session before
        own.tags |= dict.fromkeys(earlier, "")
        self._write(self._own, own, points.get(None, []), state.task)
        if not self._own.deleted:
            if any(isinstance(entry.event, ResultsWritten) for entry in new):
                self._upload(self._own, saved.folder.path)
            position = f"{len(entries)} {progress} {entries[-1].time}"
            self._client.set_tag(self._own.run_id, POSITION, position)
        self.delivered, self.progress = len(entries), progress
        self.run_ids = {trial: run.run_id for trial, run in self._trials.items() if not run.deleted}
        if saved.is_training:
            self.run_ids = {TRIAL: self._own.run_id}

    def _create(self, experiment_id: str, begun: float, tags: dict[str, str], name: str) -> HeldRun:
        return held(self._client.create_run(experiment_id, milliseconds(begun), tags, name))

    def _write(self, run: HeldRun, content: RunContent, points: Sequence[Metric], task: str) -> None:
        """Bring a run to what it is to hold, and add points; nothing where it holds that."""
        tags = {key: words(text, task) for key, text in content.tags.items()}
        tags = {key: text for key, text in tags.items() if run.tags.get(key) != text}
        params = {key: text for key, text in content.params.items() if key not in run.params}
        ended = (content.status, content.end_ms)
        same = not tags and not params and (run.status, run.end_ms) == ended
        if run.deleted or (same and not points):
            return
        from mlflow import entities

        metrics = dict.fromkeys([*points, *([] if same else content.metrics)])
        self._client.log_batch(
            run.run_id,
            [entities.Metric(*point) for point in metrics],
            [entities.Param(*pair) for pair in params.items()],
            [entities.RunTag(*pair) for pair in tags.items()],
        )
        if (run.status, run.end_ms) != ended:
            if content.end_ms is None:
                self._client.update_run(run.run_id, content.status)
            else:
                self._client.set_terminated(run.run_id, *ended)
        run.tags |= tags
        run.params |= params.keys()
        run.status, run.end_ms = ended

    def _describe_data(self, run_id: str, settings: Prepared) -> None:
        """Log each split as an input, with the digest of its clips and texts."""
        from mlflow import entities

        data = settings.base.data
        source, name = json.dumps({"uri": data}), short_source(data)
        self._client.log_inputs(
            run_id,
            [
                entities.DatasetInput(
                    entities.Dataset(name, digest, "local", source),
                    [entities.InputTag("mlflow.data.context", split)],
                )
                for split, digest in settings.data.splits.items()
            ],
        )

    def _show(self, saved: Experiment, experiment_id: str, run_id: str) -> None:
        """Let the page of the experiment show what is searched."""
        session, space = saved.state.session, saved.space
        settings = space.parameters if space else [n for each in saved.state.runs for n in each.config]
        gpus = session is not None and session.gpus_per_trial > 0
        search = None if saved.is_training else run_id
        view = trials_view([*settings], saved.state.objective, gpus=gpus, search=search)
        if view != self._view:
            self._client.set_experiment_tag(experiment_id, TRIALS_VIEW_TAG, view)
            self._view = view

    def _upload(self, own: HeldRun, folder: Path) -> None:
        local = sqlite_path(self._target.tracking_uri) is not None
        for path in (folder / name for name in (*_FILES, *([DROPPED_FILE] if local else []))):
            if path.is_file():
                self._client.log_artifact(own.run_id, str(path))
        for page in (folder / REPORT_FOLDER).glob("*.html"):
            text = page.read_text(encoding="utf-8")
            text = text if local else _TRANSCRIPTS.sub("", text)
            self._client.log_text(own.run_id, text, f"{REPORT_FOLDER}/{page.name}")


def find_own(client: MlflowClient, experiment_id: str, created: float) -> HeldRun | None:
    """The run of the search, or of the single training, that began then; also one that was deleted."""
    runs = _find_runs(client, experiment_id, EXPERIMENT_KEY, experiment_key(created))
    return min(runs, key=lambda run: run.deleted, default=None)


def check_known(uri: str, experiment: str, created: float) -> None:
    """Find out whether a store has the run of an experiment that began then.

    Raises:
        TrackingError: it has not, or cannot be reached.
    """
    client, experiment_id = open_store(uri, experiment)
    with store_errors(uri):
        known = experiment_id is not None and find_own(client, experiment_id, created) is not None
    if not known:
        raise TrackingError(
            f"MLflow store {hide_password(uri)}: has no run of {experiment!r}; --tracking-uri must name the store "
            "that the search used"
        )


def experiment_key(created: float) -> str:
    return f"{created:.6f}"


def _find_runs(client: MlflowClient, experiment_id: str, tag: str, value: str) -> list[HeldRun]:
    from mlflow.entities import ViewType

    query = f"tags.`{tag}` = '{value}'"
    return [held(run) for run in client.search_runs([experiment_id], query, ViewType.ALL, _MOST_RUNS)]


def held(run: Run) -> HeldRun:
    info = run.info
    return HeldRun(
        run_id=info.run_id,
        start_ms=info.start_time,
        deleted=str(info.lifecycle_stage) != "active",
        status=str(info.status),
        end_ms=info.end_time,
        tags=dict(run.data.tags),
        params=set(run.data.params),
    )
