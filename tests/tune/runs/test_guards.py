"""Guards: what is exported keeps data that is not trained on, or it is said that nothing does."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_data import demo_rows
from mlflow_server import shared_folder
from search_process import QUICK, results
from search_process import Search as Process
from test_averages import Averager, final_round
from test_final_round import Search
from test_search_summary import printed
from test_state_machine import Killed
from training import evaluate

import tune_whisper
from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.errors import ModelError
from trainer.scoring.alignment import ClipErrors
from trainer.train import Evaluation
from tune.cli import main
from tune.experiments.events import GuardMeasured
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import parse
from tune.report.analysis import analyse
from tune.report.writer import make_page
from tune.runs.candidates import judge_guards
from tune.runs.data import guard_config
from tune.runs.final_round import choose_export, compare
from tune.runs.outcome import Outcome
from tune.search.guards import Guard, MeasuredOnGuard, choose, guard_loss
from tune.tracking.mlflow_runs import own_run
from tune.tracking.mlflow_texts import experiment_note

OTHER = Guard("/data/english.csv")


class Measurer:
    """Errors of a hundred words on each of ten clips of a guard, by run; the base model has 10 on each."""

    def __init__(self, errors: dict[str, Any]) -> None:
        self.errors = {"base": 10, **errors}
        self.made: list[str] = []
        self.told: list[str] = []

    def measure(self, guard: Guard, run: Any) -> tuple[Evaluation, str]:
        name = run.trial_id if run else "base"
        found = self.errors[name]
        if isinstance(found, BaseException):
            raise found
        self.made.append(name)
        each = [found - 1, found + 1] * 5 if name != "base" else [found] * 10
        rates = dict.fromkeys(("wer", "cer", "wer_orthographic", "cer_orthographic", "loss"), float(found))
        clips = ClipErrors(np.array(each), np.full(10, 100))
        return Evaluation(rates={**rates, "clips": 10}, predictions=[], utterances=clips), "the clips"

    def judge(self, search: Search) -> None:
        assert compare(search.experiment)
        judge_guards(search.experiment, self.measure, self.told.append, lambda *_: None)
        choose_export(search.experiment, pytest.fail)


@pytest.mark.usefixtures("_without_pages")
def test_the_best_looking_finalist_that_loses_too_much_is_passed_over(tmp_path: Path) -> None:
    search = final_round(tmp_path, guard=(OTHER,))
    Averager(search, 24.0).average()
    assert search.state.chosen is None, "guards come before the choice"
    guards = Measurer({"001-a1": 30, "001-r2": 25, "002-r1": 9})
    guards.judge(search)
    assert guards.made == ["base", "001-a1", "001-r2", "002-r1"], (
        "the average, then each finalist's best repeat"
    )
    assert search.state.best().trial_id == "002-r1"
    found = search.end()
    assert (found["best"]["run"], found["best"]["trial_id"]) == ("002-r1", "002")
    assert found["best"]["mean_wer"] == 41.5, "what the settings of the exported run are worth"
    assert (found["finalists"]["winner"], found["finalists"]["passed_over"]) == ("002", "001")
    assert found["guards"]["kept"]
    assert [each["run"] for each in found["guards"]["models"]] == ["001-a1", "001-r2", "002-r1"]
    assert search.weights() == {"002-r1"}
    told = "001-a1 is passed over: 20.00 points more WER on english.csv"
    page = make_page(analyse(search.plan.experiment_folder))
    saved = Experiment.read(search.plan.experiment_folder)
    lines = printed(Outcome(search.plan, saved.state))
    assert any(line.startswith(f"guards    {told}") for line in lines)
    assert any(line.startswith("winner    WER  41.50 %") for line in lines)
    for text in (guards.told[-1], page, experiment_note(saved, "")):
        assert told in text
        assert "002-r1 keeps the guard: 1.00 points less WER on english.csv" in text
    assert own_run(saved, "").tags["guards"] == "kept"
    known = tune_whisper.load_experiment("x", storage=search.storage.text)
    assert known.best is not None and known.best.trial_id == "002-r1"


@pytest.mark.usefixtures("_without_pages")
def test_killed_in_the_middle_nothing_is_measured_twice_and_new_guards_are_judged(tmp_path: Path) -> None:
    search = final_round(tmp_path, guard=(OTHER,))
    Averager(search, 50.0).average()
    first = Measurer({"001-r2": 30, "002-r1": Killed()})
    with pytest.raises(Killed):
        first.judge(search)
    search.experiment.close()
    search.resume(trials=2)
    again = Measurer({"002-r1": 9})
    again.judge(search)
    assert (first.made, again.made) == (["base", "001-r2"], ["002-r1"])
    assert search.end()["best"]["run"] == "002-r1"
    search.resume(guard=[OTHER, Guard("/data/noisy", 50.0)])
    more = Measurer({"002-r1": 70})
    more.judge(search)
    assert more.made == ["base", "002-r1"], "on the new guard; no other weights are left"
    found = search.end()
    assert found["best"]["run"] == "002-r1"
    assert not found["guards"]["kept"]
    assert "002-r1 does not keep the guards and is exported, because there is no other" in more.told[0]


@pytest.mark.usefixtures("_without_pages")
def test_what_cannot_be_measured_keeps_no_guard(tmp_path: Path) -> None:
    search = final_round(tmp_path, guard=(OTHER,))
    Averager(search, 50.0).average()
    guards = Measurer({"001-r2": ModelError("it is broken"), "002-r1": 9})
    guards.judge(search)
    assert "warning: 001-r2 could not be measured on the guard /data/english.csv: it is broken" in guards.told
    assert search.end()["best"]["run"] == "002-r1"


@pytest.mark.usefixtures("_without_pages")
def test_a_run_that_was_passed_over_does_not_come_back_in_a_search_that_goes_on(tmp_path: Path) -> None:
    search = final_round(tmp_path, guard=(OTHER,))
    Averager(search, 50.0).average()
    Measurer({"001-r2": 30, "002-r1": 9}).judge(search)
    search.end()
    search.resume(trials=3)
    assert search.state.best().trial_id == "002-r1", "something can be exported at any moment"
    search.train("003", 50.0)
    again = Measurer({})
    again.judge(search)
    assert again.made == []
    assert search.end()["best"]["run"] == "002-r1"


finite = st.integers(0, 60)


@given(st.lists(st.tuples(finite, finite), min_size=5, max_size=30), st.floats(0, 20))
def test_a_model_is_never_passed_over_for_one_that_loses_more(
    pairs: list[tuple[int, int]], most: float
) -> None:
    words = np.full(len(pairs), 60.0)
    base = MeasuredOnGuard(10.0, ClipErrors(np.full(len(pairs), 6.0), words))
    models = {}
    for place, errors in enumerate(zip(*pairs, strict=True)):
        clips = ClipErrors(np.asarray(errors, float), words)
        models[str(place)] = [guard_loss(Guard("x", most), base, MeasuredOnGuard(clips.rate, clips))]
    chosen = models[choose(models)][0]
    assert chosen.kept or not any(each.kept for (each,) in models.values())
    if not chosen.kept:
        assert chosen.excess == min(each.excess for (each,) in models.values())
    for (each,) in models.values():
        assert each.kept or each.excess > 0, "a loss that is allowed is never one too many"


@pytest.mark.parametrize("measured", ["base", "model", "neither"])
def test_a_guard_that_was_not_measured_on_both_models_says_nothing_of_the_loss(measured: str) -> None:
    rates = MeasuredOnGuard(10.0, ClipErrors(np.array([6.0]), np.array([60.0])))
    loss = guard_loss(
        Guard("x", 1.0), rates if measured == "base" else None, rates if measured == "model" else None
    )
    assert (loss.base is None, loss.rate is None) == (measured != "base", measured != "model")
    assert (loss.loss, loss.kept) == (None, False)


@given(
    st.sampled_from(["a/b", "C:\\clips", "s3://bucket/x", "x.csv", "speech:2024:de", "."]), st.floats(0, 99)
)
def test_guards_as_words(data: str, most: float) -> None:
    assert Guard.parse(data) == Guard(data, 1.0)
    most = float(f"{most:g}")
    assert Guard.parse(str(Guard(data, most))) == Guard(data, most)


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        ("", "--guard '': names no data; give DATA or DATA:MAX_LOSS"),
        (":2", "--guard ':2': names no data"),
        ("x.csv:-1", "--guard x.csv:-1: MAX_LOSS -1 must be from 0 to below 100 points"),
        ("speech:2024", "if the name of the data ends like this, write speech:2024:1"),
        ("x.csv:nan", "MAX_LOSS nan must be from 0"),
        ("nowhere.csv:2", "--guard nowhere.csv: no such file or folder; give demo, a hub data set"),
        ("demo", "--guard demo: is the data that is trained on; give data that is not"),
        ("silent.csv", "silent.csv: the split 'all' has no clip with text"),
        ("silent.csv silent.csv:2", "is given twice; give each data once"),
    ],
)
def test_wrong_guards_are_one_line_before_anything_starts(
    guard: str, said: str, refused: Callable[..., str]
) -> None:
    Path("silent.csv").write_text("path,text\na.wav,\nb.wav,...\n")
    words = [word for each in guard.split(" ") for word in ("--guard", each)]
    for more in ([], ["--dry-run"]):
        assert said in refused("--space", "lr_batch", *words, *more)


def test_all_models_are_measured_on_guards_in_the_whole_window() -> None:
    """Once the base model in that of the trainings, where the settings say so."""
    assert guard_config(TrainConfig(full_window_evaluation=False), OTHER).full_window_evaluation


SPACE = "learning_rate: {type: choice, values: [0.001, 0.0000001]}\ntrain_batch_size: 8\n"


@pytest.mark.slow
@pytest.mark.occasional
def test_a_search_passes_over_a_trial_that_forgets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the base model writes stands as the guard's texts, so that every change of it is a loss."""
    settings = TrainConfig(cache_dir=str(shared_folder()), generation_max_length=24, max_eval_clips=12)
    data = prepare(settings)
    split, found = data.splits["test"], evaluate(settings, "test", data=data)
    written = {split.name(clip): text for clip, text in enumerate(found.predictions) if text}
    known = tmp_path / "known" / "test"
    known.mkdir(parents=True)
    with (known / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "text"])
        for row in demo_rows("test", 96):
            name = row["audio"]["path"]
            if name in written:
                (known / Path(name).name).write_bytes(row["audio"]["bytes"])
                table.writerow([Path(name).name, written[name]])
    (tmp_path / "space.yaml").write_text(SPACE)
    space, guard = str(tmp_path / "space.yaml"), str(tmp_path / "known")
    words = f"--space {space} --trials 2 --epochs 10 --finalists 0 --experiment x --guard {guard}".split()
    assert main([*words, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert f"guard {tmp_path}/known: 12 clips of its test split, at most 1 points more WER" in printed
    search = Process(tmp_path, *words, *QUICK)
    assert search.end() == 0, search.log
    outcome = results(tmp_path / "experiments" / "x")
    trials = {trial["config"]["learning_rate"]: trial for trial in outcome["trials"]}
    forgets, keeps = trials[0.001], trials[1e-7]
    assert forgets["best_wer"] < keeps["best_wer"], "it is the best-looking one"
    assert outcome["best"]["run"] == keeps["trial_id"]
    assert f"{forgets['trial_id']} is passed over: " in search.log
    assert (Path(outcome["best"]["checkpoint"]) / "model.safetensors").is_file()
    log = (tmp_path / "experiments" / "x" / EVENTS_FILE).read_bytes()
    measured = [each.event for each in parse(log, Path()) if isinstance(each.event, GuardMeasured)]
    assert [(each.run, len(each.words)) for each in measured] == [
        *((None, 12), (forgets["trial_id"], 12), (keeps["trial_id"], 12))
    ]
    assert json.loads((tmp_path / "experiments" / "x" / "results.json").read_text())["guards"]["kept"]
