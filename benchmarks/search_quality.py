"""How many samples a search needs to find good settings, and what its export has on the test clips.

    python benchmarks/search_quality.py [--first-seed 1000] [--seeds 40] [--methods ours ray] [--cases grid crossing]

Searches real trainings, which are looked up in `curves/trainings.parquet`, and made-up learning curves: by this
project's searcher and scheduler, by Ray Tune's own, by Optuna's samplers under our scheduler, and by simpler methods.
Prints a table; `--output` names a file for one row of JSON a search.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import logging
import math
import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from curves.made_up import FAMILIES, FamilyName, TrialFailure, draw_curves
from curves.table import Trainings, grid_space
from curves.trainings import TABLE
from simulation import Curve, Finished, Simulation, our_search, search_with

from tune.search.records import Records
from tune.search.scheduler import rung_grid
from tune.search.searcher import Searcher, Source
from tune.space.conditions import key_of
from tune.space.parameters import ChoiceParameter
from tune.space.space import SearchSpace, load_space

MADE_UP_BUDGET = 9216
"""Samples of a full trial: nine times 1024, a multiple of all effective batches."""
CAP = 32
"""Samples of a search, in full trials."""
SLOTS = (1, 4, 16)
"""Trials at a time. With four, none of them can end before four full trials' worth of samples are spent."""
AFTER = (4, 8, 16, 32)
"""Full trials' worth of samples after which the best settings so far are looked at."""
MADE_UP_NEAR = 0.5
"""WER points above the best that count as found."""
FAILING_SHARE = 0.1
PRIORS = {"good": 5.5, "wrong": 0.0}
"""Centre of a prior on the learning rate's index: twice the usual rate, and a tenth of it."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What is searched, and by what it is judged."""

    space: SearchSpace
    rungs: tuple[int, ...]
    baseline: float
    curve: Curve
    value: Callable[[Mapping[str, Any]], float]
    """WER of settings without noise, or the mean over seeds."""
    best: float
    """The lowest of them."""
    near: float
    """WER points above it that count as found."""
    test: Callable[[Mapping[str, Any], int], float] | None = None
    """Test WER of settings at a number of samples."""


@functools.cache
def trainings(data: str) -> Trainings:
    return Trainings(data)


@functools.cache
def best_of_grid(data: str, lora: bool) -> tuple[float, float]:
    """The lowest value of the grid, and the standard error of a value."""
    points = list(grid_space(lora=lora).all_points())
    return min(map(trainings(data).value, points)), trainings(data).standard_error(points)


def table_case(name: str, seed: int) -> Case:
    """Real trainings: `grid`, `lora` (a branch besides), `failing` (one in ten), or with a prior."""
    table, lora = trainings("voices"), name == "lora"
    own = table.seeds[seed % len(table.seeds)]

    def curve(config: Mapping[str, Any], samples: int, trial_seed: int) -> Mapping[str, float]:
        if name == "failing" and random.Random(f"{seed} {sorted(config.items())}").random() < FAILING_SHARE:
            raise TrialFailure(1.0, "out of memory")
        wer = table.rates(config, samples, own)[0]
        return {"wer": wer, "eval_loss": wer / 20}

    best, near = best_of_grid("voices", lora)
    return Case(
        space=grid_space(lora=lora, prior=PRIORS.get(name)),
        rungs=table.rungs,
        baseline=table.baseline,
        curve=curve,
        value=table.value,
        best=best,
        near=near,
        test=lambda config, samples: table.rates(config, samples, own)[1],
    )


def made_up_case(name: FamilyName, seed: int) -> Case:
    """Curves of a family, in the packaged space `lr_batch`."""
    space = load_space("lr_batch").resolve(1e-5)
    curves = draw_curves(name, seed, MADE_UP_BUDGET)
    settings = space.scheduler
    return Case(
        space=space,
        rungs=rung_grid(MADE_UP_BUDGET, settings.reduction_factor, settings.rungs, 64, least=128),
        baseline=curves.baseline,
        curve=curves,
        value=curves.final_wer,
        best=curves.best_wer,
        near=MADE_UP_NEAR,
    )


