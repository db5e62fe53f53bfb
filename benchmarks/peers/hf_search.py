"""`Trainer.hyperparameter_search` with its Optuna backend, as transformers' documentation has it.

    python benchmarks/peers/hf_search.py MODEL DATA TRIALS EPOCHS SEED CLIPS OUTPUT

Writes a line of JSON for every evaluation to OUTPUT: Unix time, and WER.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import optuna
import plain
from transformers import TrainerCallback, set_seed


class Log(TrainerCallback):
    """Notes every evaluation."""

    def __init__(self, output: Path) -> None:
        self.output = output

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        plain.log(self.output, metrics["eval_wer"])


def space(trial: optuna.Trial) -> dict[str, Any]:
    """That of `search_spaces/lr_batch.yaml` for the demo's model."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3, log=True),
        "warmup_steps": trial.suggest_float("warmup_steps", 0.0, 0.3),  # a share, since transformers 5
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 8, 16]),
        "gradient_accumulation_steps": trial.suggest_categorical("gradient_accumulation_steps", [1, 2, 4]),
    }


def main(asked: argparse.Namespace) -> None:
    set_seed(asked.seed)
    processor = plain.load_processor(asked.model)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = plain.make_trainer(
            processor,
            plain.load_splits(asked.data, processor, asked.clips),
            Path(scratch),
            model_init=lambda: plain.load_model(asked.model),
            warmup_steps=0.1,  # a number with a fraction, or the search would cut those it tries to whole ones
            num_train_epochs=asked.epochs,
            seed=asked.seed,
            **plain.SEARCHED,
        )
        trainer.add_callback(Log(asked.output))
        trainer.hyperparameter_search(
            hp_space=space,
            backend="optuna",
            n_trials=asked.trials,
            direction="minimize",
            compute_objective=lambda metrics: metrics["eval_wer"],
            sampler=optuna.samplers.TPESampler(seed=asked.seed),
        )


if __name__ == "__main__":
    main(plain.search_arguments())
