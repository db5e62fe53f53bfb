"""Advice on the audio window: what the finalists show of it, which are measured with the model's whole one."""

from __future__ import annotations

import statistics

from tune.report.advice_words import Advice, listed
from tune.report.analysis import Analysis

WHOLE_SECONDS = 30.0
"""Whisper's window."""


def short_window(analysis: Analysis) -> list[Advice]:
    """What training and measuring with a shorter window than the model's own cost or gained."""
    experiment = analysis.experiment
    train, verdict = experiment.settings["train_config"], experiment.verdict
    window = train.get("audio_window")
    fixed = experiment.settings["space"].get("fixed") or {}
    if verdict is None or window == WHOLE_SECONDS or "full_window_evaluation" in fixed:
        return []
    if "audio_window" in experiment.parameters:  # each finalist has its own
        return []
    trials = {trial.trial_id: trial.best_wer for trial in experiment.trials if trial.best_wer is not None}
    known = [found for found in verdict.standings if found.trial_id in trials]
    if not known:
        return []
    change = statistics.mean(found.mean - trials[found.trial_id] for found in known)
    heard = "the longest clip" if window is None else f"{window:g} s"
    compared = (
        f"The finalists {listed([found.trial_id for found in known])} were trained on the audio window of {heard}. "
        f"With the model's whole one, as it will be used, their repeats have {abs(change):.2f} WER points "
        f"{'more' if change > 0 else 'less'} than their trials had with it"
    )
    if change <= analysis.pair_noise:
        return [Advice(f"{compared}: no more than seeds make.", change=False)]
    return [
        Advice(
            f"{compared}.",
            "Other seeds alone do not make so much: compare with a search at `--set audio_window=30`, which takes "
            "more time.",
        )
    ]
