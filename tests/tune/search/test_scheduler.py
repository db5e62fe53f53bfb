"""The grid of rungs."""

from __future__ import annotations

import pytest

from tune.search.scheduler import describe_rungs, rung_grid


@pytest.mark.parametrize(
    ("budget", "factor", "rungs", "expected"),
    [
        (900, 3, 3, (100, 300, 900)),
        (1000, 3, 3, (111, 333, 1000)),
        (1000, 10, 4, (1, 10, 100, 1000)),
        (3600, 2, 4, (450, 900, 1800, 3600)),
        (5, 3, 3, (1, 3, 5)),
        (1000, 2, 3, (250, 500, 1000)),
        (1, 3, 3, (1,)),
        (600, 3, 1, (600,)),
    ],
)
def test_rungs(budget: int, factor: float, rungs: int, expected: tuple[int, ...]) -> None:
    assert rung_grid(budget, factor, rungs) == expected


@pytest.mark.parametrize(
    ("budget", "multiple", "expected"),
    [
        (3200, 64, (384, 1088, 3200)),
        (640, 64, (64, 192, 640)),
        (240, 64, (27, 80, 240)),
        (640, 5040, (71, 213, 640)),
    ],
)
def test_rungs_on_whole_batches_where_they_are_large_enough(
    budget: int, multiple: int, expected: tuple[int, ...]
) -> None:
    assert rung_grid(budget, 3, 3, multiple) == expected


@pytest.mark.parametrize(
    ("budget", "multiple", "least", "expected"),
    [
        (3200, 64, 128, (384, 1088, 3200)),
        (640, 64, 128, (192, 640)),  # not at 64, where the largest batch has taken one step
        (400, 64, 128, (128, 400)),
        (3200, 256, 512, (512, 1024, 3200)),  # not at 356: there instead
        (240, 64, 128, (240,)),
        (300, 64, 128, (128, 300)),
        (96, 128, 256, (96,)),
    ],
)
def test_no_rung_before_the_largest_batch_has_taken_some_steps(
    budget: int, multiple: int, least: int, expected: tuple[int, ...]
) -> None:
    assert rung_grid(budget, 3, 3, multiple, least) == expected


def test_rungs_in_words() -> None:
    assert describe_rungs((384, 1088, 3200), 3) == "rungs at 384, 1,088, 3,200"
    assert describe_rungs((192, 640), 3).startswith(
        "rungs at 192, 640 (2 of 3: too few samples for more; none but"
    )
    assert describe_rungs((96,), 3).startswith("rungs at 96 (1 of 3: ")
