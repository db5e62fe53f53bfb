"""Searches as processes of their own: started, waited for, interrupted, killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from mlflow_server import shared_folder
from processes import TUNE, family

from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import fold
from tune.experiments.state import SearchState

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--set", "max_train_clips=48", "--set", "max_eval_clips=12", "--set", "generation_max_length=24"]
"""A small part of the demo's data."""
NODES_QUICK = ["--set", "max_train_clips=64", *QUICK[2:]]
ONE_CPU = {"RAY_OVERRIDE_RESOURCES": '{"CPU": 1}', "RAY_idle_worker_killing_time_threshold_ms": "600000"}
"""For a Ray of its own: models are measured one after the other, in one process that imports torch once."""


def share_features(folder: Path) -> None:
    """Let the searches in a folder find the features, and the base model's rates, that others of this run computed."""
    link = folder / "experiments" / ".feature-cache"
    link.parent.mkdir(exist_ok=True)
    if not link.exists():
        link.symlink_to(shared_folder())


def frozen(where: str, save: int, hold: Path) -> list[str]:
    """The program of which a save stands still; see `frozen_saves.py`."""
    return [str(ROOT / "tests" / "tune" / "runs" / "frozen_saves.py"), where, str(save), str(hold)]


class Search:
    """`tune-whisper` with some words; `log` is all that it prints."""

    def __init__(self, folder: Path, *words: str, program: Sequence[str] = TUNE, **environment: str) -> None:
        """Another `program` than `tune-whisper` takes the same words."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if "--space" in words and "--storage" not in words:
            share_features(folder)
        self._log = folder / f"log-{time.monotonic_ns()}"
        inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *program, *words],
                cwd=folder,
                env={**inherited, "PYTHONPATH": str(ROOT), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    def wait_for(self, condition: str | Callable[[], Any], seconds: float = 560) -> Any:
        """Wait for words in the log, or for a condition; fails where the search ends before."""
        deadline = time.monotonic() + seconds
        while True:
            found = condition in self.log if isinstance(condition, str) else condition()
            if found:
                return found
            assert self.process.poll() is None, f"ended too early:\n{self.log}"
            assert time.monotonic() < deadline, f"waited too long:\n{self.log}"
            time.sleep(0.2)

    def end(self, seconds: float = 560) -> int:
        """The exit code; no end of a search shows a traceback of the driver's."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise AssertionError(f"did not end:\n{self.log}") from error

    def kill(self) -> None:
        """SIGKILL it and all of its Ray."""
        first = [psutil.Process(self.process.pid)] if self.process.poll() is None else []
        for process in [*first, *(child for parent in first for child in family(parent))]:
            if process.is_running():
                process.kill()
        self.process.wait(30)


def results(experiment: Path) -> dict[str, Any]:
    return json.loads((experiment / "results.json").read_text())


def read_log(path: Path) -> SearchState:
    return fold(path.read_bytes(), path)


def state(experiment: Path) -> dict[str, dict[str, Any]]:
    """What the log says of the trials, none before there is one."""
    path = experiment / EVENTS_FILE
    if not path.is_file():
        return {}
    return {record.trial_id: vars(record) for record in read_log(path).records.all()}
