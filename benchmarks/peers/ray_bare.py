"""Bare Ray Tune: `OptunaSearch` and `ASHAScheduler` on made-up learning curves, with nothing but a meter.

`driver_time.py` runs it in a process of its own; the trainings are those of `tests/support/synthetic.py`.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any


def search(
    trials: int, at_a_time: int, rungs: tuple[int, ...], curve: str, meter: Any, *, logs: bool
) -> None:
    """Run the trials, one CPU each.

    Args:
        trials: to run.
        at_a_time: of them.
        rungs: samples seen at which each reports.
        curve: of `tests/support/synthetic.py`.
        meter: a callback of Ray Tune.
        logs: whether Ray's own CSV, JSON and TensorBoard files are written and its table is shown, as they come.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not logs:
        os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
    import ray
    import ray.tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch
    from ray_plain import lr_batch

    from trainer.config import TrainConfig

    def trial(sampled: dict[str, Any]) -> None:
        import synthetic

        synthetic._train(curve, TrainConfig(evaluate_at=rungs, **sampled), None)

    ray.init("local", log_to_driver=False, include_dashboard=False)
    with tempfile.TemporaryDirectory() as storage:
        ray.tune.Tuner(
            ray.tune.with_resources(trial, {"cpu": 1}),
            param_space=lr_batch(),
            tune_config=ray.tune.TuneConfig(
                metric="wer",
                mode="min",
                num_samples=trials,
                max_concurrent_trials=at_a_time,
                search_alg=OptunaSearch(seed=1),
                scheduler=ASHAScheduler(time_attr="samples_seen", max_t=rungs[-1], grace_period=rungs[0]),
                reuse_actors=True,
            ),
            run_config=ray.tune.RunConfig(storage_path=storage, callbacks=[meter], verbose=1 if logs else 0),
        ).fit()
    ray.shutdown()
