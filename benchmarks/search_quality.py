"""How many samples a search needs to find good settings, and what its export has on the test clips.

    python benchmarks/search_quality.py [--first-seed 1000] [--seeds 40] [--methods ours] [--cases grid]

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
import pandas as pd
from curves.made_up import FAMILIES, FamilyName, LearningCurves, TrialFailure
from curves.table import Trainings, grid_space
from simulation import Curve, Finished, Simulation, our_search
from tables import markdown

from tune.search.records import Records
from tune.search.scheduler import rung_grid
from tune.search.searcher import EarlierTrial, Searcher, Source, WarmStart
from tune.space.conditions import key_of
from tune.space.parameters import ChoiceParameter, Parameter
from tune.space.space import SearchSpace, load_space

MADE_UP_BUDGET = 9216
"""Samples of a full trial: nine times 1024, a multiple of all effective batches."""
CAP = 16
"""Samples of a search, in full trials."""
MOST_TRIALS = 200
"""A search that is limited by samples begins no more: some samplers propose settings that fail at once, which cost no
samples, without end."""
SLOTS = (1, 4)
"""Trials at a time. With four, none of them can end before four full trials' worth of samples are spent."""
AFTER = (4, 8, 16)
"""Full trials' worth of samples after which the best settings so far are looked at."""
MADE_UP_NEAR, NEAR = 0.5, 2.0
"""WER points above the best that count as found; in the case `best` it is its standard error over two seeds."""
FAILING_SHARE = 0.1
TRIALS = {f"{data}{trials} trials": trials for data in ("", "demo, ") for trials in (8, 16, 32)}
"""Cases whose searches begin so many trials, and have `CAP` too."""
PRIORS = {"good": 5.5, "wrong": 1.5, "lowest": 0.0}
"""Centre of a prior on the learning rate's index, which is 5 to 7 in all settings near the best: among them, 10 times
below their middle, and 22 times."""
EARLIER = 10
"""Trials that a search with a warm start begins with."""
WARM_STARTS = ("warm start", "warm start of the same data")
"""From the demo's voices, and from the same voices, the settings that have both seeds with the other one."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What is searched, and by what it is judged."""

    space: SearchSpace
    budget: int
    """Samples of a full trial."""
    baseline: float
    curve: Curve
    value: Callable[[Mapping[str, Any]], float]
    """WER of settings without noise, or the mean over two seeds."""
    best: float
    """The lowest of them."""
    near: float
    """WER points above it that count as found."""
    test: Callable[[Mapping[str, Any], int], float] | None = None
    """Test WER of settings at a number of samples."""
    trials: int = MOST_TRIALS
    """Most that a search begins."""
    earlier: list[EarlierTrial] = dataclasses.field(default_factory=list)
    """Of an earlier search, on this one's scales."""

    def rungs(self, factor: float = 3, rungs: int = 3) -> tuple[int, ...]:
        """Samples at which trials are measured: as other methods have them at 1/9, 1/3 and the end."""
        return rung_grid(self.budget, factor, rungs, 32, least=64)


Outcome = tuple[list[Finished], float]
"""Of a search: the trials that came to the full budget, and samples that all have seen in the end."""


trainings = functools.cache(Trainings)


@functools.cache
def best_of_grid(table: Trainings, lora: bool) -> float:
    return min(map(table.value, grid_space(lora=lora).all_points()))


def table_case(name: str, seed: int) -> Case:
    """Real trainings: `grid`, `lora` (a branch more), `failing` (one in ten), a `forest` of them, or with a prior.

    `best` is `grid` with another `Case.near`, those of `TRIALS` are `grid` with another `Case.trials`, those of
    `WARM_STARTS` have `Case.earlier`, those of `demo` have other trainings. Searches with odd seeds see the trainings
    of the second seed; `demo` has one alone.
    """
    table = trainings("demo" if name.startswith("demo") else "voices", forest=name == "forest")
    lora = name == "lora"
    own = table.seeds[seed % len(table.seeds)]

    def curve(config: Mapping[str, Any], samples: int, trial_seed: int) -> Mapping[str, float]:
        if name == "failing" and random.Random(f"{seed} {sorted(config.items())}").random() < FAILING_SHARE:
            raise TrialFailure(1.0, "out of memory")
        return {"wer": table.wer(config, samples, own), "eval_loss": table.loss(config, samples, own)}

    return Case(
        space=grid_space(lora=lora, prior=PRIORS.get(name)),
        budget=table.budget,
        baseline=table.baseline,
        curve=curve,
        value=table.value,
        best=best_of_grid(table, lora),
        near=table.standard_error() if name == "best" else NEAR,
        test=lambda config, samples: table.test_wer(config, samples, own),
        trials=TRIALS.get(name, MOST_TRIALS),
        earlier=earlier_trials(name, table, seed) if name in WARM_STARTS else [],
    )


