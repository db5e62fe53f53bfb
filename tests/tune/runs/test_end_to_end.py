"""Whole searches on the demo, through the command, and what they leave."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import tune_whisper

from tune.cli import main
from tune.commands.train import read_request, train_parser
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.training_plan import make_train_plan

SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 1e-2, log: true}
warmup_ratio: {type: float, low: 0.0, high: 0.3}
train_batch_size: {type: choice, values: [4, 8]}
gradient_accumulation_steps: {type: choice, values: [1, 2]}
scheduler: {rungs: 3, reduction_factor: 2, min_trials_per_rung: 3}
searcher: {startup_trials: 2}
"""
QUICK = ["--set", "max_train_clips=64", "--set", "max_eval_clips=30", "--set", "log_every_seconds=0.5"]


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The working folder of a small finished search named `small`, and what it printed."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "space.yaml").write_text(SPACE)
    words = "--space space.yaml --trials 4 --epochs 2 --experiment small --seed 3 --finalists 2"
    done = tune_whisper(*words.split(), *QUICK, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def results(search: tuple[Path, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((search[0] / "experiments" / "small" / "results.json").read_text())
    return found


@pytest.mark.slow
def test_results_file(search: tuple[Path, str]) -> None:
    found = results(search)
    assert found["experiment"] == "small"
    assert found["metric"] == "wer"
    assert found["baseline"]["wer"] > 0
    assert len(found["trials"]) == 4
    keys = {"trial_id", "status", "config", "wer", "best_wer", "samples_seen", "seconds", "mlflow_run_id"}
    for trial in found["trials"]:
        assert keys <= set(trial)
        assert trial["status"] in {"completed", "early_stopped"}
        assert set(trial["config"]) == {
            *("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps"),
        }
        assert [row["samples_seen"] for row in trial["evaluations"]] == [32, 64, 128][
            : len(trial["evaluations"])
        ]
        assert trial["best_wer"] == min(row["wer"] for row in trial["evaluations"])
        assert (trial["stop"] is not None) == (trial["status"] == "early_stopped")
        if trial["stop"]:
            assert trial["stop"]["value"] == trial["wer"] > trial["stop"]["cutoff"]
            assert trial["stop"]["samples_seen"] == trial["samples_seen"]
    assert (found["ended_by"], found["interrupted"]) == (None, False)


@pytest.mark.slow
def test_trials_do_not_wait_for_the_process_of_the_one_before(search: tuple[Path, str]) -> None:
    log = (search[0] / "experiments" / "small" / EVENTS_FILE).read_text()
    kinds = [json.loads(line)["event"] for line in log.splitlines()]
    slots = re.search(r"(\d+) at a time", search[1])
    assert slots
    assert kinds[: kinds.index("TrialStarted")].count("TrialProposed") == min(int(slots[1]), 4)


@pytest.mark.slow
def test_finalists_are_trained_again_and_one_wins(search: tuple[Path, str]) -> None:
    found = results(search)
    trials = {trial["trial_id"]: trial for trial in found["trials"]}
    completed = [trial for trial in found["trials"] if trial["status"] == "completed"]
    chosen = [trial["trial_id"] for trial in sorted(completed, key=lambda trial: trial["best_wer"])[:2]]
    assert len(chosen) == 2
    repeats = {repeat["trial_id"]: repeat for repeat in found["repeats"]}
    assert list(repeats) == sorted(f"{trial}-r{number}" for trial in chosen for number in (1, 2))
    for name, repeat in repeats.items():
        assert repeat["status"] == "completed"
        assert repeat["config"] == {**trials[name[:3]]["config"], "seed": 3 + int(name[-1])}
        assert [row["samples_seen"] for row in repeat["evaluations"]] == [32, 64, 128]
    standings = found["finalists"]["standings"]
    for standing in standings:
        wers = [repeats[run]["best_wer"] for run in standing["runs"]]
        assert standing["wers"] == wers
        assert standing["mean"] == pytest.approx(statistics.fmean(wers))
        assert standing["sd"] == pytest.approx(statistics.stdev(wers))
    winner, best = found["finalists"]["winner"], found["best"]
    assert best["trial_id"] == winner
    runs = {name: repeat for name, repeat in repeats.items() if name.startswith(f"{winner}-")}
    (mean,) = found["averages"]
    assert sorted(mean["members"]) == sorted(runs)
    models = {**runs, mean["trial_id"]: mean}
    assert best["wer"] == models[best["run"]]["best_wer"] == min(run["best_wer"] for run in models.values())
    assert best["config"] == models[best["run"]]["config"]
    assert (Path(best["checkpoint"]) / "model.safetensors").is_file()
    won = next(each for each in standings if each["trial_id"] == winner)
    assert won is standings[0] or won["difference"] <= 0.1
    (told,) = [line for line in search[1].splitlines() if line.startswith("winner ")]
    low, high = won["mean_interval"]
    assert low < won["mean"] < high
    assert f"WER {won['mean']:6.2f} % (mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f})" in told
    (why,) = [line for line in search[1].splitlines() if line.startswith("verdict ")]
    assert f"trial {winner} " in why
    if won is standings[0]:
        assert ("by more than noise" in why) != found["finalists"]["tie"]


@pytest.mark.slow
def test_the_weights_of_the_others_are_dropped_and_the_screen_says_what_is_left(
    search: tuple[Path, str],
) -> None:
    found, printed = results(search), search[1]
    best, folder = found["best"], search[0] / "experiments" / "small"
    assert [str(path.parent) for path in folder.rglob("model.safetensors")] == [best["checkpoint"]]
    assert not list(folder.rglob("optimizer.pt"))
    runs = [*found["trials"], *found["repeats"], *found["averages"]]
    assert [run["trial_id"] for run in runs if run["checkpoint"]] == [best["run"]]
    for text in (
        "baseline",
        f"WER {best['wer']:6.2f} %",
        f"{best['run']}, the mean of",
        "tune-whisper export small",
    ):
        assert text in printed
    for noise in ("Traceback", "Warning", "deprecat", "A new study"):
        assert noise not in printed


@pytest.mark.slow
def test_experiment_file_is_enough_to_run_it_again(
    search: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = search[0] / "experiments" / "small"
    settings = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert settings["rungs"] == [32, 64, 128]
    assert settings["clips"]["train"] == 64
    assert settings["versions"]["ray"]
    command = settings["run_again"].split()
    assert command[0] == "tune-whisper"
    monkeypatch.chdir(search[0])
    assert main([*command[1:], "--dry-run"]) == 0
    first = results(search)["trials"][0]["config"]
    printed = capsys.readouterr().out
    assert f"batch={first['train_batch_size']} accum={first['gradient_accumulation_steps']}" in printed


@pytest.mark.slow
def test_mlflow_holds_one_parent_and_a_run_for_every_trial(search: tuple[Path, str]) -> None:
    import mlflow

    found, client = results(search), mlflow.MlflowClient(f"sqlite:///{search[0]}/experiments/small/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'small'")
    runs = {run.data.tags.get("trial_id"): run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop(None)
    told = (*found["trials"], *found["repeats"], *found["averages"])
    assert set(runs) == {run["trial_id"] for run in told}
    assert parent.info.status == "FINISHED"
    files = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert files >= {"experiment.yaml", "space.yaml", "results.json", "report"}
    best, winner = found["best"], found["finalists"]["winner"]
    won = next(each for each in found["finalists"]["standings"] if each["trial_id"] == best["trial_id"])
    assert parent.data.tags["mlflow.note.content"].startswith(f"**WER {won['mean']:.2f} %**")
    assert [key for key, run in runs.items() if run.data.tags.get("best")] == [best["run"]]
    assert [key for key, run in runs.items() if run.data.tags.get("winner")] == [winner]
    for trial in (*found["trials"], *found["repeats"]):
        run, data = runs[trial["trial_id"]].info, runs[trial["trial_id"]].data
        assert run.run_id == trial["mlflow_run_id"]
        assert run.status == {"completed": "FINISHED", "early_stopped": "KILLED"}[trial["status"]]
        # Where repeats follow, trials differ from the search itself in the window that they are measured by.
        own = {*trial["config"], "effective_batch_size", "seed", "full_window_evaluation"}
        assert {*trial["config"]} < set(data.params) <= own
        history = client.get_metric_history(run.run_id, "wer")
        assert [(point.step, point.value) for point in history] == [
            (row["samples_seen"], row["wer"]) for row in trial["evaluations"]
        ]
        assert len(client.get_metric_history(run.run_id, "loss")) >= len(history)
        assert {"cer", "learning_rate", "epoch", "eval_loss"} <= set(data.metrics)
        assert data.metrics["best_wer"] == round(trial["best_wer"], 4)
        assert data.metrics["samples_seen"] == trial["samples_seen"]
        assert data.metrics["seconds"] == pytest.approx(trial["seconds"], abs=0.06)


@pytest.mark.slow
def test_export_decodes_to_the_reported_wer_in_a_pipeline(search: tuple[Path, str]) -> None:
    folder = search[0]
    words = ["--output", "model", "--format", "ctranslate2", "--check", "all"]
    done = tune_whisper("export", "small", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (folder / "model").iterdir()}
    needed = "model.safetensors config.json generation_config.json tokenizer.json README.md train_config.json"
    assert {*needed.split()} <= names
    assert "optimizer.pt" not in names
    best = results(search)["best"]
    code = """
import io, json, sys
import datasets, soundfile
from transformers import pipeline
from trainer.scoring.alignment import count_errors
from trainer.config import TrainConfig
from trainer.data.prepared import prepare
config = json.load(open("model/train_config.json"))
validation = prepare(TrainConfig.from_dict(config)).splits["validation"]
names = {validation.name(i) for i in range(len(validation))}
rows = datasets.load_dataset("parquet", data_files=sys.argv[1], split="train")
rows = rows.cast_column("audio", datasets.Audio(decode=False))
rows = [row for row in rows if row["audio"]["path"] in names]
assert len(rows) == len(names) == 30, (len(rows), len(names))
transcribe = pipeline("automatic-speech-recognition", "model")
texts = []
for row in rows:
    samples, rate = soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")
    texts.append(transcribe({"raw": samples, "sampling_rate": rate})["text"].strip())
print(count_errors([row["text"] for row in rows], texts).percent)
"""
    import trainer

    parquet = Path(trainer.__file__).parent / "demo" / "data" / "validation.parquet"
    command = [sys.executable, "-c", code, str(parquet)]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=560, check=True)
    assert float(run.stdout.split()[-1]) == pytest.approx(best["wer"], abs=0.1)
    card = (folder / "model" / "README.md").read_text()
    assert f"{best['wer']:.2f}" in card
    (mean,) = results(search)["averages"]
    assert f"{best['run']}, the mean of the weights of {' and '.join(mean['members'])}" in card
    told = json.loads((folder / "model" / "evaluation.json").read_text())
    assert (told["trial_id"], told["reported_validation_wer"]) == (best["run"], best["wer"])
    assert yaml.safe_load(card.split("---")[1])["pipeline_tag"] == "automatic-speech-recognition"
    assert "PATH_OF_THIS_FOLDER/ctranslate2" in card
    checks = {found["split"]: found for found in told["formats"]["ctranslate2"]["checks"]}
    for split in ("validation", "test"):
        found = checks[split]
        assert found["hf_wer"] == pytest.approx(told["evaluations"][split]["after"]["wer"], abs=0.6)
        assert abs(found["drift"]) <= found["tolerance"]


@pytest.mark.slow
def test_what_export_refuses(
    search: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = search[0]
    monkeypatch.chdir(folder)
    found = results(search)
    other = next(run["trial_id"] for run in found["repeats"] if run["trial_id"] != found["best"]["run"])
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.txt").write_text("mine")
    for words, text in [
        (["small", "--output", "taken"], "exists already"),
        (["small", "--output", "new", "--trial", "099"], "has trials 001"),
        (["small", "--output", "new", "--trial", other], "--keep-checkpoints all keeps them"),
        (["smal", "--output", "new"], "there is small"),
    ]:
        assert main(["export", *words]) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert text in error
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_train_from_a_search_takes_the_winners_settings(search: tuple[Path, str]) -> None:
    """As the trial had them: the seed of its best repeat is not one of them."""
    storage = str(search[0] / "experiments")
    request = read_request(train_parser().parse_args(["--from", "small", "--storage", storage]))
    found = results(search)
    plan = make_train_plan(request)
    winner = found["finalists"]["winner"]
    (trial,) = [trial for trial in found["trials"] if trial["trial_id"] == winner]
    assert {name: getattr(plan.base, name) for name in trial["config"]} == trial["config"]
    assert plan.base.seed == 3


@pytest.mark.slow
def test_budgets_end_a_search_that_can_go_on(tmp_path: Path) -> None:
    """The time is up before anything is measured; resumed, the search ends with a trial that brings nothing."""
    (tmp_path / "space.yaml").write_text(SPACE)
    folder = tmp_path / "experiments" / "timed"
    words = "--space space.yaml --trials 40 --epochs 2 --experiment timed --max-concurrent 1 --finalists 0"
    done = tune_whisper(*words.split(), "--time-budget", "1s", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended     the time budget of 1s is spent" in done.stdout
    assert "no trial reached an evaluation" in done.stdout
    assert "resume    tune-whisper --resume timed" in done.stdout
    first = json.loads((folder / "results.json").read_text())
    assert first["ended_by"] == {"reason": "time_budget", "text": "the time budget of 1s is spent"}
    assert (first["interrupted"], first["best"]) == (False, None)
    assert ended_by(folder) == "time_budget"
    begun = {trial["trial_id"]: trial for trial in first["trials"]}
    stops = ["--plateau", "1", "--plateau-points", "99"]
    done = tune_whisper("--resume", "timed", "--time-budget", "1h", *stops, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    second = json.loads((folder / "results.json").read_text())
    assert second["ended_by"]["reason"] == "plateau"
    assert f"ended     {second['ended_by']['text']}" in done.stdout
    assert ended_by(folder) == "plateau"
    now = {trial["trial_id"]: trial for trial in second["trials"]}
    assert 2 <= len(now) < 40
    assert {trial_id: now[trial_id]["config"] for trial_id in begun} == {
        trial_id: trial["config"] for trial_id, trial in begun.items()
    }


def ended_by(folder: Path) -> str:
    """The tag of the search's MLflow run."""
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = [found for found in client.search_experiments() if found.name == folder.name]
    (run,) = client.search_runs([experiment.experiment_id], "tags.role = 'experiment'")
    assert run.info.status == "FINISHED"
    return str(run.data.tags["ended_by"])
