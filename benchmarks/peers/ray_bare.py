"""Bare Ray Tune: `OptunaSearch` and `ASHAScheduler` on made-up learning curves, with nothing but a meter.

`driver_time.py` runs it in a process of its own.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any


def search(trials: int, rungs: tuple[int, ...], family: str, meter: Any) -> None:
    """Run the trials one after the other.

    Args:
        trials: to run.
        rungs: samples seen at which each reports.
        family: of `curves.py`.
        meter: a callback of Ray Tune.
    """
    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch
    from ray_plain import lr_batch

    def trial(config: dict[str, Any]) -> None:
        from curves import draw_curves

        curve = draw_curves(family, 3, rungs[-1], 1e-3)  # type: ignore[arg-type]
        for rung in rungs:
            ray.tune.report({**curve(config, rung, 0), "samples_seen": rung})

    ray.init("local", log_to_driver=False, include_dashboard=False)
    with tempfile.TemporaryDirectory() as storage:
        ray.tune.Tuner(
            ray.tune.with_resources(trial, {"cpu": 1}),
            param_space=lr_batch(),
            tune_config=ray.tune.TuneConfig(
                metric="wer",
                mode="min",
                num_samples=trials,
                max_concurrent_trials=1,
                search_alg=OptunaSearch(seed=1),
                scheduler=ASHAScheduler(time_attr="samples_seen", max_t=rungs[-1], grace_period=rungs[0]),
                reuse_actors=True,
            ),
            run_config=ray.tune.RunConfig(storage_path=storage, callbacks=[meter], verbose=0),
        ).fit()
    ray.shutdown()
