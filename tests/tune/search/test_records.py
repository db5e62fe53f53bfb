"""Records of the trials: what a trial goes on from, and their order."""

from __future__ import annotations

from tune.runs.search_display import most_telling
from tune.search.finalists import choose_finalists
from tune.search.records import Records, Trial, trial_order


def test_a_best_checkpoint_of_weights_alone_is_nothing_to_go_on_from() -> None:
    record = Trial("001-r1", {})
    resumable = []
    saves = [("a", 40.0, "weights"), ("b", 30.0, "all"), ("c", 20.0, "weights"), ("d", 25.0, "all")]
    for rung, (name, wer, keep) in enumerate(saves, 1):
        record.add_evaluation({"samples_seen": 100 * rung, "wer": wer, "epoch": rung}, keep=keep)  # type: ignore[arg-type]
        record.add_saved(100 * rung, 1.0, name, keep)  # type: ignore[arg-type]
        resumable.append("".join(record.resumable))
    assert resumable == ["", "b", "b", "db"], "with a second choice, as the best one is none"
    assert record.checkpoint == "c"


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
