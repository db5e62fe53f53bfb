"""A straightforward Ray Tune search: the stock trainer in a Tune function, `OptunaSearch` and `ASHAScheduler`.

    python benchmarks/peers/ray_plain.py MODEL DATA TRIALS EPOCHS SEED CLIPS OUTPUT

Writes a line of JSON for every evaluation to OUTPUT: seconds since the start of the process, and WER.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BEGUN = time.time()


def lr_batch() -> dict[str, Any]:
    """The space of `search_spaces/lr_batch.yaml` for the demo's model."""
    import ray.tune

    return {
        "learning_rate": ray.tune.loguniform(1e-4, 1e-2),
        "warmup_ratio": ray.tune.uniform(0.0, 0.3),
        "train_batch_size": ray.tune.choice([4, 8, 16]),
        "gradient_accumulation_steps": ray.tune.choice([1, 2, 4]),
    }


def train_whisper(config: dict[str, Any]) -> None:
    """One trial, as people write it: everything loaded here, a report after every epoch."""
    import plain
    import ray.tune
    from transformers import TrainerCallback

    model, data = Path(config["model"]), Path(config["data"])
    processor = plain.load_processor(model)
    splits = plain.add_features(
        plain.load_splits(data, {"train": config["clips"], "validation": None}), processor
    )

    class Report(TrainerCallback):
        """Tells Ray Tune every evaluation, with a checkpoint."""

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            wer = [row["eval_wer"] for row in state.log_history if "eval_wer" in row][-1]
            plain.log(Path(config["output"]), config["begun"], wer)
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            ray.tune.report({"wer": wer}, checkpoint=ray.tune.Checkpoint.from_directory(str(folder)))

    with tempfile.TemporaryDirectory() as scratch:
        trainer = plain.make_trainer(
            plain.load_model(model),
            processor,
            splits,
            Path(scratch),
            num_train_epochs=config["epochs"],
            learning_rate=config["learning_rate"],
            warmup_steps=config["warmup_ratio"],  # below 1 a share of all steps, since transformers 5
            per_device_train_batch_size=config["train_batch_size"],
            gradient_accumulation_steps=config["gradient_accumulation_steps"],
            seed=config["seed"],
            **plain.SEARCHED,
        )
        trainer.add_callback(Report())
        trainer.train()


def main(words: list[str]) -> None:
    """Search and log."""
    import ray
    import ray.tune
    import torch
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    model, data, output = (str(Path(words[index]).absolute()) for index in (0, 1, 6))
    trials, epochs, seed, clips = map(int, words[2:6])
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}}, log_to_driver=False)
    asked = {"model": model, "data": data, "epochs": epochs, "seed": seed, "clips": clips}
    with tempfile.TemporaryDirectory() as storage:
        ray.tune.Tuner(
            ray.tune.with_resources(train_whisper, {"cpu": 1, "gpu": int(torch.cuda.is_available())}),
            param_space={**lr_batch(), **asked, "output": output, "begun": BEGUN},
            tune_config=ray.tune.TuneConfig(
                metric="wer",
                mode="min",
                num_samples=trials,
                search_alg=OptunaSearch(seed=seed),
                scheduler=ASHAScheduler(max_t=epochs, grace_period=1),
            ),
            run_config=ray.tune.RunConfig(storage_path=storage, verbose=0),
        ).fit()


if __name__ == "__main__":
    main(sys.argv[1:])
