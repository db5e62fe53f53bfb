"""`trainings.parquet` as learning curves for simulated searches: a training is looked up, not run.

    python benchmarks/curves/table.py

prints how well the WER at each rung tells the last one.
"""

from __future__ import annotations

import dataclasses
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
    RUNGS,
    TABLE,
    WARMUPS,
    Training,
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
    for method, grid in (("full", GRID), ("lora", LORA_GRID)) if lora else (("full", GRID),):
        when = (("method", (method,)),) if lora else ()
        for name, values in grid.items():
            centre = prior if name == "learning_rate" else None
            each = IntParameter(0, len(values) - 1, prior=centre, when=when)
            ranges[name] = (*ranges.get(name, ()), each)
    if lora:
        ranges["method"] = (ChoiceParameter(("full", "lora")),)
        first["method"] = "full"
    return SearchSpace(
        ranges=ranges,
        fixed={},
        try_first=[first],
        scheduler=SchedulerSettings(),
        searcher=SearcherSettings(startup_trials=5),
        path=Path("grid.yaml"),
        source_text="",
    )


class Trainings:
    """The trainings of one data set at the rungs of a search; settings are points of `grid_space`."""

    def __init__(self, data: str, *, averaged: bool = True) -> None:
        """Without `averaged` the WER before the end is that of the last weights, not of their mean."""
        rows = pd.read_parquet(TABLE).query("data == @data")
        self.data = data
        self.baseline = float(rows.wer[rows.samples_seen == 0].iloc[0])
        """WER of the base model on the validation clips, in percent."""
        tested = sorted(rows.samples_seen[rows.last_weights_wer.notna()].unique())
        assert len(tested) == len(RUNGS), tested
        self.rungs = tuple(map(int, tested))
        self.seeds = sorted(map(int, rows.seed.unique()))
        settings = [field.name for field in dataclasses.fields(Training)]
        self._rates = {
            (Training(**{name: row[name] for name in settings}), row["samples_seen"]): (
                row["wer" if averaged else "last_weights_wer"],
                row["test_wer"],
            )
            for row in rows[rows.samples_seen.isin(tested)].to_dict("records")
        }

    def rates(self, config: Mapping[str, Any], samples: int, seed: int) -> tuple[float, float]:
        """Validation and test WER in percent at a rung; not a number where the training had diverged."""
        method = config.get("method", "full")
        grid = GRID if method == "full" else LORA_GRID
        settings = {name: values[config[name]] for name, values in grid.items()}
        training = Training(self.data, **{"train_batch_size": 8, **settings}, method=method, seed=seed)
        return self._rates.get((training, samples), (math.nan, math.nan))

    def value(self, config: Mapping[str, Any], seed: int | None = None) -> float:
        """The lowest validation WER at a rung, of one seed or the mean of all; infinite where all had diverged."""
        if seed is None:
            return float(np.mean([self.value(config, each) for each in self.seeds]))
        rates = (self.rates(config, rung, seed)[0] for rung in self.rungs)
        return min((rate for rate in rates if math.isfinite(rate)), default=math.inf)

    def standard_error(self, points: list[dict[str, Any]]) -> float:
        """Of `value` over the seeds, pooled over the better half of the points."""
        better = sorted(points, key=self.value)[: len(points) // 2]
        values = np.array([[self.value(point, seed) for seed in self.seeds] for point in better])
        return float(np.sqrt(values.var(axis=1, ddof=1).mean() / len(self.seeds)))


MEASURED = {
    "WER of the last weights": "last_weights_wer",
    "WER of their mean": "wer",
    "loss of their mean": "loss",
}


def rank_correlations() -> pd.DataFrame:
    """Spearman's, of what is measured at a rung with the last WER, over whole trainings."""
    settings = [field.name for field in dataclasses.fields(Training)]
    rows = []
    for data, table in pd.read_parquet(TABLE).query("learning_rate > 0").groupby("data"):
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
                row["all"] = at.rank().corr(last.rank())
                rows.append(row | {"better half": at[better].rank().corr(last[better].rank())})
    return pd.DataFrame(rows).round(2)


if __name__ == "__main__":
    print(rank_correlations().to_string(index=False))