TABLE_CASES = ("grid", "lora", "failing", *PRIORS)
CASES: dict[str, Callable[[int], Case]] = {
    **{name: functools.partial(table_case, name) for name in TABLE_CASES},
    **{f"made-up {name}": functools.partial(made_up_case, name) for name in FAMILIES},
}


def ours(case: Case, seed: int, slots: int, **changed: Any) -> list[Finished]:
    """This project's search; `changed` are settings of its scheduler or searcher."""
    rungs = case.rungs[-changed.pop("rungs", len(case.rungs)) :]
    space = dataclasses.replace(
        case.space,
        **{
            part: dataclasses.replace(
                getattr(case.space, part),
                **{
                    name: value for name, value in changed.items() if hasattr(getattr(case.space, part), name)
                },
            )
            for part in ("scheduler", "searcher")
        },
    )
    found = our_search(
        space, case.curve, rungs, seed=seed, baseline=case.baseline, slots=slots, samples=CAP * rungs[-1]
    )
    return found.finished


def rays(case: Case, seed: int, slots: int) -> list[Finished]:
    """Ray Tune's OptunaSearch and ASHAScheduler."""
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    searcher = OptunaSearch(
        space=case.space.to_optuna(),
        metric="wer",
        mode="min",
        points_to_evaluate=[dict(point) for point in case.space.try_first],
        seed=seed + 1,  # a seed of 0 is none to its sampler
    )
    scheduler = ASHAScheduler(
        time_attr="samples_seen",
        metric="wer",
        mode="min",
        max_t=case.rungs[-1],
        grace_period=case.rungs[0],
        reduction_factor=case.space.scheduler.reduction_factor,
    )
    simulation = Simulation(searcher, scheduler, Records(), case.curve, case.rungs, seed)
    simulation.run(slots=slots, samples=CAP * case.rungs[-1])
    return simulation.finished


class Sampled(Source):
    """A sampler of Optuna's as it is, told what the records say."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        records: Records,
        sampler: Callable[[int], optuna.samplers.BaseSampler],
    ) -> None:
        super().__init__(lambda: 1_000_000, records.start)
        self._space, self._seed, self._records, self._sampler = space, seed, records, sampler
        self._known = Searcher(space, seed=seed, records=records)

    def _next(self) -> tuple[str, dict[str, Any]]:
        number = len(self._records) + 1
        if number <= len(self._space.try_first):
            return f"{number:03d}", dict(self._space.try_first[number - 1])
        study = optuna.create_study(sampler=self._sampler(1000 * self._seed + number))
        study.add_trials(self._known.trials())
        trial = study.ask()
        return f"{number:03d}", self._space.draw(lambda name, each: _suggested(trial, name, each))


def _suggested(trial: optuna.Trial, name: str, parameter: Any) -> Any:
    key = key_of(name, parameter)
    if isinstance(parameter, ChoiceParameter):
        return trial.suggest_categorical(key, parameter.values)
    suggest = trial.suggest_int if parameter.number is int else trial.suggest_float
    return suggest(key, parameter.low, parameter.high, log=parameter.log)


def sampled(
    make: Callable[..., optuna.samplers.BaseSampler], case: Case, seed: int, slots: int, **options: Any
) -> list[Finished]:
    """A sampler of Optuna's under our scheduler."""
    records = Records()
    source = Sampled(case.space, seed, records, lambda own: make(seed=own, **options))
    simulation = search_with(source, case.space, case.curve, case.rungs, records, seed, case.baseline)
    simulation.run(slots=slots, samples=CAP * case.rungs[-1])
    return simulation.finished


def one_by_one(case: Case, seed: int, slots: int) -> list[Finished]:
    """Random search, nothing stopped; so many trials at a time make no difference in samples."""
    rounds = _random_points(case, seed)
    return _trained(case, seed, ([point] for point in rounds), keep=(1,) * len(case.rungs))


def halving(case: Case, seed: int, slots: int) -> list[Finished]:
    """Successive halving (arXiv:1502.07943): of nine random settings three reach the second rung, one the last."""
    points = _random_points(case, seed)
    factor = round(case.space.scheduler.reduction_factor)
    keep = tuple(factor**power for power in reversed(range(len(case.rungs))))
    groups = iter(lambda: list(itertools.islice(points, keep[0])), [])
    return _trained(case, seed, groups, keep)


