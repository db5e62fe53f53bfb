"""Made-up learning curves of Whisper trials, on which a search can be tried out within seconds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

FamilyName = Literal["smooth", "crossing", "noisy", "diverging", "failing"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)

_NOISE = 0.5
"""Standard deviation in WER points, as between runs of whisper-small on Common Voice that differ in the seed."""
_FAILING_SHARE = 0.1
_TOO_LARGE_BATCH = 16


class TrialFailure(Exception):  # noqa: N818  # what befell a trial, no mistake of the program
    """A simulated training broke down, as one without memory does."""

    def __init__(self, samples_seen: float, reason: str) -> None:
        super().__init__(reason)
        self.samples_seen = samples_seen
        """Where it broke down; not more than what was asked for."""


class LearningCurves:
    """WER of every configuration at every number of samples: one drawn instance of a family.

    WER falls from the baseline by a power law in samples to `final_wer`, which is a parabola in the logarithm of
    the learning rate (the optimum grows with the root of the batch), with smaller parts for warmup and batch.
    `crossing`: a high rate learns quickly and ends worse, so that the first rung partly misleads.
    `noisy`: every evaluation is off by a normal error of half a WER point.
    `diverging`: above some rate, a higher one with more warmup, WER becomes no number or rises above 100.
    `failing`: micro-batches of 16 have no memory, and one configuration in ten fails somewhere.
    """

    def __init__(self, name: FamilyName, seed: int, budget: int, default_learning_rate: float = 1e-5) -> None:
        """Where the optimum lies and how high the levels are is drawn with `seed`.

        Args:
            name: of the family.
            seed: of the instance.
            budget: samples of a trial that is not stopped.
            default_learning_rate: centre of the searched range; the optimum lies up to half a decade away.
        """
        self.name, self.seed = name, seed
        self.budget, self.default_learning_rate = budget, default_learning_rate
        random, crossing = _random(name, seed), name == "crossing"
        self.baseline = random.uniform(60, 70)
        """WER of the base model in percent."""
        self.floor = random.uniform(9, 25)
        """WER that perfect settings come to."""
        self.best_rate = random.uniform(-0.5, 0.2 if crossing else 0.5)
        """Decades above the default, at an effective batch of 16."""
        self.rate_cost = random.uniform(12, 25)
        """WER points a decade off, squared."""
        self.best_warmup = random.uniform(0.02, 0.25)
        self.best_batch = random.uniform(3, 5)
        """Logarithm to the base of 2."""
        self.batch_cost = random.uniform(0.2, 0.6)
        self.power = random.uniform(0.7, 1.2)
        self.quickness = random.uniform(0.6, 1.0) if crossing else 0.2
        """Decades by which a learning rate ten times as high shortens the beginning of the curve."""

    @property
    def best_wer(self) -> float:
        """The least `final_wer` of the settings in the packaged space `lr_batch`, from the definition."""
        micro = (4, 8) if self.name == "failing" else (4, 8, 16)
        batches = {math.log2(size * steps) for size in micro for steps in (1, 2, 4)}
        return self._saturated(min(self._batch_cost(batch) for batch in batches))

    def final_wer(self, config: Mapping[str, Any]) -> float:
        """WER at the full budget without noise; infinite where the configuration does not get there."""
        if self._failure(config) < math.inf or self._divergence(config) < math.inf:
            return math.inf
        return self._converged(config)

    def __call__(self, config: Mapping[str, Any], samples_seen: int, trial_seed: int) -> dict[str, float]:
        """`wer` in percent and `eval_loss` at `samples_seen`.

        Args:
            config: fields of `TrainConfig`; those that are not searched have the usual values.
            samples_seen: from 1 to the budget.
            trial_seed: of the noise.

        Raises:
            TrialFailure: the configuration fails before that.
        """
        failure = self._failure(config)
        if samples_seen >= failure:
            raise TrialFailure(failure, "out of memory" if failure <= 1 else "the process was lost")
        if samples_seen >= self._divergence(config):
            if self._random(config, "number").random() < 0.5:
                return {"wer": math.nan, "eval_loss": math.nan}
            return {"wer": 100 + 20 * self._random(config, "height").random(), "eval_loss": 8.0}
        # A power law from the baseline, which comes to the final WER at the budget.
        start = self.budget * 0.05 * 10 ** (-self.quickness * (self._rate(config) - self.best_rate))
        now, end = ((1 + samples / start) ** -self.power for samples in (samples_seen, self.budget))
        final, left = self._converged(config), float((now - end) / (1 - end))
        wer = final + (self.baseline - final) * left
        loss = 0.2 + 0.02 * wer
        if self.name == "noisy":
            wer += _NOISE * float(self._random(config, trial_seed, samples_seen).standard_normal())
        return {"wer": max(0.0, wer), "eval_loss": loss}

    def _converged(self, config: Mapping[str, Any]) -> float:
        batch = math.log2(
            int(config.get("train_batch_size", 8)) * int(config.get("gradient_accumulation_steps", 1))
        )
        # The best rate grows with the root of the batch.
        off = self._rate(config) - self.best_rate - 0.5 * math.log10(2) * (batch - 4)
        warmup = float(config.get("warmup_ratio", self.best_warmup)) - self.best_warmup
        return self._saturated(self.rate_cost * off**2 + 60 * warmup**2 + self._batch_cost(batch))

    def _saturated(self, cost: float) -> float:
        """The floor and what is added; settings that teach the model nothing leave it about where it was."""
        room = self.baseline - self.floor
        return self.floor + room * (1 - math.exp(-cost / room))

    def _batch_cost(self, batch: float) -> float:
        return self.batch_cost * (batch - self.best_batch) ** 2

    def _rate(self, config: Mapping[str, Any]) -> float:
        """Decades above the default."""
        rate = float(config.get("learning_rate") or self.default_learning_rate)
        return math.log10(rate / self.default_learning_rate)

    def _divergence(self, config: Mapping[str, Any]) -> float:
        """Samples after which the training goes astray; infinite where it does not."""
        excess = self._rate(config) - self.best_rate - 0.35 - float(config.get("warmup_ratio", 0.1))
        if self.name != "diverging" or excess <= 0:
            return math.inf
        return self.budget * min(1.0, 0.6 * math.exp(-5 * excess))

    def _failure(self, config: Mapping[str, Any]) -> float:
        """Samples after which the training breaks down; infinite where it does not."""
        if self.name != "failing":
            return math.inf
        if config.get("train_batch_size") == _TOO_LARGE_BATCH:
            return 1.0
        random = self._random(config, "failure")
        return self.budget * float(random.random()) if random.random() < _FAILING_SHARE else math.inf

    def _random(self, config: Mapping[str, Any], *what: object) -> np.random.Generator:
        return _random(self.name, self.seed, sorted(config.items()), *what)


def _random(*what: object) -> np.random.Generator:
    """Random numbers that depend on nothing but `what`, in every process the same."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
