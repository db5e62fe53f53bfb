"""WERs that compare: what trials that were stopped early would have come to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tune.report.known import Experiment
from tune.search.projections import Curve, best_so_far, expected_ends
from tune.search.records import TrialRecord

if TYPE_CHECKING:
    import numpy as np
    import optuna

_LEAST = 0.01
"""WERs below it count as it, where ratios are taken."""


def expected_wers(experiment: Experiment) -> dict[str, float]:
    """By trial, the WER that it has at the full budget, or would have come to.

    One that was stopped early or still runs counts with its lowest WER times what others' fell by from there to the
    end of its own budget (see `expected_ends`). (The searcher subtracts what others gained instead, see
    `tune.search.samplers`: it needs an order, and no figures that hold beside measured ones.) Diverged trials count as
    the worst. Failed ones, and those that reached no rung, are left out: what broke them down may have nothing to do
    with their settings.
    """
    measured = [t for t in experiment.trials if t.evaluations and t.status not in ("failed", "diverged")]
    ends = expected_ends([_curve(trial, experiment) for trial in measured])
    expected = {
        trial.trial_id: trial.best_wer
        if trial.status == "completed" and trial.best_wer is not None
        else math.exp(end)
        for trial, end in zip(measured, ends, strict=True)
    }
    worst = max(expected.values(), default=None)
    diverged = [trial.trial_id for trial in experiment.trials if trial.status == "diverged"]
    return expected | (dict.fromkeys(diverged, worst) if worst is not None else {})


def _curve(trial: TrialRecord, experiment: Experiment) -> Curve:
    """Logarithms of a trial's lowest WER so far, at shares of its own budget."""
    completed = trial.status == "completed" and trial.best_wer is not None
    seen = [samples for samples, _ in trial.evaluations]
    wers = best_so_far([wer for _, wer in trial.evaluations])
    if completed:
        wers[-1] = trial.best_wer or 0.0
    budget = seen[-1] if completed else max(seen[-1], experiment.budget_of(trial))
    logs = [math.log(max(wer, _LEAST)) for wer in wers]
    return Curve([samples / budget for samples in seen], logs, _place(trial, experiment))


def _place(trial: TrialRecord, experiment: Experiment) -> np.ndarray:
    """A trial's settings as a point in a space of sides 1, choices up to half apart."""
    import numpy as np

    scales = experiment.scales.values()
    return np.array(
        [scale.place(trial.config[scale.name]) * (0.5 if scale.values else 1.0) for scale in scales]
    )


def comparable_study(experiment: Experiment, expected: Mapping[str, float]) -> optuna.Study:
    """The trials as Optuna's evaluators are to see them: all completed, each with its expected WER."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = experiment.space.to_optuna() if experiment.space else {}
    study = optuna.create_study(direction="minimize")
    for trial in experiment.trials:
        if trial.trial_id in expected:
            study.add_trial(
                optuna.trial.create_trial(
                    value=expected[trial.trial_id], params=trial.config, distributions=distributions
                )
            )
    return study
