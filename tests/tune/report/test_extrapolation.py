"""What stopped trials would have come to, by curves whose ends are known."""

import math
from collections.abc import Callable, Mapping

import pytest

from tune.report.extrapolation import final_wers
from tune.search.records import Status, Trial


def one(number: int, curve: Mapping[int, float], status: Status = "early_stopped") -> Trial:
    """A trial with these WERs at these samples."""
    best = min(curve.values()) if status == "completed" else None
    return Trial(f"{number:03d}", {}, status=status, evaluations=list(curve.items()), best_value=best)


def falling(budget: int) -> Callable[[int], float]:
    """WER by samples: it falls to three quarters with each doubling."""
    return lambda samples: 10.7 * (budget / samples) ** math.log2(4 / 3)


def test_a_stopped_trial_is_extrapolated_over_rungs_of_another_grid() -> None:
    """No trial has passed two neighbouring ones of all rungs, as where the space or the budget changed."""
    wer = falling(900)
    curves = [{seen: wer(seen) for seen in grid} for grid in ((50, 250, 900), (100,), (100, 500))]
    trials = [one(1, curves[0], "completed"), one(2, curves[1]), one(3, curves[2])]
    assert list(final_wers(trials, lambda _: 900).values()) == pytest.approx([10.7] * 3)


def test_a_stopped_trial_is_extrapolated_to_its_own_end() -> None:
    """With `--max-steps` a smaller batch sees fewer samples; here curves of one shape over their budgets."""
    short, long = falling(300), falling(900)
    budgets = {"001": 900, "002": 300, "003": 900, "004": 300}
    trials = [
        one(1, {seen: long(seen) for seen in (100, 300, 900)}, "completed"),
        one(2, {100: short(100)}),
        one(3, {100: long(100)}),
        one(4, {100: short(100)}, "running"),
    ]
    found = final_wers(trials, lambda trial: budgets[trial.trial_id])
    assert list(found.values()) == pytest.approx([10.7] * 4)


def test_a_diverged_trial_counts_as_the_worst_and_one_without_an_evaluation_not_at_all() -> None:
    trials = [
        one(1, {300: 20.0, 900: 10.0}, "completed"),
        one(2, {300: 50.0}),
        one(3, {300: 80.0}, "diverged"),
        one(4, {}, "running"),
    ]
    assert final_wers(trials, lambda _: 900) == pytest.approx({"001": 10.0, "002": 25.0, "003": 25.0})
    best_lost = Trial("001", {}, status="completed", evaluations=[(300, 10.0), (900, 20.0)], best_value=20.0)
    assert final_wers([best_lost, trials[2]], lambda _: 900) == {"001": 20.0, "003": 20.0}
    assert final_wers([trials[2], trials[3]], lambda _: 900) == {}
    assert final_wers([one(1, {900: 0.0}, "completed")], lambda _: 900) == {"001": 0.0}
