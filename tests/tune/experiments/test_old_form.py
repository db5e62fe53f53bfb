"""Experiments of tune-whisper 0.1: all that reads an experiment reads them; what would go on with one says how."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import yaml
from made_experiments import made_trial, write_experiment
from mlflow_server import client_of, running_ui, search_runs
from old_experiments import change, recorded_in_mlflow, to_old_form
from processes import tune_whisper
from s3_server import give_keys, s3_server
from search_process import QUICK, Search

import trainer
from trainer.config import TrainConfig
from trainer.model.pretrained import DEMO_MODEL
from tune.cli import main
from tune.experiments.folder import ExperimentFolder
from tune.experiments.listing import ExperimentLine, list_experiments
from tune.experiments.mlflow_store import default_artifact_root
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.storage import Storage

RUNS = ["001", "002", "003", "002-r1", "002-r2"]


def old(storage: Path, name: str = "old", *, recorded: bool = False, **kinds: Any) -> ExperimentFolder:
    """A finished search of three trials, the second of which was trained twice more."""
    trials = [
        made_trial(1, [50, 30, 12.0]),
        made_trial(2, [48, 28, 11.0], rate=2e-3),
        made_trial(3, [55], rate=3e-4),
    ]
    kinds = {"repeats": {"002": [10.5, 11.5]}, "base_clips": True, **kinds}
    folder = write_experiment(storage, trials, name=name, **kinds)
    if recorded:
        parent, ids = recorded_in_mlflow(folder, RUNS)
        to_old_form(folder, run_ids=ids, parent=parent)
    else:
        to_old_form(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> ExperimentFolder:
    """Of which tests read, and no more."""
    return old(tmp_path_factory.mktemp("made"))


def line_of(folder: ExperimentFolder) -> ExperimentLine:
    (line,) = [
        each for each in list_experiments(Storage.parse(folder.path.parent)) if each.name == folder.name
    ]
    return line


def copied(made: ExperimentFolder, target: Path) -> ExperimentFolder:
    """A copy of the small files, to be changed."""
    shutil.copytree(made.path, target / "x", ignore=shutil.ignore_patterns("trials"))
    return ExperimentFolder("x", target / "x")


def report(folder: ExperimentFolder) -> str:
    """The page's text, of a report that was written."""
    words = ["report", folder.name, "--storage", str(folder.path.parent)]
    assert main(words) == 0
    html = (folder.path / "report" / "report.html").read_text(encoding="utf-8")
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_it_is_listed(made: ExperimentFolder) -> None:
    line = line_of(made)
    assert (line.state, line.kind, line.trials_ended, line.trials_asked) == ("finished", "search", 3, 3)
    assert (line.baseline_wer, line.best_wer) == (60.0, 11.0)
    assert (line.model, line.data, line.language) == ("demo", "demo", "en")
    assert line.seconds == pytest.approx(3600, abs=5)


@pytest.mark.parametrize(
    ("results", "settings", "state", "note"),
    [
        ({"ended_by": {"reason": "plateau", "text": "5 trials in a row"}}, {"trials": 40}, "finished", "5 trials"),
        ({"ended_by": {"reason": "failures", "text": "3 trials failed"}}, {"trials": 40}, "failed", "3 trials"),
        ({}, {"kind": "training"}, "finished", ""),
        ({}, {"trials": 12}, "interrupted", ""),
    ],
)  # fmt: skip
def test_how_it_had_ended(
    results: dict[str, Any],
    settings: dict[str, Any],
    state: str,
    note: str,
    made: ExperimentFolder,
    tmp_path: Path,
) -> None:
    folder = copied(made, tmp_path)
    change(folder.path / "experiment.yaml", **settings)
    change(folder.path / "results.json", **results)
    line = line_of(folder)
    assert line.state == state
    assert note in (line.note or "")


