"""A search that was killed with SIGKILL at any moment, and resumed, is the unbroken one: trials, decisions, results.

    KILLS=5 pytest tests/tune/runs/test_kill_and_resume.py

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
from pathlib import Path
from typing import Any

import mlflow
import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from processes import TUNE, Command, family

from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import read_log

ROOT = Path(__file__).resolve().parents[3]
SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 1e-1, log: true}
train_batch_size: {type: choice, values: [4, 8]}
dropout: 0.1
scheduler: {rungs: 3, reduction_factor: 2, min_trials_per_rung: 2}
searcher: {startup_trials: 2}
"""
WORDS = ["--space", "space.yaml", "--experiment", "x", "--trials", "5", "--epochs", "4", "--seed", "11"]
WORDS += ["--finalists", "1", "--repeats", "2"]
METHODS = """\
method: {type: choice, values: [full, lora]}
learning_rate:
  - {type: float, low: auto, high: auto, log: true, when: {method: full}}
  - {type: float, low: auto, high: auto, log: true, when: {method: lora}}
lora_rank: {type: choice, values: [4, 8], when: {method: lora}}
scheduler: {rungs: 2, reduction_factor: 2}
"""
METHOD_WORDS = ["--space", "space.yaml", "--experiment", "x", "--trials", "4", "--epochs", "2", "--seed", "3"]
METHOD_WORDS += ["--finalists", "0", "--keep-checkpoints", "all"]
QUICK = ["max_train_clips=48", "max_eval_clips=12", "generation_max_length=24"]
ALONE = ["--max-concurrent", "1"]
DEADLINE = 500.0


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a search is killed: so many seconds after so many events of its log."""

    events: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s after event {self.events}"


KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", str(random.SystemRandom().randrange(10_000))))
"""Another one each time: the name of a test tells which."""


class Search:
    """One search in a folder of its own."""

    def __init__(self, folder: Path, space: str = SPACE, words: list[str] = WORDS) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "space.yaml").write_text(space)
        self.folder, self.words = folder, words
        self.events: list[float] = []
        """When each event was seen in the log."""

    def start(self, *words: str) -> Command:
        environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        with (self.folder / "log").open("ab") as log:
            return Command(
                *words,
                program=TUNE,
                cwd=self.folder,
                environment={**environment, "PYTHONPATH": str(ROOT)},
                output=log,
            )

    def begin(self) -> Command:
        return self.start(*self.words, *ALONE, *(word for text in QUICK for word in ("--set", text)))

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
        with contextlib.suppress(FileNotFoundError):  # not there before the first event
            lines = self.events_file.read_bytes().count(b"\n")
            self.events += [time.monotonic()] * (lines - len(self.events))

    def kill_at(self, moment: Moment) -> None:
        """Begin, and end the driver and all of its Ray with SIGKILL."""
        process = self.begin()
        deadline = time.monotonic() + DEADLINE
        while len(self.events) < moment.events:
            assert process.poll() is None, f"ended before it was to be killed, {moment}\n{self.log}"
            assert time.monotonic() < deadline, self.log
            self.look()
            time.sleep(0.005)
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
    def events_file(self) -> Path:
        return self.folder / "experiments" / "x" / EVENTS_FILE

    @property
    def told(self) -> list[dict[str, Any]]:
        """All events."""
        return [json.loads(line) for line in self.events_file.read_bytes().splitlines()]

    @property
    def kinds(self) -> list[str]:
        """The names of all events."""
        return [event["event"] for event in self.told]

    def place(self, event: str, trial: str) -> int:
        """How many events there were when the first of this kind had come from a trial."""
        kinds = [(each["event"], each["data"].get("trial_id")) for each in self.told]
        return kinds.index((event, trial)) + 1

    @property
    def results(self) -> dict[str, Any]:
        text = (self.folder / "experiments" / "x" / "results.json").read_text()
        return json.loads(text)  # type: ignore[no-any-return]


def decided(results: dict[str, Any]) -> dict[str, Any]:
    """All that a search concluded, without times, ids and places."""
    passing = {"seconds", "mlflow_run_id", "checkpoint", "samples_per_second"}
    runs = [
        [{key: value for key, value in run.items() if key not in passing} for run in results[kind]]
        for kind in ("trials", "repeats", "averages")
    ]
    best = {key: value for key, value in results["best"].items() if key != "checkpoint"}
    return {
        "trials": runs[0],
        "repeats": runs[1],
        "averages": runs[2],
        "best": best,
        **{key: results[key] for key in ("baseline", "interrupted", "ended_by", "test")},
    }


def studied(folder: Path) -> list[tuple[Any, ...]]:
    """The Optuna trials in the experiment's journal."""
    backend = JournalFileBackend(f"{folder}/experiments/x/optuna_journal.log")
    study = optuna.load_study(study_name="x", storage=JournalStorage(backend))
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


def anywhere(unbroken: Search, chance: random.Random) -> Moment:
    """All moments alike, so that what takes long is hit more often: between rungs of a trial or a repeat."""
    at = chance.uniform(unbroken.events[3], unbroken.events[-2])
    events = sum(event <= at for event in unbroken.events)
    return Moment(events, 0.9 * (at - unbroken.events[events - 1]))


