"""How often the interval of what more trials would gain holds in simulated searches.

    python benchmarks/more_trials.py [--seeds 200] [--cases grid] [--slots 1 4]

A gain counts as it is without noise: of real trainings by the mean of their seeds.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
from collections.abc import Sequence

import pandas as pd
from search_quality import CASES, SLOTS, quiet
from simulation import our_search
from tables import markdown

from tune.search.more_trials import MORE, more_trials
from tune.search.records import Records, Trial, rank

AFTER = (16, 24, 32)
"""Trials after which it is asked."""


def measure(what: tuple[str, int, int]) -> list[dict[str, object]]:
    """A row for each time that one search is asked."""
    name, slots, seed = what
    quiet()
    case, records = CASES[name](seed), Records()
    scheduler = case.space.scheduler
    our_search(
        case.space,
        case.curve,
        case.rungs(scheduler.reduction_factor, scheduler.rungs),
        seed=seed,
        baseline=case.baseline,
        records=records,
        trials=AFTER[-1] + MORE,
        slots=slots,
    )
    trials = records.all()

    def best(count: int) -> float:
        return case.value(min(completed(trials[:count]), key=rank).config)

    rows = []
    for count in AFTER:
        expected = more_trials(trials[:count])
        if expected is not None:
            gain = max(0.0, best(count) - best(count + MORE))
            rows.append(
                {
                    "case": name,
                    "slots": slots,
                    "after": count,
                    "held": gain <= expected.upper_end,
                    "gain": gain,
                    "expected": expected.gain,
                    "upper end": expected.upper_end,
                }
            )
    return rows


def completed(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.status == "completed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200, help="searches of each kind (default: 200)")
    parser.add_argument("--cases", nargs="+", default=["grid", "made-up crossing"], choices=CASES)
    parser.add_argument("--slots", nargs="+", type=int, default=SLOTS, help="trials at a time")
    asked = parser.parse_args()
    wanted = itertools.product(asked.cases, asked.slots, range(asked.seeds))
    with concurrent.futures.ProcessPoolExecutor(None, multiprocessing.get_context("spawn")) as pool:
        rows = pd.DataFrame(itertools.chain.from_iterable(pool.map(measure, wanted, chunksize=4)))
    found = rows.groupby(["case", "slots", "after"]).agg(
        asked=("held", "size"),
        held=("held", "mean"),
        gain=("gain", "mean"),
        expected=("expected", "mean"),
        upper_end=("upper end", "median"),
    )
    print(markdown(found.round(2).reset_index().to_dict("records")))


if __name__ == "__main__":
    main()