def test_trials_that_came_after_its_results_were_written(made: ExperimentFolder, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    state = json.loads((folder.path / "state.json").read_text())
    begun = {**state["trials"][0], "trial_id": "004", "status": "running", "best_wer": 1.25}
    begun |= {"finished": False, "evaluations": [[384, 1.25]], "losses": [0.1], "weights_dropped": False}
    change(folder.path / "state.json", trials=[*state["trials"], begun])
    change(folder.path / "experiment.yaml", trials=12)
    line = line_of(folder)
    assert (line.state, line.trials_ended, line.trials_asked, line.best_wer) == ("interrupted", 3, 12, 1.25)
    assert "interrupted, 3 of 12 trials ended" in report(folder)


@pytest.mark.parametrize("state", ["interrupted", "killed"])
def test_one_that_was_broken_off(state: str, tmp_path: Path) -> None:
    folder = old(tmp_path, state=state, repeats={})
    line = line_of(folder)
    assert (line.state, line.trials_ended, line.best_wer) == ("interrupted", 2, 11.0)
    assert "interrupted, 2 of 3 trials ended" in report(folder)


DAMAGES = {
    "half a state": ("state.json", lambda text: text[:300]),
    "a list": ("results.json", lambda text: "[1, 2]"),
    "trials of something else": (
        "state.json",
        lambda text: '{"trials": [{"a": 1}], "repeats": [], "seconds": 1}',
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_one_line(
    damage: str, made: ExperimentFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change_text = DAMAGES[damage]
    folder = copied(made, tmp_path)
    file = folder.path / name
    file.write_text(change_text(file.read_text()))
    assert line_of(folder).state == "damaged"
    assert main(["report", "x", "--storage", str(tmp_path)]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert name in told or "'x': its trials are of another version" in told


def test_a_report_of_finalists_that_were_chosen_by_time(made: ExperimentFolder, tmp_path: Path) -> None:
    """Their results have no intervals of the means, which are found anew."""
    repeats = {"001": [12.0, 12.2], "002": [11.9, 12.0]}
    folder = old(tmp_path, repeats=repeats)
    results = json.loads((folder.path / "results.json").read_text())
    change(folder.path / "results.json", finalists={**results["finalists"], "winner": "001"})
    text = report(folder)
    assert "Trial 001 took less time than 002, by which an earlier version chose." in text
    assert re.search(r"WER of the winner, trial 001, mean of 2 seeds, 95 % interval \d", text)


@pytest.mark.parametrize("state", ["finished", "interrupted"])
def test_a_report_names_no_command_that_is_refused(state: str, tmp_path: Path) -> None:
    text = report(old(tmp_path, state=state, repeats={}))
    assert "--resume" not in text
    assert "--warm-start old lets another search learn from them." in text
    assert "tune-whisper train --from old" in text


def test_a_report_where_the_state_is_gone(made: ExperimentFolder, tmp_path: Path) -> None:
    folder = copied(made, tmp_path)
    (folder.path / "state.json").unlink()
    text = report(folder)
    assert "finished, 3 of 3 trials ended" in text
    assert "WER of the winner, trial 002, mean of 2 seeds" in text


def test_its_run_in_mlflow_gets_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = old(tmp_path, recorded=True)
    report(folder)
    assert capsys.readouterr().err == ""
    parent = json.loads((folder.path / "state.json").read_text())["parent_run_id"]
    stored = default_artifact_root(folder.path) / parent / "artifacts" / "report" / "report.html"
    assert stored.read_bytes() == (folder.path / "report" / "report.html").read_bytes()


def test_what_would_go_on_with_it_names_the_version(
    made: ExperimentFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copied(made, tmp_path)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    storage = ["--storage", str(tmp_path)]
    for words in (["--resume", "x", "--trials", "8"], ["sync", "x"]):
        assert main([*words, *storage]) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert "was made by tune-whisper 0.1.0, which kept no events.jsonl" in told
        assert "with that version (pip install tune-whisper==0.1.0)" in told
    change(folder.path / "experiment.yaml", kind="training", space={})
    assert main(["train", "--resume", "x", *storage]) == 2
    assert "--resume x: was made by tune-whisper 0.1.0" in capsys.readouterr().err
    (folder.path / "experiment.yaml").write_bytes(before["experiment.yaml"])
    assert {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()} == before


@pytest.mark.slow
def test_another_search_learns_from_it(tmp_path: Path) -> None:
    old(tmp_path / "experiments")
    words = ["--space", "lr_batch", "--trials", "2", "--finalists", "0", "--warm-start", "old", *QUICK]
    search = Search(tmp_path, *words, "--experiment", "new", curve="smooth")
    assert search.end() == 0, search.log
    assert "warm start: 3 of the 3 trials of old are used" in search.log
    found = json.loads((tmp_path / "experiments" / "new" / "warm_start.json").read_text())
    assert [trial["evaluations"][0] for trial in found["trials"]] == [[384, 50.0], [384, 48.0], [384, 55.0]]


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, small_config: TrainConfig, feature_cache: Path
) -> ExperimentFolder:
    """One on few clips, whose winner's checkpoint is the demo's model as it was; `new-one` is its name."""
    storage = tmp_path_factory.mktemp("trained")
    names = ("cache_dir", "max_train_clips", "max_eval_clips", "generation_max_length")
    settings = {name: getattr(small_config, name) for name in names}
    folder = old(storage, "new-one", recorded=True, settings=settings)
    checkpoint = folder.path / "trials" / "002-r1" / "checkpoint_000000"
    shutil.copytree(DEMO_MODEL, checkpoint, dirs_exist_ok=True)
    return folder


def test_it_is_exported_and_registered(
    trained: ExperimentFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    storage = ["--storage", str(trained.path.parent)]
    model = tmp_path / "model"
    assert main(["export", "new-one", "--output", str(model), *storage]) == 0
    card = (model / "README.md").read_text()
    assert "the winner of the search `new-one` (3 trials)" in card
    assert main(["register", str(model), "--name", "demo", "--alias", "champion", *storage]) == 0
    runs = json.loads((trained.path / "state.json").read_text())["run_ids"]
    settings = yaml.safe_load((trained.path / "experiment.yaml").read_text())
    client = client_of(settings["tracking_uri"])
    assert client.get_model_version_by_alias("demo", "champion").run_id == runs["002-r1"]


def test_its_model_is_measured_and_listened_with(
    trained: ExperimentFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = ["--storage", str(trained.path.parent)]
    assert main(["evaluate", "new-one", "--split", "validation", *storage]) == 0
    assert "new-one on demo, split validation" in capsys.readouterr().out
    table = Path(trainer.__file__).parent / "demo" / "data" / "test.parquet"
    (tmp_path / "a.ogg").write_bytes(pyarrow.parquet.read_table(table).to_pylist()[0]["audio"]["bytes"])
    assert main(["transcribe", "new-one", str(tmp_path / "a.ogg"), *storage]) == 0
    assert "1 recording" in capsys.readouterr().err


def test_its_store_is_shown(trained: ExperimentFolder) -> None:
    runs = json.loads((trained.path / "state.json").read_text())["run_ids"]
    with running_ui(trained.path.parent, name="new-one") as (_, url):
        found = search_runs(url.split("/#/")[0], 'tags.role = "trial"')
    assert {run["info"]["run_id"] for run in found} == {runs[name] for name in ("001", "002", "003")}


@pytest.mark.slow
def test_its_settings_are_trained_with(trained: ExperimentFolder, tmp_path: Path) -> None:
    words = ["train", "--from", "new-one", "--name", "again", "--max-steps", "2"]
    done = tune_whisper(*words, "--storage", str(trained.path.parent), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (trained.path.parent / "again" / "events.jsonl").read_text()
    assert '"learning_rate": 0.002' in log


def test_in_an_object_store(
    made: ExperimentFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give_keys(monkeypatch, tmp_path)
    with s3_server() as server:
        store = ObjectStore(server.uri("here"))
        for file in (
            "experiment.yaml",
            "state.json",
            "results.json",
            "space.yaml",
            "baseline_utterances.json",
        ):
            store.write(f"old/{file}", (made.path / file).read_bytes())
        (line,) = list_experiments(Storage.parse(store.uri))
        assert (line.state, line.best_wer) == ("finished", 11.0)
        assert main(["report", "old", "--storage", store.uri]) == 0
        assert "finished, 3 of 3 trials ended" in capsys.readouterr().out
        assert b"trial 002" in store.read("old/report/report.html")
        assert main(["--resume", "old", "--storage", store.uri]) == 2
        assert "was made by tune-whisper 0.1.0" in capsys.readouterr().err