def one_epoch(case: Case, seed: int, slots: int) -> list[Finished]:
    """All settings to the first rung, and the best three of them to the end (arXiv:2307.15422).

    How many settings is to be said before: here 9, and twice as many each time.
    """
    points = _random_points(case, seed)
    groups = (list(itertools.islice(points, 9 * 2**power)) for power in range(6))
    return _trained(case, seed, groups, (10**9, 3, 3))


def _random_points(case: Case, seed: int) -> Iterator[dict[str, Any]]:
    """The points to try first, then random ones, none twice."""
    tried = []
    source = random.Random(seed)
    for number in itertools.count():
        if number < len(case.space.try_first):
            point = dict(case.space.try_first[number])
        else:
            point = case.space.draw(
                lambda _, each: (
                    source.choice(each.values)
                    if isinstance(each, ChoiceParameter)
                    else each.drawn(source.random())
                )
            )
        if point in tried:
            if len(tried) > 200 and all(each.points() for own in case.space.ranges.values() for each in own):
                return
            continue
        tried.append(point)
        yield point


def _trained(
    case: Case, seed: int, groups: Iterator[list[dict[str, Any]]], keep: tuple[int, ...]
) -> list[Finished]:
    """Train group after group; `keep[i]` of a group go to rung `i`."""
    found: list[Finished] = []
    samples, budget = 0.0, case.rungs[-1]
    for group in groups:
        alive = [(point, []) for point in group]
        before = 0
        for rung, kept in zip(case.rungs, keep, strict=True):
            alive = sorted(alive, key=lambda item: item[1][-1:])[:kept]
            for point, wers in alive:
                samples += rung - before
                if samples > CAP * budget:
                    return found
                try:
                    wer = case.curve(point, rung, seed)["wer"]
                except TrialFailure:
                    wer = math.nan
                wers.append(wer if math.isfinite(wer) else math.inf)
                if rung == budget and min(wers) < math.inf:
                    low = min(wers)
                    found.append(Finished(samples, point, low, case.rungs[wers.index(low)]))
            before = rung
    return found


METHODS: dict[str, Callable[[Case, int, int], list[Finished]]] = {
    "ours": ours,
    "ours, TPE alone": functools.partial(ours, gp_trials=0),
    "ours, two rungs": functools.partial(ours, rungs=2),
    "ours, one rung": functools.partial(ours, rungs=1),
    "ours, factor 2": functools.partial(ours, reduction_factor=2.0),
    "ours, factor 4": functools.partial(ours, reduction_factor=4.0),
    "ours, rungs decide from 2 trials on": functools.partial(ours, min_trials_per_rung=2),
    "ours, rungs decide from 6 trials on": functools.partial(ours, min_trials_per_rung=6),
    "Ray's OptunaSearch and ASHA": rays,
    "Optuna's TPESampler": functools.partial(sampled, optuna.samplers.TPESampler),
    "Optuna's GPSampler": functools.partial(
        sampled, optuna.samplers.GPSampler, deterministic_objective=False
    ),
    "random search": one_by_one,
    "successive halving": halving,
    "one epoch for all": one_epoch,
}


@dataclasses.dataclass(frozen=True)
class Search:
    """What a search came to."""

    case: str
    method: str
    slots: int
    seed: int
    needed: float
    """Full trials' worth of samples until the best so far was near the best of all; `CAP` where it never was."""
    reached: bool
    above: list[float]
    """WER points of the best so far above the best of all, after `AFTER`; not a number where no trial had ended."""
    test: float | None
    """Test WER of what would be exported in the end."""


def measure(what: tuple[str, str, int, int]) -> Search:
    """One search: case, method, trials at a time, seed."""
    name, method, slots, seed = what
    quiet()
    case = CASES[name](seed)
    lows: list[Finished] = []
    for found in METHODS[method](case, seed, slots):
        if not lows or found.wer < lows[-1].wer:
            lows.append(found)
    budget = case.rungs[-1]
    near = [low.samples / budget for low in lows if case.value(low.config) <= case.best + case.near]
    above = []
    for after in AFTER:
        until = [low for low in lows if low.samples <= after * budget]
        above.append(case.value(until[-1].config) - case.best if until else math.nan)
    test = case.test(lows[-1].config, lows[-1].measured_at) if case.test and lows else None
    return Search(name, method, slots, seed, near[0] if near else CAP, bool(near), above, test)


