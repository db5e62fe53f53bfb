"""Searches on several sources in three languages (weights, rates of each source), and on recordings with subtitles."""

import json
import sqlite3
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
from demo_clips import demo_clips
from made_experiments import MadeLog
from make_data import write_manifest
from processes import tune_whisper
from search_process import ONE_CPU

from tune.cli import main
from tune.experiments.events import Baseline, Data
from tune.experiments.results import results_of

LANGUAGES = {"north": "de", "east": "ja", "west": "en"}
SIZES = {"train": 12, "validation": 4, "test": 4}
SPACE = """\
learning_rate: 1e-3
weight.north: {type: float, low: 0.25, high: 4, log: true}
weight.west: 1
scheduler: {rungs: 2}
"""


def write_sources(folder: Path) -> None:
    """A folder of clips for each source, and the data file."""
    lines = ["sources:"]
    for number, (name, language) in enumerate(LANGUAGES.items()):
        for split, size in SIZES.items():
            rows = []
            for place, (samples, text) in enumerate(demo_clips(split)[number * size : (number + 1) * size]):
                path = folder / name / "clips" / f"{split}{place}.wav"
                path.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(path, samples, 16000)
                rows.append({"file": f"clips/{path.name}", "text": text})
            write_manifest(folder / name / f"{split}.csv", rows)
        lines += [f"  {name}:", f"    data: {name}", f"    language: {language}"]
    (folder / "mix.yaml").write_text("\n".join([*lines, "    weight: 0.5", ""]))
    (folder / "space.yaml").write_text(SPACE)


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The working folder of a finished search, and what it printed."""
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    words = "--space space.yaml --trials 1 --epochs 1 --experiment three --data mix.yaml --model demo --finalists 0"
    done = tune_whisper(*words.split(), "--set", "objective=sources", cwd=folder, **ONE_CPU)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


@pytest.mark.slow
def test_each_source_is_in_the_log_in_results_in_mlflow_and_on_the_page(search: tuple[Path, str]) -> None:
    folder, printed = search
    experiment = folder / "experiments" / "three"
    found = json.loads((experiment / "results.json").read_text())
    assert found["objective"] == "sources"
    (trial,) = found["trials"]
    assert trial["config"]["weight.north"] == 1.0, "the weight of the data file is tried first"
    events = [json.loads(line) for line in (experiment / "events.jsonl").read_text().splitlines()]
    (data,) = [event["data"]["data"] for event in events if event["event"] == "Prepared"]
    assert data["sources"]["west"]["weight"] == 1.0, "that of the space"
    assert data["epoch_samples"] == 12 + 12 + 6
    measured = [event["data"] for event in events if event["event"] == "Evaluated"]
    for event in measured:
        assert set(event["sources"]) == set(LANGUAGES)
        rates = [rates["wer"] for rates in event["sources"].values()]
        assert event["metrics"]["wer"] == pytest.approx(statistics.fmean(rates))
    for name, facts in found["sources"].items():
        assert facts["language"] == [LANGUAGES[name]]
        assert facts["wer"] == trial["sources"][name]["wer"]
        assert {"baseline_wer", "test_wer", "baseline_test_wer"} <= set(facts)
        (line,) = [line for line in printed.splitlines() if line.startswith(f"{name} ")]
        assert f"{facts['wer']:.2f}" in line
        assert f"<td>{name}</td>" in (experiment / "report" / "report.html").read_text()
    assert found["sources"]["north"]["weight"] == 1.0
    database = sqlite3.connect(folder / "experiments" / "mlflow.db")
    keys = {key for (key,) in database.execute("select distinct key from metrics")}
    assert {"wer/north", "cer/east", "baseline_wer/west", "test_wer/north"} <= keys
    params = {key for (key,) in database.execute("select distinct key from params")}
    assert "weight.north" in params


def test_a_trial_is_beside_the_base_model_as_trials_are_measured(tmp_path: Path) -> None:
    """Each source's own, too: once beside that of all clips in the whole window."""
    facts = {"language": ["de"], "task": [], "weight": 1.0, "clips": {"validation": 10}}
    rates = {"wer": 60.0, "cer": 20.0, "loss": 1.0, "clips": 200.0}
    base = Baseline(
        rates=rates,
        sources={"north": {"wer": 60.0}},
        trial_rates={**rates, "wer": 75.0},
        trial_sources={"north": {"wer": 75.0}},
    )
    made = MadeLog(tmp_path / "made", data=Data(sources={"north": facts}), baseline=base)
    made.session()
    made.trial("001", 50.0, 30.0, 20.0)
    (line,) = results_of(made.saved.folder, made.saved.state)["sources"].values()
    made.close()
    assert line["baseline_wer"] == 75.0


@pytest.mark.slow
def test_a_source_has_the_rate_that_it_has_by_itself(
    search: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = search
    monkeypatch.chdir(folder)
    assert main(["export", "three", "--output", "model"]) == 0
    assert "- en\n- de\n- ja\n" in Path("model/README.md").read_text()
    capsys.readouterr()

    def evaluated(*words: str) -> dict[str, Any]:
        assert main(["evaluate", "model", *words, "--split", "validation", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    sources = json.loads(Path("experiments/three/results.json").read_text())["sources"]
    together = {group["value"]: group for group in evaluated("--data", "mix.yaml")["breakdown"]["source"]}
    for name in LANGUAGES:
        assert together[name]["wer"]["percent"] == pytest.approx(sources[name]["wer"], abs=1e-9)
    alone = evaluated("--data", "east", "--language", "ja")
    assert alone["rates"]["wer"]["percent"] == pytest.approx(sources["east"]["wer"], abs=1e-9)
    assert alone["normalizer"]["unit"] == "characters"


MISTAKES = {
    "no such source": (
        ["--space", "space.yaml"],
        ":1: weight.south: data=",
        "has the sources north, east, west",
    ),
    "no sources": (
        ["--space", "space.yaml", "--data", "demo"],
        ":1: weight.south: data='demo' has no sources",
    ),
    "all off": (["--space", "off.yaml"], "the weight of every source of ", ""),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_weights_are_one_line_before_anything_starts(
    mistake: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    write_sources(tmp_path)
    Path("space.yaml").write_text("weight.south: {type: float, low: 0.25, high: 4, log: true}\n")
    off = "".join(f"weight.{name}: 0\n" for name in LANGUAGES)
    Path("off.yaml").write_text(f"learning_rate: {{type: float, low: 1e-4, high: 1e-3}}\n{off}")
    words, *told = MISTAKES[mistake]
    data = [] if "--data" in words else ["--data", "mix.yaml", "--model", "demo"]
    line = refused(*words, *data, "--trials", "2", "--dry-run")
    assert all(text in line for text in told), line
