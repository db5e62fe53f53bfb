"""`--resume`: a search whose process was killed goes on in another one, also without any local file."""

import dataclasses
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml
from made_experiments import TRAINING, MadeLog, change_settings, made_trial, write_experiment
from plans import training_plan
from s3_server import KEYS, s3_server
from search_process import ONE_CPU, QUICK, Search, frozen
from test_state_machine import begun, made_search

from tune.cli import main
from tune.commands.search import read_options, search_parser
from tune.experiments.events import Evaluated, SessionStarted, TrialStarted
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.log import fold
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.options import TRIAL, SearchOptions
from tune.experiments.paths import settled
from tune.experiments.storage import Storage
from tune.runs.plan import write_experiment_file
from tune.runs.resume import resume
from tune.search.budgets import Budgets
from tune.search.guards import Guard

SPACE = """\
learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}
train_batch_size: 8
scheduler: {min_trials_per_rung: 9, rising_rungs: 0}
"""
WORDS = "--experiment killed --trials 1 --epochs 3 --finalists 0 --max-concurrent 1"


def state(folder: ExperimentFolder) -> dict[str, dict[str, Any]]:
    """What the log says of the trials where the experiment is kept."""
    try:
        known = fold(folder.store.read(f"{folder.name}/{EVENTS_FILE}"), Path(EVENTS_FILE))
    except StorageError:
        return {}
    return {record.trial_id: vars(record) for record in known.records.all()}


