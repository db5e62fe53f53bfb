"""Optuna's TPE behind Ray's `OptunaSearch`, told the truth about trials that were stopped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tune.scheduler import METRIC, TIME_ATTRIBUTE

if TYPE_CHECKING:
    from ray.tune.search.optuna import OptunaSearch

    from tune.search_space import SearchSpace

TRIAL_ID = "trial_id"
"""Key of the trial's number in the configuration that Ray hands to the trial: `001`, `002` ..."""


def make_searcher(space: SearchSpace, *, experiment: str, seed: int) -> OptunaSearch:
    """A searcher over `space` with every setting of TPE explicit (Optuna 5 changed its defaults)."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    settings = space.searcher
    sampler = optuna.samplers.TPESampler(
        seed=seed,
        n_startup_trials=settings.startup_trials,
        n_ei_candidates=settings.ei_candidates,
        multivariate=settings.multivariate,
        constant_liar=settings.constant_liar,
    )
    return truthful_search()(
        space=space.to_optuna(),
        metric=METRIC,
        mode="min",
        points_to_evaluate=space.try_first,
        sampler=sampler,
        study_name=experiment,
    )


def truthful_search() -> type[OptunaSearch]:
    """Ray's `OptunaSearch` as a class that tells Optuna what happened.

    Ray's own tells Optuna that a trial stopped early is COMPLETE with its early WER, leaves one with a NaN
    RUNNING for ever, counts reports instead of samples, and names every study `optuna`. This one tells PRUNED
    with the WER at its samples seen, tells FAIL, and takes the experiment's name. (A function, since the class
    needs Ray and Optuna, which take seconds to import.)
    """
    import ray.tune.search.optuna
    from optuna.trial import TrialState

    reported: dict[str, int] = {}

    class WerOptunaSearch(ray.tune.search.optuna.OptunaSearch):
        """See `truthful_search`."""

        def suggest(self, trial_id: str) -> dict[str, Any] | None:
            """The next configuration, with the trial's number added."""
            config = super().suggest(trial_id)
            if config is None:
                return None
            return {**config, TRIAL_ID: f"{self._ot_trials[trial_id].number + 1:03d}"}

        def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
            """Report the WER at the samples seen, once."""
            trial, step = self._ot_trials[trial_id], int(result[TIME_ATTRIBUTE])
            if math.isfinite(result[METRIC]) and reported.get(trial_id) != step:
                trial.report(result[METRIC], step)
                reported[trial_id] = step

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            """Tell COMPLETE with the WER at the full budget, PRUNED where stopped early, FAIL otherwise."""
            if trial_id in self._completed_trials:
                return
            self._completed_trials.add(trial_id)
            trial = self._ot_trials[trial_id]
            if error or not result or not math.isfinite(result.get(METRIC, math.nan)):
                self._ot_study.tell(trial, state=TrialState.FAIL)
                return
            # Ray keeps the result on which a trial was stopped from `on_trial_result`; without it Optuna would
            # take all trials stopped at their first rung for equally bad.
            self.on_trial_result(trial_id, result)
            if result.get("finished"):
                self._ot_study.tell(trial, result[METRIC])
            else:
                self._ot_study.tell(trial, state=TrialState.PRUNED)

    return WerOptunaSearch
