"""Real fine-tunings, as a table of learning curves in `trainings.parquet`.

    python benchmarks/curves/trainings.py FOLDER [--parts voices voices-seed-1 few-clips demo] [--minutes 100]
    python benchmarks/curves/trainings.py FOLDER --parts german --model FOLDER_OF_WHISPER_BASE --german FOLDER_OF_SPEECH

Makes what the table has not yet, and adds each training as it ends; FOLDER takes speech and features, and needs
espeak-ng on the machine. A training of the first three parts takes about a minute on two cores, two at a time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BENCHMARKS.parent), str(BENCHMARKS)]
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pandas as pd  # noqa: E402
import torch  # noqa: E402

import trainer.train  # noqa: E402
from trainer.config import TrainConfig  # noqa: E402

TABLE = Path(__file__).with_name("trainings.parquet")
RATES = (1e-4, 1.7e-4, 2.8e-4, 4.6e-4, 7.7e-4, 1.3e-3, 2.2e-3, 3.6e-3, 6e-3, 1e-2)
"""From the usual rate of the demo's model to a hundred times that."""
LORA_RATES = tuple(float(f"{5 * rate:.2g}") for rate in RATES)
WARMUPS = (0.0, 0.2)
BATCHES = (4, 8, 16, 32)
AUGMENTATIONS: dict[str, dict[str, float]] = {
    "none": {},
    "mild": {"augment": 0.9, "augment_strength": 0.6, "augment_telephone": 0.25},
    "strong": {"augment": 1.0, "augment_strength": 1.0, "augment_telephone": 0.25},
}
LORA_RANKS = (4, 8, 16, 32)
GERMAN_RATES = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2e-4)
GERMAN_BATCHES = (4, 8)
SHARES = (1 / 9, 2 / 9, 1 / 3, 1 / 2, 3 / 4, 1)
"""Of the budget: where the validation clips are measured."""
RUNGS = (1 / 9, 1 / 3, 1)
"""Where the test clips and the last weights are as well."""
VALIDATION_CLIPS = 400
EPOCHS = {"voices": 8, "few-clips": 32, "demo": 4, "german": 3}
FEW_CLIPS = 150
"""Of the voices, learned so often that losses rise again while WERs still fall."""


@dataclasses.dataclass(frozen=True)
class Training:
    """One training: its data, settings and seed."""

    data: str
    learning_rate: float
    train_batch_size: int
    warmup_ratio: float = 0.1
    augmentation: str = "none"
    method: str = "full"
    lora_rank: int = 0
    seed: int = 0


_FIELDS = [field.name for field in dataclasses.fields(Training)]


def grid(data: str, seed: int) -> list[Training]:
    """All settings of the demo's model, in an order in which any beginning is spread over the whole grid."""
    full = [
        Training(data, rate, batch, warmup, augmentation, seed=seed)
        for rate, warmup, batch, augmentation in itertools.product(RATES, WARMUPS, BATCHES, AUGMENTATIONS)
    ]
    lora = [
        Training(data, rate, 8, method="lora", lora_rank=rank, seed=seed)
        for rate, rank in itertools.product(LORA_RATES, LORA_RANKS)
    ]
    every = full + lora
    step = 173  # 280 by the golden ratio: each one falls into the largest gap that those before have left
    return [Training(data, 0.0, 8), *(every[index * step % len(every)] for index in range(len(every)))]


PARTS = {
    "voices": grid("voices", 0),
    "voices-seed-1": grid("voices", 1),
    "demo": grid("demo", 0),
    "few-clips": [
        Training("few-clips", rate, batch, augmentation=augmentation)
        for augmentation, rate, batch in itertools.product(("none", "mild"), RATES[2:8], (4, 16))
    ],
    "german": [
        Training("german", 0.0, 8),
        *(Training("german", rate, batch) for batch in GERMAN_BATCHES for rate in GERMAN_RATES),
    ],
}


def missing(*parts: str) -> list[Training]:
    """The trainings of these parts that are not in the table yet, those of a second seed by the first one's WERs."""
    columns = [*_FIELDS, "wer"]
    table = pd.read_parquet(TABLE, columns=columns) if TABLE.is_file() else pd.DataFrame(columns=columns)
    known = {Training(*key): wer for key, wer in table.groupby(_FIELDS).wer.min().fillna(math.inf).items()}
    left = [training for part in parts for training in PARTS[part] if training not in known]
    return sorted(left, key=lambda training: known.get(dataclasses.replace(training, seed=0), math.inf))


def config_of(training: Training, folder: Path, model: Path | None) -> TrainConfig:
    """Everything that is not searched is as it is by default."""
    voices = folder / "voices"
    data = {"voices": voices, "few-clips": voices, "demo": "demo", "german": folder / "german.csv"}[
        training.data
    ]
    settings = dataclasses.asdict(training) | AUGMENTATIONS[training.augmentation]
    settings = {name: value for name, value in settings.items() if name not in ("data", "augmentation")}
    if training.method == "full":
        del settings["lora_rank"]
    if not training.learning_rate:
        del settings["learning_rate"]
    if training.data == "german":
        settings |= {"model": str(model), "language": "de"}
    if training.data == "few-clips":
        settings["max_train_clips"] = FEW_CLIPS
    return TrainConfig(
        data=str(data), cache_dir=str(folder / "features"), epochs=EPOCHS[training.data], **settings
    )


