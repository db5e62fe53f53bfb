"""`tune-whisper evaluate`: the figures of a real model, against another one, on the screen, as JSON and as a page."""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
from made_experiments import MadeLog
from pages import Page, look_everywhere, needs_chromium
from safetensors.numpy import load_file, save_file
from training import evaluate as evaluate_in_training

from trainer.config import TrainConfig
from trainer.model.pretrained import DEMO_MODEL
from tune.cli import main
from tune.experiments.events import ExportChosen

CLIPS = 24


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model with so much noise on its weights that it hears far less."""
    folder = tmp_path_factory.mktemp("models") / "noisy"
    shutil.copytree(DEMO_MODEL, folder)
    generator = np.random.default_rng(0)
    weights = {
        name: value + (0.5 * value.std() * generator.standard_normal(value.shape)).astype(value.dtype)
        for name, value in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "train_config.json").write_text('["of another program"]')
    return folder


@pytest.fixture(scope="module")
def compared(noisy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What the command prints as JSON for the demo's model against the noisy one, and the folder it writes."""
    place = tmp_path_factory.mktemp("compared")
    asked = "evaluate demo --data demo --by accent --by speaker --baseline"
    words = [*asked.split(), str(noisy)]
    words += ["--output", str(place / "report"), "--json", "--storage", str(place / "experiments")]
    words += ["--set", f"max_eval_clips={CLIPS}", "--set", "generation_max_length=20"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(words) == 0
    return json.loads(printed.getvalue()), place / "report"


def test_the_figures_are_those_of_a_training_and_of_jiwer(
    compared: tuple[dict[str, Any], Path], feature_cache: Path
) -> None:
    found, _ = compared
    config = TrainConfig(cache_dir=str(feature_cache), max_eval_clips=CLIPS, generation_max_length=20)
    expected = evaluate_in_training(config, "test")
    for rate in ("wer", "cer", "wer_orthographic", "cer_orthographic"):
        assert found["rates"][rate]["percent"] == pytest.approx(expected.rates[rate], abs=1e-9)
    assert [row["hypothesis"] for row in found["utterances"]] == expected.predictions
    said = [row["reference_normalized"] for row in found["utterances"]]
    heard = [row["hypothesis_normalized"] for row in found["utterances"]]
    theirs = jiwer.process_words(said, heard)
    totals = found["errors"]["wer"]
    assert found["rates"]["wer"]["percent"] == pytest.approx(100 * theirs.wer)
    for kind in ("substitutions", "deletions", "insertions"):
        assert totals[kind] == getattr(theirs, kind)
    assert sum(row["substitutions"] for row in found["utterances"]) == theirs.substitutions


def test_the_worse_model_is_shown_to_be_worse(compared: tuple[dict[str, Any], Path]) -> None:
    found, _ = compared
    wer = found["comparison"]["wer"]
    other = found["baseline_scores"]["rates"]["wer"]["percent"]
    assert wer["difference"] == pytest.approx(found["rates"]["wer"]["percent"] - other)
    assert wer["difference"] < -5 and wer["p_value"] < 0.05 and wer["difference_shown"]
    assert wer["interval"][0] < wer["difference"] < wer["interval"][1] < 0
    assert (found["model"], found["baseline"]) == ("demo", "noisy")


def test_groups_add_up(compared: tuple[dict[str, Any], Path]) -> None:
    found, _ = compared
    words = found["errors"]["wer"]["reference"]
    assert set(found["breakdown"]) == {"accent", "speaker", "clip length"}
    for groups in found["breakdown"].values():
        assert sum(group["clips"] for group in groups) == found["clips"] == CLIPS
        assert sum(group["reference"] for group in groups) == words
        mean = sum(group["wer"]["percent"] * group["reference"] for group in groups) / words
        assert mean == pytest.approx(found["rates"]["wer"]["percent"])
        assert all(group["baseline_wer"] for group in groups)
    of_speaker = {row["columns"]["speaker"] for row in found["utterances"]}
    assert {group["value"] for group in found["breakdown"]["speaker"]} == of_speaker


def test_the_page_is_one_file(compared: tuple[dict[str, Any], Path]) -> None:
    found, folder = compared
    html = (folder / "evaluation.html").read_text(encoding="utf-8")
    text = Page(html).text
    for rate in ("wer", "cer"):
        assert f"{found['rates'][rate]['percent']:.2f} %" in text
    for word in ("demo against noisy", "auto-en", "Worst utterances", "Signs of hallucination", "by accent"):
        assert word in text
    worst = max(
        found["utterances"], key=lambda row: row["substitutions"] + row["deletions"] + row["insertions"]
    )
    assert re.search(r"<del class=\"bad\">[^<]+</del> <ins class=\"good\">", html)
    assert worst["name"] in text


@pytest.mark.slow
@needs_chromium
def test_the_page_in_a_browser(compared: tuple[dict[str, Any], Path]) -> None:
    look_everywhere(compared[1] / "evaluation.html")


def few(*words: str) -> list[str]:
    return ["evaluate", *words, "--set", "max_eval_clips=8", "--set", "generation_max_length=20"]


def test_on_the_screen_and_no_difference_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(few("demo", "--data", "demo", "--baseline", "demo", "--by", "accent", "--worst", "2")) == 0
    printed = capsys.readouterr().out
    for text in (
        *("demo against demo (baseline) on demo, split test", "normaliser  auto-en", "real-time factor"),
        *("no difference shown", "by accent", "by clip length", "signs of hallucination"),
        *("worst utterances", "  said   ", "  heard  ", "95 % interval"),
    ):
        assert text in printed
    assert printed.count("  said   ") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["experiments"], "only the cache is left"


def test_an_experiment_stands_for_its_winner_on_its_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = MadeLog(
        tmp_path / "experiments" / "search", train_config=TrainConfig(validation_share=0.2).to_dict()
    )
    made.whole()
    shutil.copytree(DEMO_MODEL, made.folder / "trials" / "001" / "checkpoint_3200")
    assert main(few("search", "--split", "validation", "--json")) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    told = [found[name] for name in ("model", "data", "split", "clips")]
    assert told == ["search", "demo", "validation", 8]
    assert "were chosen on this split" in captured.err
    gone = MadeLog(tmp_path / "experiments" / "gone")
    gone.whole(ExportChosen(run="none"))
    assert main(["evaluate", "gone"]) == 2
    assert "the weights of its best trial are gone" in capsys.readouterr().err
    assert main(["evaluate", "serach"]) == 2
    assert "did you mean search?" in capsys.readouterr().err


MISTAKES = {
    "no such model": (["nothing"], ["'nothing'", "not a folder", "an experiment in"]),
    "no weights": (["hollow", "--data", "demo"], ["hollow", "no weights", "model.safetensors"]),
    "another format": (["converted", "--data", "demo"], ["converted", "model.bin is in another format"]),
    "no data": (["demo"], ["--data", "demo does not say"]),
    "no such split": (["demo", "--data", "demo", "--split", "tets"], ["'tets'", "train, validation"]),
    "no such column": (["demo", "--data", "demo", "--by", "acent"], ["--by acent", "speaker", "mean accent"]),
    "a setting without effect": (
        ["demo", "--data", "demo", "--set", "dropout=0.1"],
        ["dropout", "changes nothing"],
    ),
    "a setting with an option": (["demo", "--data", "demo", "--set", "data=demo"], ["--set data", "--data"]),
    "output of an export": (
        ["demo", "--data", "demo", "--output", "exported"],
        ["--output exported", "holds a model"],
    ),
    "nothing to count": (["demo", "--data", "mute.csv", "--split", "all"], ["has no clip with text"]),
}


@pytest.mark.parametrize("name", list(MISTAKES))
def test_a_mistake_is_one_clear_line(name: str, refused: Callable[..., str]) -> None:
    for folder in ("hollow", "converted", "exported"):
        Path(folder).mkdir()
    for folder in ("hollow", "converted"):
        shutil.copy(DEMO_MODEL / "config.json", folder)
    Path("converted/model.bin").write_bytes(b"x")
    Path("exported/config.json").write_text("{}")
    Path("mute.csv").write_text("audio,text\na.wav,...\n")
    words, expected = MISTAKES[name]
    line = refused("evaluate", *words)
    assert all(text in line for text in expected), line