def right_after(unbroken: Search, chance: random.Random) -> Moment:
    """Just when something was written down, and is being acted on."""
    return Moment(chance.randrange(3, len(unbroken.events)), chance.uniform(0, 0.1))


def as_a_trial_ends(unbroken: Search, chance: random.Random) -> Moment:
    """Its last evaluation is known, and that it has ended is not, or just."""
    ends = [place for place, kind in enumerate(unbroken.kinds) if kind == "TrialEnded"]
    return Moment(chance.choice(ends), chance.uniform(0, 0.05))


def in_the_final_round(unbroken: Search, chance: random.Random) -> Moment:
    first = unbroken.kinds.index("FinalRoundPlanned") + 1
    last = unbroken.kinds.index("FinalistsCompared")
    return Moment(chance.randrange(first, last + 1), chance.uniform(0, 3.0))


def in_finish(unbroken: Search, chance: random.Random) -> Moment:
    """After the last training; also after the last event, before the stores know of it."""
    first = unbroken.kinds.index("FinalistsCompared") + 1
    return Moment(chance.randrange(first, len(unbroken.kinds) + 1), 0.0)


CHOICES = [in_finish, in_the_final_round, anywhere, right_after, as_a_trial_ends]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(KILLS))
def test_killed_and_resumed_is_unbroken(number: int, unbroken: Search, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED}-{number}")
    # Each kind in turn, from one that is drawn.
    moment = CHOICES[(SEED + number) % len(CHOICES)](unbroken, chance)
    told = f"SEED={SEED}, kill {number}, {moment}"
    print(told)
    search = Search(tmp_path / "search")
    search.kill_at(moment)
    before = read_log(search.events_file)
    if before.written:  # nothing is left but what the stores do not know
        refused = search.start("--resume", "x")
        assert refused.wait(DEADLINE) == 2
        assert "all its 5 trials have ended" in search.log
        search.run("sync", "x")
    else:
        search.run("--resume", "x")
    print(search.log)
    after = search.results
    assert decided(after) == decided(unbroken.results), told
    for run in (*after["trials"], *after["repeats"], *after["averages"]):
        known = next((each for each in before.runs if each.trial_id == run["trial_id"]), None)
        if known is not None and known.status != "running":
            assert run["seconds"] == pytest.approx(known.seconds, abs=1e-3), "it was trained again"
    configs = {json.dumps(trial["config"], sort_keys=True) for trial in after["trials"]}
    assert len(configs) == len(after["trials"]), told
    assert (Path(after["best"]["checkpoint"]) / "model.safetensors").is_file(), told
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
    assert [len(average["members"]) for average in unbroken.results["averages"]] == [2]
    # What lies behind the first rung of a repeat is no more than between the others: it does not go on from there.
    saved = [event for event in unbroken.told if event["event"] == "CheckpointSaved"]
    assert [each["data"]["keep"] for each in saved if each["data"]["trial_id"].endswith("-r1")][:2] == [
        "weights",
        "all",
    ]


@pytest.mark.slow
def test_trials_can_be_added_to_a_finished_search(unbroken: Search, tmp_path: Path) -> None:
    """The number of finalists holds, and what was exported before stays until something better is chosen."""
    shutil.copytree(unbroken.folder, tmp_path / "search", symlinks=True)
    search = Search(tmp_path / "search")
    refused = search.start("--resume", "x")
    assert refused.wait(DEADLINE) == 2
    assert "all its 5 trials have ended; --trials 13 adds 8 more" in search.log
    search.run("--resume", "x", "--trials", "6")
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
    assert {run["trial_id"] for run in after["repeats"]} >= {f"{best['trial_id']}-r{n}" for n in (1, 2)}
    assert (Path(search.results["best"]["checkpoint"]) / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_search_over_the_method_is_killed_in_a_trial_with_adapters(tmp_path: Path) -> None:
    whole = Search(tmp_path / "whole", METHODS, METHOD_WORDS)
    whole.run()
    trials = whole.results["trials"]
    adapted = [trial["trial_id"] for trial in trials if trial["config"]["method"] == "lora"]
    assert 0 < len(adapted) < len(trials)
    search = Search(tmp_path / "killed", METHODS, METHOD_WORDS)
    search.kill_at(Moment(whole.place("CheckpointSaved", adapted[0]), 0.0))
    search.run("--resume", "x")
    assert decided(search.results) == decided(whole.results)
    assert studied(search.folder) == studied(whole.folder)
    for _, _, params, *_ in studied(search.folder):
        method = params["method"]
        rank = {"lora_rank@method=lora"} if method == "lora" else set()
        assert set(params) == {"method", f"learning_rate@method={method}"} | rank
    sizes = {}
    for trial in search.results["trials"]:
        name = "adapter_model" if trial["trial_id"] in adapted else "model"
        (weights,) = Path(trial["checkpoint"]).glob("*.safetensors")
        assert weights.name == f"{name}.safetensors"
        sizes[name] = weights.stat().st_size
    assert sizes["adapter_model"] < sizes["model"] / 10
    search.run("export", "x", "--trial", adapted[0], "--adapter", "--output", "model")
    summary = json.loads((search.folder / "model" / "evaluation.json").read_text())
    found = summary["evaluations"]["validation"]["after"]["wer"]
    assert found == pytest.approx(summary["reported_validation_wer"], abs=0.1)
    assert {path.name for path in (search.folder / "model" / "adapter").iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors")
    }
