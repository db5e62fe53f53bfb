"""Advice on how the trials ran: failures, early stopping, data that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tune.report.advice.advice import Advice
from tune.report.analysis import Analysis, short_error

_FAILED_SHARE = 0.1
"""Share of the trials that failed from which that is told; two failures at least."""
_DROPPED_SHARE = 0.05
"""Share of the clips that were left out from which that is told."""


def trials_failed(analysis: Analysis) -> Iterator[Advice]:
    """All or several trials failed; what most of them failed of."""
    trials = analysis.trials
    failed = [trial for trial in trials if trial.status == "failed"]
    if len(failed) < min(2, len(trials)) or len(failed) < _FAILED_SHARE * len(trials) or not failed:
        return
    errors = Counter(short_error(trial.error).replace("`", "'") for trial in failed)
    ((error, count),) = errors.most_common(1)
    memory = "out of memory" in error.lower()
    if len(failed) == 1:
        seen = "The only trial failed"
    else:
        which = "All" if count == len(failed) else f"{count} of them"
        seen = f"{len(failed)} of {len(trials)} trials failed. {which}"
    yield Advice(
        f"{seen} with: {error.rstrip('.')}.",
        "Search smaller values of `train_batch_size`, or use `--set gradient_checkpointing=true`."
        if memory
        else "",
    )


def none_went_whole(analysis: Analysis) -> Iterator[Advice]:
    """Every trial that was measured was stopped before its whole budget."""
    ranked = analysis.ranked
    if not analysis.has_ended or not ranked:
        return
    if any(trial.status != "early_stopped" for trial in ranked):
        return
    which = "the only one was" if len(ranked) == 1 else f"all {len(ranked)} were"
    yield Advice(
        f"No trial was trained on the full budget: {which} stopped early.",
        "How good the settings are at the end is unknown. Stop fewer trials (`reduction_factor: 1.5`, or a larger "
        "`min_trials_per_rung`), or search ranges nearer to the usual settings.",
    )


def clips_dropped(analysis: Analysis) -> Iterator[Advice]:
    settings = analysis.settings
    dropped = sum(settings.dropped.values())
    total = dropped + sum(settings.data.clips.values())
    if not dropped or dropped < _DROPPED_SHARE * total:
        return
    yield Advice(
        f"{dropped:,} of {total:,} clips ({100 * dropped / total:.0f} %) were left out.",
        "`dropped_clips.jsonl` lists them with the reasons; once corrected they can be used.",
    )
