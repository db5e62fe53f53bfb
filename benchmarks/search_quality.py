"""How many samples a search needs to find good settings: ours, Ray Tune's own parts, and random search.

    python benchmarks/search_quality.py

writes search_quality.json, search_quality.md and search_quality.png beside this file, in some minutes on two cores.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import logging
import multiprocessing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from curves import FAMILIES, FamilyName, LearningCurves, draw_curves
from simulated_controller import Limits, Simulation
from simulation import simulate_ray, simulate_search

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


@dataclasses.dataclass(frozen=True)
class Run:
    """One search."""

    needed: float | None
    """Full trials' worth of samples until a trial near the best had come to its end; None where none did."""
    final: float
    """WER points above the family's best, of the best trial when the samples were used up."""
    trials: int
    curve: list[tuple[float, float]]
    """Samples in full trials, and WER points above the best from there on."""


def search(method: str, space: SearchSpace, curves: LearningCurves, seed: int, slots: int) -> Simulation:
    """One search of `CAP` full trials' worth of samples; all methods begin with the space's first point."""
    from optuna.samplers import RandomSampler
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
    from ray.tune.search.optuna import OptunaSearch

    settings = space.scheduler
    rungs = rung_grid(BUDGET, settings.reduction_factor, settings.rungs, 64, least=128)
    limits = Limits(samples=CAP * BUDGET)
    where: dict[str, Any] = {"seed": seed, "slots": slots}
    if method == "ours":
        return simulate_search(space, curves, rungs, limits, baseline=curves.baseline, **where)
    options: dict[str, Any] = {
        "space": space.to_optuna(),
        "metric": "wer",
        "mode": "min",
        "points_to_evaluate": [dict(point) for point in space.try_first],
    }
    if method == "random":
        searcher = OptunaSearch(sampler=RandomSampler(seed), **options)
        return simulate_ray(searcher, FIFOScheduler(), curves, (BUDGET,), limits, **where)
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
    return simulate_ray(searcher, scheduler, curves, rungs, limits, **where)


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
    needed = next((samples for samples, above in curve if above <= NEAR), None)
    return Run(needed, curve[-1][1], len(simulation.records.all()), curve)


def summarise(runs: list[Run]) -> dict[str, Any]:
    """Quartiles over the seeds; a search that found nothing near the best counts as all its samples."""
    needed = [CAP if run.needed is None else run.needed for run in runs]
    return {
        "needed": [round(float(value), 2) for value in np.percentile(needed, [25, 50, 75])],
        "never": sum(run.needed is None for run in runs),
        "final": [
            round(float(value), 3) for value in np.percentile([run.final for run in runs], [25, 50, 75])
        ],
        "final_mean": round(float(np.mean([run.final for run in runs])), 3),
        "trials": round(float(np.median([run.trials for run in runs]))),
    }


def quiet() -> None:
    """Ray's searcher warns of every NaN that Optuna refuses, and Optuna logs each trial."""
    logging.getLogger("ray.tune.search.optuna.optuna_search").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)