class Trained:
    """`trainer.train.make_trainer`, which keeps the trainer of the training."""

    def make_trainer(self, *given: Any, **kinds: Any) -> Any:
        made = _make_trainer(*given, **kinds)
        if kinds.get("training", True):
            self._trainer = made
        return made

    def last_weights_wer(self) -> float:
        """On the clips that the training is measured on, in percent; what it reports is of their mean."""
        with mock.patch.object(self._trainer.average, "in_model", contextlib.nullcontext):
            found = self._trainer.evaluation_loop(self._trainer.get_eval_dataloader(), "last").metrics
        return float(found["eval_wer"])


_make_trainer = trainer.train.make_trainer


def measure(training: Training, folder: Path, model: Path | None, threads: int) -> list[dict[str, Any]]:
    """A row for each point that the training came to, and one without a WER where its loss was no number.

    Without a learning rate the model as it is.
    """
    from trainer.data.prepared import prepare
    from trainer.train import budget_samples, evaluate, train

    torch.set_num_threads(threads)
    config = config_of(training, folder, model)
    data = prepare(config, waveforms=config.augments)
    validation = range(min(VALIDATION_CLIPS, len(data.splits["validation"])))
    settings = dataclasses.asdict(training)
    if not training.learning_rate:
        few = dataclasses.replace(
            data, splits=data.splits | {"validation": data.splits["validation"].only(validation)}
        )
        known, tested = (evaluate(config, few, split).rates for split in ("validation", "test"))
        row = {"samples_seen": 0, "wer": known["wer"], "cer": known["cer"], "loss": known["loss"]}
        return [{**settings, **row, "test_wer": tested["wer"], "test_cer": tested["cer"]}]
    budget, unit = budget_samples(config, len(data.splits["train"])), max(BATCHES)
    shares = RUNGS if training.data == "german" else SHARES  # an evaluation of whisper-base takes minutes
    points = {share: min(budget, max(1, round(share * budget / unit)) * unit) for share in shares}
    tested = [budget] if training.data == "german" else [points[share] for share in RUNGS]
    rows: list[dict[str, Any]] = []
    trained = Trained()

    def report(metrics: Any, checkpoint: Path | None) -> None:
        if checkpoint is None:
            return
        row = {**settings, "samples_seen": int(metrics["samples_seen"])}
        row |= {"wer": metrics["wer"], "cer": metrics["cer"], "loss": metrics["eval_loss"]}
        row["train_seconds"] = metrics["train_seconds"]
        if row["samples_seen"] in tested:
            row["last_weights_wer"] = row["wer"] if metrics["finished"] else trained.last_weights_wer()
            rates = evaluate(config.replace(model=str(checkpoint)), data, "test").rates
            row |= {"test_wer": rates["wer"], "test_cer": rates["cer"]}
        rows.append(row)

    at = tuple(sorted(set(points.values())))
    with mock.patch("trainer.train.make_trainer", trained.make_trainer):
        result = train(config.replace(evaluate_at=at), data, report, clips=validation)
    if result.diverged:
        rows.append({**settings, "samples_seen": result.samples_seen, "wer": math.nan})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--parts", nargs="+", default=["voices", "voices-seed-1", "few-clips", "demo"], choices=PARTS
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="nothing begins after them")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="trainings at a time")
    parser.add_argument("--model", type=Path, help="whisper-base, for the part german")
    parser.add_argument("--german", type=Path, help="folder with metadata.csv, for the part german")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    if {"voices", "voices-seed-1", "few-clips"}.intersection(asked.parts):
        import few_speakers

        few_speakers.make(folder / "voices", clips=600, seed=0, speakers=4, snr=None)
    if "german" in asked.parts:
        import real_data

        real_data.make_german(asked.german, folder / "german.csv")
        asked.processes = 1  # whisper-base takes 7 GB
    table = pd.read_parquet(TABLE) if TABLE.is_file() else pd.DataFrame()
    left = missing(*asked.parts)
    print(f"{len(left)} trainings are left", flush=True)
    threads = max(1, (os.cpu_count() or 1) // asked.processes)
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(asked.processes, context) as pool:
        waiting: set[concurrent.futures.Future[list[dict[str, Any]]]] = set()
        while left or waiting:
            while left and len(waiting) < asked.processes and time.monotonic() - began < 60 * asked.minutes:
                waiting.add(pool.submit(measure, left.pop(0), folder, asked.model, threads))
            if not waiting:
                break
            done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                rows = pd.DataFrame(future.result())
                table = pd.concat([table, rows], ignore_index=True)
                unfinished = TABLE.with_suffix(".unfinished")
                table.to_parquet(unfinished, index=False)
                unfinished.replace(TABLE)
                last = rows.iloc[-1]
                print(
                    f"{time.monotonic() - began:6.0f} s: {len(left)} left; {Training(*last[_FIELDS])}: "
                    f"WER {last.wer:.2f} % after {last.samples_seen} samples",
                    flush=True,
                )


if __name__ == "__main__":
    main()
