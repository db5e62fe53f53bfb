"""Recorders for tests, and a driver in a process of its own that logs two trials as a search does, to be killed.

`python tracking_driver.py FOLDER TRACKING_URI LAST_STEP` begins, waits for a line, logs up to the step, ends trial
001 and waits for another line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from tune.mlflow_journal import JOURNAL_FILE
from tune.mlflow_logging import MlflowRecorder
from tune.search_state import SearchState

from tune.util.redact import without_password


class Driver:
    """The process, begun; it holds the experiment's lock."""

    def __init__(self, folder: Path, uri: str, last_step: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(folder), uri, str(last_step)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self.read_until("begun")

    def go_on(self) -> None:
        """Let it log."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read_until(self, word: str) -> None:
        """Wait for a word of it."""
        assert self.process.stdout is not None
        line = ""
        while line.strip() != word:
            line = self.process.stdout.readline()
            assert line, "the driver ended"

    def kill(self) -> int:
        """SIGKILL; returns the last step that it had logged to both trials."""
        self.process.kill()
        rest, _ = self.process.communicate()
        return int(([line for line in rest.splitlines() if line.isdigit()] or ["0"])[-1])


def drive(folder: Path, uri: str, last_step: int) -> None:
    """The process' life."""
    state = SearchState(folder)
    state.lock()
    recorder = MlflowRecorder(uri, folder.name, None, journal=folder / JOURNAL_FILE, flush_seconds=0.05)
    state.recorder = recorder
    recorder.start(params={}, tags={}, description="", artifacts=[])
    state.save()
    recorder.trial_started("001", name="001", params={"a": 1}, tags={})
    print("begun", flush=True)
    sys.stdin.readline()
    recorder.trial_started("002", name="002", params={"a": 2}, tags={})
    for step in range(last_step + 1):
        for trial in ("001", "002"):
            recorder.log(trial, {"wer": 1.0 / (step + 1)}, step=step, timestamp=1_700_000_000 + step)
        print(step, flush=True)
        time.sleep(0.001)
    recorder.trial_ended("001", "completed", tags={"note": "at the end"})
    print("ended", flush=True)
    sys.stdin.readline()


def write_experiment(folder: Path, uri: str) -> None:
    """What a search writes of itself, as far as MLflow goes."""
    settings = {"experiment": folder.name, "tracking_uri": without_password(uri)}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings))


def recorder_of(folder: Path, uri: str, **changes: Any) -> MlflowRecorder:
    """A search's recorder with its queue on disk."""
    write_experiment(folder, uri)
    changes = {"flush_seconds": 0.1, "storage": str(folder.parent)} | changes
    return MlflowRecorder(uri, folder.name, None, journal=folder / JOURNAL_FILE, **changes)


def begin(recorder: MlflowRecorder) -> str:
    """Start it; the id of the search's run."""
    return recorder.start(params={}, tags={}, description="", artifacts=[])


def sync_words(folder: Path, *words: str) -> list[str]:
    """The words after `tune-whisper sync`."""
    return [folder.name, "--storage", str(folder.parent), *words]


def log_steps(recorder: MlflowRecorder, trial: str | None, first: int, last: int) -> None:
    """A point for each step, at times that rise."""
    for step in range(first, last):
        recorder.log(trial, {"wer": 100.0 - step}, step=step, timestamp=1_700_000_000 + step)


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
