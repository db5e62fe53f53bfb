"""What decides between models: the objective, an error rate in percent with a name; lower is better.

It is the WER, or of translations 100 - chrF. Rates stand under their own names wherever they are kept; `objective_name`
and `objective_value` tell which of them decides. Of data with several sources `TrainConfig.objective` says how theirs
make that of all. Whatever it says, it is a ratio of sums over the clips once each clip's errors and words count by its
factor. So intervals, comparisons and standard errors, which know ratios of sums alone, hold for all of them.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.scoring.alignment import ClipErrors, Counts
from trainer.scoring.translation import TRANSLATE

WER, CHRF_ERROR = "wer", "chrf_error"
RATES = (WER, "cer", "wer_orthographic", "cer_orthographic", CHRF_ERROR, "chrf", "bleu")
"""All that are measured: the first four of transcripts, the others of translations."""
_OF = "@"
"""Between a rate and a source: `wer@fleurs`."""


def objective_name(rates: Mapping[str, Any]) -> str:
    """Which of an evaluation's rates, or of what is kept by their names, decides."""
    return CHRF_ERROR if CHRF_ERROR in rates else WER


def objective_value(rates: Mapping[str, Any]) -> float:
    """The rate that decides, in percent; NaN where none was measured."""
    value = rates.get(objective_name(rates))
    return math.nan if value is None else float(value)


def describe_rates(rates: Mapping[str, float]) -> str:
    """`WER 9.19 %, CER 3.02 %`; of translations `chrF error 43.20 % (chrF 56.80), BLEU 31.00`."""
    if CHRF_ERROR in rates:
        return f"chrF error {rates[CHRF_ERROR]:.2f} % (chrF {rates['chrf']:.2f}), BLEU {rates['bleu']:.2f}"
    return f"WER {rates[WER]:.2f} %" + (f", CER {rates['cer']:.2f} %" if "cer" in rates else "")


def task_of(objective: str) -> str:
    """The task whose models this decides between."""
    return TRANSLATE if objective == CHRF_ERROR else "transcribe"


def words(text: str, task: str) -> str:
    """Text for people about the objective, which it calls WER, with the objective's name for the task."""
    return text if task != TRANSLATE else re.sub(r"\bWERs?\b", "chrF error", text)


def is_of_source(name: str) -> bool:
    """Whether a metric is a rate of one source."""
    return _OF in name


def named_rates(sources: Mapping[str, Mapping[str, float]], before: str = "") -> dict[str, float]:
    """The objective of each source and what stands beside it under one name, for trackers: `wer/fleurs`."""
    return {
        f"{before}{rate}/{name}": rates[rate]
        for name, rates in sources.items()
        for rate in (WER, "cer", CHRF_ERROR, "chrf", "bleu")
        if rate in rates
    }


def rates_by_source(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The rates of sources among others (as `combine` names them), as numbers."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        rate, of, source = key.partition(_OF)
        if of:
            found.setdefault(source, {})[rate] = float(value)
    return found


def combine(
    counts: Mapping[str, Counts], sources: Sequence[str], objective: str
) -> tuple[dict[str, float], ClipErrors]:
    """Rates of all clips together, and of several sources those of each whose texts have words, as `wer@fleurs`.

    Args:
        counts: of each clip, by rate.
        sources: the source of each clip.
        objective: as `TrainConfig.objective`.

    Returns:
        The rates in percent; and errors and words of each clip, so that their sums have the objective as ratio.

    Raises:
        ValueError: no reference has any text.
    """
    import numpy as np

    decides = objective_name(counts)
    errors, lengths = counts[decides].errors, counts[decides].lengths
    names = list(dict.fromkeys(sources))
    of = {name: [row for row, source in enumerate(sources) if source == name] for name in names}
    found = {
        name: {rate: each.of(rows).percent for rate, each in counts.items()}
        for name, rows in of.items()
        if len(names) > 1 and lengths[rows].sum()
    }
    own = {f"{rate}{_OF}{name}": value for name, rates in found.items() for rate, value in rates.items()}
    if objective == "clips" or not found:
        return {rate: each.percent for rate, each in counts.items()} | own, ClipErrors(errors, lengths)
    together = max if objective == "worst_source" else statistics.fmean
    rates = {rate: together([rates[rate] for rates in found.values()]) for rate in counts}
    worst = max(found, key=lambda name: found[name][decides])
    counting = [worst] if objective == "worst_source" else list(found)
    factors, errors = np.zeros(len(sources)), np.array(errors)
    heard = {name: float(lengths[of[name]].sum()) for name in counting}
    for name in counting:
        # An equal share for each, together as many words as independent ones would tell as much (Kish 1965): what is
        # scaled up of a small source is no more heard for that.
        factors[of[name]] = statistics.harmonic_mean([*heard.values()]) / heard[name]
        errors[of[name]] = counts[decides].of(of[name]).errors
    worst_of = len(found) if objective == "worst_source" else 1
    return rates | own, ClipErrors(errors * factors, lengths * factors, worst_of)


def objective_words(objective: str) -> str:
    """What the rates that decide are, where that is not those of all clips together; else empty."""
    return {"sources": "the mean over the sources", "worst_source": "the worst source"}.get(objective, "")
