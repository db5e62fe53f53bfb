"""Records of the trials, and the time that is left."""

from __future__ import annotations

import math

import pytest

from tune.runs.search_display import most_telling, time_left
from tune.search.finalists import choose_finalists
from tune.search.records import Records, Stop, TrialRecord, trial_order


def evaluation(samples: int, wer: float) -> dict[str, float]:
    return {"samples_seen": samples, "wer": wer, "cer": wer / 2, "epoch": samples / 100}


def test_a_diverged_trial_stays_diverged_and_keeps_its_best() -> None:
    records = Records()
    trial = records.start("001", {})
    trial.add_evaluation(evaluation(100, 30.0))
    trial.add_evaluation(evaluation(150, math.nan), Stop("diverged", 150))
    assert trial.outcome == "diverged"
    trial.end("diverged")
    assert (trial.status, trial.outcome) == ("diverged", "diverged")
    assert trial.best_value == 30.0
    assert trial.evaluations == [(100, 30.0)]


def test_the_best_checkpoint_and_the_last_are_kept() -> None:
    record = TrialRecord("001", {})
    kept = []
    for name, wer in zip("abcde", (40.0, 30.0, 35.0, 33.0, 20.0), strict=True):
        seen = 100 * (len(kept) + 1)
        record.add_evaluation(evaluation(seen, wer), keep="all")
        record.add_saved(seen, 1.0, name, "all")
        kept.append("".join(record.checkpoints))
    assert kept == ["a", "ba", "cb", "db", "ed"], "the last first, then the best, or the one before"
    record.add_saved(500, 1.0, "e", "all")
    assert record.checkpoints == ["e", "d"], "written once more after a failure"
    record.end("completed")
    assert (record.checkpoint, record.checkpoints) == ("e", ["e"])


def test_a_best_checkpoint_of_weights_alone_is_nothing_to_go_on_from() -> None:
    record = TrialRecord("001-r1", {})
    resumable = []
    saves = [("a", 40.0, "weights"), ("b", 30.0, "all"), ("c", 20.0, "weights"), ("d", 25.0, "all")]
    for rung, (name, wer, keep) in enumerate(saves, 1):
        record.add_evaluation(evaluation(100 * rung, wer), keep=keep)  # type: ignore[arg-type]
        record.add_saved(100 * rung, 1.0, name, keep)  # type: ignore[arg-type]
        resumable.append("".join(record.resumable))
    assert resumable == ["", "b", "b", "db"], "with a second choice, as the best one is none"
    assert record.checkpoint == "c"


def test_an_evaluation_counts_once_it_is_saved_and_what_was_decided_on_it_is_decided_once() -> None:
    record = TrialRecord("001", {})
    record.add_evaluation(evaluation(100, 40.0), keep="all")
    assert (record.best_value, record.checkpoints, record.has_weights) == (None, [], False)
    record.add_saved(100, 1.0, "a", "all")
    stop = Stop("asha", 300, 30.0, 20.0, 3)
    record.add_evaluation(evaluation(300, 30.0), stop, keep="weights")
    assert (record.best_value, record.checkpoint, record.outcome) == (40.0, "a", "early_stopped")
    record.lose_unsaved()
    assert (record.outcome, record.checkpoints, record.stop_again) == ("running", ["a"], stop)
    record.add_evaluation(evaluation(300, 30.0), record.stop_again, keep="errors")
    record.add_saved(300, 1.0, "b", "errors")
    assert (record.best_value, record.checkpoint, record.has_weights) == (30.0, "b", False)


def test_late_progress_does_not_turn_back() -> None:
    trial = Records().start("001", {})
    trial.add_evaluation(evaluation(300, 30.0))
    trial.add_progress({"samples_seen": 200, "epoch": 2.0, "loss": 1.0})
    assert (trial.samples_now, trial.epoch_now) == (300, 3.0)
    trial.add_progress({"samples_seen": 400, "epoch": 4.0, "loss": 0.5})
    assert (trial.samples_now, trial.epoch_now, trial.progress["loss"]) == (400, 4.0, 0.5)
    assert (trial.samples_seen, trial.epoch) == (300, 3.0), "only the log says what was measured"


def test_trials_from_1000_on_come_after_those_before() -> None:
    records = Records()
    for number in (1001, 998, 1000, 999):
        records.start(f"{number:03d}", {}).end("completed")
    assert [trial.trial_id for trial in records.all()] == ["998", "999", "1000", "1001"]
    shown = most_telling(records.all(), records["998"], 3)
    assert [trial.trial_id for trial in shown] == ["998", "1000", "1001"], (
        "the best, and those that ended last"
    )
    for trial in records.all():
        trial.best_value = 9.0
    assert [trial.trial_id for trial in choose_finalists(records, 2)] == ["998", "999"]
    repeats = ["002-r1", "999-r10", "999", "999-r2", "001"]
    assert sorted(repeats, key=trial_order) == ["001", "002-r1", "999", "999-r2", "999-r10"]


def test_time_left() -> None:
    records = Records()
    assert time_left(records, 4, 900, 10.0) is None
    running = records.start("001", {})
    running.add_evaluation(evaluation(300, 30.0))
    # 300 samples in 10 s; 600 to go here and three trials of 900 to come
    assert time_left(records, 4, 900, 10.0) == pytest.approx((600 + 3 * 900) / 30)
    stopped = records.start("002", {})
    stopped.add_evaluation(evaluation(100, 60.0))
    stopped.end("early_stopped")
    # the two to come are now taken to be as long as the one that ended
    assert time_left(records, 4, 900, 10.0) == pytest.approx((600 + 2 * 100) / 40)
