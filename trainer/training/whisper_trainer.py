"""Hugging Face's `Seq2SeqTrainer` with the loss, batches and evaluation that Whisper needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import DynamicCache, EncoderDecoderCache, EvalPrediction, PrinterCallback
from transformers.training_args import OptimizerNames

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedSplit
from trainer.deepspeed import check_engine, zero_stage
from trainer.errors import DivergedError
from trainer.memory import BatchSize
from trainer.model.adapters import merged
from trainer.model.greedy import GreedyDecoder
from trainer.model.whisper import with_bf16_decoder
from trainer.scoring.decoding import transcribe_encoded
from trainer.scoring.normalizers import Normalizer
from trainer.training.batches import BatchPlan, PlannedBatches, evaluation_batches
from trainer.training.collator import SplitDataset, WhisperCollator
from trainer.training.distributed import any_of
from trainer.training.loss import (
    IGNORED,
    Projection,
    clip_cross_entropy,
    is_large,
    projected_cross_entropy,
    summed_cross_entropy,
)
from trainer.training.metrics import ErrorRates
from trainer.training.saving import SavingTrainer
from trainer.training.streamed import check_batches
from trainer.training.weight_average import WeightAverage
from trainer.training.window import set_window


class WhisperTrainer(SavingTrainer):
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
        normalizers: Sequence[Normalizer],
        full_frames: int,
        **kwargs: Any,
    ) -> None:
        self.plan = plan
        self._collators = collators
        self._evaluation = evaluation
        self._metric = ErrorRates(
            *(normalizers, evaluation.origins.sources, config.objective, config.task),
            silence=config.empty_text == "keep",
        )
        self.full_frames = full_frames
        self._model_name = config.model
        self._label_smoothing = config.label_smoothing
        self._deepspeed_asked = config.deepspeed is not None
        self._projection = Projection.put_into(kwargs["model"])
        super().__init__(eval_dataset=SplitDataset(evaluation), compute_metrics=self._error_rates, **kwargs)
        self.loss_is_scaled_for_ga = True
        self._greedy = GreedyDecoder(self.model)
        self._batch_size = BatchSize(config.eval_batch_size, same_everywhere=self._deepspeed_asked)
        self.remove_callback(PrinterCallback)
        # Not with ZeRO 3, where a process has parts of the weights.
        averaged = plan is not None and len(plan.points) > 1 and zero_stage(config.deepspeed) != 3
        until = int(np.searchsorted(plan.boundaries, plan.points[-2])) if plan and averaged else 0
        self.average = WeightAverage(self.model, until, by_engine=self._deepspeed_asked)
        self.add_callback(self.average)
        self.predictions: list[str] = []
        self.utterances = self._metric.utterances
        """Of the last evaluation, in the split's order."""
        self.tokens: list[int] = []
        """Tokens that it wrote for each clip, without the prefix and the end token."""
        self._n_prefix = len(self.processing_class.tokenizer.prefix_tokens)
        limit = self.model.generation_config.max_length + self._n_prefix
        self.token_limit = min(limit, self.model.config.max_target_positions) - self._n_prefix
        """Most tokens that it may write for a clip."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The stock method, after which bitsandbytes forgets the model.

        For each process it keeps the modules with 32-bit moments and the places of their weights among the
        optimiser's: the next training of this process would hold the old model, and other weights in 32 bits.
        """
        if self.args.optim != OptimizerNames.ADAMW_8BIT:
            return super().create_optimizer(model)  # type: ignore[no-any-return]
        from bitsandbytes.optim import GlobalOptimManager

        manager = GlobalOptimManager.get_instance()
        manager.initialize()
        made: Any = super().create_optimizer(model)
        made.check_overrides()
        manager.module_weight_config_triple.clear()
        return made  # type: ignore[no-any-return]

    def get_train_dataloader(self) -> DataLoader[Any]:
        """This worker's batches in the plan's order.

        Left as it is: accelerate's own sharding would deal whole batches to the workers and fill up or drop
        those that are not full.
        """
        if self.plan is None:
            raise ValueError("this trainer was made for evaluation only")
        collator = self._collators["train"]
        streams = self.plan.streamed and self.args.dataloader_num_workers
        return DataLoader(
            SplitDataset(collator.split),
            batch_sampler=PlannedBatches(self.plan, self.args.process_index),
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            # A forked process could not use the connections of this one.
            multiprocessing_context="spawn" if streams else None,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=False,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """This worker's clips. No other process loads them: the features are prepared, and the batches so large that
        they fill a container's shared memory.
        """
        collator = self._collators["evaluation"]
        batches = evaluation_batches(
            range(len(self._evaluation)),
            self._batch_size.loaded,
            n_tokens=collator.split.n_tokens,
            window=collator.window,
            worker=self.args.process_index,
            workers=self.args.world_size,
        )
        return DataLoader(
            SplitDataset(collator.split),
            batch_sampler=batches,
            collate_fn=collator,
            # Else each evaluation would draw a number of the training's own, and so change its dropout.
            generator=torch.Generator(),
            pin_memory=self.args.dataloader_pin_memory,
        )

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, Any]], device: torch.device
    ) -> torch.Tensor:
        """Label tokens of the effective batch of all workers. The stock method has the host wait for its copy.

        Raises:
            DataError: a stream gave no batch.
        """
        check_batches(batch_samples)
        tokens = torch.stack([batch["labels"].ne(IGNORED).sum() for batch in batch_samples]).sum()
        if self.args.world_size == 1:
            return tokens  # a number on the host divides what is on a GPU, too
        if device.type == "cuda":
            tokens = tokens.pin_memory()
        gathered: torch.Tensor = self.accelerator.gather(tokens.to(device, non_blocking=True))
        return gathered.sum()

    def _prepare_input(self, data: Any) -> Any:
        """Copies to the device while the host goes on: batches are in pinned memory there."""
        if isinstance(data, torch.Tensor):
            data = data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """On the device, features as wide as the weights."""
        prepared: dict[str, Any] = super()._prepare_inputs(inputs)
        prepared["input_features"] = prepared["input_features"].to(self.model.dtype)
        return prepared

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Loss of one micro-batch; its sum over the step is the mean over the step's label tokens."""
        if self._deepspeed_asked:
            check_engine(model)
        set_window(self.model, inputs["input_features"].shape[-1])
        labels, positions = inputs["labels"], inputs["label_positions"]
        given = {name: inputs[name] for name in ("input_features", "decoder_input_ids")}
        # Not with ZeRO 3, where a module has its weights only while it is called.
        zero_3 = self.is_deepspeed_enabled and self.accelerator.state.deepspeed_plugin.zero_stage == 3
        apart = not zero_3 and is_large(labels, self._projection.out_features)
        with self._projection.leave_to_loss(apart):
            # Teacher forcing reads no key-value cache, and gradient checkpointing forbids it. An empty one is given
            # so that transformers (5.23) does not ask the GPU, and wait for it, whether several texts are in a row.
            nothing = EncoderDecoderCache(DynamicCache(), DynamicCache())
            outputs = model(**given, past_key_values=nothing, use_cache=False)
        if apart:
            with self.accelerator.autocast():
                total = projected_cross_entropy(
                    outputs.logits, self._projection.weight, labels, positions, self._label_smoothing
                )
        else:
            total = summed_cross_entropy(outputs.logits, labels, self._label_smoothing)
        # Gradients of several workers are averaged.
        # A step may have no tokens, as where no clip of a stream can be used: it has no gradient then.
        loss = total / torch.as_tensor(num_items_in_batch).clamp(min=1) * self.args.world_size
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The stock loop, with the average of the weights where there is one, and adapters merged; in bf16 the
        decoder's weights are cast once.
        """
        with self.average.in_model(), merged(self.model):
            low = self.accelerator.mixed_precision == "bf16" and not self._deepspeed_asked
            self._greedy = GreedyDecoder(with_bf16_decoder(self.model) if low else self.model)
            try:
                return super().evaluation_loop(*args, **kwargs)
            finally:
                self._greedy = GreedyDecoder(self.model)

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
        # All of it: what is returned is gathered from all workers, which NCCL does on devices alone.
        inputs = self._prepare_inputs(inputs)
        parts = self._batch_size.in_parts(
            len(inputs["labels"]),
            lambda part: self._measure({name: value[part] for name, value in inputs.items()}),
            self._greedy.forget,
        )
        tokens, losses = map(torch.cat, zip(*parts, strict=True))
        if any_of(self.args, not bool(losses.isfinite().all())):
            raise DivergedError(
                f"model={self._model_name!r}: its loss in the evaluation is not a finite number; "
                "take another model, or precision=fp32"
            )
        return None, tokens, (inputs["clips"], losses, inputs["labels"].ne(IGNORED).sum(-1))

    def _measure(self, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids (B, most tokens of the model) and summed cross entropy (B,) of a batch.

        Nothing is transcribed where a clip's loss is no finite number.
        """
        labels = inputs["labels"]
        tokens = inputs["decoder_input_ids"][:, : self._n_prefix]  # of each clip its own
        set_window(self.model, inputs["input_features"].shape[-1])
        with torch.no_grad(), self.accelerator.autocast():
            encoded = self.model.get_encoder()(inputs["input_features"])
            states = self.model.model(
                encoder_outputs=encoded, decoder_input_ids=inputs["decoder_input_ids"], use_cache=False
            ).last_hidden_state
            losses = clip_cross_entropy(self._projection, states, labels)
            finite = bool(losses.isfinite().all())
            # With DeepSpeed all write together, or none.
            if not (any_of(self.args, not finite) if self._deepspeed_asked else not finite):
                tokens = transcribe_encoded(self._greedy, tokens, encoded, in_step=self._deepspeed_asked)
        rest = self.model.config.max_target_positions - tokens.shape[1]
        return functional.pad(tokens, (0, rest), value=self._collators["evaluation"].pad_token_id), losses

    def _error_rates(self, prediction: EvalPrediction) -> dict[str, float]:
        """The rates and the token-mean loss of all clips; keeps their transcripts in the split's order.

        Of several sources they are by the objective, and each source's own follow as `wer@NAME`.
        """
        clips, losses, counts = (np.asarray(part) for part in prediction.label_ids)
        rows = {int(clip): row for row, clip in enumerate(clips)}
        n_clips = len(self._evaluation)
        if len(rows) != n_clips:
            raise ValueError(f"evaluated {len(rows)} clips of {n_clips}")
        order = [rows[clip] for clip in range(n_clips)]
        tokens = np.asarray(prediction.predictions)[order]
        tokenizer = self.processing_class.tokenizer
        written = ~np.isin(tokens[:, self._n_prefix :], (tokenizer.pad_token_id, tokenizer.eos_token_id))
        self.tokens = written.sum(1).tolist()
        self.predictions = [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        references = [self._evaluation.text(clip) for clip in range(n_clips)]
        rates = self._metric.compute(predictions=self.predictions, references=references)
        names = map(self._evaluation.name, range(n_clips))
        texts = list(zip(names, references, self.predictions, strict=True))
        self.utterances = dataclasses.replace(self._metric.utterances, texts=texts)
        return {**rates, "loss": float(losses[order].sum() / counts[order].sum())}
