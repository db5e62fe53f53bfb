"""A search that was killed with SIGKILL, and resumed, is the unbroken one: trials, decisions, results, stores.

    KILLS=20 pytest -m occasional tests/tune/runs/test_kill_and_resume.py

kills at so many random moments; `SEED=3` beside it draws others, and a failure names its moment.
"""

import dataclasses
import json
import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import optuna
import pytest
from demo_search import NAME, begin, demo_experiment, runs_of
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from search_process import ONE_CPU, Search, frozen, read_log, results, state

from trainer.manifest import problem_of
from tune.experiments.folder import EVENTS_FILE

KILLS = int(os.environ.get("KILLS", "3"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10_000))))
"""Another one each time: what a test prints tells which."""
pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a search is killed: so many seconds after so many events of its log."""

    events: int
    seconds: float


def kill_when(search: Search, there: Callable[[bytes], bool], when: str, seconds: float = 0.0) -> None:
    """End the driver and all of its Ray, as soon as its log has what is waited for, or some seconds later."""
    log = search.folder / "experiments" / NAME / EVENTS_FILE
    deadline = time.monotonic() + 500
    while not log.exists() or not there(log.read_bytes()):
        assert search.process.poll() is None, f"ended before it was to be killed, {when}\n{search.log}"
        assert time.monotonic() < deadline, search.log
        time.sleep(0.005)
    time.sleep(seconds)
    assert search.process.poll() is None, f"ended before it was to be killed, {when}\n{search.log}"
    search.kill()


def resume(folder: Path) -> str:
    """Go on to the end, or deliver what the stores lack where nothing is left; what was printed."""
    if read_log(folder / "experiments" / NAME / EVENTS_FILE).written:
        refused = Search(folder, "--resume", NAME)
        assert refused.end() == 2
        assert "all its 3 trials have ended; --trials 11 adds 8 more" in refused.log
        search = Search(folder, "sync", NAME)
    else:
        search = Search(folder, "--resume", NAME, **ONE_CPU)
    assert search.end() == 0, search.log
    return search.log


def decided(found: dict[str, Any]) -> dict[str, Any]:
    """All that a search concluded, without times, ids and places."""
    passing = {"seconds", "mlflow_run_id", "checkpoint", "samples_per_second"}
    runs = [{key: value for key, value in run.items() if key not in passing} for run in runs_of(found)]
    best = {key: value for key, value in found["best"].items() if key != "checkpoint"}
    kept = ("baseline", "interrupted", "ended_by", "test")
    return {"runs": runs, "best": best, **{key: found[key] for key in kept}}


def studied(experiment: Path) -> list[tuple[Any, ...]]:
    """The Optuna trials in the experiment's journal."""
    backend = JournalFileBackend(str(experiment / "optuna_journal.log"))
    study = optuna.load_study(study_name=NAME, storage=JournalStorage(backend))
    return [
        (trial.number, trial.user_attrs, trial.params, trial.state, trial.values, trial.intermediate_values)
        for trial in study.get_trials()
    ]