def table(results: dict[str, dict[str, dict[str, Any]]], seeds: int) -> str:
    """The results in Markdown, by trials at a time, family and method."""
    lines = [
        f"Medians (quartiles) over {seeds} instances of each family, seeds from {FIRST_SEED}; samples in full trials,",
        f"{CAP} full trials' worth of samples in a search; WER points above the best of the family.",
        f"`to {NEAR}`: samples until a trial had come to its end whose noise-free WER is within {NEAR} of the best;",
        f"one that never came there counts as {CAP}. `ratio`: of the medians, to ours.",
        "",
        f"| at a time | family | method | to {NEAR} | never | ratio | WER above best in the end | its mean | trials |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for slots, families in results.items():
        for name, methods in families.items():
            ours = methods["ours"]["needed"][1]
            for method, found in methods.items():
                low, middle, high = found["needed"]
                low_end, end, high_end = found["final"]
                lines.append(
                    f"| {slots} | {name} | {METHODS[method]} | {middle:.1f} ({low:.1f} to {high:.1f}) "
                    f"| {found['never']} | {middle / ours:.2f} | {end:.2f} ({low_end:.2f} to {high_end:.2f}) "
                    f"| {found['final_mean']:.2f} | {found['trials']} |"
                )
    return "\n".join(lines) + "\n"


def ratio_to_ours(families: dict[str, dict[str, list[Run]]], method: str) -> list[float]:
    """Median samples of a method over all families, divided by ours; with its 95 % bootstrap interval over seeds."""
    random = np.random.default_rng(0)
    needed = {
        name: np.array(
            [[CAP if run.needed is None else run.needed for run in found[m]] for m in (method, "ours")]
        )
        for name, found in families.items()
        if name != "all"
    }

    def ratio(picked: Callable[[int], np.ndarray]) -> float:
        both = np.concatenate([values[:, picked(values.shape[1])] for values in needed.values()], axis=1)
        theirs, ours = np.median(both, axis=1)
        return float(theirs / ours)

    drawn = [ratio(lambda count: random.integers(0, count, count)) for _ in range(2000)]
    return [round(value, 2) for value in (ratio(np.arange), *np.percentile(drawn, [2.5, 97.5]))]


def plot(runs: dict[int, dict[str, dict[str, list[Run]]]], path: Path) -> None:
    """Best WER against samples, median and quartiles: a row for each number at a time, a column for each family."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    grid = np.linspace(0, CAP, 257)
    columns = len(next(iter(runs.values())))
    figure, rows = plt.subplots(len(runs), columns, figsize=(4 * columns, 3.6 * len(runs)), sharey=True)
    for axes, (slots, families) in zip(rows, runs.items(), strict=True):
        for axis, (name, methods) in zip(axes, families.items(), strict=True):
            for method, found in methods.items():
                values = np.array([_on_grid(run.curve, grid) for run in found])
                low, middle, high = np.percentile(values, [25, 50, 75], axis=0, method="nearest")
                axis.plot(grid, middle, label=METHODS[method])
                axis.fill_between(grid, low, high, alpha=0.2)
            axis.axhline(NEAR, color="grey", linewidth=0.8, linestyle=":")
            axis.set_title(f"{name}, {slots} at a time")
            axis.set_xlabel("samples, in full trials")
            axis.set_yscale("log")
            axis.set_ylim(0.02, 20)
        axes[0].set_ylabel("WER points above the best")
    rows[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def _on_grid(curve: list[tuple[float, float]], grid: np.ndarray) -> list[float]:
    """The value at each place of the grid; before the first trial came to its end, a large one."""
    return [
        max(0.02, next((above for samples, above in reversed(curve) if samples <= place), 50.0))
        for place in grid
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=40, help="instances of each family (default: 40)")
    parser.add_argument("--output", type=Path, default=FOLDER, help="where the results go")
    arguments = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    runs: dict[int, dict[str, dict[str, list[Run]]]] = {}
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for slots in SLOTS:
            runs[slots] = {}
            for name in FAMILIES:
                runs[slots][name] = {}
                for method in METHODS:
                    cases = [(name, method, slots, seed) for seed in seeds]
                    runs[slots][name][method] = list(pool.map(measure, cases))
                    print(slots, name, method, summarise(runs[slots][name][method]), flush=True)
            runs[slots]["all"] = {
                method: [run for name in FAMILIES for run in runs[slots][name][method]] for method in METHODS
            }
    results = {
        str(slots): {
            name: {method: summarise(found) for method, found in methods.items()}
            for name, methods in families.items()
        }
        for slots, families in runs.items()
    }
    content = {
        "cap": CAP,
        "first_seed": FIRST_SEED,
        "seeds": arguments.seeds,
        "space": load_space("lr_batch").resolve(1e-5).to_dict(),
        "results": results,
        "ratio_to_ours": {
            str(slots): {method: ratio_to_ours(families, method) for method in METHODS if method != "ours"}
            for slots, families in runs.items()
        },
        "needed": {
            str(slots): {
                name: {method: [run.needed for run in found] for method, found in families[name].items()}
                for name in FAMILIES
            }
            for slots, families in runs.items()
        },
    }
    (arguments.output / "search_quality.json").write_text(
        json.dumps(content, indent=1) + "\n", encoding="utf-8"
    )
    (arguments.output / "search_quality.md").write_text(table(results, arguments.seeds), encoding="utf-8")
    plot(runs, arguments.output / "search_quality.png")


if __name__ == "__main__":
    main()
