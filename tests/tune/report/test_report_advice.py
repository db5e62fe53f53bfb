"""The advice of a report: rules on an experiment where they must speak, and on one like it where they must not.

Rules about small and odd searches are tested on their pages (test_odd_searches).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_experiments import MadeTrial, made_trial, write_experiment

from tune.report.advice import settings
from tune.report.advice.rules import advise
from tune.report.analysis import Analysis, analyse
from tune.search.records import Stop

Trials = Sequence[MadeTrial]


def analysed(folder: Path, trials: Trials, **kinds: Any) -> Analysis:
    return analyse(write_experiment(folder, trials, **kinds), " --storage x")


def whole(number: int, last: float, **settings: Any) -> MadeTrial:
    """A trial with its whole budget, done at the end: its last rung brings little."""
    return made_trial(number, [last + 20, last + 0.4, last], **settings)


def ladder(count: int, step: float = 2.0, **settings: Any) -> list[MadeTrial]:
    """Whole trials, each worse than the one before by so many points."""
    return [whole(n, 10 + step * n, rate=1.1**n, **settings) for n in range(1, count + 1)]


def at_upper_bound(*, elsewhere: float) -> list[MadeTrial]:
    """The best three of ten at the upper bound, ten times the usual rate; the others at `elsewhere` and worse."""
    rates = [9.8, 8.5, 9.5, 0.2, 0.5, 1, 1.5, 2, 3, 4]
    wers = [10.0, 10.5, 10.8, *(elsewhere + n for n in range(7))]
    return [whole(n, wer, rate=rate) for n, (rate, wer) in enumerate(zip(rates, wers, strict=True), 1)]


def largest_batch(values: Sequence[int]) -> list[MadeTrial]:
    return [whole(n, 10 + 3 * n, batch=batch) for n, batch in enumerate(values, 1)]


def astray(limit: float, *, below: int = 0) -> list[MadeTrial]:
    """Trials at rising rates that diverge from a limit on, and so many below it."""
    rates = [0.2, 0.4, 0.8, 1.2, 2, 3, 5, 7, 8, 9.5]
    return [
        made_trial(n, [], rate=rate) if rate >= limit or n <= below else whole(n, 10 + n, rate=rate)
        for n, rate in enumerate(rates, 1)
    ]


FEW = [whole(n, 10 + n) for n in range(1, 4)]
CASES: dict[str, tuple[Callable[[Analysis], Any], Trials, dict[str, Any], Sequence[str]]] = {
    "upper bound": (
        *(settings.at_bounds, at_upper_bound(elsewhere=15), {}),
        [
            "All 3 best trials are at the upper bound 0.001 of `learning_rate` (0.00085 to 0.00098)",
            "`high: 0.003`",
        ],
    ),
    "upper bound by noise": (settings.at_bounds, at_upper_bound(elsewhere=11), {}, []),
    "largest batch": (
        *(settings.at_bounds, largest_batch([16, 16, 16, 4, 8, 4, 8, 4, 8]), {}),
        ["All 3 best trials have `train_batch_size` 16, the largest", "Add 32 to its values"],
    ),
    "diverges above": (
        *(settings.diverges_above, astray(3), {}),
        ["5 of 5 trials with `learning_rate` 0.0003 or more", "0 of 5 with a lower one", "`high: 0.0003`"],
    ),
    "the first diverged": (
        settings.all_diverged,
        [made_trial(1, []), made_trial(2, []), made_trial(3, [40])],
        {"asked": 20, "state": "running"},
        [],
    ),
    "diverges everywhere": (settings.diverges_above, astray(3, below=4), {}, []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule(case: str, tmp_path: Path) -> None:
    rule, trials, kinds, said = CASES[case]
    found = list(rule(analysed(tmp_path, trials, **kinds)))
    assert len(found) == (1 if said else 0), found
    for words in said:
        assert words in f"{found[0].seen} {found[0].follows}"


def test_a_search_that_runs_is_not_told_to_end(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, FEW, asked=20, state="running")
    told = " ".join(f"{advice.seen} {advice.follows}" for advice in advise(analysis))
    assert "winner" not in told


def test_a_stop_above_the_base_model_is_astray(tmp_path: Path) -> None:
    stop = Stop("above_baseline", 384, 150.0, 120.0)
    trials = [made_trial(n, [150], rate=n + 4, stop=stop) for n in range(1, 5)]
    (told,) = settings.diverges_above(analysed(tmp_path, [*trials, whole(5, 10)]))
    assert "4 of 4 trials" in told.seen
