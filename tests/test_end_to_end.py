"""Whole searches on the demo, through the command, and what they leave."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 1e-2, log: true}
warmup_ratio: {type: float, low: 0.0, high: 0.3}
train_batch_size: {type: choice, values: [4, 8]}
gradient_accumulation_steps: {type: choice, values: [1, 2]}
scheduler: {rungs: 3, reduction_factor: 2, min_trials_per_rung: 2}
searcher: {startup_trials: 2}
"""
QUICK = ["--set", "max_train_clips=120", "--set", "max_eval_clips=30", "--set", "log_every_seconds=0.5"]


def tune_whisper(*words: str, cwd: Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tune", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The working folder of a small finished search named `small`, and what it printed."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "space.yaml").write_text(SPACE)
    words = [
        "--space",
        "space.yaml",
        "--trials",
        "4",
        "--epochs",
        "2",
        "--experiment",
        "small",
        "--seed",
        "3",
        *QUICK,
    ]
    done = tune_whisper(*words, cwd=folder)
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
        assert [row["samples_seen"] for row in trial["evaluations"]] == [64, 128, 240][
            : len(trial["evaluations"])
        ]
        assert trial["best_wer"] == min(row["wer"] for row in trial["evaluations"])
    best = found["best"]
    assert best["wer"] == min(trial["best_wer"] for trial in found["trials"])
    assert (Path(best["checkpoint"]) / "model.safetensors").is_file()


@pytest.mark.slow
def test_what_the_screen_shows(search: tuple[Path, str]) -> None:
    printed = search[1]
    best = results(search)["best"]
    for text in (
        "baseline",
        f"WER {best['wer']:6.2f} %",
        f"trial {best['trial_id']}",
        "tune-whisper export small",
    ):
        assert text in printed
    for noise in ("Traceback", "Warning", "deprecat"):
        assert noise not in printed


@pytest.mark.slow
def test_experiment_file_is_enough_to_run_it_again(search: tuple[Path, str]) -> None:
    folder = search[0] / "experiments" / "small"
    settings = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert settings["rungs"] == [64, 128, 240]
    assert settings["clips"]["train"] == 120
    assert settings["versions"]["ray"]
    command = settings["run_again"].split()
    assert command[0] == "tune-whisper"
    done = tune_whisper(*command[1:], "--dry-run", cwd=search[0])
    assert done.returncode == 0, done.stderr
    first = results(search)["trials"][0]["config"]
    assert f"batch={first['train_batch_size']} accum={first['gradient_accumulation_steps']}" in done.stdout


