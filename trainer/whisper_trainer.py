"""Hugging Face's `Seq2SeqTrainer` with the loss, batches and evaluation that Whisper needs."""

from __future__ import annotations

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

from trainer.batches import BatchPlan, PlannedBatches, evaluation_share
from trainer.checkpoints import unseal
from trainer.collator import IGNORED, SplitDataset, WhisperCollator
from trainer.config import TrainConfig
from trainer.deepspeed import check_engine
from trainer.disk_space import checkpoint_bytes, disk_full, has_room, told_when_full
from trainer.distributed import any_says, first_says, share_of_node
from trainer.errors import DivergedError
from trainer.metrics import rates_and_utterances
from trainer.prepared import PreparedSplit
from trainer.scoring.decoding import transcribe_encoded
from trainer.scoring.normalizers import Normalizer
from trainer.utterances import UtteranceErrors
from trainer.window import hear, hearing


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
        **kwargs: Any,
    ) -> None:
        self.plan = plan
        self._collators = collators
        self._evaluation = evaluation
        self._normalize = normalize
        self._full_frames = full_frames
        self._model_name = config.model
        self._label_smoothing = config.label_smoothing
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
        """Batches of this worker's share of the evaluation split, those with long texts first.

        A batch is transcribed until its last clip has ended, so that texts of like length belong together.
        """
        collator = self._collators["evaluation"]
        share = evaluation_share(len(collator.split), self.args.process_index, self.args.world_size)
        clips = sorted(share, key=collator.split.n_tokens, reverse=True)
        return DataLoader(
            SplitDataset(collator.split),
            sampler=clips,
            batch_size=self.args.eval_batch_size,
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
        hear(self.model, inputs["input_features"].shape[-1])
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
        inputs = self._prepare_inputs(inputs)
        labels = inputs["labels"]
        hear(self.model, inputs["input_features"].shape[-1])
        with torch.no_grad(), self.accelerator.autocast():
            encoded = self.model.get_encoder()(inputs["input_features"])
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
        tokens = functional.pad(
            tokens, (0, self.model.config.max_target_positions - tokens.shape[1]), value=self._pad_token_id
        )
        return None, tokens, (inputs["clips"], losses, labels.ne(IGNORED).sum(-1))

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
        rates, self.utterances = rates_and_utterances(
            self.predictions, references, self._normalize, self._normalize.unit
        )
        return {**rates, "loss": float(losses[order].sum() / counts[order].sum())}
