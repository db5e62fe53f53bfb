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
from tune.report.analysis import Analysis, analyse
from tune.search.records import Stop

Trials = Sequence[MadeTrial]


def analysed(folder: Path, trials: Trials, **kinds: Any) -> Analysis:
    return analyse(write_experiment(folder, trials, **kinds), " --storage x")


def whole(number: int, last: float, **settings: Any) -> MadeTrial:
    """A trial with its whole budget, done at the end: its last rung brings little."""
    return made_trial(number, [last + 20, last + 0.4, last], **settings)


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


@pytest.mark.parametrize(
    ("name", "space", "best", "others", "advised"),
    [
        (
            "adam_beta2",
            "{type: float, low: 0.99, high: 0.999}",
            0.9901,
            0.995,
            "Widen the range: `low: 0.9855`.",
        ),
        ("warmup_steps", "{type: int, low: 1000, high: 1010}", 1010, 1003, "Widen the range: `high: 1015`."),
        ("gradient_accumulation_steps", "{type: int, low: 1, high: 4}", 4, 2, "Widen the range: `high: 6`."),
        ("lora_rank", "{type: int, low: 4, high: 64, log: true}", 4, 16, "Widen the range: `low: 1`."),
        ("train_batch_size", "{type: choice, values: [16, 32, 64]}", 64, 32, "Add 128 to its values."),
    ],
)
def test_a_range_is_widened_beyond_its_end(
    name: str, space: str, best: float, others: float, advised: str, tmp_path: Path
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(f"{name}: {space}\n" + ("method: lora\n" if name == "lora_rank" else ""))
    wers = [10.0, 10.5, 10.8, *(15.0 + n for n in range(7))]
    trials = [whole(n, wer, config={name: best if n <= 3 else others}) for n, wer in enumerate(wers, 1)]
    (advice,) = settings.at_bounds(analysed(tmp_path, trials, space=str(file)))
    assert advice.follows == advised


def test_a_stop_above_the_base_model_is_astray(tmp_path: Path) -> None:
    stop = Stop("above_baseline", 384, 150.0, 120.0)
    trials = [made_trial(n, [150], rate=n + 4, stop=stop) for n in range(1, 5)]
    (told,) = settings.diverges_above(analysed(tmp_path, [*trials, whole(5, 10)]))
    assert "4 of 4 trials" in told.seen
