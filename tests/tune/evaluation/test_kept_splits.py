"""An experiment keeps its splits: whatever becomes of the data, nothing is measured on what was trained on."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import soundfile
from demo_clips import demo_clips
from made_experiments import change_settings, made_trial, write_experiment
from plans import training_plan

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.model.pretrained import DEMO_MODEL
from tune.cli import main
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder

RATE = 16_000
CLIPS = 40
"""Rows of the data that the search was made on; it has no splits of its own."""
OTHER_SPLITS = ("--set", "data_seed=3", "--set", "validation_share=0.3")


class Search:
    """A search `made` on clips of a table, and what is asked of it afterwards."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.storage = folder / "experiments"
        clips = folder / "clips"
        clips.mkdir()
        self.rows = []
        for number, (audio, text) in enumerate(demo_clips()[: CLIPS + 20]):
            soundfile.write(clips / f"{number:03}.flac", audio, RATE)
            self.rows.append({"audio": f"clips/{number:03}.flac", "text": text})
        self.write(self.rows[:CLIPS])
        settings = {
            "data": str(self.table),
            "model": "demo",
            "language": "en",
            "cache_dir": str(cache),
            "generation_max_length": 20,
        }
        trials = [made_trial(1, [80, 70, 60])]
        made = write_experiment(self.storage, trials, base_clips=True, settings=settings, real_data=True)
        shutil.copytree(DEMO_MODEL, made.path / "trials" / "001" / "checkpoint_3200", dirs_exist_ok=True)
        self.made = made.path
        self.splits = self.load()
        self.log = (self.made / EVENTS_FILE).read_bytes()

    @property
    def table(self) -> Path:
        return self.folder / "clips.csv"

    def write(self, rows: list[dict[str, str]]) -> None:
        write_table(self.table, rows)

    def load(self, **settings: Any) -> dict[str, set[str]]:
        """Names of the clips of each split, as the data gives them now."""
        table = load_clips(TrainConfig(data=str(self.table), **settings))
        return {role: {clip.name for clip in clips} for role, clips in table.splits.items()}

    def run(self, *words: str) -> int:
        return main([*words, "--storage", str(self.storage)])

    def evaluate(self, *words: str) -> dict[str, Any]:
        out = self.folder / "found"
        shutil.rmtree(out, ignore_errors=True)
        assert self.run("evaluate", *words, "--output", str(out)) == 0
        return json.loads((out / "evaluation.json").read_text())

    def export(self) -> tuple[dict[str, Any], str]:
        """`evaluation.json` and the card."""
        out = self.folder / "model"
        shutil.rmtree(out, ignore_errors=True)
        assert self.run("export", "made", "--output", str(out)) == 0
        return json.loads((out / "evaluation.json").read_text()), (out / "README.md").read_text()


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["audio", "text"])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, feature_cache: Path) -> Search:
    return Search(tmp_path_factory.mktemp("search"), feature_cache)


@pytest.fixture
def search(made: Search) -> Search:
    """With the table that it was made on, and the log that it had."""
    made.write(made.rows[:CLIPS])
    (made.made / EVENTS_FILE).write_bytes(made.log)
    return made


def names(found: dict[str, Any]) -> set[str]:
    return {row["name"] for row in found["utterances"]}


def test_the_test_split_stays_what_it_was(search: Search) -> None:
    """Rows are added, and all of them name their files in full."""
    search.write([row | {"audio": str(search.folder / row["audio"])} for row in search.rows])
    assert search.load()["test"] != search.splits["test"]  # made anew it would be another
    found = search.evaluate("made")
    assert {Path(name).name for name in names(found)} == {Path(name).name for name in search.splits["test"]}
    assert any("20 new clips count as training clips" in note for note in found["notes"])


def test_settings_that_would_make_other_splits_are_refused(search: Search, capsys: Any) -> None:
    for setting in ("data_seed=3", "validation_share=0.4", "split_by=null", "test_split=train"):
        assert search.run("evaluate", "made", "--set", setting) == 2
        told = capsys.readouterr().err
        assert f"--set {setting.split('=')[0]}: would make other splits than made was trained with" in told


def test_audio_that_was_trained_on_is_left_out_of_other_data(search: Search, tmp_path: Path) -> None:
    """By whatever name, whose splits are made as any."""
    (tmp_path / "copy").mkdir()
    trained, rows = len(search.splits["train"]), []
    for number, row in enumerate(search.rows[:CLIPS]):
        shutil.copy(search.folder / row["audio"], tmp_path / "copy" / f"{number}.flac")
        rows.append(row | {"audio": f"{number}.flac"})
    write_table(tmp_path / "copy" / "all.csv", rows)
    words = ("--data", str(tmp_path / "copy" / "all.csv"), *OTHER_SPLITS)
    everything = search.evaluate("made", *words, "--split", "all")
    told = f"made was trained on {trained} of these {CLIPS} clips"
    assert any(told in note for note in everything["notes"])
    whole, found = search.evaluate("demo", *words, "--language", "en"), search.evaluate("made", *words)
    [note] = [note for note in found["notes"] if "since made was trained on them" in note]
    assert note.startswith(f"WARNING: {whole['clips'] - found['clips']} of {whole['clips']} clips")


