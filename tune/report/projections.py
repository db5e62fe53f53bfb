"""WERs that compare: what trials that were stopped early would have come to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tune.report.known import Experiment
from tune.search.records import TrialRecord

if TYPE_CHECKING:
    import numpy as np
    import optuna

_NEAR = 0.2
"""Distance at which a trial's curve says little of another's, in a space of sides 1."""
_FAR_WEIGHT = 0.02
_LEAST = 0.01
"""WERs below it count as it, where ratios are taken."""


def expected_wers(experiment: Experiment) -> dict[str, float]:
    """By trial, the WER that it has at the full budget, or would have come to.

    One that was stopped early or still runs counts with its last WER times what others' fell by from there to each
    later rung, those with near settings above all: a high learning rate is quick and gains little later. (The
    searcher subtracts what others gained instead, see `tune.proposals`: it needs an order, and no figures that hold
    beside measured ones.) Diverged trials count as the worst. Failed ones, and those that reached no rung, are left
    out: what broke them down may have nothing to do with their settings.
    """
    measured = [t for t in experiment.trials if t.evaluations and t.status not in ("failed", "diverged")]
    expected = {
        trial.trial_id: trial.best_wer
        if trial.status == "completed" and trial.best_wer is not None
        else _projected(trial, measured, experiment)
        for trial in measured
    }
    worst = max(expected.values(), default=None)
    diverged = [trial.trial_id for trial in experiment.trials if trial.status == "diverged"]
    return expected | (dict.fromkeys(diverged, worst) if worst is not None else {})


def _projected(trial: TrialRecord, measured: Sequence[TrialRecord], experiment: Experiment) -> float:
    """A trial's last WER, taken on to the full budget."""
    import numpy as np

    last, wer = trial.evaluations[-1]
    place = _place(trial, experiment)
    for here, there in itertools.pairwise(rung for rung in experiment.rungs if rung >= last):
        passed = [(other, dict(other.evaluations)) for other in measured]
        passed = [(other, curve) for other, curve in passed if curve.get(here) and there in curve]
        if not passed:
            continue
        logs = [math.log(max(curve[there], _LEAST) / curve[here]) for _, curve in passed]
        apart = [np.sum((_place(other, experiment) - place) ** 2) for other, _ in passed]
        weights = np.exp(-np.array(apart) / (2 * _NEAR**2)) + _FAR_WEIGHT
        wer *= math.exp(float(np.average(logs, weights=weights)))
    return wer


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
