"""Hugging Face's `Seq2SeqTrainer` with the loss, batches and evaluation that Whisper needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import (
    EvalPrediction,
    GenerationMixin,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from trainer.batches import BatchPlan, PlannedBatches
from trainer.collator import IGNORED, SplitDataset, WhisperCollator
from trainer.config import ConfigError, TrainConfig
from trainer.metrics import error_rates
from trainer.prepared import PreparedSplit


class WhisperTrainer(Seq2SeqTrainer):
    """Trains on a `BatchPlan`; measures WER against the clips' own texts.

    The loss of a step is the mean over all label tokens of its effective batch. The stock trainer takes the
    mean of every micro-batch and does not divide by their number for Whisper (transformers 5.23), so that
    gradients, and with them clipping, grow with accumulation.
    """

    def __init__(
        self,
        *,
        config: TrainConfig,
        plan: BatchPlan | None,
        collators: dict[str, WhisperCollator],
        evaluation: PreparedSplit,
        normalize: Callable[[str], str],
        **kwargs: Any,
    ) -> None:
        self.plan = plan
        self._collators = collators
        self._evaluation = evaluation
        self._normalize = normalize
        self._label_smoothing = config.label_smoothing
        super().__init__(
            eval_dataset=SplitDataset(evaluation),
            compute_loss_func=self._step_loss,
            compute_metrics=self._error_rates,
            **kwargs,
        )
        self.remove_callback(PrinterCallback)
        self.predictions: list[str] = []

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches in the plan's order."""
        if self.plan is None:
            raise ValueError("this trainer was made for evaluation only")
        collator = self._collators["train"]
        loader: DataLoader[Any] = DataLoader(
            SplitDataset(collator.split),
            batch_sampler=PlannedBatches(self.plan),
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=False,
        )
        return self.accelerator.prepare(loader)  # type: ignore[no-any-return]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of the evaluation split in its own order."""
        collator = self._collators["evaluation"]
        loader: DataLoader[Any] = DataLoader(
            SplitDataset(collator.split),
            batch_size=self.args.eval_batch_size,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)  # type: ignore[no-any-return]

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Loss of one micro-batch; its sum over the step is the mean over the step's label tokens."""
        # Teacher forcing reads no key-value cache, and gradient checkpointing forbids it.
        return super().compute_loss(model, {**inputs, "use_cache": False}, return_outputs, num_items_in_batch)

    def _step_loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Cross entropy summed over the tokens of a micro-batch / label tokens of the whole effective batch."""
        total: torch.Tensor = functional.cross_entropy(
            outputs.logits.float().flatten(0, 1),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=self._label_smoothing,
        )
        return total / torch.as_tensor(num_items_in_batch)

    def prediction_step(
        self,
        model: Any,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: Any = None,
        **kwargs: Any,
    ) -> tuple[None, torch.Tensor, tuple[torch.Tensor, ...]]:
        """Transcribe a batch and take its teacher-forced loss from the same encoder output.

        Returns:
            no loss (it would be averaged by batches), token ids (B, T) padded with the pad token, and per clip
            its number, summed cross entropy and number of label tokens, each (B,).
        """
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        with torch.no_grad(), self.accelerator.autocast():
            encoded = self.model.get_encoder()(inputs["input_features"])
            logits = self.model(
                encoder_outputs=encoded, decoder_input_ids=inputs["decoder_input_ids"], use_cache=False
            ).logits
            losses = functional.cross_entropy(
                logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
            ).sum(-1)
            tokens = self._transcribe(encoded)
        tokens = functional.pad(
            tokens, (0, self.model.config.max_target_positions - tokens.shape[1]), value=self._pad_token_id
        )
        return None, tokens, (inputs["clips"], losses, labels.ne(IGNORED).sum(-1))

    def _transcribe(self, encoded: Any) -> torch.Tensor:
        """Token ids (B, T) for encoder outputs, without timestamps.

        Calls the generic `generate` with Whisper's prefix as decoder input. Whisper's own adds windows over
        long audio and fallbacks, which a batch of one window each does not need, and in transformers 5.23
        passes itself deprecated arguments; a test holds both equal.
        """
        hidden = encoded.last_hidden_state
        prefix = torch.tensor([self.processing_class.tokenizer.prefix_tokens], device=hidden.device)
        # Whisper's own does not count the prefix in `max_length`, the generic function does.
        limit = self.model.generation_config.max_length + prefix.shape[1]
        return GenerationMixin.generate(  # type: ignore[no-any-return]
            self.model,
            encoder_outputs=encoded,
            decoder_input_ids=prefix.expand(len(hidden), -1),
            attention_mask=torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device),
            max_length=min(limit, self.model.config.max_target_positions),
        )

    @property
    def _pad_token_id(self) -> int:
        return self._collators["evaluation"].pad_token_id

    def _error_rates(self, prediction: EvalPrediction) -> dict[str, float]:
        """WER, CER and the token-mean loss of the evaluation split; keeps the transcripts in its order."""
        clips, losses, counts = (np.asarray(part) for part in prediction.label_ids)
        rows = {int(clip): row for row, clip in enumerate(clips)}
        if sorted(rows) != list(range(len(self._evaluation))):
            raise ValueError(f"evaluated {len(rows)} clips of {len(self._evaluation)}")
        order = [rows[clip] for clip in range(len(rows))]
        tokens = np.asarray(prediction.predictions)[order]
        tokenizer = self.processing_class.tokenizer
        self.predictions = [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        references = [self._evaluation.text(clip) for clip in range(len(rows))]
        rates = error_rates(self.predictions, references, self._normalize)
        return {**rates, "loss": float(losses[order].sum() / counts[order].sum())}


def training_arguments(
    config: TrainConfig, plan: BatchPlan | None, output_dir: str
) -> Seq2SeqTrainingArguments:
    """The stock trainer's arguments for `config`: evaluation, saving and logging are left to our callback."""
    precision = resolve_precision(config.precision)
    n_steps = plan.n_steps if plan else 1
    arguments = Seq2SeqTrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=config.train_batch_size,
        per_device_eval_batch_size=config.eval_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_steps=n_steps,
        learning_rate=config.learning_rate or 0.0,
        lr_scheduler_type=config.scheduler_type,
        warmup_steps=warmup_steps(config, n_steps),
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        # Without it bf16 is refused where there is no GPU. (Not set otherwise: it would switch DeepSpeed off.)
        use_cpu=precision == "bf16" and not torch.cuda.is_available(),
        seed=config.seed,
        dataloader_num_workers=config.dataloader_workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        predict_with_generate=True,
        remove_unused_columns=False,
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    # One worker trains on one device; with several visible the stock trainer would fall back to DataParallel.
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def warmup_steps(config: TrainConfig, n_steps: int) -> int:
    """Optimiser steps of warmup: `warmup_steps`, or `warmup_ratio` of all `n_steps`."""
    if config.warmup_steps is not None:
        return config.warmup_steps
    return round(config.warmup_ratio * n_steps)


def resolve_precision(precision: str) -> str:
    """`auto` as what the device does well: bf16 from Ampere on, fp16 on older GPUs, fp32 elsewhere.

    Raises:
        ConfigError: fp16 was asked for without a GPU.
    """
    if not torch.cuda.is_available():
        if precision == "fp16":
            raise ConfigError("precision='fp16': needs a GPU; use auto, fp32 or bf16")
        return "fp32" if precision == "auto" else precision
    if precision != "auto":
        return precision
    return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"
