"""What training the best trials of a search again changes, by the number of finalists and of their repeats.

    python benchmarks/finalists.py [--seeds 200]

Simulated searches of 32 trials, one at a time, on real trainings (the case `grid` of `search_quality.py`). A search
sees the trainings of one seed, a repeat that of the other, two repeats both. The test WER is the mean of both
trainings of the winner's settings: test clips decide nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing

import numpy as np
import pandas as pd
from search_quality import CASES, quiet, trainings
from simulation import our_search
from tables import markdown

from tune.search.finalists import choose_finalists
from tune.search.records import Records

TRIALS = 32
COUNTS = ((1, 0), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2))
"""Finalists and repeats of each."""


def measure(seed: int) -> list[dict[str, float]]:
    """A row for each number of finalists and of repeats."""
    quiet()
    case, records, table = CASES["grid"](seed), Records(), trainings("voices", forest=False)
    scheduler = case.space.scheduler
    rungs = case.rungs(scheduler.reduction_factor, scheduler.rungs)
    options = {"seed": seed, "baseline": case.baseline, "records": records, "trials": TRIALS}
    our_search(case.space, case.curve, rungs, **options)
    seeds = [table.seeds[(seed + more) % 2] for more in (1, 0)]
    rows = []
    for finalists, repeats in COUNTS:
        found = [trial.config for trial in choose_finalists(records, finalists)]
        again = [[table.wer(config, case.budget, each) for each in seeds[:repeats]] for config in found]
        winner = found[int(np.argmin(np.mean(again, axis=1)))] if repeats else found[0]
        test = float(np.mean([table.test_wer(winner, case.budget, each) for each in seeds]))
        rows.append({"finalists": finalists, "repeats": repeats, "search": seed, "test": test})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    seeds = range(parser.parse_args().seeds)
    with concurrent.futures.ProcessPoolExecutor(None, multiprocessing.get_context("spawn")) as pool:
        rows = [row for found in pool.map(measure, seeds, chunksize=4) for row in found]
    tests = pd.DataFrame(rows).pivot(index="search", columns=["finalists", "repeats"], values="test")
    above = tests.sub(tests[1, 0], axis=0)
    shown = [
        {
            "finalists": finalists,
            "repeats": repeats,
            "test WER": f"{tests[finalists, repeats].mean():.2f}",
            "above none ± standard error": f"{above[finalists, repeats].mean():.2f} ± "
            f"{above[finalists, repeats].sem():.2f}",
        }
        for finalists, repeats in COUNTS
    ]
    print(markdown(shown))


if __name__ == "__main__":
    main()
