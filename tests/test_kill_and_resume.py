"""A search that was killed with SIGKILL at any moment, and resumed, is the unbroken one: trials, decisions, results.

    KILLS=5 pytest tests/test_kill_and_resume.py

kills at so many random moments; `SEED=3` beside it draws others, and a failure names its moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlflow
import optuna
import psutil
import pytest
from warm_process import TUNE, Command
from warm_workers import family

ROOT = Path(__file__).resolve().parent.parent
SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 1e-1, log: true}
train_batch_size: {type: choice, values: [4, 8]}
dropout: 0.1
scheduler: {rungs: 3, reduction_factor: 2, min_trials_per_rung: 2}
searcher: {startup_trials: 2}
"""
WORDS = ["--space", "space.yaml", "--experiment", "x", "--trials", "5", "--epochs", "4", "--seed", "11"]
QUICK = ["max_train_clips=48", "max_eval_clips=12", "generation_max_length=24"]
ALONE = ["--max-concurrent", "1", "--finalists", "0"]
DEADLINE = 500.0


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a search is killed: so many seconds after so many events, which are starts, evaluations and ends."""

    events: int
    seconds: float
    untold: int = 0
    """Or, above 0, when so many evaluations are kept and MLflow is told of all but the last one."""

    def __str__(self) -> str:
        if self.untold:
            return f"before MLflow was told of evaluation {self.untold}"
        return f"{self.seconds:.2f} s after event {self.events}"


KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10_000))))
"""Another one each time: the name of a test tells which."""


STOPS_BEFORE_MLFLOW = """
import os, signal, sys
from tune.cli import main
from tune.mlflow_logging import MlflowRecorder

def log(self, trial_id, metrics, **more):
    global left
    left -= trial_id is not None and "wer" in metrics
    if not left:
        os.kill(os.getpid(), signal.SIGSTOP)
    as_ever(self, trial_id, metrics, **more)

left, as_ever, MlflowRecorder.log = int(sys.argv.pop(1)), MlflowRecorder.log, log
sys.exit(main(sys.argv[1:]))
"""
"""The command, halted when it is about to tell MLflow of an evaluation: the first argument says of which."""


class Search:
    """One search in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "space.yaml").write_text(SPACE)
        self.folder = folder
        self.events: list[float] = []
        """When each event was seen in `state.json`."""

    def start(self, *words: str, program: Sequence[str] = TUNE) -> Command:
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        with (self.folder / "log").open("ab") as log:
            return Command(
                *words,
                program=program,
                cwd=self.folder,
                environment={**environment, "PYTHONPATH": str(ROOT)},
                output=log,
            )

    def begin(self, **how: Sequence[str]) -> Command:
        return self.start(*WORDS, *ALONE, *(word for text in QUICK for word in ("--set", text)), **how)

    def run(self, *words: str) -> None:
        process = self.start(*words) if words else self.begin()
        deadline = time.monotonic() + DEADLINE
        while process.poll() is None:
            assert time.monotonic() < deadline, self.log
            self.look()
            time.sleep(0.02)
        assert process.returncode == 0, self.log

    def look(self) -> None:
        """Take note of what has happened."""
        with contextlib.suppress(FileNotFoundError):  # not there before the first trial
            self.events += [time.monotonic()] * (count_events(self.state) - len(self.events))

    def kill_at(self, moment: Moment) -> None:
        """Begin, and end the driver and all of its Ray with SIGKILL."""
        stopping = {"program": ("-c", STOPS_BEFORE_MLFLOW, str(moment.untold))} if moment.untold else {}
        process = self.begin(**stopping)
        deadline = time.monotonic() + DEADLINE
        while (
            psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
            if moment.untold
            else len(self.events) < moment.events
        ):
            assert process.poll() is None, f"ended before it was to be killed, {moment}\n{self.log}"
            assert time.monotonic() < deadline, self.log
            self.look()
            time.sleep(0.02)
        time.sleep(moment.seconds)
        assert process.poll() is None, f"ended before it was to be killed, {moment}\n{self.log}"
        processes = family(psutil.Process(process.pid))
        process.kill()
        for each in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(60)
        psutil.wait_procs(processes, timeout=60)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def state(self) -> list[dict[str, Any]]:
        text = (self.folder / "experiments" / "x" / "state.json").read_text()
        return json.loads(text)["trials"]  # type: ignore[no-any-return]

    @property
    def results(self) -> dict[str, Any]:
        text = (self.folder / "experiments" / "x" / "results.json").read_text()
        return json.loads(text)  # type: ignore[no-any-return]


def decided(results: dict[str, Any]) -> dict[str, Any]:
    """All that a search concluded, without times, ids and places."""
    passing = {"seconds", "mlflow_run_id", "checkpoint"}
    trials = [
        {key: value for key, value in trial.items() if key not in passing} for trial in results["trials"]
    ]
    best = {key: value for key, value in results["best"].items() if key != "checkpoint"}
    return {
        "trials": trials,
        "best": best,
        **{key: results[key] for key in ("baseline", "interrupted", "ended_by")},
    }


def studied(folder: Path) -> list[tuple[Any, ...]]:
    """The Optuna trials in the experiment's database."""
    study = optuna.load_study(study_name="x", storage=f"sqlite:///{folder}/experiments/x/optuna.db")
    return [
        (trial.number, trial.user_attrs, trial.params, trial.state, trial.values, trial.intermediate_values)
        for trial in study.get_trials()
    ]