def tracked(experiment: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Runs in the MLflow store by their trial: status, settings, tags of a stop, and all points of the WER."""
    client = mlflow.MlflowClient(f"sqlite:///{experiment.parent}/mlflow.db")
    (known,) = [found for found in client.search_experiments() if found.name == NAME]
    found: dict[str, list[tuple[Any, ...]]] = {}
    for run in client.search_runs([known.experiment_id]):
        points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "wer")]
        tags = {key: run.data.tags.get(key) for key in ("role", "status", "stop_reason", "stop")}
        params = {key: value for key, value in run.data.params.items() if key != "cache_dir"}
        trial = run.data.tags.get("trial_id", "search")
        found.setdefault(trial, []).append((run.info.status, tags, params, points))
    return found


def check_like_unbroken(experiment: Path, before: Any, *, points: bool = True) -> None:
    """Compare it with the unbroken search; `before` is its state when it was killed.

    Args:
        points: whether MLflow has each point once, which it has not where a rung was measured again.
    """
    unbroken, after = demo_experiment(), results(experiment)
    assert decided(after) == decided(results(unbroken))
    for run in runs_of(after):
        known = next((each for each in before.runs if each.trial_id == run["trial_id"]), None)
        if known is not None and known.status != "running":
            assert run["seconds"] == pytest.approx(known.seconds, abs=1e-3), "it was trained again"
    assert (Path(after["best"]["checkpoint"]) / "model.safetensors").is_file()
    assert studied(experiment) == studied(unbroken)
    found = tracked(experiment)
    assert {trial: len(runs) for trial, runs in found.items()} == dict.fromkeys(found, 1)
    if points:
        assert found == tracked(unbroken)


def told() -> list[dict[str, Any]]:
    """All events of the unbroken search."""
    return [json.loads(line) for line in (demo_experiment() / EVENTS_FILE).read_bytes().splitlines()]


def anywhere(chance: random.Random) -> Moment:
    """All moments alike, so that what takes long is hit more often: between rungs of a trial or a repeat."""
    times = [event["time"] for event in told()]
    at = chance.uniform(times[3], times[-2])
    events = sum(time <= at for time in times)
    return Moment(events, 0.5 * (at - times[events - 1]))


def right_after(chance: random.Random) -> Moment:
    """Just when something was written down, and is being acted on."""
    return Moment(chance.randrange(3, len(told())), chance.uniform(0, 0.1))


def in_the_end(chance: random.Random) -> Moment:
    """After the last training; also after the last event, before the stores know of it."""
    compared = [event["event"] for event in told()].index("FinalistsCompared") + 1
    return Moment(chance.randrange(compared, len(told()) + 1), 0.0)


CHOICES = [in_the_end, anywhere, right_after]


@pytest.mark.occasional
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_moment_and_resumed_is_unbroken(number: int, tmp_path: Path) -> None:
    draw = CHOICES[(SEED + number) % len(CHOICES)]  # each kind in turn, from one that is drawn
    folder, moment = tmp_path / "search", draw(random.Random(f"{SEED}-{number}"))
    print(f"SEED={SEED}, {moment}")
    kill_when(begin(folder), lambda log: log.count(b"\n") >= moment.events, f"{moment}", moment.seconds)
    before = read_log(folder / "experiments" / NAME / EVENTS_FILE)
    print(resume(folder))
    check_like_unbroken(folder / "experiments" / NAME, before)


def checkpoints(experiment: Path) -> set[tuple[str, str]]:
    """Those on the disk, whole or not; each session has folders of its own."""
    found = (experiment / "trials").rglob("*checkpoint_*")
    return {(re.sub("-[234]$", "", path.parent.name), path.name) for path in found}


def test_killed_in_a_save_and_with_a_truncated_checkpoint_it_is_unbroken(tmp_path: Path) -> None:
    """The third checkpoint of trial 001 is half, or whole without its seal, or whole and not told of.

    The second one is cut then, and it goes on from the first.
    """
    where = random.Random(SEED).choice(["writing", "naming", "telling"])
    print(f"SEED={SEED}, {where}")
    folder, hold = tmp_path / "search", tmp_path / "hold"
    search, experiment = begin(folder, program=frozen(where, 3, hold)), folder / "experiments" / NAME
    search.wait_for((hold / "there").exists)
    search.wait_for(lambda: len(state(experiment)["001"]["evaluations"]) == 3, 60)
    trial = state(experiment)["001"]
    assert trial["last_checkpoint"] == f"trials/001/checkpoint_{trial['evaluations'][1][0]:09d}"
    assert trial["best_value"] == min(wer for _, wer in trial["evaluations"][:2]), "what can be exported now"
    search.kill()
    saved = experiment / trial["last_checkpoint"]
    assert problem_of(saved) is None
    os.truncate(saved / "model.safetensors", 1000)
    before = read_log(experiment / EVENTS_FILE)
    printed = resume(folder)
    assert "trial 001 found its checkpoint damaged and goes on from the one before it" in printed
    check_like_unbroken(experiment, before, points=False)
    assert checkpoints(experiment) == checkpoints(demo_experiment()), "nothing half is left"
