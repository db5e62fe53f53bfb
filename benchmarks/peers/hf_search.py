"""`Trainer.hyperparameter_search` with its Optuna backend, as transformers' documentation has it.

    python benchmarks/peers/hf_search.py MODEL DATA TRIALS EPOCHS SEED CLIPS OUTPUT

Writes a line of JSON for every evaluation to OUTPUT: seconds since the start of the process, and WER.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BEGUN = time.time()


def main(model: Path, data: Path, trials: int, epochs: int, seed: int, clips: int, output: Path) -> None:
    """Search and log."""
    import optuna
    import plain
    from transformers import TrainerCallback, set_seed

    set_seed(seed)
    processor = plain.load_processor(model)
    splits = plain.add_features(plain.load_splits(data, {"train": clips, "validation": None}), processor)

    class Log(TrainerCallback):
        """Notes every evaluation."""

        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
        ) -> None:
            plain.log(output, BEGUN, metrics["eval_wer"])

    def space(trial: optuna.Trial) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
            "warmup_steps": trial.suggest_float("warmup_steps", 0.0, 0.3),  # a share, since transformers 5
            "per_device_train_batch_size": trial.suggest_categorical(
                "per_device_train_batch_size", [4, 8, 16]
            ),
            "gradient_accumulation_steps": trial.suggest_categorical(
                "gradient_accumulation_steps", [1, 2, 4]
            ),
        }

    with tempfile.TemporaryDirectory() as scratch:
        trainer = plain.make_trainer(
            lambda: plain.load_model(model),
            processor,
            splits,
            Path(scratch),
            start=plain.load_model(model).config.decoder_start_token_id,
            warmup_steps=0.1,  # a number with a fraction, or the search would cut those it tries to whole ones
            num_train_epochs=epochs,
            seed=seed,
            **plain.SEARCHED,
        )
        trainer.add_callback(Log())
        trainer.hyperparameter_search(
            hp_space=space,
            backend="optuna",
            n_trials=trials,
            direction="minimize",
            compute_objective=lambda metrics: metrics["eval_wer"],
            sampler=optuna.samplers.TPESampler(seed=seed),
        )


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), Path(words[1]), *(int(word) for word in words[2:6]), Path(words[6]))
