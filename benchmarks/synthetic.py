"""Searches whose trainings are made-up learning curves; all else, Ray and the measured base model too, is real."""

import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer.config import TrainConfig
from trainer.training.report import Decision
from tune.cluster.progress_channel import Driver
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.search.scheduler import TRIAL_ID
from tune.workers.checkpoint_store import TrialCheckpointStore
from tune.workers.retries import train_persistently

DEFAULT_RATE = 1e-3
"""Of the demo's model."""
Row = Mapping[str, float]


def rows(curve: str, config: TrainConfig) -> Iterator[Row]:
    """What a training reports, by a family of `curves`."""
    from curves.made_up import draw_curves

    settings = {"learning_rate": config.learning_rate, "warmup_ratio": config.warmup_ratio}
    settings["train_batch_size"] = config.effective_batch_size
    rungs = config.evaluate_at or ()
    drawn: Any = draw_curves(curve, 3, rungs[-1], DEFAULT_RATE)  # type: ignore[arg-type]
    for rung in rungs:
        found = drawn(settings, rung, config.seed)
        yield {
            **found,
            "cer": found["wer"] / 3,
            "samples_seen": rung,
            "epoch": rung / rungs[-1],
            "step": rung // config.effective_batch_size,
            "finished": float(rung == rungs[-1]),
        }


def make_trainable(curve: str) -> Callable[..., Any]:
    """What takes the place of `tune.workers.trainable.make_trainable`; checkpoints hold the samples seen."""

    def make(inputs: Any, channel: Any, resources: Any, files: CheckpointFiles) -> Any:
        import ray.tune

        def synthetic_trial(sampled: dict[str, Any]) -> None:
            values = dict(sampled)
            driver = Driver(channel, values.pop(TRIAL_ID))
            work = functools.partial(_train, curve, files, driver)
            train_persistently(work, inputs.config.replace(**values), driver)

        return ray.tune.with_resources(synthetic_trial, resources.request())

    return make


def _train(
    curve: str,
    files: CheckpointFiles,
    driver: Driver,
    config: TrainConfig,
    folder: str,
    checkpoint: str | None,
) -> None:
    import ray.tune

    seen = 0
    if checkpoint:
        with files.fetched(checkpoint) as fetched:
            seen = json.loads((fetched / "config.json").read_text())["seen"]

    def decide(row: Row) -> Decision:
        row = {**row, **({} if math.isfinite(row["wer"]) else {"diverged": 1.0})}
        decision = driver.report(row)
        ray.tune.report(dict(row))
        return decision

    store = TrialCheckpointStore(files, driver, folder, decide)
    for row in rows(curve, config):
        if row["samples_seen"] <= seen:
            continue
        decision = store.decide(row)
        if decision.keep is not None:
            written = store.begin(int(row["samples_seen"]), int(row["step"]))
            written.mkdir(parents=True)
            (written / "config.json").write_text(
                json.dumps({"seen": row["samples_seen"], "pid": os.getpid()})
            )
            errors = [round(row["wer"])] * 10
            (written / "utterances.json").write_text(json.dumps({"word_errors": errors, "words": [100] * 10}))
            store.complete(written, store.hand_over(written), row, decision.keep)
        if not decision.goes_on:
            return


def main(curve: str, words: Sequence[str]) -> int:
    """`tune-whisper` with these words; its exit code."""
    import tune.runs.search
    import tune.runs.trials
    from tune.cli import main as tune_whisper

    tune.runs.trials.make_trainable = make_trainable(curve)
    tune.runs.search.measure_held_out = lambda *_: None  # there are no weights
    return tune_whisper(words)