def test_clips_that_the_checkpoint_was_chosen_by_are_told(search: Search) -> None:
    """They are a test split in a table of their own."""
    rows = [row for row in search.rows if row["audio"] in search.splits["validation"]]
    write_table(search.folder / "test.csv", rows)
    found = search.evaluate("made", "--data", str(search.folder / "test.csv"), "--split", "all")
    assert not any("were chosen" in note for note in search.evaluate("made")["notes"])
    assert any(f"of made were chosen on {len(rows)} of these clips" in note for note in found["notes"])


def test_clips_that_the_baseline_was_trained_on_are_left_out_too(search: Search, tmp_path: Path) -> None:
    assert search.run("export", "made", "--output", str(tmp_path / "other")) == 0
    found = search.evaluate(
        *("demo", "--language", "en", "--data", str(search.table), "--set", "validation_share=0.3"),
        *("--baseline", str(tmp_path / "other")),
    )
    assert not names(found) & search.splits["train"]
    assert any("since other was trained on them" in note for note in found["notes"])


def test_an_exported_model_knows_its_splits(search: Search) -> None:
    found, _ = search.export()
    assert found["changed_since_search"] == []
    search.write(search.rows)
    again = search.evaluate(str(search.folder / "model"))
    assert names(again) == search.splits["test"]
    assert json.loads((search.folder / "model" / "train_config.json").read_text())["splits"] is None


def test_the_card_compares_on_the_same_clips(search: Search, capsys: Any) -> None:
    """Clips were added, one of validation is gone, the text of another is not what it was."""
    search.write(search.rows)
    gone, changed = sorted(search.splits["validation"])[:2]
    search.write(
        [
            row | {"text": "something else"} if row["audio"] == changed else row
            for row in search.rows
            if row["audio"] != gone
        ]
    )
    found, card = search.export()
    assert found["changed_since_search"] == ["validation"]
    rates = found["evaluations"]["validation"]
    left = len(search.splits["validation"]) - 1
    assert rates["before"]["clips"] == rates["after"]["clips"] == left
    # The checkpoint is the base model: only on the same clips both have the same figures.
    assert rates["before"]["wer"] == rates["after"]["wer"]
    assert f"both models were measured on the {left} clips that remain" in card
    assert "other hardware" not in capsys.readouterr().out
    assert found["evaluations"]["test"]["after"]["clips"] == len(search.splits["test"])


@pytest.mark.parametrize("gone", ["data", "model"])
def test_where_the_data_is_gone_a_trial_is_beside_the_base_model_in_its_own_window(
    gone: str, search: Search, capsys: Any
) -> None:
    base = Experiment.read(ExperimentFolder("made", search.made)).state.baseline
    change_settings(search.made, baseline=dataclasses.replace(base, trial_rates={**base.rates, "wer": 75.0}))
    if gone == "data":
        search.table.unlink()
    else:
        config = Experiment.read(ExperimentFolder("made", search.made)).settings.train_config
        change_settings(search.made, train_config={**config, "model": str(search.table.with_name("gone"))})
    found, _ = search.export()
    rates = found["evaluations"]["validation"]
    assert (rates["before"]["wer"], rates["after"]["wer"], rates["after"]["cer"]) == (75.0, 60.0, 20.0)
    assert "warning: could not be measured again" in capsys.readouterr().out


def test_a_base_model_that_was_measured_in_a_short_window_is_measured_again(
    search: Search, capsys: Any
) -> None:
    """Nor is it called a drift that the model has another rate in the whole one."""
    config = Experiment.read(ExperimentFolder("made", search.made)).settings.train_config
    change_settings(search.made, train_config={**config, "full_window_evaluation": False})
    found, _ = search.export()
    rates = found["evaluations"]["validation"]
    assert rates["before"]["wer"] == rates["after"]["wer"] != 60.0, "the checkpoint is the base model"
    assert "points off" not in capsys.readouterr().out


def test_a_training_with_the_winners_settings_keeps_the_splits(search: Search) -> None:
    search.write(search.rows)
    words = ["--storage", search.storage, "--from", "made"]
    plan = training_plan(*words)
    table = load_clips(plan.base)
    assert {clip.name for clip in table.splits["test"]} == search.splits["test"]
    assert len(table.splits["train"]) == len(search.splits["train"]) + 20
    anew = training_plan(*words, "--set", "data_seed=4")
    assert anew.base.splits is None
    assert any("data_seed differs from made" in note for note in anew.notes)
