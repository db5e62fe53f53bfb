"""Hugging Face's `Seq2SeqTrainer` with the loss, batches and evaluation that Whisper needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Seq2SeqTrainer,
)

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedSplit
from trainer.deepspeed import check_engine
from trainer.errors import DivergedError
from trainer.files import has_room
from trainer.memory import is_out_of_memory
from trainer.scoring.alignment import UtteranceErrors
from trainer.scoring.decoding import transcribe_encoded
from trainer.scoring.normalizers import Normalizer
from trainer.training.batches import BatchPlan, PlannedBatches, evaluation_batches
from trainer.training.checkpoints import checkpoint_bytes, disk_full, told_when_full, unseal
from trainer.training.collator import IGNORED, SplitDataset, WhisperCollator
from trainer.training.distributed import any_says, first_says, share_of_node
from trainer.training.early_evaluation import early_clips, is_early, wer_error
from trainer.training.encoder_cache import encode
from trainer.training.metrics import ErrorRates
from trainer.training.window import hear, hearing


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
        normalize: Normalizer,
        full_frames: int,
        add_stores: Callable[[dict[str, WhisperCollator]], dict[str, WhisperCollator]],
        **kwargs: Any,
    ) -> None:
        self.plan = plan
        self._collators = collators
        self._evaluation = evaluation
        self._metric = ErrorRates(normalize)
        self._full_frames = full_frames
        self._add_stores = add_stores
        self._model_name = config.model
        self._label_smoothing = config.label_smoothing
        self._early_eval_clips = config.early_eval_clips
        self._data_seed = config.data_seed
        self._deepspeed_asked = config.deepspeed is not None
        super().__init__(
            eval_dataset=SplitDataset(evaluation),
            compute_loss_func=self._step_loss,
            compute_metrics=self._error_rates,
            **kwargs,
        )
        self.remove_callback(PrinterCallback)
        self.predictions: list[str] = []
        self.utterances = UtteranceErrors([], [])
        """Of the last evaluation, in the split's order."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This worker's batches in the plan's order.

        Left as it is: accelerate's own sharding would deal whole batches to the workers and fill up or drop
        those that are not full.
        """
        if self.plan is None:
            raise ValueError("this trainer was made for evaluation only")
        self.close_stores()
        # Here the weights are those that are trained, also where a checkpoint brought them.
        self._collators = self._add_stores(self._collators)
        collator = self._collators["train"]
        return DataLoader(
            SplitDataset(collator.split),
            batch_sampler=PlannedBatches(self.plan, self.args.process_index),
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=False,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """Batches of this worker's share of the evaluation split."""
        collator = self._collators["evaluation"]
        batches = evaluation_batches(
            self._clips_due(),
            self.args.eval_batch_size,
            n_tokens=collator.split.n_tokens,
            window=collator.window,
            worker=self.args.process_index,
            workers=self.args.world_size,
        )
        return DataLoader(
            SplitDataset(collator.split),
            batch_sampler=batches,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Loss of one micro-batch; its sum over the step is the mean over the step's label tokens."""
        if self._deepspeed_asked:
            check_engine(model)
        store = self._collators["train"].store
        if store is None:
            hear(self.model, inputs["input_features"].shape[-1])
        else:
            with torch.no_grad(), self.accelerator.autocast():
                encoded = encode(self.model, inputs, store)
            inputs = {name: inputs[name] for name in ("decoder_input_ids", "labels")}
            inputs["encoder_outputs"] = (encoded.last_hidden_state,)
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

        Raises:
            DivergedError: the loss is no finite number, in any worker. Transcripts from such a model would
                mean nothing and run to their full length.
        """
        tokens, losses = self._measure(self._prepare_inputs(inputs))
        return None, tokens, (inputs["clips"], losses, inputs["labels"].ne(IGNORED).sum(-1))

    def _measure(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and summed cross entropy of each clip; of half of the clips at a time where memory runs out.

        Not where several workers train: they take their batches together.
        """
        try:
            return self._measure_at_once(inputs)
        except RuntimeError as error:
            clips = len(inputs["labels"])
            if clips == 1 or self.args.world_size > 1 or "missing" in inputs or not is_out_of_memory(error):
                raise
        # Outside of the block: the error holds the frames, and they the tensors.
        torch.cuda.empty_cache()
        halves = (slice(0, clips // 2), slice(clips // 2, clips))
        found = [self._measure({name: value[half] for name, value in inputs.items()}) for half in halves]
        return torch.cat([tokens for tokens, _ in found]), torch.cat([losses for _, losses in found])

    def _measure_at_once(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (B, most tokens of the model) and summed cross entropy (B,) of a batch."""
        labels = inputs["labels"]
        with torch.no_grad(), self.accelerator.autocast():
            encoded = encode(self.model, inputs, self._collators["evaluation"].store)
            logits = self.model(
                encoder_outputs=encoded, decoder_input_ids=inputs["decoder_input_ids"], use_cache=False
            ).logits
            losses = functional.cross_entropy(
                logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
            ).sum(-1)
            if any_says(self.args, not bool(losses.isfinite().all())):
                raise DivergedError(
                    f"model={self._model_name!r}: its loss in the evaluation is no finite number; "
                    "take another model, or precision=fp32"
                )
            tokens = transcribe_encoded(
                self.model,
                self.processing_class.tokenizer.prefix_tokens,
                encoded,
                in_step=self._deepspeed_asked,
            )
        rest = self.model.config.max_target_positions - tokens.shape[1]
        return functional.pad(tokens, (0, rest), value=self._pad_token_id), losses

    def close_stores(self) -> None:
        """Give the stores of encoder outputs back."""
        for role, collator in self._collators.items():
            if collator.store is not None:
                collator.store.close()
                self._collators[role] = dataclasses.replace(collator, store=None)

    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes on this node's disk, at most."""
        return checkpoint_bytes(self.model, deepspeed=self._deepspeed_asked, share=share_of_node())

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save, where there is room.

        Raises:
            DiskFullError: there is too little on the first worker's node, or it ran out.
        """
        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        needed = self.checkpoint_bytes()
        if not first_says(self.args, has_room(folder, needed)):
            raise disk_full(folder, needed)
        if self.args.process_index == 0:
            unseal(folder)  # a training that went on saves some steps once more
        with told_when_full(folder, needed), hearing(self.model, self._full_frames):
            super()._save_checkpoint(model, trial)

    def _clips_due(self) -> list[int]:
        """Clips of the evaluation split that are measured now."""
        early = self.plan is not None and is_early(self.plan, self.state.global_step)
        count = self._early_eval_clips if early else None
        return early_clips(len(self._evaluation), count, self._data_seed)

    @property
    def _pad_token_id(self) -> int:
        return self._collators["evaluation"].pad_token_id

    def _error_rates(self, prediction: EvalPrediction) -> dict[str, float]:
        """WER, CER and the token-mean loss of the clips measured; keeps their transcripts in the split's order.

        Where they are not all: also their number and the standard error of the WER (`eval_clips`, `wer_error`).
        """
        clips, losses, counts = (np.asarray(part) for part in prediction.label_ids)
        rows = {int(clip): row for row, clip in enumerate(clips)}
        due, n_clips = self._clips_due(), len(self._evaluation)
        if sorted(rows) != due:
            raise ValueError(f"evaluated {len(rows)} clips of {len(due)}")
        order = [rows[clip] for clip in due]
        tokens = np.asarray(prediction.predictions)[order]
        tokenizer = self.processing_class.tokenizer
        self.predictions = [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        references = [self._evaluation.text(clip) for clip in due]
        rates = self._metric.compute(predictions=self.predictions, references=references)
        words = self._metric.counts["wer"]
        self.utterances = UtteranceErrors(words.errors.tolist(), words.lengths.tolist())
        if len(due) < n_clips:
            rates |= {"clips": float(len(due)), "wer_error": wer_error(self.utterances, n_clips)}
        return {**rates, "loss": float(losses[order].sum() / counts[order].sum())}
