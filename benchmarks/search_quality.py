"""How many samples a search needs to find good settings: ours, Ray Tune's own parts, and random search.

    python benchmarks/search_quality.py

writes search_quality.md beside this file, in some minutes on two cores.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import logging
import multiprocessing
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from curves.made_up import FAMILIES, FamilyName, LearningCurves, draw_curves
from simulation import Simulation, our_search

from tune.search.records import Records
from tune.search.scheduler import rung_grid
from tune.space.space import SearchSpace, load_space

FOLDER = Path(__file__).resolve().parent
BUDGET = 9216
"""Samples of a trial that is not stopped: nine times 1024, a multiple of all effective batches."""
CAP = 32
"""Samples of a search, in full trials."""
SLOTS = (1, 4)
"""Trials at a time. With four, none of them can end before four full trials' worth of samples are spent."""
FIRST_SEED = 200
"""The search's defaults were chosen on other seeds, all below."""
NEAR = 0.5
"""WER points above the family's best that count as found."""
METHODS = {
    "random": "random search, nothing stopped",
    "ray": "Ray Tune's OptunaSearch and ASHAScheduler",
    "ours": "tune-whisper",
}


class Run(NamedTuple):
    """One search."""

    needed: float
    """Full trials' worth of samples until a trial near the best had come to its end; `CAP` where none did."""
    near: bool
    """Whether one did."""
    final: float
    """WER points above the family's best, of the best trial when the samples were used up."""
    trials: int


Families = dict[FamilyName, dict[str, list[Run]]]
"""Searches by family and method."""


def search(method: str, space: SearchSpace, curves: LearningCurves, seed: int, slots: int) -> Simulation:
    """One search of `CAP` full trials' worth of samples; all methods begin with the space's first point."""
    from optuna.samplers import RandomSampler
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
    from ray.tune.search.optuna import OptunaSearch

    settings = space.scheduler
    rungs = rung_grid(BUDGET, settings.reduction_factor, settings.rungs, 64, least=128)
    limits: dict[str, Any] = {"slots": slots, "samples": CAP * BUDGET}
    if method == "ours":
        return our_search(space, curves, rungs, seed=seed, baseline=curves.baseline, **limits)
    options: dict[str, Any] = {
        "space": space.to_optuna(),
        "metric": "wer",
        "mode": "min",
        "points_to_evaluate": [dict(point) for point in space.try_first],
    }
    if method == "random":
        searcher = OptunaSearch(sampler=RandomSampler(seed), **options)
        simulation = Simulation(searcher, FIFOScheduler(), Records(), curves, (BUDGET,), seed)
    else:
        scheduler = ASHAScheduler(
            time_attr="samples_seen",
            metric="wer",
            mode="min",
            max_t=BUDGET,
            grace_period=rungs[0],
            reduction_factor=settings.reduction_factor,
        )
        # A seed of 0 is none to OptunaSearch's sampler.
        searcher = OptunaSearch(seed=seed + 1, **options)
        simulation = Simulation(searcher, scheduler, Records(), curves, rungs, seed)
    simulation.run(**limits)
    return simulation


def measure(case: tuple[FamilyName, str, int, int]) -> Run:
    """One search (family, method, trials at a time, seed), judged by the noise-free WER at the full budget of the
    trial that was best at the time.
    """
    name, method, slots, seed = case
    quiet()
    space = load_space("lr_batch").resolve(1e-5)
    curves = draw_curves(name, seed, BUDGET)
    simulation = search(method, space, curves, seed, slots)
    curve = [
        (found.samples / BUDGET, curves.final_wer(found.config) - curves.best_wer)
        for found in simulation.best()
    ]
    near = [samples for samples, above in curve if above <= NEAR]
    return Run(near[0] if near else CAP, bool(near), curve[-1][1], len(simulation.records.all()))


def quiet() -> None:
    """Ray's searcher warns of every NaN that Optuna refuses, and Optuna logs each trial."""
    logging.getLogger("ray.tune.search.optuna.optuna_search").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def table(runs: dict[int, Families], seeds: int) -> str:
    """The results in Markdown, by trials at a time, family and method."""
    lines = [
        f"Medians (quartiles) over {seeds} instances of each family, seeds from {FIRST_SEED}; samples in full trials,",
        f"{CAP} full trials' worth of samples in a search; WER points above the best of the family.",
        f"`to {NEAR}`: samples until a trial had come to its end whose noise-free WER is within {NEAR} of the best;",
        f"one that never came there counts as {CAP}. `ratio`: of the medians, to ours; over all families with its 95 %",
        "bootstrap interval over the seeds.",
        "",
        f"| at a time | family | method | to {NEAR} | never | ratio | WER above best in the end | its mean | trials |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for slots, families in runs.items():
        every = {method: [run for found in families.values() for run in found[method]] for method in METHODS}
        for name, methods in {**families, "all": every}.items():
            ours = np.median([run.needed for run in methods["ours"]])
            for method, found in methods.items():
                low, middle, high = np.percentile([run.needed for run in found], [25, 50, 75])
                low_end, end, high_end = np.percentile([run.final for run in found], [25, 50, 75])
                ratio = f"{middle / ours:.2f}"
                if name == "all" and method != "ours":
                    ratio += " ({:.2f} to {:.2f})".format(*ratio_interval(families, method))
                lines.append(
                    f"| {slots} | {name} | {METHODS[method]} | {middle:.1f} ({low:.1f} to {high:.1f}) "
                    f"| {sum(not run.near for run in found)} | {ratio} "
                    f"| {end:.2f} ({low_end:.2f} to {high_end:.2f}) | {np.mean([run.final for run in found]):.2f} "
                    f"| {np.median([run.trials for run in found]):.0f} |"
                )
    return "\n".join(lines) + "\n"


def ratio_interval(families: Families, method: str) -> list[float]:
    """Of the ratio of median samples, a method's over all families to ours: the 95 % bootstrap interval over seeds."""
    random = np.random.default_rng(0)
    needed = np.array(
        [[[run.needed for run in found[m]] for m in (method, "ours")] for found in families.values()]
    )
    ratios = []
    for _ in range(2000):
        drawn = [both[:, random.integers(0, both.shape[1], both.shape[1])] for both in needed]
        theirs, ours = np.median(np.concatenate(drawn, axis=1), axis=1)
        ratios.append(theirs / ours)
    return [float(value) for value in np.percentile(ratios, [2.5, 97.5])]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=40, help="instances of each family (default: 40)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where the results go")
    asked = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    runs: dict[int, Families] = {slots: {name: {} for name in FAMILIES} for slots in SLOTS}
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for slots, name, method in itertools.product(SLOTS, FAMILIES, METHODS):
            found = list(pool.map(measure, [(name, method, slots, seed) for seed in seeds]))
            runs[slots][name][method] = found
            print(slots, name, method, np.median([run.needed for run in found]), flush=True)
    (asked.output / "search_quality.md").write_text(table(runs, asked.seeds), encoding="utf-8")


if __name__ == "__main__":
    main()