def earlier_trials(name: str, table: Trainings, seed: int) -> list[EarlierTrial]:
    """Random trainings, none of them stopped, on `table`'s scales."""
    same = name != "warm start"
    other = table if same else trainings("demo", forest=False)
    own = other.seeds[(seed + 1) % len(other.seeds)]
    trials = [
        EarlierTrial(point, other.evaluations(point, own), other.value(point, own), comparable=same)
        for point in random.Random(seed).sample([*grid_space().all_points()], EARLIER)
    ]
    start = WarmStart(trials, other.baseline, other.budget, [])
    return start.adapted(table.baseline, table.budget)


def made_up_case(name: FamilyName, seed: int) -> Case:
    """Curves of a family, in the packaged space `lr_batch`."""
    space = load_space("lr_batch").resolve(1e-5)
    curves = LearningCurves(name, seed, MADE_UP_BUDGET)
    return Case(
        space=space,
        budget=MADE_UP_BUDGET,
        baseline=curves.baseline,
        curve=curves,
        value=curves.final_wer,
        best=curves.best_wer,
        near=MADE_UP_NEAR,
    )


KNOWING = (*PRIORS, *WARM_STARTS)
"""Cases in which ours knows something before; other methods cannot be told."""
TABLE_CASES = ("grid", "demo", *TRIALS, "best", "lora", "failing", "forest", *KNOWING)
CASES: dict[str, Callable[[int], Case]] = {
    **{name: functools.partial(table_case, name) for name in TABLE_CASES},
    **{f"made-up {name}": functools.partial(made_up_case, name) for name in FAMILIES},
}


class Sampled(Source):
    """A sampler of Optuna's as it is, told what the records say."""

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        records: Records,
        sampler: Callable[..., optuna.samplers.BaseSampler],
    ) -> None:
        super().__init__(lambda: 1_000_000, records.start)
        self._space, self._seed, self._records, self._sampler = space, seed, records, sampler
        self._known = Searcher(space, seed=seed, records=records)

    def _next(self) -> tuple[str, dict[str, Any]]:
        number = len(self._records) + 1
        if number <= len(self._space.try_first):
            return f"{number:03d}", dict(self._space.try_first[number - 1])
        study = optuna.create_study(sampler=self._sampler(seed=1000 * self._seed + number))
        study.add_trials(self._known.trials())
        trial = study.ask()
        return f"{number:03d}", self._space.draw(lambda name, each: _suggested(trial, name, each))


def _suggested(trial: optuna.Trial, name: str, parameter: Any) -> Any:
    key = key_of(name, parameter)
    if isinstance(parameter, ChoiceParameter):
        return trial.suggest_categorical(key, parameter.values)
    suggest = trial.suggest_int if parameter.number is int else trial.suggest_float
    return suggest(key, parameter.low, parameter.high, log=parameter.log)


def ours(
    case: Case,
    seed: int,
    slots: int,
    *,
    scheduler: Mapping[str, Any] | None = None,
    searcher: Mapping[str, Any] | None = None,
    sampler: Callable[..., optuna.samplers.BaseSampler] | None = None,
    compare_losses: bool = True,
) -> Outcome:
    """This project's search, with other settings of its scheduler or searcher, or with a `sampler` of Optuna's.

    For `compare_losses` see `Judge`.
    """
    records = Records()
    space = dataclasses.replace(
        case.space,
        scheduler=dataclasses.replace(case.space.scheduler, **(scheduler or {})),
        searcher=dataclasses.replace(case.space.searcher, **(searcher or {})),
    )
    simulation = our_search(
        space,
        case.curve,
        case.rungs(space.scheduler.reduction_factor, space.scheduler.rungs),
        seed=seed,
        baseline=case.baseline,
        records=records,
        source=Sampled(space, seed, records, sampler) if sampler else None,
        earlier=case.earlier,
        compare_losses=compare_losses,
        slots=slots,
        trials=case.trials,
        samples=CAP * case.budget,
    )
    return simulation.finished, simulation.samples


