"""How often 95 % intervals hold the truth, by the number of clips: those of `trainer.scoring.intervals`, and others.

Clips are made up, so that the true rate is known. The table goes to standard output:

    python benchmarks/interval_coverage.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit
from scipy.stats import norm

from trainer.scoring.intervals import difference_interval, rate_interval

Clips = tuple[np.ndarray, np.ndarray]
"""Errors (or differences of errors), and words of each clip: (clips,)."""
Draw = Callable[[np.random.Generator, int], Clips]
COUNTS = (5, 6, 10, 20, 50, 200)
_RESAMPLES = 1000


def rates_vary(mean: float, alike: float) -> Draw:
    """Clips of 1 to 20 words, each with a chance of its own that a word is wrong; of two words of one clip it makes the
    correlation `alike`.
    """

    def draw(generator: np.random.Generator, count: int) -> Clips:
        words = generator.poisson(9, count) + 1
        spread = 1.0 / alike - 1.0
        return generator.binomial(words, generator.beta(mean * spread, (1.0 - mean) * spread, count)), words

    return draw


def above_all(generator: np.random.Generator, count: int) -> Clips:
    """A hopeless model: nearly every word is wrong, and some are added."""
    errors, words = rates_vary(0.95, 0.1)(generator, count)
    return errors + generator.poisson(0.1 * words), words


def rare_loops(generator: np.random.Generator, count: int) -> Clips:
    """One clip in twenty is a hallucination of up to twice its words."""
    errors, words = rates_vary(0.08, 0.25)(generator, count)
    loops = np.round(words * generator.uniform(0.5, 2.0, count)).astype(int)
    return errors + (generator.random(count) < 0.05) * loops, words


def four_speakers(generator: np.random.Generator, count: int) -> Clips:
    """All clips are of four speakers, whose rates differ by their half."""
    words = generator.poisson(9, count) + 1
    rates = generator.gamma(4.0, 0.15 / 4.0, 4).clip(max=1.0)[generator.integers(4, size=count)]
    return generator.binomial(words, rates), words


def two_models(generator: np.random.Generator, count: int) -> Clips:
    """What one model has more of errors than another on the same clips."""
    words = generator.poisson(9, count) + 1
    first = generator.beta(0.5, 2.0, count)
    second = first * generator.choice([0.5, 0.8, 1.2], count)
    return generator.binomial(words, first) - generator.binomial(words, second.clip(max=1.0)), words


RATES: dict[str, Draw] = {
    "WER 3 %": rates_vary(0.03, 0.3),
    "WER 5 %": rates_vary(0.05, 0.3),
    "WER 8 %, clips alike": rates_vary(0.08, 0.1),
    "WER 15 %": rates_vary(0.15, 0.3),
    "WER 50 %": rates_vary(0.5, 0.2),
    "WER 105 %, words added": above_all,
    "loops in 5 % of the clips": rare_loops,
    "four speakers": four_speakers,
}
DIFFERENCES: dict[str, Draw] = {"two models": two_models}


def others(errors: np.ndarray, words: np.ndarray, seed: int) -> dict[str, tuple[float, float]]:
    """The bootstrap's percentiles, those expanded for few clips (Hesterberg 2015), BCa (Efron 1987); Student's t.

    Without an error all have the rule of three as if words were independent, as earlier versions had.
    """
    if not errors.any():
        return dict.fromkeys(("percentiles", "expanded", "BCa", "t"), (0.0, min(1.0, 3.0 / words.sum())))
    count, rate = len(errors), errors.sum() / words.sum()
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), _RESAMPLES)
    rates = (drawn @ errors) / (drawn @ words)
    quantile = float(stdtrit(count - 1, 0.975))
    tail = norm.cdf(-np.sqrt(count / (count - 1)) * quantile)
    error = np.sqrt(((errors - rate * words) ** 2).sum() * count / (count - 1)) / words.sum()
    off = (total := (errors.sum() - errors) / (words.sum() - words)).mean() - total
    spread = (off**2).sum()
    skew = (off**3).sum() / (6 * spread**1.5) if spread else 0.0
    below = float((rates < rate).mean() + 0.5 * (rates == rate).mean())
    bias = norm.ppf(min(max(below, 1 / _RESAMPLES), 1 - 1 / _RESAMPLES))
    levels = [norm.cdf(bias + (bias + z) / (1 - skew * (bias + z))) for z in (-1.96, 1.96)]
    return {
        "percentiles": tuple(np.quantile(rates, [0.025, 0.975])),
        "expanded": tuple(np.quantile(rates, [tail, 1 - tail])),
        "BCa": tuple(np.quantile(rates, levels)),
        "t": (rate - quantile * error, rate + quantile * error),
    }


def coverage(draw: Draw, count: int, repetitions: int, *, difference: bool = False) -> dict[str, list[float]]:
    """Of each method: the share of repetitions in percent whose interval held the truth, and the median width."""
    generator = np.random.default_rng(count)
    errors, words = draw(np.random.default_rng(0), 4_000_000)
    truth = 100.0 * errors.sum() / words.sum()
    if draw is four_speakers:  # of all speakers, not of the four that this one draw has
        truth = 15.0
    held: dict[str, list[tuple[bool, float]]] = {}
    for repetition in range(repetitions):
        errors, words = draw(generator, count)
        ours = (difference_interval if difference else rate_interval)(errors, words)
        assert ours is not None
        found = {
            name: (100 * low, 100 * high) for name, (low, high) in others(errors, words, repetition).items()
        }
        for name, (low, high) in {"ours": ours, **found}.items():
            held.setdefault(name, []).append((low <= truth <= high, high - low))
    return {
        name: [100.0 * np.mean([hold for hold, _ in rows]), float(np.median([width for _, width in rows]))]
        for name, rows in held.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1000)
    arguments = parser.parse_args()
    print("| clips | " + " | ".join(map(str, COUNTS)) + " |")
    for kind, draws in (("rate", RATES), ("difference", DIFFERENCES)):
        for name, draw in draws.items():
            columns = [
                coverage(draw, count, arguments.repetitions, difference=kind == "difference")
                for count in COUNTS
            ]
            for method in columns[0]:
                cells = [f"{found[method][0]:.0f} % ({found[method][1]:.1f})" for found in columns]
                print(f"| {name}: {method} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
