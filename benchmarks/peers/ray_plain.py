"""A straightforward Ray Tune search: the stock trainer in a Tune function, `OptunaSearch` and `ASHAScheduler`.

    python benchmarks/peers/ray_plain.py MODEL DATA TRIALS EPOCHS SEED CLIPS OUTPUT

Writes a line of JSON for every evaluation to OUTPUT: Unix time, and WER.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.tune


def lr_batch() -> dict[str, Any]:
    """The space of `search_spaces/lr_batch.yaml` for the demo's model."""
    return {
        "learning_rate": ray.tune.loguniform(1e-5, 1e-3),
        "warmup_ratio": ray.tune.uniform(0.0, 0.3),
        "train_batch_size": ray.tune.choice([4, 8, 16]),
        "gradient_accumulation_steps": ray.tune.choice([1, 2, 4]),
    }


def train_whisper(config: dict[str, Any]) -> None:
    """One trial, as people write it: everything loaded here, a report after every epoch."""
    import plain
    from transformers import TrainerCallback

    asked = config["asked"]
    processor = plain.load_processor(asked.model)

    class Report(TrainerCallback):
        """Tells Ray Tune every evaluation, with a checkpoint."""

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wer = [row["eval_wer"] for row in state.log_history if "eval_wer" in row][-1]
            plain.log(asked.output, wer)
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            ray.tune.report({"wer": wer}, checkpoint=ray.tune.Checkpoint.from_directory(str(folder)))

    with tempfile.TemporaryDirectory() as scratch:
        trainer = plain.make_trainer(
            processor,
            plain.load_splits(asked.data, processor, asked.clips),
            Path(scratch),
            model=plain.load_model(asked.model),
            num_train_epochs=asked.epochs,
            learning_rate=config["learning_rate"],
            warmup_steps=config["warmup_ratio"],  # below 1 a share of all steps, since transformers 5
            per_device_train_batch_size=config["train_batch_size"],
            gradient_accumulation_steps=config["gradient_accumulation_steps"],
            seed=asked.seed,
            **plain.SEARCHED,
        )
        trainer.add_callback(Report())
        trainer.train()


def main(asked: argparse.Namespace) -> None:
    import torch
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    ray.init(log_to_driver=False)
    for name in ("model", "data", "output"):
        setattr(asked, name, getattr(asked, name).absolute())  # a trial has a working folder of its own
    with tempfile.TemporaryDirectory() as storage:
        ray.tune.Tuner(
            ray.tune.with_resources(train_whisper, {"cpu": 1, "gpu": int(torch.cuda.is_available())}),
            param_space={**lr_batch(), "asked": asked},
            tune_config=ray.tune.TuneConfig(
                metric="wer",
                mode="min",
                num_samples=asked.trials,
                search_alg=OptunaSearch(seed=asked.seed),
                scheduler=ASHAScheduler(max_t=asked.epochs, grace_period=1),
            ),
            run_config=ray.tune.RunConfig(storage_path=storage, verbose=0),
        ).fit()


if __name__ == "__main__":
    import plain

    main(plain.search_arguments())