def tracked(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Runs in the MLflow store by their trial: status, settings, tags of a stop, and all points of the WER."""
    client = mlflow.MlflowClient(f"sqlite:///{folder}/experiments/x/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "x"]
    found: dict[str, list[tuple[Any, ...]]] = {}
    for run in client.search_runs([experiment.experiment_id]):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "wer")]
        tags = {key: run.data.tags.get(key) for key in ("role", "status", "stop_reason", "stop")}
        params = {key: value for key, value in run.data.params.items() if key != "cache_dir"}
        trial = run.data.tags.get("trial_id", "search")
        found.setdefault(trial, []).append((run.info.status, tags, params, points))
    return found


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Search:
    search = Search(tmp_path_factory.mktemp("unbroken") / "search")
    search.run()
    return search


def count_events(trials: list[dict[str, Any]]) -> int:
    return sum(1 + len(trial["evaluations"]) + (trial["status"] != "running") for trial in trials)


def between_rungs(unbroken: Search, chance: random.Random) -> Moment:
    """In a trial that goes on from a rung, but not in the first one."""
    trials = unbroken.state
    number = next(index for index in range(1, len(trials)) if len(trials[index]["evaluations"]) > 1)
    events = count_events(trials[:number]) + 2
    until_next = unbroken.events[events] - unbroken.events[events - 1]
    return Moment(events, chance.uniform(0.1, 0.9) * until_next)


def before_mlflow(unbroken: Search, chance: random.Random) -> Moment:
    """An evaluation is kept, and MLflow has not heard of it."""
    evaluations = sum(len(trial["evaluations"]) for trial in unbroken.state)
    return Moment(0, 0.0, untold=chance.randrange(2, evaluations))


def anywhere(unbroken: Search, chance: random.Random) -> Moment:
    """All moments of the trials alike, so that what takes long is hit more often."""
    at = chance.uniform(unbroken.events[0], unbroken.events[-2])
    events = sum(event <= at for event in unbroken.events)
    return Moment(events, at - unbroken.events[events - 1])


def right_after(unbroken: Search, chance: random.Random) -> Moment:
    """Just when something was written down, and is being acted on."""
    return Moment(chance.randrange(1, len(unbroken.events) - 1), chance.uniform(0, 0.1))


def as_a_trial_ends(unbroken: Search, chance: random.Random) -> Moment:
    """Its last evaluation is known, and that it has ended is not, or just."""
    trials = unbroken.state
    number = chance.choice([n for n, trial in enumerate(trials[:-1], 1) if trial["status"] == "completed"])
    return Moment(count_events(trials[:number]) - 1, chance.uniform(0, 0.05))


CHOICES = [between_rungs, before_mlflow, right_after, as_a_trial_ends, anywhere, anywhere]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_and_resumed_is_unbroken(number: int, unbroken: Search, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED}-{number}")
    moment = chance.choice(CHOICES)(unbroken, chance)
    told = f"SEED={SEED}, kill {number}, {moment}"
    print(told)
    search = Search(tmp_path / "search")
    search.kill_at(moment)
    before = {trial["trial_id"]: trial for trial in search.state}
    search.run("--resume", "x")
    print(search.log)
    assert search.log.count("1 at a time") == 2, "--max-concurrent was forgotten"
    after = search.results
    assert decided(after) == decided(unbroken.results), told
    for trial in after["trials"]:
        known = before.get(trial["trial_id"])
        if known is not None and known["status"] != "running":
            assert trial["seconds"] == pytest.approx(known["seconds"], abs=1e-3), "it was trained again"
    configs = {json.dumps(trial["config"], sort_keys=True) for trial in after["trials"]}
    assert len(configs) == len(after["trials"]), told
    assert studied(search.folder) == studied(unbroken.folder), told
    found = tracked(search.folder)
    assert {trial: len(runs) for trial, runs in found.items()} == dict.fromkeys(found, 1), told
    assert found == tracked(unbroken.folder), told


def test_the_unbroken_search_has_what_a_kill_can_spoil(unbroken: Search) -> None:
    """Else the comparison would show little."""
    trials = unbroken.results["trials"]
    assert {trial["status"] for trial in trials} == {"completed", "early_stopped"}
    assert {trial["stop"]["reason"] for trial in trials if trial["stop"]} >= {"asha"}
    assert len({trial["best_wer"] for trial in trials}) > 2


@pytest.mark.slow
def test_trials_and_finalists_can_be_added_to_a_finished_search(unbroken: Search, tmp_path: Path) -> None:
    shutil.copytree(unbroken.folder, tmp_path / "search")
    search = Search(tmp_path / "search")
    refused = search.start("--resume", "x")
    assert refused.wait(DEADLINE) == 2
    assert "all its 5 trials have ended; --trials 13 adds 8 more" in search.log
    search.run("--resume", "x", "--trials", "6", "--finalists", "1", "--repeats", "1")
    before, after = decided(unbroken.results), decided(search.results)
    assert after["trials"][:5] == before["trials"]
    (added,) = after["trials"][5:]
    assert added["trial_id"] == "006"
    assert added["config"] not in [trial["config"] for trial in before["trials"]]
    assert studied(search.folder)[:5] == studied(unbroken.folder)
    found, known = tracked(search.folder), tracked(unbroken.folder)
    assert {trial: runs for trial, runs in found.items() if trial in known and trial != "search"} == {
        trial: runs for trial, runs in known.items() if trial != "search"
    }
    assert len(found["006"]) == len(found["search"]) == 1
    best = min(after["trials"], key=lambda trial: trial["best_wer"])
    (repeat,) = search.results["repeats"]
    assert repeat["trial_id"] == f"{best['trial_id']}-r1"
    assert after["best"]["run"] == repeat["trial_id"]
    assert after["best"]["wer"] == repeat["best_wer"]
