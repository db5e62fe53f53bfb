"""`--warm-start`: what a search takes from another one, what it leaves, and what it says of both."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_experiments import MadeLog
from plans import space_of

from trainer.config import TrainConfig
from tune.cli import main
from tune.experiments.events import Data
from tune.experiments.experiment import Experiment
from tune.experiments.storage import Storage
from tune.experiments.warm_start import read_warm_start
from tune.search.records import Records
from tune.search.searcher import EarlierTrial, Searcher, WarmStart
from tune.space.space import SearchSpace
from tune.util.errors import ExperimentError

RATE = "learning_rate: {type: float, low: 1e-5, high: 1e-2, log: true}\n"
BATCH = "train_batch_size: {type: choice, values: [4, 8]}\n"
BASELINE, BUDGET = 60.0, 900


def trial(number: int, config: dict[str, Any], *wers: float, status: str = "completed") -> dict[str, Any]:
    return {"name": f"{number:03d}", "config": config, "wers": wers, "status": status}


THREE = [
    trial(1, {"learning_rate": 1e-3, "train_batch_size": 8}, 40.0, 20.0, 21.0),
    trial(2, {"learning_rate": 1e-4, "train_batch_size": 4}, 55.0, status="early_stopped"),
    trial(3, {"learning_rate": 9e-3, "train_batch_size": 4}, status="failed"),
]


def finished(
    folder: Path,
    text: str = RATE + BATCH,
    trials: list[dict[str, Any]] = THREE,
    sources: dict[str, Any] | None = None,
    **settings: Any,
) -> Storage:
    """A storage with the experiment `other`, of which no more is there than what a search leaves in any case."""
    made = MadeLog(
        folder / "experiments" / "other",
        space=space_of(folder, text).to_dict(),
        train_config=TrainConfig(**{"cache_dir": "x", **settings}).to_dict(),
        rungs=(BUDGET,),
        data=Data(sources=sources or {}),
    )
    made.session(trials=len(trials))
    for each in trials:
        name = made.begin(each["name"], each["config"])
        for rung, wer in enumerate(each["wers"], 1):
            made.measure(name, 300 * rung, wer)
        made.end(name, each["status"])
    made.close()
    return Storage.parse(str(folder / "experiments"))


def warm_start(storage: Storage, spaces: list[SearchSpace], settings: dict[str, Any]) -> WarmStart:
    """Of the experiment `other`."""
    return read_warm_start(Experiment.read(storage.experiment("other")), spaces, settings)


def ours(**settings: Any) -> dict[str, Any]:
    return TrainConfig(**{"cache_dir": "y", **settings}).to_dict()


def test_equal_spaces_take_all_that_ended_well(tmp_path: Path) -> None:
    found = warm_start(finished(tmp_path), [space_of(tmp_path, RATE + BATCH)], ours())
    assert found.trials == [
        EarlierTrial(THREE[0]["config"], [(300, 40.0), (600, 20.0), (900, 21.0)], 20.0),
        EarlierTrial(THREE[1]["config"], [(300, 55.0)], None),
    ]
    assert found.notes == ["warm start: 2 of the 3 trials of other are used"]
    assert found.adapted(BASELINE, BUDGET) == found.trials


def test_what_is_searched_here_only_has_the_value_that_it_had_there(tmp_path: Path) -> None:
    trials = [trial(1, {"learning_rate": 1e-3}, 20.0)]
    storage = finished(tmp_path, RATE, trials, train_batch_size=4)
    found = warm_start(storage, [space_of(tmp_path, RATE + BATCH)], ours())
    assert [earlier.params for earlier in found.trials] == [{"learning_rate": 1e-3, "train_batch_size": 4}]
    assert "warm start: train_batch_size was not searched there, it was 4" in found.notes


def test_weights_that_are_searched_here_only_are_those_of_the_data_there(tmp_path: Path) -> None:
    storage = finished(
        tmp_path, RATE, [trial(1, {"learning_rate": 1e-3}, 20.0)], sources={"north": {"weight": 0.5}}
    )
    space = space_of(tmp_path, RATE + "weight.north: {type: float, low: 0.25, high: 4, log: true}\n")
    found = warm_start(storage, [space], ours() | {"weight.north": 1.0})
    assert [earlier.params for earlier in found.trials] == [{"learning_rate": 1e-3, "weight.north": 0.5}]
    assert "warm start: weight.north was not searched there, it was 0.5" in found.notes


def test_what_a_search_there_searched_after_its_space_had_changed(tmp_path: Path) -> None:
    storage = finished(tmp_path, RATE, [trial(1, {"learning_rate": 1e-3}, 20.0)])
    made = MadeLog(tmp_path / "experiments" / "other")
    made.session(trials=2, space=space_of(tmp_path, RATE + BATCH).to_dict())
    made.begin("002", {"learning_rate": 1e-3, "train_batch_size": 4})
    made.measure("002", BUDGET, 19.0)
    made.end("002")
    made.close()
    found = warm_start(storage, [space_of(tmp_path, RATE + BATCH)], ours())
    assert [earlier.params["train_batch_size"] for earlier in found.trials] == [8, 4]
    assert found.notes == ["warm start: 2 of the 2 trials of other are used"]
    found = warm_start(storage, [space_of(tmp_path, RATE)], ours())
    assert (
        "warm start: train_batch_size was searched there and is 8 here; the results are used anyway"
        in found.notes
    )


def test_what_was_searched_there_only_is_left_out_of_the_settings(tmp_path: Path) -> None:
    found = warm_start(finished(tmp_path), [space_of(tmp_path, RATE)], ours(train_batch_size=16))
    assert [earlier.params for earlier in found.trials] == [{"learning_rate": 1e-3}, {"learning_rate": 1e-4}]
    assert found.notes[1:] == [
        "warm start: train_batch_size was searched there and is 16 here; the results are used anyway"
    ]


def test_trials_of_another_method_are_left_out(tmp_path: Path) -> None:
    """A good learning rate of LoRA is twenty times that of all weights."""
    text = RATE + "method: {type: choice, values: [full, lora]}\n"
    ranks = "lora_rank: {type: choice, values: [8, 16]%s}\n"
    trials = [
        trial(1, {"learning_rate": 1e-4, "method": "full"}, 20.0),
        trial(2, {"learning_rate": 1e-3, "method": "lora", "lora_rank": 8}, 30.0),
    ]
    storage = finished(tmp_path, text + ranks % ", when: {method: lora}", trials)
    found = warm_start(storage, [space_of(tmp_path, RATE)], ours())
    assert [earlier.params for earlier in found.trials] == [{"learning_rate": 1e-4}]
    assert "warm start: 1 are left out, their method is outside the space" in found.notes
    assert not any("method was searched there" in note for note in found.notes)
    here = space_of(tmp_path, f"method: lora\n{RATE}{ranks % ''}")
    found = warm_start(storage, [here], ours(method="lora"))
    assert [earlier.params for earlier in found.trials] == [{"learning_rate": 1e-3, "lora_rank": 8}]


def test_under_conditions_a_trial_is_taken_with_what_is_searched_for_it_here(tmp_path: Path) -> None:
    text = RATE + (
        "group_by_length: {type: choice, values: [false, true]}\n"
        "train_batch_size: {type: choice, values: [4, 8], when: {group_by_length: true}}\n"
        "dropout: {type: float, low: 0.1, high: 0.2, when: {group_by_length: false}}\n"
    )
    frozen = {"group_by_length": True, "train_batch_size": 4}
    trials = [
        trial(1, {"learning_rate": 1e-3, **frozen}, 20.0),
        trial(2, {"learning_rate": 1e-3, "group_by_length": False, "dropout": 0.1}, 30.0),
    ]
    kept = warm_start(finished(tmp_path, text, trials), [space_of(tmp_path, text)], ours())
    assert [earlier.params for earlier in kept.trials] == [each["config"] for each in trials]
    here = RATE + "dropout: {type: float, low: 0, high: 0.2, when: {group_by_length: false}}\n"
    here += "group_by_length: {type: choice, values: [false, true]}\n"
    found = warm_start(Storage.parse(str(tmp_path / "experiments")), [space_of(tmp_path, here)], ours())
    assert [earlier.params for earlier in found.trials] == [
        {"learning_rate": 1e-3, "group_by_length": True},
        {"learning_rate": 1e-3, "group_by_length": False, "dropout": 0.1},
    ]
    Searcher(space_of(tmp_path, here), seed=0, records=Records(), earlier=found.trials)


def test_on_other_data_the_base_model_is_the_measure(tmp_path: Path) -> None:
    """There it had 60 %, here 30 %: half of each WER. Here a trial is twice as long."""
    storage = finished(tmp_path, language="en")
    found = warm_start(storage, [space_of(tmp_path, RATE + BATCH)], ours(language="de", model="tiny"))
    assert not any(earlier.comparable for earlier in found.trials)
    assert found.notes[-1] == (
        "warm start: model, language differ, so WERs are compared relative to the base model's; "
        "learning rates are taken as they are"
    )
    first, second = found.adapted(baseline=30.0, budget=1800)
    assert first.evaluations == [(600, 20.0), (1200, 10.0), (1800, 10.5)]
    assert first.value == 10.0
    assert (second.evaluations, second.value) == ([(600, 27.5)], None)


def test_other_clips_of_the_same_data_and_other_decoding_are_other_measures(tmp_path: Path) -> None:
    storage = finished(tmp_path, row_filter="quality=studio", generation_num_beams=5)
    found = warm_start(storage, [space_of(tmp_path, RATE + BATCH)], ours(row_filter="quality=field"))
    assert not any(earlier.comparable for earlier in found.trials)
    assert found.notes[-1].startswith("warm start: generation_num_beams, row_filter differ")


@pytest.mark.parametrize(
    ("text", "trials", "expected"),
    [
        (
            RATE.replace("1e-2", "5e-5"),
            THREE,
            r"none of its 3 trials fits the space; learning_rate is outside the space in 2",
        ),
        (RATE, THREE[2:], r"none of its 1 trials fits the space"),
        (
            "weight_decay: {type: float, low: 0.1, high: 0.2}\n",
            THREE,
            r".*; weight_decay is outside the space in 2",
        ),
    ],
)
def test_nothing_that_fits_is_an_error(
    tmp_path: Path, text: str, trials: list[dict[str, Any]], expected: str
) -> None:
    storage = finished(tmp_path, trials=trials)
    with pytest.raises(ExperimentError, match=f"^--warm-start other: {expected}$"):
        warm_start(storage, [space_of(tmp_path, text)], ours())


@pytest.mark.parametrize(
    ("here", "used"),
    [
        ("train_batch_size: {type: choice, values: [8, 16]}", ["001"]),
        ("train_batch_size: {type: int, low: 2, high: 16}", ["001", "002"]),
        ("train_batch_size: {type: int, low: 2, high: 16, step: 6}", ["001"]),
        ("learning_rate: {type: choice, values: [1e-5, 1e-3]}", ["001"]),
        ("learning_rate: {type: float, low: 1e-5, high: 1e-2}", ["001", "002"]),
        ("learning_rate: {type: float, low: 1e-5, high: 1e-2, step: 3.3e-4}", ["001"]),
    ],
)
def test_where_the_kind_of_a_range_has_changed_what_lies_in_the_new_one_is_used(
    tmp_path: Path, here: str, used: list[str]
) -> None:
    """Optuna's own study would refuse each of these."""
    space = space_of(tmp_path, f"{here}\nsearcher: {{startup_trials: 1}}\n")
    found = warm_start(finished(tmp_path), [space], ours())
    (name,) = space.parameters
    assert [earlier.params for earlier in found.trials] == [
        {name: trial["config"][name]} for trial in THREE if trial["name"] in used
    ]
    searcher = Searcher(space, seed=0, records=Records(), earlier=found.trials)
    assert all(searcher.suggest(str(number)) for number in range(2))


