"""`trainings.parquet` as learning curves for simulated searches: a training is looked up, not run.

    python benchmarks/curves/table.py

prints how well the WER at each rung tells the last one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (1, 2)]

from curves.trainings import (  # noqa: E402
    AUGMENTATIONS,
    BATCHES,
    LORA_RANKS,
    LORA_RATES,
    RATES,
    TABLE,
    WARMUPS,
    Training,
    grid,
)
from tune.space.parameters import ChoiceParameter, IntParameter, Parameter  # noqa: E402
from tune.space.settings import SchedulerSettings, SearcherSettings  # noqa: E402
from tune.space.space import SearchSpace  # noqa: E402

GRID: dict[str, tuple[Any, ...]] = {
    "learning_rate": RATES,
    "warmup_ratio": WARMUPS,
    "train_batch_size": BATCHES,
    "augmentation": tuple(AUGMENTATIONS),
}
LORA_GRID: dict[str, tuple[Any, ...]] = {"learning_rate": LORA_RATES, "lora_rank": LORA_RANKS}
USUAL = {"learning_rate": 4, "warmup_ratio": 0, "train_batch_size": 1, "augmentation": 0}
"""What searches begin with: a rate in the middle of the grid, a batch of 8, no augmentation."""


def grid_space(*, lora: bool = False, prior: float | None = None) -> SearchSpace:
    """The grid as a space of whole numbers, indices into `GRID`; with `lora` a branch of `LORA_GRID` besides.

    `prior` is the centre of one on the learning rate, an index too.
    """
    ranges: dict[str, tuple[Parameter, ...]] = {}
    first: dict[str, Any] = dict(USUAL)
    for method, values in (("full", GRID), ("lora", LORA_GRID)) if lora else (("full", GRID),):
        when = (("method", (method,)),) if lora else ()
        for name, own in values.items():
            centre = prior if name == "learning_rate" else None
            each = IntParameter(0, len(own) - 1, prior=centre, when=when)
            ranges[name] = (*ranges.get(name, ()), each)
    if lora:
        ranges["method"] = (ChoiceParameter(("full", "lora")),)
        first["method"] = "full"
    return SearchSpace(
        ranges=ranges,
        fixed={},
        try_first=[first],
        scheduler=SchedulerSettings(),
        searcher=SearcherSettings(),
        path=Path("grid.yaml"),
        source_text="",
    )


class Trainings:
    """The trainings of one data set as learning curves; settings are points of `grid_space`."""

    def __init__(self, data: str, *, forest: bool) -> None:
        """With `forest` what two random forests, which stand for two seeds, have learned of the trainings."""
        rows = pd.read_parquet(TABLE).query("data == @data")
        self.data = data
        self.baseline = float(rows.wer[rows.samples_seen == 0].iloc[0])
        """WER of the base model on the validation clips, in percent."""
        rows = rows[rows.samples_seen > 0].sort_values("samples_seen")
        settings = [field.name for field in dataclasses.fields(Training)]

        def curves(column: str, rows: pd.DataFrame) -> dict[Training, dict[int, float]]:
            each = rows.set_index("samples_seen").groupby(settings)[column]
            found = {Training(*key): own for key, own in each}
            if forest:
                found = _of_forests(found, data)
            return {training: curve.to_dict() for training, curve in found.items()}

        self._wers, self._losses = curves("wer", rows), curves("loss", rows)
        self._tests = curves("test_wer", rows[rows.test_wer.notna()])
        self.budget = int(rows.samples_seen.max())
        self.seeds = sorted({training.seed for training in self._wers})
        """The first has a training for each point of the grid; where another has none, the first's stands for it."""

    def wer(self, config: Mapping[str, Any], samples: int, seed: int) -> float:
        """Of the validation clips in percent; not a number where the training had diverged."""
        return _between(self._wers[self._training(config, seed)], samples)

    def loss(self, config: Mapping[str, Any], samples: int, seed: int) -> float:
        return _between(self._losses[self._training(config, seed)], samples)

    def test_wer(self, config: Mapping[str, Any], samples: int, seed: int) -> float:
        return _between(self._tests[self._training(config, seed)], samples)

    def evaluations(self, config: Mapping[str, Any], seed: int) -> list[tuple[int, float]]:
        """WERs by samples, in percent."""
        return [*self._wers[self._training(config, seed)].items()]

    def _training(self, config: Mapping[str, Any], seed: int) -> Training:
        method = config.get("method", "full")
        values = GRID if method == "full" else LORA_GRID
        settings = {name: own[config[name]] for name, own in values.items()}
        training = Training(self.data, **{"train_batch_size": 8, **settings}, method=method, seed=seed)
        return training if training in self._wers else dataclasses.replace(training, seed=0)

    def value(self, config: Mapping[str, Any], seed: int | None = None) -> float:
        """The lowest validation WER of one seed, or the mean of all; infinite where all had diverged."""
        if seed is None:
            return float(np.mean([self.value(config, each) for each in self.seeds]))
        wers = self._wers[self._training(config, seed)].values()
        return min(filter(math.isfinite, wers), default=math.inf)

    def standard_error(self) -> float:
        """Of `value` over the seeds, pooled over the settings of all weights that have trainings of all seeds."""
        points = grid_space().all_points()
        whole = [point for point in points if self._training(point, self.seeds[-1]).seed == self.seeds[-1]]
        values = np.array([[self.value(point, seed) for seed in self.seeds] for point in whole])
        return float(np.sqrt(values.var(axis=1, ddof=1).mean() / len(self.seeds)))


