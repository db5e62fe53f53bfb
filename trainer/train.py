"""`train(config, data, report)`: one fine-tuning of Whisper, the same for a plain run and for a trial of a search."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trainer.config import TrainConfig
from trainer.errors import ConfigError, DataError, DivergedError
from trainer.memory import within_micro_batch
from trainer.model.processor import load_processor
from trainer.model.whisper import limit_training, load_model
from trainer.optimizers import check_installed
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.normalizers import make_normalizers
from trainer.scoring.objectives import RATES, describe_rates, objective_value, rates_by_source
from trainer.training.batches import BatchPlan, Frames, plan_points
from trainer.training.checkpoints import check_resumable
from trainer.training.distributed import check_world, process_group_of_one, scratch_folder, worker_seed
from trainer.training.report import CheckpointStore, Report, ignore
from trainer.training.window import Written, least_frames, varies, window_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import WhisperForConditionalGeneration

    from trainer.data.prepared import PreparedData, PreparedSplit
    from trainer.data.streaming.stream import TrainStream
    from trainer.training.augmented import AugmentedSplit
    from trainer.training.whisper_trainer import WhisperTrainer

DEFAULT_EPOCHS = 3.0
"""Budget where none is given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a training came to. Error rates in percent."""

    best: dict[str, float] | None
    """What was reported of the best evaluation, its rates among it; None where none was reached."""
    samples_seen: int
    steps: int
    diverged: bool
    """Whether the loss stopped being a finite number."""
    seconds: float
    """Wall time of the training, evaluations included."""
    checkpoint: Path | None
    """Folder of the best checkpoint, where checkpoints are kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's error rates on a split, with its transcripts in the split's order."""

    rates: dict[str, float]
    """Those of `objectives.RATES` that are known, in percent, with `loss` and `clips`."""
    predictions: list[str]
    utterances: ClipErrors | None = None
    """What each clip adds to the objective, where that is known."""
    tokens: Sequence[int] = ()
    """Tokens written for each clip, without the prefix and the end token."""
    token_limit: int = 0
    """Most tokens that may be written for a clip."""
    seconds: float = 0.0
    """Wall time, once the model was loaded; 0 where it was measured before."""
    sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Rates by the source of the clips, where there are several."""

    def written(self, clips: Sequence[int]) -> Written:
        assert self.utterances is not None
        rows = list(clips)  # some clips alone may have no words to count
        rate = ClipErrors(self.utterances.word_errors[rows], self.utterances.words[rows]).rate
        return Written([self.tokens[clip] for clip in clips], self.token_limit, rate)

    def describe(self) -> str:
        """`WER 9.19 %, CER 3.02 %`, or what translations have."""
        return describe_rates(self.rates)


def budget_samples(config: TrainConfig, n_train: float) -> int:
    """The budget in samples seen, from `max_steps`, `max_samples` or `epochs` of `n_train` samples, an epoch of the
    training clips.
    """
    if config.max_steps is not None:
        return config.max_steps * config.effective_batch_size
    if config.max_samples is not None:
        return config.max_samples
    return max(1, round((config.epochs or DEFAULT_EPOCHS) * n_train))


def plan_batches(
    config: TrainConfig, clips: PreparedSplit | TrainStream, frames: Frames | None = None
) -> BatchPlan:
    """The batches of a whole training on these clips, at most `max_steps` of them where that is the budget.

    Where `frames` are given, each step has the window of its longest clip. The clips of a split with weights come as
    often as these say; an epoch, and so the budget, is as long as the data's own weights make it, whatever
    `source_weights` a trial has. Of a stream it says how many clips each step takes, and not which.

    Cutting the steps at the evaluation points can take a few more of them for the same samples; a budget in
    steps then ends at the last step that it allows.

    Raises:
        DataError: every weight is 0.
    """
    if config.streaming:
        config = with_samples(config, cast("TrainStream", clips))
    budget = budget_samples(config, clips.epoch_samples)
    plan = BatchPlan(
        frames=frames,
        by_length=frames is not None and config.group_by_length,
        n_clips=clips.n_clips,
        batch_size=config.train_batch_size,
        accumulation=config.gradient_accumulation_steps,
        points=plan_points(budget, config.evaluations, config.evaluate_at, config.effective_batch_size),
        seed=config.seed,
        workers=config.workers,
        weights=clips.weights(config.weights),
        epoch_samples=clips.epoch_samples,
        streamed=config.streaming,
    )
    if config.max_steps is None or plan.n_steps <= config.max_steps:
        return plan
    last = plan.samples_seen(config.max_steps)
    return dataclasses.replace(plan, points=(*(point for point in plan.points if point < last), last))


