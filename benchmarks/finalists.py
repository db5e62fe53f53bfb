"""What training the best trials of a search again changes, by the number of finalists and of their repeats.

    python benchmarks/finalists.py [--seeds 200]

Simulated searches of the case `grid`, one trial at a time (`search_quality.py`). A search sees the trainings of one
seed, a repeat that of the other, two repeats both. The WER is the mean of both seeds' trainings of the winner's
settings, on the test clips, which decide nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing

import numpy as np
import pandas as pd
from search_quality import CASES, quiet, voices
from simulation import our_search
from tables import markdown

from tune.search.finalists import choose_finalists
from tune.search.records import Records

TRIALS = (8, 16, 32)
COUNTS = ((1, 0), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2))
"""Finalists and repeats of each."""


def measure(seed: int) -> list[dict[str, object]]:
    """A row for each number of trials, of finalists and of repeats."""
    quiet()
    case, records, table = CASES["grid"](seed), Records(), voices()
    scheduler = case.space.scheduler
    rungs = case.rungs(scheduler.reduction_factor, scheduler.rungs)
    both = [table.seeds[(seed + more) % 2] for more in (1, 0)]
    rows: list[dict[str, object]] = []
    for trials in TRIALS:
        left = trials - len(records)
        our_search(
            case.space, case.curve, rungs, seed=seed, baseline=case.baseline, records=records, trials=left
        )
        for finalists, repeats in COUNTS:
            found = [trial.config for trial in choose_finalists(records, finalists)]
            wers = [
                np.mean([table.wer(config, case.budget, each) for each in both[:repeats]]) if repeats else 0.0
                for config in found
            ]
            winner = found[int(np.argmin(wers))]
            test = float(np.mean([table.test_wer(winner, case.budget, each) for each in both]))
            row = {"trials": trials, "finalists": finalists, "repeats": repeats, "search": seed, "test": test}
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    seeds = range(parser.parse_args().seeds)
    with concurrent.futures.ProcessPoolExecutor(None, multiprocessing.get_context("spawn")) as pool:
        rows = [row for found in pool.map(measure, seeds, chunksize=4) for row in found]
    tests = pd.DataFrame(rows).pivot(
        index=["trials", "search"], columns=["finalists", "repeats"], values="test"
    )
    lower = tests.sub(tests[1, 0], axis=0)
    shown: list[dict[str, object]] = []
    for finalists, repeats in COUNTS:
        own = lower[finalists, repeats].groupby("trials").agg(["mean", "sem"])
        row: dict[str, object] = {"finalists": finalists, "repeats": repeats}
        for trials, (mean, error) in own.iterrows():
            whole = tests[finalists, repeats][trials].mean()
            row[f"{trials} trials"] = f"{whole:.2f}; {mean:.2f} ± {error:.2f}"
        shown.append(row)
    print("Test WER of the winner's settings, mean; difference from no repeats ± its standard error\n")
    print(markdown(shown))


if __name__ == "__main__":
    main()