def test_mistakes_on_the_command_line_are_one_line(tmp_path: Path, refused: Callable[..., str]) -> None:
    storage = finished(tmp_path)
    (tmp_path / "experiments" / "other" / "events.jsonl").unlink()
    for name, expected in (("othre", "there is other"), ("other", "has no events.jsonl")):
        words = ["--space", "lr_batch", "--dry-run", "--storage", storage.address, "--warm-start", name]
        assert expected in refused(*words)


def test_a_dry_run_tells_what_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The trials after the first, whose settings are the usual ones, depend on the base model's WER."""
    storage = finished(tmp_path)
    words = ["--space", "lr_batch", "--dry-run", "--storage", storage.address, "--warm-start", "other"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "note: warm start: 2 of the 3 trials of other are used" in printed
    assert "  001 lr=" in printed
    assert "  002 lr=" not in printed


def test_of_several_ranges_a_trial_fits_one_until_the_rates_are_known(tmp_path: Path) -> None:
    """The trials had 1e-3 and 1e-4; which range it is shows once the base model is measured."""
    narrow, wide = (
        space_of(tmp_path, f"learning_rate: {{type: float, low: {low}, high: {high}, log: true}}\n")
        for low, high in (("2e-5", "5e-4"), ("5e-4", "5e-3"))
    )
    found = warm_start(finished(tmp_path), [narrow, wide], ours())
    assert len(found.trials) == 2
    left = found.within(wide)
    assert [earlier.params for earlier in left.trials] == [{"learning_rate": 1e-3}]
    assert left.notes[-1] == "warm start: 1 are left out, their learning_rate is outside the space"


def test_several_are_kept_in_the_log(tmp_path: Path) -> None:
    found = warm_start(finished(tmp_path), [space_of(tmp_path, RATE + BATCH)], ours())
    (tmp_path / "b").mkdir()
    other = warm_start(finished(tmp_path / "b"), [space_of(tmp_path, RATE)], ours(language="de"))
    made = MadeLog(tmp_path / "made", warm_starts=[found, other])
    made.session()
    made.close()
    assert Experiment.read(made.experiment).settings.warm_starts == [found, other]