def with_samples(config: TrainConfig, stream: TrainStream | None) -> TrainConfig:
    """The same settings with a budget in hours of audio as one in samples, once it is known how long they are."""
    if config.max_hours is None or stream is None:
        return config
    samples = max(1, round(config.max_hours * 3600 / max(stream.mean_seconds, 1e-3)))
    return config.replace(max_hours=None, max_samples=samples)


def train(
    config: TrainConfig,
    data: PreparedData,
    report: Report = ignore,
    *,
    store: CheckpointStore | None = None,
    clips: Sequence[int] | None = None,
    output_dir: Path | None = None,
    resume_from: Path | None = None,
) -> TrainResult:
    """Fine-tune `config.model` on prepared data and report every evaluation with its checkpoint.

    Args:
        config: what to train, with a learning rate.
        data: features and clips, as `prepare(config, waveforms=config.augments)` makes them.
        report: called on every evaluation point with WER and checkpoint, and in between with the loss.
        store: receives evaluations in place of `report`, and decides what follows and what is saved where.
        clips: only these of the validation split are measured, by their positions.
        output_dir: where checkpoints are kept; without it each is deleted once `report` has returned.
        resume_from: a checkpoint of the same training to go on from, as `report` was given it: weights,
            optimiser, schedule, random numbers and the position in the data are those of the unbroken training.

    With `config.workers` above 1 it is called in each of them, with torchrun's variables set (see `distributed`).

    Raises:
        DataError, ModelError: the data or the model cannot be used.
        ConfigError: the optimiser's package is not installed, or there is no learning rate.
        CheckpointError: `resume_from` is not whole.
        DiskFullError: a checkpoint does not fit on the disk.
    """
    from trainer.training.callbacks import ReportingCallback
    from trainer.training.saving import CheckpointSaver, ReportingStore

    started = time.monotonic()
    check_world(config)
    check_installed(config.optimizer)
    if config.learning_rate is None:
        raise ConfigError(
            "learning_rate: is missing; `trainer.model.rates.default_learning_rate` has a usual one"
        )
    if resume_from is not None:
        check_resumable(resume_from)
    config = within_micro_batch(config)
    alone = process_group_of_one() if config.deepspeed else contextlib.nullcontext()
    with alone, scratch_folder(config) as scratch:
        folder = output_dir or scratch
        measured = data.splits["validation"] if clips is None else data.splits["validation"].only(clips)
        trainer = make_trainer(config, data, measured, folder, whole=config.full_window_evaluation)
        plan = trainer.plan
        assert plan is not None
        reporting = ReportingStore(report, folder, keep=output_dir is not None)
        saver = CheckpointSaver(config, trainer, store or reporting)
        callback = ReportingCallback(config, plan, report, saver)
        trainer.add_callback(callback)
        try:
            trainer.train(resume_from_checkpoint=str(resume_from) if resume_from else None)
        except DivergedError:  # the last step before an evaluation, whose own loss was still a number
            callback.diverge(trainer.state)
    best = min(callback.rows, key=objective_value, default=None)
    return TrainResult(
        best=best,
        samples_seen=plan.samples_seen(trainer.state.global_step),
        steps=trainer.state.global_step,
        diverged=callback.diverged,
        seconds=time.monotonic() - started,
        checkpoint=reporting.checkpoints.get(int(best["step"])) if best else None,
    )