@pytest.mark.slow
def test_a_search_on_s3_goes_on_without_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine; that what is resumed is the unbroken search is shown where files are local."""
    with s3_server() as server:
        environment = {**KEYS, "AWS_ENDPOINT_URL": server.endpoint}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        storage = Storage.parse("s3://experiments/resumed")
        folder, place = storage.experiment("killed"), ["--storage", storage.address]
        homes = {
            name: {**ONE_CPU, "HOME": str(tmp_path / name), "XDG_CACHE_HOME": str(tmp_path / name)}
            for name in ("first", "second")
        }
        (tmp_path / "space.yaml").write_text(SPACE)
        words = ["--space", str(tmp_path / "space.yaml"), *WORDS.split(), *QUICK, *place]
        hold = tmp_path / "hold"
        search = Search(tmp_path / "first", *words, program=frozen("writing", 2, hold), **homes["first"])
        search.wait_for((hold / "there").exists)
        search.wait_for(lambda: any(trial["last_checkpoint"] for trial in state(folder).values()))
        search.kill()
        before = state(folder)
        (tmp_path / "first").rename(tmp_path / "gone")
        again = ["--resume", "killed", "--take-over", *place]
        search = Search(tmp_path / "second", *again, **homes["second"])
        assert search.end() == 0, search.log
        assert "trial 001 goes on at epoch " in search.log, "that of the save before"
        results = json.loads(folder.store.read("killed/results.json"))
        after = {trial["trial_id"]: trial for trial in results["trials"]}
        assert list(after) == ["001"]
        for name, known in before.items():
            assert after[name]["config"] == known["config"]
            rows = [(row["samples_seen"], row["wer"]) for row in after[name]["evaluations"]]
            assert rows[: len(known["evaluations"])] == known["evaluations"]
        folder.download()
        runs = mlflow.MlflowClient(f"sqlite:///{folder.path}/mlflow.db").search_runs(["1"])
        assert len(runs) == 2, "a search and its trial; or runs were made twice"
        assert main(["export", "killed", "--trial", "1", "--output", str(tmp_path / "model"), *place]) == 0
        assert json.loads((tmp_path / "model" / "evaluation.json").read_text())["trial_id"] == "001"
        assert main(words) == 2, "the experiment exists already"
        names = folder.store.files("killed")
        assert not [name for name in names if name.endswith(".f16")], "features do not belong there"
        texts = [name for name in names if not name.endswith((".safetensors", ".pt"))]
        contents = [folder.store.read(f"killed/{name}") for name in texts]
        contents += [path.read_bytes() for path in (tmp_path / "gone").rglob("*") if path.is_file()]
        for content in contents:
            assert not [key for key in KEYS.values() if key.encode() in content]


def test_what_cannot_be_resumed(refused: Callable[..., str]) -> None:
    for words, expected in [
        (["--resume", "nothing"], "no experiment 'nothing'"),
        (["--resume", "nothing", "--model=tiny"], "--model: cannot be given with --resume"),
        (["--resume", "nothing", "--max-steps=9"], "--max-steps: cannot be given with --resume"),
        (["train", "--resume", "nothing", "--epochs=9"], "--epochs: cannot be given with --resume"),
        (["train", "--resume", "nothing", "--set=seed=9"], "--set: cannot be given with --resume"),
        (["--trials", "3"], "--space: is missing; give a search space, or --resume EXPERIMENT"),
    ]:
        assert expected in refused(*words)


@pytest.fixture
def training(tmp_path: Path) -> MadeLog:
    """A training `alone` that has begun."""
    made = MadeLog(tmp_path / "alone", **TRAINING)
    made.session()
    made.begin(TRIAL)
    return made


def test_a_training_that_failed_too_often_goes_on_from_its_last_checkpoint(training: MadeLog) -> None:
    for seen, wer in ((100, 10.0), (200, 12.0), (300, 11.0)):
        training.measure(TRIAL, seen, wer)
    training.end(TRIAL, "failed", "boom")
    training.again()
    training.session()
    training.append(TrialStarted(trial_id=TRIAL, folder=TRIAL))
    starts = [path.rpartition("_")[2] for path in training.log.state.run(TRIAL).resumable]
    assert starts == ["300", "100"], "the last, then the best"


def test_a_training_that_was_killed_in_its_last_save_can_be_resumed(training: MadeLog) -> None:
    training.measure(TRIAL, 100, 10.0)
    last: dict[str, Any] = {"metrics": {"wer": 8.0}, "finished": True, "keep": "weights"}
    training.append(Evaluated(trial_id=TRIAL, samples_seen=200, epoch=2.0, **last))
    training.close()
    resumed = resume("alone", Storage.parse(training.folder.parent), {}, "training")
    resumed.experiment.log.append(
        SessionStarted(session=2, began=0.0, options=training.log.state.options),
        TrialStarted(trial_id=TRIAL, folder=TRIAL),
    )
    record = resumed.experiment.state.run(TRIAL)
    resumed.experiment.close()
    assert (len(record.resumable), record.outcome) == (1, "running")


@pytest.mark.parametrize("finalists", [0, 2])
def test_the_command_that_runs_it_again_asks_for_the_same(finalists: int, tmp_path: Path) -> None:
    """On fed11aa it left out `--warm-start`, `--track`, `--address` and `--keep-checkpoints`."""
    plan, experiment = made_search(tmp_path, trials=2)
    experiment.close()
    options = dataclasses.replace(
        plan.options,
        **{"gpus_per_trial": 0.5, "cpus_per_trial": 2.0, "max_concurrent": 3, "max_failures": 0, "seed": 7},
        **{"keep_checkpoints": "all", "track": ["mlflow", "tensorboard"], "save_every": 2.5},
        **{
            "finalists": finalists,
            "repeats": 3 if finalists else 2,
            "guard": [Guard("/data/x", 2.5)],
            "tracking_uri": "sqlite:////x/y.db",
        },
        **{"warm_start": ["earlier", "first"], "settings": {"epochs": 2.0, "audio_dir": "sounds"}},
        budgets=Budgets(seconds=3600.0, gpu_hours=2.5, plateau_trials=4, plateau_points=0.5, target_wer=9.5),
    )
    sounds = str(Path("sounds").absolute())
    base = settled(plan.base.replace(audio_dir="sounds"))
    asked = dataclasses.replace(plan, options=options, base=base, address="auto")
    write_experiment_file(asked, begun(asked))
    _, _, *words = shlex.split(yaml.safe_load((plan.folder / "experiment.yaml").read_text())["run_again"])
    arguments = search_parser().parse_args(words)
    space, settings = str(plan.folder / "space.yaml"), {"epochs": 2.0, "audio_dir": sounds}
    same = dataclasses.replace(options, space=space, settings=settings)
    assert SearchOptions().changed(read_options(arguments)) == same
    assert (arguments.storage.address, arguments.address) == (plan.storage.address, "auto")


def test_on_another_machine_features_go_where_they_can(tmp_path: Path) -> None:
    """Where it did not begin, the folder of its features is not there."""
    trials = [made_trial(1, [50.0, 30.0, 12.0]), made_trial(2, [55.0])]
    folder = write_experiment(tmp_path, trials, asked=3, state="interrupted")
    config = Experiment.read(folder).settings.train_config
    change_settings(folder.path, train_config={**config, "cache_dir": "/elsewhere/cache"})
    storage = Storage.parse(tmp_path)
    resumed = resume("made", storage, {"trials": 3})
    resumed.experiment.close()
    for plan in (resumed.plan, training_plan("--storage", storage.text, "--from", "made")):
        assert plan.base.cache_dir == str(storage.feature_cache)


def test_what_is_resumed_keeps_its_mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that was set for something else moved it, the runs of the session before left half done."""
    trials = [made_trial(1, [50.0, 30.0, 12.0]), made_trial(2, [55.0])]
    folder = write_experiment(tmp_path, trials, asked=3, state="interrupted")
    storage, words = Storage.parse(tmp_path), ["--resume", "made", "--trials", "3"]

    def store(uri: str, *more: str) -> str | None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        found = resume("made", storage, read_options(search_parser().parse_args([*words, *more])))
        found.experiment.close()
        return found.plan.options.tracking_uri

    assert store("sqlite:////tmp/other.db") is None
    assert store("", "--tracking-uri", "sqlite:////tmp/b.db") == "sqlite:////tmp/b.db"
    log = MadeLog(folder.path, tracking_uri="http://host:5000")
    log.session(trials=3)
    log.close()
    assert store("http://other:5000") == "http://host:5000"
    assert store("http://me:secret@host:5000") == "http://me:secret@host:5000"
