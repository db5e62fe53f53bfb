"""`--resume EXPERIMENT --space other.yaml`: what is searched changes, what has been found stays."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from made_experiments import MadeLog, change_settings, made_trial, write_experiment

from tune.cli import main
from tune.experiments.storage import Storage
from tune.runs.resume import Resumed, resume
from tune.search.searcher import EarlierTrial, Searcher, WarmStart
from tune.tracking.optuna_study import STUDY_FILE, OptunaStore

OTHER = """\
learning_rate: {type: float, low: 2e-5, high: 0.1, log: true}
train_batch_size: {type: choice, values: [4, 8, 16, 32]}
weight_decay: {type: float, low: 0.0, high: 0.1}
try_first:
  - {learning_rate: 0.05, train_batch_size: 32, weight_decay: 0.0}
"""


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """With an interrupted search of `lr_batch`: two of four trials have what `OTHER` leaves at its default."""
    monkeypatch.chdir(tmp_path)
    wers = [50.0, 30.0, 12.0]
    trials = [
        made_trial(1, wers),
        made_trial(2, wers, rate=5),
        made_trial(3, wers, warmup=0.2),
        made_trial(4, wers, accumulation=2),
        made_trial(5, wers),
    ]
    write_experiment(tmp_path, trials, asked=8, state="interrupted")
    return Storage.parse(tmp_path)


def resumed(storage: Storage, text: str, **given: Any) -> Resumed:
    Path("other.yaml").write_text(text)
    found = resume("made", storage, {"space": "other.yaml", **given})
    found.experiment.close()
    return found


def searcher(found: Resumed) -> Searcher:
    experiment = found.experiment
    return Searcher(found.plan.space, seed=0, records=experiment.state.records, shared=experiment.shared)


def test_trials_inside_teach_and_new_ones_come_from_the_new_space(storage: Storage) -> None:
    found = resumed(storage, OTHER)
    source = searcher(found)
    assert [trial.params["learning_rate"] for trial in source.trials()] == [1e-4, 5e-4, 1e-4]
    assert {trial.params["weight_decay"] for trial in source.trials()} == {0.0}
    source.suggest("the one that was running")
    first, *others = (source.suggest(f"{number}") for number in range(6))
    assert first == {"learning_rate": 0.05, "train_batch_size": 32, "weight_decay": 0.0, "trial_id": "006"}
    for config in others:
        assert config.keys() == first.keys()
        assert found.plan.space.point_of(config, {}) is not None


def test_what_is_fixed_now_and_was_not_before_is_in_every_new_trial(storage: Storage) -> None:
    found = resumed(storage, OTHER + "dropout: 0.1\nwarmup_ratio: 0.1\n")
    source = searcher(found)
    assert source.trials() == [], "none had any dropout"
    source.suggest("the one that was running")
    assert all(source.suggest(f"{number}")["dropout"] == 0.1 for number in range(4))
    assert "warmup_ratio" not in found.plan.space.ranges, "as it was"
    made = MadeLog(Path("made").absolute())
    made.session(space=found.plan.space.to_dict())
    assert made.saved.space.parameters["dropout"].points() == [0.1], "as the log is read"
    made.close()


RATE = "learning_rate: {type: float, low: auto, high: auto, log: true}\n"


def test_what_the_file_leaves_out_is_at_its_default_in_new_trials(storage: Storage) -> None:
    base = resumed(storage, OTHER).experiment.settings.train_config
    change_settings(Path("made"), train_config={**base, "method": "lora", "weight_decay": 0.05})
    plan = resumed(storage, RATE).plan
    for name, value in (("method", "full"), ("weight_decay", 0.0)):
        assert plan.space.parameters[name].points() == [value]
        assert plan.space.try_first[0][name] == value
    assert plan.space.try_first[0]["learning_rate"] == 1e-4, "that of all weights"
    assert not searcher(resumed(storage, RATE)).trials(), "none had these"
    kept = resumed(storage, RATE, settings={"method": "lora", "weight_decay": 0.05}).plan
    assert "method" not in kept.space.ranges
    assert kept.space.try_first[0]["learning_rate"] == 1e-3, "that of LoRA, which --set gave"
    wider = "weight_decay: {type: float, low: 0.0, high: 0.1}\n"
    assert "weight_decay" in resumed(storage, RATE + wider, settings={"weight_decay": 0.05}).plan.space.ranges
    other = resumed(storage, RATE + "weight_decay: 0.1\n", settings={"weight_decay": 0.05}).plan.space
    assert other.parameters["weight_decay"].points() == [0.1], "what the file says counts"


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ({"augment_speed": 0.35, "augment_telephone": 0.25}, ""),
        ({"warmup_steps": 50}, "warmup_ratio: {type: float, low: 0.0, high: 0.3}\n"),
        ({"method": "lora", "lora_alpha": 64.0}, ""),
        ({"scheduler_type": "warmup_stable_decay", "decay_ratio": 0.1}, ""),
        ({}, "optimizer: adafactor\nadam_beta2: 0.98\n"),
    ],
)
def test_the_log_holds_a_space_that_can_be_read_again(
    before: dict[str, Any], text: str, storage: Storage
) -> None:
    """What has one value in new trials is not searched, so that another setting may switch it off."""
    base = resumed(storage, OTHER).experiment.settings.train_config
    change_settings(Path("made"), train_config={**base, **before})
    space = resumed(storage, RATE + text).plan.space
    made = MadeLog(Path("made").absolute())
    made.session(space=space.to_dict())
    assert made.saved.space.ranges == space.ranges
    made.close()


def test_what_a_condition_leaves_out_has_no_value_of_the_old_space(
    storage: Storage, refused: Callable[..., str]
) -> None:
    base = resumed(storage, OTHER).experiment.settings.train_config
    text = (
        RATE
        + "lowercase: {type: choice, values: [false, true]}\n"
        + "warmup_ratio: {type: float, low: 0.0, high: 0.3, when: {lowercase: false}}\n"
        + "warmup_steps: {type: int, low: 1, high: 100, log: true, when: {lowercase: true}}\n"
    )
    assert "warmup_steps" in resumed(storage, text).plan.space.ranges, "it was at its default"
    change_settings(Path("made"), train_config={**base, "warmup_steps": 100})
    line = refused("--resume", "made", "--space", "other.yaml", "--storage", storage.text)
    assert (
        "other.yaml:4: warmup_steps: trials in which it is not searched would have 100, that of made" in line
    )


def test_the_file_is_read_with_the_settings_that_the_search_began_with(storage: Storage) -> None:
    base = resumed(storage, OTHER).experiment.settings.train_config
    change_settings(Path("made"), train_config={**base, "method": "lora"})
    text = RATE + "lora_rank: {type: choice, values: [4, 8]}\n"
    assert "lora_rank" in resumed(storage, text, settings={"method": "lora"}).plan.space.ranges


def test_a_stream_keeps_what_it_needs(storage: Storage) -> None:
    """The space alone is no whole configuration: a stream has its window and budget from the experiment."""
    base = resumed(storage, OTHER).experiment.settings.train_config
    stream = {
        "data": "org/speech",
        "streaming": True,
        "audio_window": 30.0,
        "epochs": None,
        "max_samples": 3200,
    }
    change_settings(Path("made"), train_config={**base, **stream, "splits": None})
    assert resumed(storage, OTHER + "streaming: true\n").plan.base.streaming


def test_the_log_has_the_change_and_study_and_report_follow(storage: Storage, tmp_path: Path) -> None:
    space = resumed(storage, OTHER).plan.space
    made = MadeLog(tmp_path / "made")
    assert "weight_decay" not in made.saved.space.ranges
    made.session(trials=8, space=space.to_dict())
    made.trial("006", 49.0, 29.0, 11.0, learning_rate=0.05, train_batch_size=32, weight_decay=0.01)
    made.finish()
    store = OptunaStore(made.target())
    store.sync(made.log_at())
    made.close()
    storage_of_optuna = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "made" / STUDY_FILE))
    )
    study = optuna.load_study(study_name="made", storage=storage_of_optuna)
    known = {trial.user_attrs["trial_id"]: set(trial.params) for trial in study.trials}
    assert known["003"] == known["004"] == set(), "outside"
    assert known["001"] == known["006"] == {"learning_rate", "train_batch_size", "weight_decay"}
    again = resume("made", storage, {"trials": 9})
    again.experiment.close()
    assert again.plan.space.to_dict() == space.to_dict()
    assert main(["report", "made", "--storage", storage.text]) == 0
    page = Path("made/report/report.html").read_text()
    winning = page.partition("Winning settings")[2].partition("</table>")[0]
    cells = re.sub(r"\s*<[^>]*>\s*", "|", winning)
    assert re.search(r"\bweight_decay\|+0\.01\|+0\b", cells)
    assert re.search(r"\bwarmup_ratio\|+0\.1\b", cells), "what earlier trials had others of"


def test_earlier_experiments_teach_what_lies_in_a_space_that_was_narrowed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trials = [EarlierTrial({"learning_rate": rate}, [(96, 20.0)], None) for rate in (5e-4, 5e-5)]
    made = MadeLog(tmp_path / "made", warm_starts=[WarmStart(trials, 60.0, 96, [])])
    made.session(trials=8)
    made.close()
    storage = Storage.parse(tmp_path)
    narrow = "learning_rate: {type: float, low: 1e-4, high: 1e-3, log: true}\n"
    space = resumed(storage, narrow).plan.space
    made.again()
    made.session(trials=8, space=space.to_dict())
    made.close()
    again = resume("made", storage, {"trials": 9})
    again.experiment.close()
    assert [each.trials for each in again.plan.warm_starts] == [trials[:1]]
    wide = resumed(storage, narrow.replace("1e-4", "1e-5"), trials=9).plan
    assert [each.trials for each in wide.warm_starts] == [trials], "of the space by now alone"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("epochs: 9\n", "other.yaml:6: epochs=9: is 4 in made, and all its trials share that; write 4"),
        ("max_train_clips: 5\n", "max_train_clips=5: is null in made, and all its trials share that; remove it"),
        ("scheduler: {rungs: 3}\n", "scheduler: rungs=3: is 4 in made, and its trials were measured there; write 4"),
        ("weight.own: 2\n", "weight.own: data='demo' has no sources"),
    ],
)  # fmt: skip
def test_trials_that_could_not_be_compared(
    text: str, told: str, storage: Storage, refused: Callable[..., str]
) -> None:
    Path("other.yaml").write_text(OTHER + text)
    assert told in refused("--resume", "made", "--space", "other.yaml", "--storage", storage.text)


def test_a_window_stays_as_it_was_decided(storage: Storage) -> None:
    base = resumed(storage, OTHER).experiment.settings.train_config
    change_settings(Path("made"), train_config={**base, "audio_window": 30.0})
    plan = resumed(storage, RATE + "audio_window: batch\n").plan
    assert (plan.base.audio_window, plan.space.fixed) == (30.0, {})
    assert "audio_window stays as it was: the search has decided it" in plan.describe()


def test_no_other_windows_where_trials_were_measured_in_their_own(
    storage: Storage, refused: Callable[..., str]
) -> None:
    change_settings(Path("made"), trials_full_window=False)
    Path("other.yaml").write_text(RATE + "audio_window: {type: choice, values: [10, 30]}\n")
    line = refused("--resume", "made", "--space", "other.yaml", "--storage", storage.text)
    assert "other.yaml:2: audio_window: its trials were measured in the window that they train with" in line


def test_no_larger_batch_where_the_budget_is_in_steps(storage: Storage, refused: Callable[..., str]) -> None:
    base = resumed(storage, OTHER).plan.base
    change_settings(Path("made"), train_config={**base.to_dict(), "epochs": None, "max_steps": 50})
    Path("other.yaml").write_text(
        OTHER.replace("16, 32]", "16, 128]").replace("batch_size: 32", "batch_size: 8")
    )
    line = refused("--resume", "made", "--space", "other.yaml", "--storage", storage.text)
    assert "train_batch_size=128: is 64 in made" in line