def evaluate(
    config: TrainConfig,
    data: PreparedData,
    split: str = "validation",
    *,
    as_in_training: bool = False,
    clips: Sequence[int] | None = None,
) -> Evaluation:
    """Error rates of `config.model` as it is on one split.

    Args:
        config: the model, and how it is evaluated.
        data: features and clips, as `prepare(config)` makes them.
        split: of the data.
        as_in_training: with the window in which a training with these settings evaluates, not always the whole one.
        clips: only these of the split, by their positions.

    Raises:
        DataError: the data has no such split.
        DivergedError: the model's loss is no finite number.
    """
    # One process: a model is evaluated where one fits on one device.
    config = config.replace(workers=1, deepspeed=None)
    if split not in data.splits:
        raise DataError(f"data={config.data!r}: has no {split} split; it has {', '.join(data.splits)}")
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        # Where nothing is trained the model is measured as it will be used, unless told otherwise.
        whole = config.full_window_evaluation or not as_in_training
        chosen = data.splits[split] if clips is None else data.splits[split].only(clips)
        trainer = make_trainer(config, data, chosen, Path(scratch), whole=whole, training=False)
        began = time.monotonic()
        measured = {name.removeprefix("eval_"): rate for name, rate in trainer.evaluate().items()}
    return Evaluation(
        rates={
            **{name: measured[name] for name in RATES if name in measured},
            "loss": measured["loss"],
            "clips": len(chosen),
        },
        predictions=trainer.predictions,
        utterances=trainer.utterances,
        tokens=trainer.tokens,
        token_limit=trainer.token_limit,
        seconds=time.monotonic() - began,
        sources=rates_by_source(measured),
    )


def make_trainer(
    config: TrainConfig,
    data: PreparedData,
    evaluation: PreparedSplit,
    folder: Path,
    *,
    whole: bool = True,
    training: bool = True,
) -> WhisperTrainer:
    """The stock trainer of transformers, extended, over the prepared data.

    Without `training` it only evaluates.
    """
    from transformers import set_seed

    from trainer.training.arguments import loaders, set_tf32, training_arguments
    from trainer.training.collator import WhisperCollator
    from trainer.training.streamed import StreamedCollator, StreamedSplit
    from trainer.training.suppressed import allow_label_tokens
    from trainer.training.whisper_trainer import WhisperTrainer

    set_seed(config.seed)
    processor = load_processor(config)
    model: WhisperForConditionalGeneration = load_model(config, processor)
    full = 2 * int(model.config.max_source_positions)
    window, varying = window_frames(config, data, full), varies(config)
    plan: BatchPlan | None = None
    augmented: AugmentedSplit | None = None
    if training:
        frames: Frames | None = None
        if config.augments and data.stream is None:
            from trainer.training.augmented import AugmentedSplit  # SciPy, which most trainings do without

            extractor = processor.feature_extractor
            augmented = AugmentedSplit(config, data.splits["train"], extractor, window, full)
        if varying:
            frames = augmented.frames if augmented else data.splits["train"].values("frames")
        plan = plan_batches(config, data.train, frames)
        allow_label_tokens(model.generation_config, config, data, processor)
        limit_training(model, config)
    # After the model: arguments with ZeRO 3 make transformers load it in pieces, where it cannot compute
    # Whisper's sinusoid positions (5.23). DeepSpeed splits it among the workers afterwards.
    arguments = training_arguments(config, plan, str(folder))
    model.config.mask_time_length = min(config.mask_time_length, window)  # longer ones are refused
    # The same weights everywhere, but dropout and augmentation of each worker's own: with this the stock trainer
    # seeds once more when it is made.
    arguments.seed = worker_seed(config.seed, arguments.process_index)
    shared: dict[str, Any] = {
        "decoder_start_token_id": model.config.decoder_start_token_id,
        "pad_token_id": model.config.pad_token_id,
        "least_frames": least_frames(full),
        "no_timestamps_id": processor.tokenizer.prefix_tokens[-1],
        "seed": config.seed,
    }
    evaluated = WhisperCollator(
        split=evaluation,
        n_frames=full if whole else window,
        own_window=varying and not whole,
        for_evaluation=True,
        **shared,
    )
    collators = {"evaluation": evaluated}
    if plan is not None and data.stream is not None:
        stream = StreamedSplit(
            config,
            data.stream,
            processor,
            window=window,
            longest=int(model.config.max_target_positions),
            worker=arguments.process_index,
            threads=loaders(config),
        )
        share = config.timestamp_share
        collators["train"] = StreamedCollator(split=stream, n_frames=window, timestamp_share=share, **shared)
    elif plan is not None:
        collators["train"] = WhisperCollator(
            split=data.splits["train"],
            n_frames=augmented.window if augmented else window,
            own_window=varying,
            augmented=augmented,
            timestamp_share=config.timestamp_share,
            **shared,
        )
    trainer = WhisperTrainer(
        config=config,
        plan=plan,
        collators=collators,
        evaluation=evaluation,
        normalizers=make_normalizers(config, evaluation.origins, processor.tokenizer),
        full_frames=full,
        model=model,
        args=arguments,
        processing_class=processor,
    )
    set_tf32(config)
    return trainer
