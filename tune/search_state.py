"""What a search must remember to go on after an interruption: `state.json` in the experiment's folder."""

from __future__ import annotations

import fcntl
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune.errors import ExperimentError
from tune.records import Records, TrialRecord

if TYPE_CHECKING:
    from tune.decisions import Stop
    from tune.experiment_folder import ExperimentFolder
    from tune.mlflow_logging import MlflowRecorder

STATE_FILE = "state.json"
LOCK_FILE = ".running"


class SearchState:
    """Every trial with its evaluations and checkpoints, written after each event, whole or not at all."""

    def __init__(self, folder: Path, session: int = 1) -> None:
        self._folder = folder
        self.session = session
        """1 for a search's first process, one more each time it is resumed."""
        self.records = Records()
        """The trials."""
        self.repeats = Records()
        """The best of them trained again with other seeds."""
        self.earlier_seconds = 0.0
        """Wall time of the sessions before this one."""
        self._began = time.monotonic()
        self.parent_run_id: str | None = None
        self.run_ids: dict[str, str | None] = {}
        self.recorder: MlflowRecorder | None = None
        self._restored: dict[str, list[str]] = {}
        self._lock: Any = None
        self._saving = threading.Lock()
        self._texts = _RecordTexts()
        self.on_save: Callable[[], None] = lambda: None
        """Called after each time that the file was written."""
        self.problem: ExperimentError | None = None
        """Why the file could not be written; what it said before stays."""

    @classmethod
    def load(cls, folder: Path) -> SearchState:
        """The state of an interrupted search, as its next session.

        Raises:
            ExperimentError: there is none.
        """
        path = folder / STATE_FILE
        if not path.is_file():
            raise ExperimentError(
                f"--resume {folder.name}: has no {STATE_FILE}: its search never began a trial; start it anew"
            )
        saved = json.loads(path.read_text(encoding="utf-8"))
        state = cls(folder, saved["session"] + 1)
        state.earlier_seconds = saved["seconds"]
        for records, entries in ((state.records, saved["trials"]), (state.repeats, saved["repeats"])):
            for values in entries:
                record = TrialRecord.from_dict(values)
                if (
                    record.status == "running" and record.outcome != "running"
                ):  # killed after that was decided
                    record.end(record.outcome)
                records.add(record)
                state._restored[record.trial_id] = record.checkpoints
        state.parent_run_id, state.run_ids = saved["parent_run_id"], saved["run_ids"]
        return state

    def lock(self) -> None:
        """Keep other processes from running the same experiment, until this one ends.

        Raises:
            ExperimentError: one runs it now.
        """
        self._lock = (self._folder / LOCK_FILE).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            owner = self._lock.read().strip()
            raise ExperimentError(
                f"experiment {self._folder.name!r}: is being run by process {owner}; stop that one first"
            ) from error
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def evaluated(
        self, record: TrialRecord, metrics: Mapping[str, Any], stop: Stop | None, checkpoint: str | None
    ) -> None:
        """Take in an evaluation, what was decided on it and its checkpoint, all at once, and write it down.

        Before anything acts on the decision: a search that is killed at any moment then either knows all of it
        or comes by the same evaluation again.
        """
        with self.records.lock:
            record.add_evaluation(metrics, stop)
            if checkpoint is not None and math.isfinite(float(metrics["wer"])):
                record.add_checkpoint(checkpoint)
        self.save()

    def save(self) -> None:
        """Write what is known now, so that it outlives the machine.

        Raises:
            ExperimentError: it cannot be written; the search must end, since nothing may be done that is not known.
        """
        if self.recorder is not None:
            self.parent_run_id = self.recorder.parent_run_id
            for record in (*self.records.all(), *self.repeats.all()):
                if self.run_ids.get(record.trial_id) is None:
                    self.run_ids[record.trial_id] = self.recorder.run_id(record.trial_id)
        content = self._content()
        temporary = self._folder / f".{STATE_FILE}"
        with self._saving:
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self._folder / STATE_FILE)
            except OSError as error:
                self.problem = ExperimentError(
                    f"{self._folder / STATE_FILE}: cannot be written: {error.strerror}; mend that, and "
                    f"tune-whisper --resume {self._folder.name} goes on from what it holds"
                )
                raise self.problem from error
        self.on_save()

    def _content(self) -> bytes:
        """What `json.dumps` with an indentation of 1 writes of it."""
        with self.records.lock:
            entries = {
                "session": _dump(self.session),
                "seconds": _dump(self.earlier_seconds + time.monotonic() - self._began),
                "parent_run_id": _dump(self.parent_run_id),
                "run_ids": _dump(self.run_ids, separators=(",\n  ", ": ")),
                "trials": _listed(self._texts.of(self.records.all())),
                "repeats": _listed(self._texts.of(self.repeats.all())),
            }
        if self.run_ids:
            entries["run_ids"] = b"{\n  " + entries["run_ids"][1:-1] + b"\n }"
        parts = [part for name, value in entries.items() for part in (b",\n ", _dump(name), b": ", value)]
        return b"".join([b"{\n ", *parts[1:], b"\n}\n"])

    @property
    def folder_suffix(self) -> str:
        """What follows a trial's number in its folder's name: another for each session, as Ray counts anew."""
        return "" if self.session == 1 else f"-{self.session}"

    def is_restored(self, trial_id: str) -> bool:
        """Whether the trial began in an earlier session."""
        return trial_id in self._restored

    def starts(self, folder: ExperimentFolder) -> dict[str, list[Any]]:
        """Ray checkpoints from which the trials that had not ended go on, by trial, the last one first."""
        import ray.tune

        storage = folder.ray_storage()
        open_trials = [r for r in (*self.records.all(), *self.repeats.all()) if r.status == "running"]
        return {
            record.trial_id: [
                ray.tune.Checkpoint(
                    f"{storage['storage_path']}/{path}", filesystem=storage.get("storage_filesystem")
                )
                for path in self._restored.get(record.trial_id, [])
            ]
            for record in open_trials
        }


class _RecordTexts:
    """Each record as `state.json` holds it; of hundreds that have ended none is put into words again and again."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[Any], bytes]] = {}

    def of(self, records: Iterable[TrialRecord]) -> list[bytes]:
        """The JSON of the records, those that changed since the last time put into words anew."""
        texts = []
        for record in records:
            values = list(vars(record).values())  # whose containers are replaced by others, never added to
            before, text = self._kept.get(record.trial_id, ([], b""))
            # The clock of a trial that has no seconds yet goes on.
            if values != before or not record.seconds:
                text = _dump(record.to_dict(), indent=1).replace(b"\n", b"\n  ")
                self._kept[record.trial_id] = values, text
            texts.append(text)
        return texts


def _listed(entries: Sequence[bytes]) -> bytes:
    return b"".join([b"[\n  ", b",\n  ".join(entries), b"\n ]"]) if entries else b"[]"


def _dump(value: Any, **how: Any) -> bytes:
    return json.dumps(value, **how).encode()