def rays(case: Case, seed: int, slots: int, factor: float, rungs: int = 3) -> Outcome:
    """Ray Tune's OptunaSearch and ASHAScheduler."""
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    places = case.rungs(factor, rungs)
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
        max_t=case.budget,
        # Our rungs are rounded, its own are not, and none of them may lie behind ours.
        grace_period=min(place / factor**index for index, place in enumerate(places[:-1])),
        reduction_factor=factor,
    )
    simulation = Simulation(searcher, scheduler, Records(), case.curve, places, seed)
    simulation.run(slots=slots, trials=case.trials, samples=CAP * case.budget)
    return simulation.finished, simulation.samples


def one_by_one(case: Case, seed: int, slots: int) -> Outcome:
    """Random search, nothing stopped; so many trials at a time make no difference in samples."""
    groups = ([point] for point in itertools.islice(_random_points(case, seed), case.trials))
    return _trained(case, seed, groups, keep=(1, 1, 1))


def halving(case: Case, seed: int, slots: int) -> Outcome:
    """Successive halving (arXiv:1502.07943): of nine random settings three reach the second rung, one the last."""
    points = _random_points(case, seed)
    groups = iter(lambda: list(itertools.islice(points, 9)), [])
    return _trained(case, seed, groups, (9, 3, 1))


def one_epoch(case: Case, seed: int, slots: int) -> Outcome:
    """All settings to the first rung, and the best three of them to the end (arXiv:2307.15422).

    How many settings is to be said before: here 9, and twice as many each time.
    """
    points = _random_points(case, seed)
    groups = (list(itertools.islice(points, 9 * 2**power)) for power in range(6))
    return _trained(case, seed, groups, (10**9, 3, 3))


def _random_points(case: Case, seed: int) -> Iterator[dict[str, Any]]:
    """The points to try first, then random ones, none twice."""
    tried: list[dict[str, Any]] = []
    source = random.Random(seed)

    def drawn(_: str, each: Parameter) -> Any:
        return each.drawn(source.random())

    finite = all(each.points() for own in case.space.ranges.values() for each in own)
    for point in itertools.chain(case.space.try_first, iter(lambda: case.space.draw(drawn), None)):
        if point not in tried:
            tried.append(point)
            yield point
        elif finite and len(tried) > 200:  # there may be no others
            return


def _trained(case: Case, seed: int, groups: Iterator[list[dict[str, Any]]], keep: tuple[int, ...]) -> Outcome:
    """Train group after group; `keep[i]` of a group go to rung `i`."""
    found: list[Finished] = []
    samples, budget = 0.0, case.budget
    for group in groups:
        alive = [(point, []) for point in group]
        before = 0
        for rung, kept in zip(case.rungs(), keep, strict=True):
            alive = sorted(alive, key=lambda item: item[1][-1:])[:kept]
            for point, wers in alive:
                samples += rung - before
                if samples > CAP * budget:
                    return found, samples - rung + before
                try:
                    wer = case.curve(point, rung, seed)["wer"]
                except TrialFailure:
                    wer = math.nan
                wers.append(wer if math.isfinite(wer) else math.inf)
                if rung == budget and min(wers) < math.inf:
                    low = min(wers)
                    found.append(Finished(samples, point, low, case.rungs()[wers.index(low)]))
            before = rung
    return found, samples


