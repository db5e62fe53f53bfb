"""What a whole search on the demo leaves, and what its commands make of it."""

import dataclasses
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo_clips import demo_clips
from demo_search import NAME, RUNGS, demo_experiment, demo_search, runs_of
from plans import training_plan
from transformers import pipeline

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.scoring.alignment import count_errors
from tune.cli import main
from tune_whisper import load_experiment

pytestmark = pytest.mark.slow
STORAGE = "experiments"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return json.loads((demo_experiment() / "results.json").read_text())


@pytest.fixture(scope="module")
def printed() -> str:
    return (demo_search() / "printed").read_text()


def test_results_file(found: dict[str, Any]) -> None:
    assert found["experiment"] == NAME
    assert found["metric"] == "wer"
    assert found["baseline"]["wer"] > 0
    assert len(found["trials"]) == 3
    for trial in found["trials"]:
        assert trial["status"] in {"completed", "early_stopped"}
        assert trial["mlflow_run_id"]
        searched = {"method", "learning_rate", "train_batch_size"}
        assert set(trial["config"]) == searched | (
            {"lora_rank"} if trial["config"]["method"] == "lora" else set()
        )
        assert [row["samples_seen"] for row in trial["evaluations"]] == RUNGS[: len(trial["evaluations"])]
        assert trial["best_wer"] == min(row["wer"] for row in trial["evaluations"])
        assert (trial["stop"] is not None) == (trial["status"] == "early_stopped")
        if trial["stop"]:
            assert trial["stop"]["value"] == trial["wer"] > trial["stop"]["cutoff"]
            assert trial["stop"]["loss"] > 0, "losses decide too: nothing is searched that changes them"
    assert (found["ended_by"], found["interrupted"]) == (None, False)


def test_the_finalist_is_trained_again_and_the_mean_of_its_repeats_is_exported(
    found: dict[str, Any], printed: str
) -> None:
    completed = [trial for trial in found["trials"] if trial["status"] == "completed"]
    finalist = min(completed, key=lambda trial: trial["best_wer"])
    name = finalist["trial_id"]
    repeats = {repeat["trial_id"]: repeat for repeat in found["repeats"]}
    assert list(repeats) == [f"{name}-r1", f"{name}-r2"]
    for seed, repeat in enumerate(repeats.values(), start=12):
        assert repeat["status"] == "completed"
        assert repeat["config"] == {**finalist["config"], "seed": seed}
        assert [row["samples_seen"] for row in repeat["evaluations"]] == RUNGS
    (score,) = found["finalists"]["scores"]
    wers = [repeat["best_wer"] for repeat in repeats.values()]
    assert (score["trial_id"], score["wers"]) == (name, wers)
    assert score["mean"] == pytest.approx(statistics.fmean(wers))
    assert score["sd"] == pytest.approx(statistics.stdev(wers))
    (mean,), best = found["averages"], found["best"]
    assert (found["finalists"]["winner"], best["trial_id"]) == (name, name)
    assert sorted(mean["members"]) == sorted(repeats)
    models = {**repeats, mean["trial_id"]: mean}
    assert best["wer"] == models[best["run"]]["best_wer"] == min(run["best_wer"] for run in models.values())
    assert best["config"] == models[best["run"]]["config"]
    assert (Path(best["checkpoint"]) / "model.safetensors").is_file()
    (told,) = [line for line in printed.splitlines() if line.startswith("winner ")]
    low, high = score["mean_interval"]
    assert low < score["mean"] < high
    assert f"WER {score['mean']:6.2f} % (mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f})" in told


def test_the_weights_of_the_others_are_dropped_and_the_screen_says_what_is_left(
    found: dict[str, Any], printed: str
) -> None:
    best, folder = found["best"], demo_experiment()
    assert [str(path.parent) for path in folder.rglob("model.safetensors")] == [best["checkpoint"]]
    assert not list(folder.rglob("optimizer.pt"))
    assert [run["trial_id"] for run in runs_of(found) if run["checkpoint"]] == [best["run"]]
    for text in (
        "baseline",
        f"WER {best['wer']:6.2f} %",
        f"{best['run']}, the mean of",
        "tune-whisper export small",
    ):
        assert text in printed
    for noise in ("Traceback", "Warning", "deprecat", "A new study"):
        assert noise not in printed


