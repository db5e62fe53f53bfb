"""The hand-made script: Hugging Face's Whisper fine-tuning as its blog post and documentation have it.

`dataset.map` computes features of 30 seconds, a collator pads the labels, `Seq2SeqTrainer` trains and evaluates
with `predict_with_generate`. What the other peers need of it, they import from here.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import jiwer
import numpy as np
import soundfile
import torch
from transformers import (
    EvalPrediction,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

SEARCHED: dict[str, Any] = {
    "generation_max_length": 40,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 1,
    "per_device_eval_batch_size": 16,
}
"""Arguments of the trainings of a search."""


def search_arguments() -> argparse.Namespace:
    """What the other peers are asked for on the command line."""
    parser = argparse.ArgumentParser()
    for name in ("model", "data", "trials", "epochs", "seed", "clips", "output"):
        parser.add_argument(name, type=Path if name in ("model", "data", "output") else int)
    return parser.parse_args()


def log(output: Path, wer: float) -> None:
    """Add an evaluation to a file, a line of JSON: Unix time, and WER in percent."""
    with output.open("a") as file:  # short lines are written whole by several processes, too
        file.write(json.dumps({"time": time.time(), "wer": wer}) + "\n")


def load_splits(
    folder: Path, processor: WhisperProcessor, clips: int, eval_clips: int | None = None
) -> datasets.DatasetDict:
    """The first clips of `train.parquet` and `validation.parquet`, prepared as by the blog post's `prepare_dataset`."""
    limits = {"train": clips, "validation": eval_clips}
    files = {name: str(folder / f"{name}.parquet") for name in limits}
    loaded = datasets.load_dataset("parquet", data_files=files)
    loaded = loaded.cast_column("audio", datasets.Audio(decode=False))  # datasets wants torchcodec for that
    for name, limit in limits.items():
        if limit is not None:
            loaded[name] = loaded[name].take(min(limit, len(loaded[name])))

    def prepare(row: dict[str, Any]) -> dict[str, Any]:
        audio, rate = soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")
        features = processor.feature_extractor(audio, sampling_rate=rate).input_features[0]
        return {"input_features": features, "labels": processor.tokenizer(row["text"]).input_ids}

    return loaded.map(prepare, remove_columns=loaded["train"].column_names)


class Collator:
    """The blog post's `DataCollatorSpeechSeq2SeqWithPadding`."""

    def __init__(self, processor: WhisperProcessor) -> None:
        self.processor = processor
        self.start = processor.tokenizer.convert_tokens_to_ids("<|startoftranscript|>")

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self.processor.feature_extractor.pad(
            [{"input_features": row["input_features"]} for row in rows], return_tensors="pt"
        )
        labels = self.processor.tokenizer.pad(
            [{"input_ids": row["labels"]} for row in rows], return_tensors="pt"
        )
        ids = labels["input_ids"].masked_fill(labels.attention_mask.ne(1), -100)
        if (ids[:, 0] == self.start).all():  # as documentation mends it since transformers#29973
            ids = ids[:, 1:]
        batch["labels"] = ids
        return dict(batch)


def word_error_rate(processor: WhisperProcessor) -> Callable[[EvalPrediction], dict[str, float]]:
    """`compute_metrics` of the blog post, with jiwer in the place of a metric that it downloads."""

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        tokenizer = processor.tokenizer
        label_ids = np.where(prediction.label_ids == -100, tokenizer.pad_token_id, prediction.label_ids)
        # Batches of other lengths are filled up with -100, too.
        ids = np.where(prediction.predictions == -100, tokenizer.pad_token_id, prediction.predictions)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        references = tokenizer.batch_decode(label_ids, skip_special_tokens=True)
        return {"wer": 100 * jiwer.wer(references, texts)}

    return compute


def load_processor(model: Path) -> WhisperProcessor:
    """The processor with language and task."""
    processor = WhisperProcessor.from_pretrained(model, language="en", task="transcribe")
    processor.tokenizer.pad_token = processor.tokenizer.eos_token  # as Whisper's has it, and the demo's lacks
    return processor


def load_model(model: Path, *, use_cache: bool = True) -> WhisperForConditionalGeneration:
    """The model as the blog post sets it up; `use_cache=False` is in many scripts, for gradient checkpointing."""
    loaded = WhisperForConditionalGeneration.from_pretrained(model)
    loaded.generation_config.language = "en"
    loaded.generation_config.task = "transcribe"
    loaded.generation_config.forced_decoder_ids = None
    loaded.config.use_cache = loaded.generation_config.use_cache = use_cache
    return loaded


def make_trainer(
    processor: WhisperProcessor,
    splits: datasets.DatasetDict,
    output: Path,
    *,
    model: WhisperForConditionalGeneration | None = None,
    model_init: Callable[[], WhisperForConditionalGeneration] | None = None,
    **arguments: Any,
) -> Seq2SeqTrainer:
    """The stock trainer with a model, or with a function that makes one for each trial."""
    return Seq2SeqTrainer(
        model=model,
        model_init=model_init,
        args=Seq2SeqTrainingArguments(
            output_dir=str(output),
            predict_with_generate=True,
            bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
            report_to=[],
            disable_tqdm=True,
            **arguments,
        ),
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        data_collator=Collator(processor),
        compute_metrics=word_error_rate(processor),
        processing_class=processor,
    )
