"""Greedy soups: which runs are averaged, and when an average is better than the best of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tune.search.finalists import ClipErrors
from tune.search.records import role_of, trial_of, trial_order
from tune.search.soup import Candidate, Soup, SoupVerdict, describe_soup, greedy_soup, judge_soup
from tune.util.plain import restored

RUNS = {"001-r2": 8.0, "001-r1": 9.0, "002-r1": 8.5}


def cooked(runs: Mapping[str, float], measure: Callable[[frozenset[str]], float | None]) -> tuple[Soup, int]:
    """The soup in the end, and how many averages were measured."""
    averages: dict[frozenset[str], float | None] = {}
    while (soup := greedy_soup(runs, averages)).next is not None:
        assert soup.left == len(runs) - 1 - len(averages), "each run is tried once"
        averages[frozenset(soup.next)] = measure(frozenset(soup.next))
    assert greedy_soup(runs, averages) == soup
    return soup, len(averages)


def test_each_run_is_added_where_the_average_is_no_worse() -> None:
    wers = {
        frozenset({"001-r2", "001-r1"}): 8.1,
        frozenset({"001-r2", "002-r1"}): 7.5,
    }
    assert cooked(RUNS, wers.__getitem__) == (Soup(("001-r2", "002-r1"), 7.5, None, 0), 2)
    assert cooked(RUNS, lambda runs: 8.0)[0].members == tuple(RUNS), "as good is good enough"
    assert cooked(RUNS, lambda runs: 20.0)[0] == Soup(("001-r2",), 8.0, None, 0)


def test_an_average_that_could_not_be_measured_is_left_out() -> None:
    soup, measured = cooked(RUNS, lambda runs: None if "001-r1" in runs else 7.0)
    assert (soup.members, measured) == (("001-r2", "002-r1"), 2)


@given(
    wers=st.lists(st.floats(1, 50), min_size=1, max_size=6),
    averages=st.lists(st.none() | st.floats(1, 50), min_size=6, max_size=6),
)
def test_a_soup_is_never_worse_than_its_first_run_and_costs_an_average_a_run(
    wers: list[float], averages: list[float | None]
) -> None:
    runs = {f"001-r{number}": wer for number, wer in enumerate(wers, 1)}
    found = iter(averages)
    soup, measured = cooked(runs, lambda _: next(found))
    assert measured == len(runs) - 1
    assert soup.members[0] == "001-r1"
    assert soup.wer <= wers[0]


def candidate(name: str, errors: list[float]) -> Candidate:
    clips = ClipErrors(np.array(errors), np.full(len(errors), 10.0))
    return Candidate(name, clips.rate, clips)


def test_an_average_wins_only_beyond_the_noise_of_the_clips() -> None:
    run = candidate("001-r2", [3.0, 4.0] * 20)
    clear = judge_soup(candidate("001-a1", [2.0, 3.0] * 19 + [3.0, 4.0]), ["001-r2", "001-r1"], run)
    assert clear.better
    assert clear.gain == pytest.approx(9.5)
    noisy = judge_soup(candidate("001-a1", [3.0, 4.0] * 19 + [2.0, 4.0]), ["001-r2", "001-r1"], run)
    assert noisy.gain == pytest.approx(0.25)
    assert not noisy.better
    assert "noise" in noisy.describe()
    assert restored(SoupVerdict, json.loads(json.dumps(dataclasses.asdict(clear)))) == clear
    assert "001-a1, the average of 001-r2 and 001-r1, has 9.50 points less WER" in describe_soup(clear, "")


@pytest.mark.parametrize("known", [None, [3.0] * 3, [3.0] * 41])
def test_where_clips_cannot_be_compared_no_average_wins(known: list[float] | None) -> None:
    run = candidate("001-r2", [3.0, 4.0] * 20)
    average = Candidate("001-a1", 1.0, None) if known is None else candidate("001-a1", known)
    found = judge_soup(average, ["001-r2", "001-r1"], run)
    assert (found.interval, found.better) == (None, False)
    assert "how sure that is cannot be told" in found.describe()


def test_names() -> None:
    names = ["010", "002-a1", "002-r10", "002", "002-r2", "002-a2"]
    assert [role_of(name) for name in names] == ["trial", "average", "repeat", "trial", "repeat", "average"]
    assert {trial_of(name) for name in names[1:]} == {"002"}
    assert sorted(names, key=trial_order) == ["002", "002-r2", "002-r10", "002-a1", "002-a2", "010"]
    assert trial_of("big-run") == "big-run", "as a user might have named one"
