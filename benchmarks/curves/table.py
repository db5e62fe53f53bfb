"""`trainings.parquet` as learning curves for simulated searches: a training is looked up, not run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from curves.trainings import AUGMENTATIONS, BATCHES, LORA_RANKS, LORA_RATES, RATES, RUNGS, TABLE, WARMUPS
from tune.space.parameters import ChoiceParameter, IntParameter, Parameter
from tune.space.settings import SchedulerSettings, SearcherSettings
from tune.space.space import SearchSpace

GRID: dict[str, tuple[Any, ...]] = {
    "learning_rate": RATES,
    "warmup_ratio": WARMUPS,
    "train_batch_size": BATCHES,
    "augmentation": tuple(AUGMENTATIONS),
}
LORA_GRID: dict[str, tuple[Any, ...]] = {"learning_rate": LORA_RATES, "lora_rank": LORA_RANKS}
USUAL = {"learning_rate": 4, "warmup_ratio": 0, "train_batch_size": 1, "augmentation": 0}
"""What searches begin with: the rate next to the usual one, a batch of 8, no augmentation."""


def grid_space(*, lora: bool = False, prior: float | None = None) -> SearchSpace:
    """The grid as a space of whole numbers, indices into `GRID`; with `lora` a branch of `LORA_GRID` besides.

    `prior` is the centre of one on the learning rate, an index too.
    """

    def ranges(sizes: Mapping[str, tuple[Any, ...]], method: str) -> dict[str, Parameter]:
        when = (("method", (method,)),) if lora else ()
        return {
            name: IntParameter(
                0, len(values) - 1, prior=prior if name == "learning_rate" else None, when=when
            )
            for name, values in sizes.items()
        }

    space: dict[str, tuple[Parameter, ...]] = {name: (each,) for name, each in ranges(GRID, "full").items()}
    first = dict(USUAL)
    if lora:
        for name, each in ranges(LORA_GRID, "lora").items():
            space[name] = (*space.get(name, ()), each)
        space["method"] = (ChoiceParameter(("full", "lora")),)
        first["method"] = "full"
    return SearchSpace(
        ranges=space,
        fixed={},
        try_first=[first],
        scheduler=SchedulerSettings(),
        searcher=SearcherSettings(startup_trials=5),
        path=Path("grid.yaml"),
        source_text="",
    )


class Trainings:
    """The trainings of one data set at the rungs of a search; settings are points of `grid_space`."""

    def __init__(self, data: str, table: Path = TABLE) -> None:
        rows = pd.read_parquet(table)
        rows = rows[rows.data == data]
        before = rows[rows.samples_seen == 0]
        self.baseline = float(before.wer.iloc[0])
        """WER of the base model on the validation clips, in percent."""
        tested = sorted(rows.samples_seen[rows.test_wer.notna() & (rows.samples_seen > 0)].unique())
        assert len(tested) == len(RUNGS), tested
        self.rungs = tuple(map(int, tested))
        self.seeds = sorted(map(int, rows.seed.unique()))
        self._rates: dict[tuple[Any, ...], tuple[float, float]] = {
            (*_settings(row), row.seed, row.samples_seen): (row.wer, row.test_wer)
            for row in rows[rows.samples_seen.isin(tested)].itertuples()
        }

    def rates(self, config: Mapping[str, Any], samples: int, seed: int) -> tuple[float, float]:
        """Validation and test WER in percent at a rung; not a number where the training had diverged."""
        return self._rates.get((*_values(config), seed, samples), (math.nan, math.nan))

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


def _values(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings behind a point of the grid, in the order of `_settings`."""
    method = config.get("method", "full")
    lora = method == "lora"
    grid = {**GRID, **LORA_GRID} if lora else GRID
    found = {name: values[config[name]] for name, values in grid.items() if name in config}
    defaults = {"warmup_ratio": 0.1, "train_batch_size": 8, "augmentation": "none", "lora_rank": 0}
    return (method, *({**defaults, **found}[name] for name in _NAMES))


def _settings(row: Any) -> tuple[Any, ...]:
    return (row.method, *(getattr(row, name) for name in _NAMES))


_NAMES = ("learning_rate", "warmup_ratio", "train_batch_size", "augmentation", "lora_rank")