RAYS = {
    f"Ray's OptunaSearch and ASHA, {rungs} rungs, factor {factor:g}": functools.partial(
        rays, factor=factor, rungs=rungs
    )
    for factor, rungs in ((2, 4), (2.5, 3), (3, 3), (4, 2))  # 4 is its default; the table begins at a ninth
}
METHODS: dict[str, Callable[[Case, int, int], Outcome]] = {
    "ours": ours,
    **{
        f"ours, {rungs} rungs, factor {factor:g}": functools.partial(
            ours, scheduler={"rungs": rungs, "reduction_factor": factor}
        )
        for rungs, factor in ((2, 4.0), (3, 2.0), (3, 2.5), (3, 3.0))
    },
    **{
        f"ours, {rungs} rungs, factor {factor:g}, which compare WERs alone": functools.partial(
            ours, scheduler={"rungs": rungs, "reduction_factor": factor}, compare_losses=False
        )
        for rungs, factor in ((3, 2.5), (4, 2.0))
    },
    "ours, 2 startup trials": functools.partial(ours, searcher={"startup_trials": 2}),
    "ours, 5 startup trials": functools.partial(ours, searcher={"startup_trials": 5}),
    "ours, rungs decide from 3 trials on": functools.partial(ours, scheduler={"min_trials_per_rung": 3}),
    **RAYS,
    "Optuna's TPESampler": functools.partial(ours, sampler=optuna.samplers.TPESampler),
    "Optuna's GPSampler": functools.partial(
        ours, sampler=functools.partial(optuna.samplers.GPSampler, deterministic_objective=False)
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
    samples: float
    """That all trials have seen in the end, in full trials."""


def measure(what: tuple[str, str, int, int]) -> Search:
    """One search: case, method, trials at a time, seed."""
    name, method, slots, seed = what
    quiet()
    case = CASES[name](seed)
    lows: list[Finished] = []
    finished, samples = METHODS[method](case, seed, slots)
    for found in finished:
        if not lows or found.wer < lows[-1].wer:
            lows.append(found)
    budget = case.budget
    near = [low.samples / budget for low in lows if case.value(low.config) <= case.best + case.near]
    above = []
    for after in AFTER:
        until = [low for low in lows if low.samples <= after * budget]
        above.append(case.value(until[-1].config) - case.best if until else math.nan)
    test = case.test(lows[-1].config, lows[-1].measured_at) if case.test and lows else None
    return Search(
        name, method, slots, seed, near[0] if near else CAP, bool(near), above, test, samples / budget
    )


def quiet() -> None:
    """Ray's searcher warns of every NaN that Optuna refuses, and Optuna logs each trial."""
    logging.getLogger("ray.tune.search.optuna.optuna_search").setLevel(logging.ERROR)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def table(searches: list[Search]) -> str:
    """Markdown: a row for each case, number of trials at a time and method."""
    rows = []
    every = pd.DataFrame(searches)
    for (case, slots), group in every.groupby(["case", "slots"], sort=False):
        peers = every[(every.case == "grid") & (every.slots == slots)] if case in KNOWING else group
        own = peers.needed[peers.method == "ours"].to_numpy()
        for method, found in group.groupby("method", sort=False):
            compared = len(own) and (method != "ours" or case in KNOWING)
            low, middle, high = np.percentile(found.needed, [25, 50, 75])
            above = zip(AFTER, pd.DataFrame(found.above.tolist()).mean(), strict=True)  # without NaN
            tests = found.test.dropna().astype(float)
            rows.append(
                {
                    "case": case,
                    "at a time": slots,
                    "method": method,
                    "samples until near": f"{middle:.1f} ({low:.1f} to {high:.1f})",
                    "never": sum(~found.reached),
                    "ratio": ratio_to(found.needed.to_numpy(), own) if compared else "",
                    **{
                        f"above after {after}": "" if math.isnan(value) else f"{value:.2f}"
                        for after, value in above
                    },
                    "test WER": f"{tests.mean():.2f} ± {tests.sem():.2f}" if len(tests) > 1 else "",
                    "samples": f"{found.samples.mean():.1f}",
                }
            )
    text = f"""\
Medians (quartiles) over seeds. Samples in full trials, {CAP} in a search; a search that never came near the
best counts as {CAP}. `ratio`: of the medians, the method's to ours, with its 95 % bootstrap interval over
the seeds; with a prior or a warm start to ours without. `above`: mean WER points above the best, of the best so far
after so many full trials.
`samples`: mean of what a search needed from begin to end.

"""
    return text + markdown(rows) + "\n"


def ratio_to(theirs: np.ndarray, ours: np.ndarray) -> str:
    """Of median samples with the 95 % bootstrap interval over the seeds, of which both have the same."""
    draws = np.random.default_rng(0).integers(0, len(ours), (2000, len(ours)))
    low, high = np.percentile(np.median(theirs[draws], axis=1) / np.median(ours[draws], axis=1), [2.5, 97.5])
    return f"{np.median(theirs) / np.median(ours):.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=40, help="searches of each kind (default: 40)")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--slots", nargs="+", type=int, default=SLOTS, help="trials at a time")
    parser.add_argument("--output", type=Path, help="file for one row of JSON a search")
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    wanted = [
        (case, method, slots, seed)
        for case, slots, method, seed in itertools.product(asked.cases, asked.slots, asked.methods, seeds)
        if not (method in RAYS and case == "lora")  # its space here has no branches
        and not (method in ("successive halving", "one epoch for all") and case in TRIALS)
        and not (case in KNOWING and not method.startswith("ours"))
    ]
    found: list[Search] = []
    with concurrent.futures.ProcessPoolExecutor(None, multiprocessing.get_context("spawn")) as pool:
        for number, search in enumerate(pool.map(measure, wanted, chunksize=4), 1):
            found.append(search)
            if number % asked.seeds == 0:
                what = f"{search.case}, {search.method}, {search.slots} at a time"
                print(f"{number}/{len(wanted)} {what}", flush=True)
    if asked.output:
        rows = "".join(json.dumps(dataclasses.asdict(search)) + "\n" for search in found)
        asked.output.write_text(rows, encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