def quiet() -> None:
    """Ray's searcher warns of every NaN that Optuna refuses, and Optuna logs each trial."""
    logging.getLogger("ray.tune.search.optuna.optuna_search").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def table(searches: list[Search]) -> str:
    """Markdown: a row for each case, number of trials at a time and method."""
    after = " | ".join(f"above after {after}" for after in AFTER)
    lines = [
        f"Medians (quartiles) over seeds. Samples in full trials, {CAP} in a search; a search that never came near the",
        f"best counts as {CAP}. `ratio`: of the medians, the method's to ours, with its 95 % bootstrap interval over",
        "the seeds. `above`: mean WER points above the best, of the best so far after so many full trials.",
        "",
        f"| case | at a time | method | samples until near | never | ratio | {after} | test WER |",
        "| --- |" + " --- |" * (6 + len(AFTER)),
    ]
    groups: dict[tuple[str, int], dict[str, list[Search]]] = {}
    for search in searches:
        groups.setdefault((search.case, search.slots), {}).setdefault(search.method, []).append(search)
    for (case, slots), methods in groups.items():
        own = methods.get("ours")
        for method, found in methods.items():
            low, middle, high = np.percentile([search.needed for search in found], [25, 50, 75])
            ratio = "" if own is None or found is own else ratio_to(found, own)
            above = " | ".join(
                f"{value:.2f}" for value in np.nanmean([search.above for search in found], axis=0)
            )
            tests = [search.test for search in found if search.test is not None]
            test = (
                f"{np.mean(tests):.2f} ± {np.std(tests, ddof=1) / math.sqrt(len(tests)):.2f}"
                if len(tests) > 1
                else ""
            )
            lines.append(
                f"| {case} | {slots} | {method} | {middle:.1f} ({low:.1f} to {high:.1f}) "
                f"| {sum(not search.reached for search in found)} | {ratio} | {above} | {test} |"
            )
    return "\n".join(lines) + "\n"


def ratio_to(found: list[Search], own: list[Search]) -> str:
    """Of median samples with the 95 % bootstrap interval over the seeds that both have."""
    both = {search.seed: search.needed for search in own}
    pairs = np.array([(search.needed, both[search.seed]) for search in found if search.seed in both])
    draws = np.random.default_rng(0).integers(0, len(pairs), (2000, len(pairs)))
    theirs, ours_ = np.median(pairs[draws], axis=1).T
    low, high = np.percentile(theirs / ours_, [2.5, 97.5])
    middle = np.median(pairs, axis=0)
    return f"{middle[0] / middle[1]:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=40, help="searches of each kind (default: 40)")
    known = [name for name in CASES if TABLE.is_file() or name.startswith("made-up")]
    parser.add_argument("--cases", nargs="+", default=known, choices=CASES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--slots", nargs="+", type=int, default=SLOTS, help="trials at a time")
    parser.add_argument("--output", type=Path, help="file for one row of JSON a search")
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    wanted = [
        (case, method, slots, seed)
        for case, slots, method, seed in itertools.product(asked.cases, asked.slots, asked.methods, seeds)
        if not (METHODS[method] is rays and case == "lora")  # its spaces have no branches
    ]
    found: list[Search] = []
    with concurrent.futures.ProcessPoolExecutor(None, multiprocessing.get_context("spawn")) as pool:
        for number, search in enumerate(pool.map(measure, wanted, chunksize=4), 1):
            found.append(search)
            if number % asked.seeds == 0:
                print(
                    f"{number}/{len(wanted)} {search.case}, {search.method}, {search.slots} at a time",
                    flush=True,
                )
    if asked.output:
        rows = "".join(json.dumps(dataclasses.asdict(search)) + "\n" for search in found)
        asked.output.write_text(rows, encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