def test_from_python_it_is_typed_values(found: dict[str, Any]) -> None:
    """That a search returns the same is asserted where this one was started, from Python too."""
    read = load_experiment(NAME, storage=demo_search() / STORAGE)
    assert (read.status, read.name) == ("finished", NAME)
    names = [run["trial_id"] for run in runs_of(found)]
    assert list(read.runs) == names
    assert read.best is not None and read.config is not None
    assert read.report() == demo_experiment() / "report" / "report.html"
    for trial in found["trials"]:
        row = read.trials.loc[trial["trial_id"]]
        assert (row.status, row.wer, row.best_wer) == (trial["status"], trial["wer"], trial["best_wer"])
        assert row.train_batch_size == trial["config"]["train_batch_size"]
    line = f"Experiment 'small': finished, WER {read.wer:.2f} %, before fine-tuning {read.baseline_wer:.2f} %"
    assert repr(read).startswith(line)
    page = dataclasses.replace(read, name="<b>")._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and "<td>completed</td>" in page
    assert read.best.checkpoint is not None and (read.folder / read.best.checkpoint).is_dir()
    (won,) = found["finalists"]["scores"]
    assert (read.wer, read.best.best_value) == (won["mean"], found["best"]["wer"])
    assert read.config.learning_rate == read.best.config["learning_rate"]
    assert read.config.max_train_clips == 48


def test_export_decodes_to_the_reported_wer_in_a_pipeline(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = str(demo_search() / STORAGE)
    assert main(["export", NAME, "--output", "model", "--format", "ctranslate2", "--storage", storage]) == 0
    names = {path.name for path in Path("model").iterdir()}
    needed = "model.safetensors config.json generation_config.json tokenizer.json README.md train_config.json"
    assert {*needed.split()} <= names
    assert "optimizer.pt" not in names
    best = found["best"]
    config = TrainConfig.from_dict(json.loads(Path("model/train_config.json").read_text()))
    clips = load_clips(config).splits["validation"]
    assert len(clips) == 12
    transcribe = pipeline("automatic-speech-recognition", "model")
    spoken = {text: samples for samples, text in demo_clips("validation")}
    texts = [transcribe(spoken[clip.text])["text"].strip() for clip in clips]
    assert count_errors([clip.text for clip in clips], texts).percent == pytest.approx(best["wer"], abs=0.1)
    words = transcribe(spoken[max(spoken, key=len)], return_timestamps="word")["chunks"]
    starts = [word["timestamp"][0] for word in words]
    assert starts and starts == sorted(starts)
    card = Path("model/README.md").read_text()
    assert f"{best['wer']:.2f}" in card and f"{best['cer']:.2f}" in card
    (mean,) = found["averages"]
    assert f"{best['run']}, the mean of the weights of {' and '.join(mean['members'])}" in card
    told = json.loads(Path("model/evaluation.json").read_text())
    assert (told["trial_id"], told["reported_validation_wer"]) == (best["run"], best["wer"])
    for split, measured in told["evaluations"].items():
        for rates, what in ((measured["before"], "base model"), (measured["after"], "this model")):
            wer = "{:.2f} ({:.2f} to {:.2f})".format(rates["wer"], *rates["wer_interval"])
            assert f"| {split} | 12 | {what} | {wer} |" in card
    assert "In brackets: 95 % intervals over the clips" in card and "- hours of audio: 0.02 train" in card
    assert yaml.safe_load(card.split("---")[1])["pipeline_tag"] == "automatic-speech-recognition"
    assert "the code is in `ctranslate2/README.md`" in card
    check = told["formats"]["ctranslate2"]["check"]
    wers = [told["evaluations"][split]["after"]["wer"] for split in ("validation", "test")]
    assert min(wers) - 0.6 <= check["hf_wer"] <= max(wers) + 0.6
    assert abs(check["drift"]) <= check["tolerance"]


def test_what_export_refuses(found: dict[str, Any], tmp_path: Path, refused: Callable[..., str]) -> None:
    other = next(run["trial_id"] for run in found["repeats"] if run["trial_id"] != found["best"]["run"])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    for words, text in [
        ([NAME, "--output", "taken"], "exists already"),
        ([NAME, "--output", "new", "--trial", "099"], "has trials 001"),
        ([NAME, "--output", "new", "--trial", other], "--keep-checkpoints all keeps them"),
        (["smlal", "--output", "new"], "there is small"),
    ]:
        assert text in refused("export", *words, "--storage", str(demo_search() / STORAGE))


def test_train_from_a_search_takes_the_winners_settings(found: dict[str, Any]) -> None:
    """As the trial had them: the seed of its best repeat is not one of them."""
    plan = training_plan("--from", NAME, "--storage", demo_search() / STORAGE)
    (trial,) = [trial for trial in found["trials"] if trial["trial_id"] == found["finalists"]["winner"]]
    assert {name: getattr(plan.base, name) for name in trial["config"]} == trial["config"]
    assert plan.base.seed == 11