@pytest.mark.slow
def test_mlflow_holds_one_parent_and_a_run_for_every_trial(search: tuple[Path, str]) -> None:
    import mlflow

    folder = search[0] / "experiments" / "small"
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "small"]
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    parents = [run for run in runs.values() if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 1
    assert len(runs) == 5
    assert parents[0].info.status == "FINISHED"
    assert {item.path for item in client.list_artifacts(parents[0].info.run_id)} >= {
        "space.yaml",
        "versions.json",
        "results.json",
    }
    for trial in results(search)["trials"]:
        run = runs[trial["mlflow_run_id"]]
        assert run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        assert run.info.status == {"completed": "FINISHED", "early_stopped": "KILLED"}[trial["status"]]
        assert float(run.data.params["learning_rate"]) == trial["config"]["learning_rate"]
        assert run.data.params["model"] == "demo"
        history = client.get_metric_history(run.info.run_id, "wer")
        assert [(point.step, point.value) for point in history] == [
            (row["samples_seen"], row["wer"]) for row in trial["evaluations"]
        ]
        assert len(client.get_metric_history(run.info.run_id, "loss")) >= len(history)
        assert {"cer", "learning_rate", "epoch", "eval_loss"} <= set(run.data.metrics)


@pytest.mark.slow
def test_export_decodes_to_the_reported_wer_in_a_pipeline(search: tuple[Path, str]) -> None:
    folder = search[0]
    done = tune_whisper("export", "small", "--output", "model", cwd=folder)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (folder / "model").iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "README.md",
        "train_config.json",
    } <= names
    assert "optimizer.pt" not in names
    best = results(search)["best"]
    code = """
import io, json, sys
import datasets, soundfile
from transformers import pipeline
from trainer.metrics import WordErrorRate
from trainer.config import TrainConfig
from trainer.prepared import prepare
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
print(WordErrorRate().compute(predictions=texts, references=[row["text"] for row in rows])["wer"])
"""
    import trainer

    parquet = Path(trainer.__file__).parent / "demo" / "data" / "validation.parquet"
    run = subprocess.run(
        [sys.executable, "-c", code, str(parquet)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.split()[-1]) == pytest.approx(best["wer"], abs=0.1)
    card = (folder / "model" / "README.md").read_text()
    assert f"{best['wer']:.2f}" in card
    assert yaml.safe_load(card.split("---")[1])["pipeline_tag"] == "automatic-speech-recognition"


@pytest.mark.slow
def test_export_of_another_trial_and_refusals(search: tuple[Path, str]) -> None:
    folder = search[0]
    best = results(search)["best"]["trial_id"]
    other = next(trial["trial_id"] for trial in results(search)["trials"] if trial["trial_id"] != best)
    done = tune_whisper("export", "small", "--output", "other", "--trial", other, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "other" / "evaluation.json").read_text())["trial_id"] == other
    for words, text in [
        (["small", "--output", "other"], "exists already"),
        (["small", "--output", "new", "--trial", "099"], "has trials 001"),
        (["smal", "--output", "new"], "there is small"),
    ]:
        refused = tune_whisper("export", *words, cwd=folder)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert text in refused.stderr
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_same_seed_one_at_a_time_same_search(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    found = []
    for name in ("first", "second"):
        words = [
            "--space",
            "space.yaml",
            "--trials",
            "4",
            "--epochs",
            "1",
            "--experiment",
            name,
            "--seed",
            "7",
        ]
        done = tune_whisper(*words, "--max-concurrent", "1", *QUICK, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        data = json.loads((tmp_path / "experiments" / name / "results.json").read_text())
        found.append([(t["trial_id"], t["config"], t["status"], t["evaluations"]) for t in data["trials"]])
        assert ("computed in" in done.stdout) == (name == "first"), (
            "the second search must reuse the features"
        )
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_trial_that_fails_does_not_end_the_search(tmp_path: Path) -> None:
    """A batch size whose memory cannot be had fails its trials; the others go on and decide."""
    (tmp_path / "space.yaml").write_text(
        "learning_rate: {type: choice, values: [1e-3, 1e30]}\n"
        "max_grad_norm: 0\n"
        "warmup_ratio: 0\n"
        "try_first: [{learning_rate: 1e30}, {learning_rate: 1e-3}]\n"
    )
    words = ["--space", "space.yaml", "--trials", "2", "--epochs", "1", "--experiment", "mixed", *QUICK]
    done = tune_whisper(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "experiments" / "mixed" / "results.json").read_text())
    assert [trial["status"] for trial in data["trials"]] == ["diverged", "completed"]
    assert data["best"]["trial_id"] == "002"
    assert "diverged" in done.stdout


@pytest.mark.slow
def test_real_speech_with_the_demo_model(shared_data: Path, tmp_path: Path) -> None:
    words = [
        "--space",
        "lr_batch.yaml",
        "--trials",
        "2",
        "--data",
        str(shared_data / "speech_en_de"),
        "--language",
        "en",
    ]
    done = tune_whisper(
        *words, "--experiment", "real", "--epochs", "1", "--set", "generation_max_length=64", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "experiments" / "real"
    settings = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert sum(settings["dropped"].values()) > 0
    dropped = [json.loads(line) for line in (folder / "dropped_clips.jsonl").read_text().splitlines()]
    assert len(dropped) == sum(settings["dropped"].values())
    assert all(row["name"] and row["reason"] for row in dropped)
    with (shared_data / "speech_en_de" / "metadata.csv").open() as file:
        english = [row for row in csv.DictReader(file) if row["language"] == "en"]
    assert sum(settings["clips"].values()) + len(dropped) == len(english)
    assert "window" in done.stdout
    assert len(json.loads((folder / "results.json").read_text())["trials"]) == 2


@pytest.mark.slow
def test_random_whisper_tiny_takes_two_steps(shared_data: Path, tmp_path: Path) -> None:
    import torch
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperForConditionalGeneration,
        WhisperProcessor,
    )

    source = shared_data / "whisper_tiny_processor"
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(source))
    model.generation_config = GenerationConfig.from_pretrained(source)
    model.save_pretrained(tmp_path / "tiny")
    WhisperProcessor.from_pretrained(source).save_pretrained(tmp_path / "tiny")
    settings = {
        **{
            "model": "tiny-folder",
            "data": str(shared_data / "speech_en_de"),
            "language": "en",
            "max_steps": 2,
        },
        **{"train_batch_size": 2, "evaluations": 1, "max_eval_clips": 4, "generation_max_length": 24},
        "output_dir": "out",
    }
    settings["model"] = str(tmp_path / "tiny")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "config.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "before: WER" in done.stdout
    assert "after:  WER" in done.stdout
    assert "step 2" in done.stdout
