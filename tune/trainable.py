"""The only place where the search meets the training: what runs inside Ray's worker processes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from tune.mailbox import post
from tune.searcher import TRIAL_ID

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation

_TEXT_SETTINGS = ("lowercase", "remove_punctuation")
"""Searchable settings that change the labels, and so need them made anew (the features stay)."""


def prepare_data(config: TrainConfig, on_progress: Callable[[int, int], None] | None = None) -> PreparedData:
    """Find or compute the features of `config.data`; raises `DataError` or `ModelError`."""
    from trainer.prepared import prepare

    return prepare(config, on_progress)


def count_clips(config: TrainConfig) -> tuple[dict[str, int], list[str]]:
    """Clips of each split before any is dropped, and what was decided about the splits; reads no audio."""
    from trainer.data import load_clips

    table = load_clips(config)
    notes = list(table.notes)
    if table.drops:
        notes.append(f"{len(table.drops)} clips have no text and are left out")
    return {name: len(split) for name, split in table.splits.items()}, notes


def check_model(config: TrainConfig) -> float:
    """The learning rate known to be good for the model's size; `ModelError` where the model cannot be tuned so."""
    from trainer.model import default_learning_rate, load_processor

    load_processor(config)
    return default_learning_rate(config)


def full_budget(config: TrainConfig, n_train: int) -> int:
    """The budget of one trial in samples seen."""
    from trainer.train import budget_samples

    return budget_samples(config, n_train)


def evaluate_model(
    config: TrainConfig, split: str, cpus: float, *, data: PreparedData | None = None
) -> Evaluation:
    """Error rates of `config.model` as it is on a split, with `cpus` threads."""
    from trainer.train import evaluate

    _set_threads(cpus)
    return evaluate(config, split, data=data)


def export_model(config: TrainConfig, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint as a plain Hugging Face folder; raises `ModelError`."""
    from trainer.export import write_model

    write_model(config, checkpoint, output)


def make_trainable(
    base: TrainConfig, data: PreparedData, mailbox: Any, cpus: float
) -> Callable[[dict[str, Any]], None]:
    """The function that Ray runs for a trial, in the trial's own actor.

    `data` goes through the object store once: a trial that looked for it anew would read the tables, ask the
    hub and look at every audio file again, and see other data if those had changed meanwhile.
    """
    import ray.tune

    def whisper_trial(sampled: dict[str, Any], data: PreparedData) -> None:
        import ray.tune

        from trainer.train import train

        _set_threads(cpus)
        _free_memory()
        values = dict(sampled)
        trial_id = values.pop(TRIAL_ID)

        def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
            if checkpoint_dir is None:
                post(mailbox, trial_id, metrics)
            else:
                ray.tune.report(
                    dict(metrics), checkpoint=ray.tune.Checkpoint.from_directory(str(checkpoint_dir))
                )

        config = base.replace(**values)
        same_texts = all(getattr(config, name) == getattr(base, name) for name in _TEXT_SETTINGS)
        result = train(config, report, data=data if same_texts else None)
        if result.diverged:
            ray.tune.report(
                {"wer": float("nan"), "samples_seen": result.samples_seen, "diverged": 1.0, "finished": 0.0}
            )

    trainable: Callable[[dict[str, Any]], None] = ray.tune.with_parameters(whisper_trial, data=data)
    return trainable


def _set_threads(cpus: float) -> None:
    """Let PyTorch use the CPUs that Ray gave the process (Ray itself sets one thread for all)."""
    import torch

    torch.set_num_threads(max(1, int(cpus)))


def _free_memory() -> None:
    """Give back what the trial before left in this process: actors are reused, since their imports take seconds."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