def _between(curve: dict[int, float], samples: int) -> float:
    """At samples between two evaluations: taken to change evenly with their logarithm; not a number after the last."""
    if samples in curve:
        return curve[samples]
    if samples > max(curve):
        return math.nan
    before, after = next(pair for pair in itertools.pairwise(curve) if pair[0] < samples < pair[1])
    share = math.log(samples / before) / math.log(after / before)
    return curve[before] + (curve[after] - curve[before]) * share


def _of_forests(curves: dict[Training, pd.Series], data: str) -> dict[Training, pd.Series]:
    """The same for all settings of the grid, as forests of 20 trees see them; one that diverged counts as 200 %."""
    from sklearn.ensemble import RandomForestRegressor

    def features(training: Training) -> list[float]:
        rate = math.log10(training.learning_rate / (5 if training.method == "lora" else 1))
        batch = BATCHES.index(training.train_batch_size)
        augmentation = list(AUGMENTATIONS).index(training.augmentation)
        return [rate, batch, training.warmup_ratio, augmentation, training.lora_rank]

    figures = pd.DataFrame(curves).sort_index()  # a column for each training
    # Rows that few have are left out: there a single one had diverged.
    figures = figures[figures.notna().mean(axis=1) > 0.5].fillna(200.0)
    found = {}
    for seed in (0, 1):
        forest = RandomForestRegressor(n_estimators=20, random_state=seed)
        forest.fit([features(each) for each in figures], figures.T.to_numpy())
        wanted = grid(data, seed)[1:]
        for training, row in zip(wanted, forest.predict([features(each) for each in wanted]), strict=True):
            found[training] = pd.Series(row, figures.index)
    return found


MEASURED = {
    "WER of the last weights": "last_weights_wer",
    "WER of their mean": "wer",
    "loss of their mean": "loss",
    "product of the two": "product",
}


def rank_correlations() -> pd.DataFrame:
    """Spearman's, of what is measured at a rung with the last WER, over whole trainings."""
    settings = [field.name for field in dataclasses.fields(Training)]
    rows = []
    every = pd.read_parquet(TABLE).query("learning_rate > 0").eval("product = wer * loss")
    for data, table in every.groupby("data"):
        measured = {
            what: table.pivot_table(index=settings, columns="samples_seen", values=column)
            for what, column in MEASURED.items()
        }
        last = measured["WER of their mean"].iloc[:, -1].dropna()
        better = last[last <= last.median()].index
        for what, figures in measured.items():
            for samples in measured["WER of the last weights"].columns[:-1]:
                at = figures.reindex(last.index, columns=measured["WER of their mean"].columns)[samples]
                row = {"data": data, "trainings": len(last), "measured": what, "samples": samples}
                row["all"] = at.corr(last, method="spearman")
                rows.append(row | {"better half": at[better].corr(last[better], method="spearman")})
    return pd.DataFrame(rows).round(2)


if __name__ == "__main__":
    print(rank_correlations().to_string(index=False))
