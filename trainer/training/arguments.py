"""The stock trainer's arguments, from our settings and what the device can do."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from trainer.config import TrainConfig
from trainer.deepspeed import engine_settings, join_on_cpu
from trainer.errors import ConfigError
from trainer.model.whisper import resolve_precision
from trainer.training.batches import BatchPlan
from trainer.training.distributed import TIMEOUT_SECONDS

_LEAST_SHARED = 2**30
"""Bytes of shared memory below which nothing is loaded by other processes."""
_BATCHES_WAITING = 3
"""Batches of a loading process: two that PyTorch has it keep ready, and one on its way."""
_CLIP_BYTES = 128 * 3000 * 2
"""Of the features of the longest clip, as a GPU gets them."""


def training_arguments(
    config: TrainConfig, plan: BatchPlan | None, output_dir: str
) -> Seq2SeqTrainingArguments:
    """The stock trainer's arguments for `config`: evaluation, saving and logging are left to our callback."""
    precision = resolve_precision(config.precision)
    n_steps = plan.n_steps if plan else 1
    n_warmup = warmup_steps(config, n_steps)
    if config.deepspeed and precision == "bf16" and not torch.cuda.is_available():
        raise ConfigError(
            "precision='bf16': DeepSpeed trains in fp32 where there is no GPU; use auto or fp32"
        )
    joined = bool(config.deepspeed) and not torch.cuda.is_available()
    if joined:
        join_on_cpu(datetime.timedelta(seconds=TIMEOUT_SECONDS))
    arguments = Seq2SeqTrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=config.train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        max_steps=n_steps,
        learning_rate=config.learning_rate or 0.0,
        optim=TrainingArguments.default_optim if config.optimizer == "adamw" else config.optimizer,
        adam_beta1=config.adam_beta1,
        adam_beta2=config.adam_beta2,
        adam_epsilon=config.adam_epsilon,
        # The stock `constant` has no warmup, the stock `polynomial` divides by the steps after it (transformers 5.23).
        lr_scheduler_type="constant_with_warmup"
        if config.scheduler_type == "constant" or n_warmup >= n_steps
        else config.scheduler_type,
        lr_scheduler_kwargs=_scheduler_settings(config, n_steps, n_warmup),
        warmup_steps=n_warmup,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        activation_checkpointing=config.gradient_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=_needs_use_cpu(config, precision),
        seed=config.seed,
        deepspeed=engine_settings(config.deepspeed) if config.deepspeed else None,
        accelerator_config={"use_configured_state": True} if joined else None,
        ddp_timeout=TIMEOUT_SECONDS,
        # Every parameter that is trained takes part in every step; looking for others costs time.
        ddp_find_unused_parameters=False,
        torch_compile=config.torch_compile,
        dataloader_num_workers=loader_processes(config),
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
    if arguments.world_size != (config.workers if plan else 1):
        raise RuntimeError(f"{config.workers} workers were started, {arguments.world_size} train together")
    return arguments


def set_tf32(config: TrainConfig) -> None:
    """Switch TensorFloat-32 on or off for this process, where the GPU has it; an earlier training may have set it.

    To be called when the stock trainer is made: accelerate switches it on for models that are compiled. The stock
    trainer's own argument works once in a process (transformers 5.23 caches the call that sets it).
    """
    if not _has_tf32():
        return
    if hasattr(torch.backends, "fp32_precision"):  # PyTorch 2.9 and later
        torch.backends.fp32_precision = "tf32" if config.tf32 else "ieee"
    # These too: PyTorch raises where they are asked and contradict it.
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.allow_tf32 = config.tf32


def _has_tf32() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8


def loaders(config: TrainConfig) -> int:
    """Processes that load training batches where there is room for what they pass on, of a stream threads.

    Only with augmentation or a stream: to change or decode a clip takes about 1 ms for each of its seconds, to read
    features that are prepared hardly anything. And only on a GPU, also where there is a single core: the process that
    trains is mostly waiting there; on the CPU they would take from the training what it computes with.
    """
    if config.dataloader_workers is not None:
        return config.dataloader_workers
    if not torch.cuda.is_available() or not (config.augments or config.streaming):
        return 0
    return max(1, min(8, torch.get_num_threads() - 1))


def loader_processes(config: TrainConfig) -> int:
    """Processes that load training batches: as many as there is shared memory for, through which these go.

    In a container `/dev/shm` has 64 MB unless told otherwise, and a batch that finds no room there ends its process.
    A stream is read by one process, whose threads decode.
    """
    wanted = min(1, loaders(config)) if config.streaming else loaders(config)
    if config.dataloader_workers is not None or not wanted:
        return wanted
    try:
        shared = os.statvfs("/dev/shm")
    except FileNotFoundError:
        return 0
    free = shared.f_bavail * shared.f_frsize
    if free < _LEAST_SHARED:
        return 0
    each = _BATCHES_WAITING * config.train_batch_size * _CLIP_BYTES
    # By their share of the CPUs: trials on other GPUs of the node take as much.
    beside = max(
        int(os.environ.get("LOCAL_WORLD_SIZE", "1")), (os.cpu_count() or 1) // torch.get_num_threads()
    )
    return min(wanted, free // (2 * beside * each))  # half of it stays for others


def _needs_use_cpu(config: TrainConfig, precision: str) -> bool:
    """Without it, bf16 is refused where there is no GPU, and several workers would each train alone.

    With DeepSpeed it must not be set: the stock trainer would then go on without DeepSpeed.
    """
    if torch.cuda.is_available() or config.deepspeed:
        return False
    return precision == "bf16" or config.workers > 1


def warmup_steps(config: TrainConfig, n_steps: int) -> int:
    """Optimiser steps of warmup: `warmup_steps`, or `warmup_ratio` of all `n_steps`."""
    if config.warmup_steps is not None:
        return config.warmup_steps
    return round(config.warmup_ratio * n_steps)


def _scheduler_settings(config: TrainConfig, n_steps: int, n_warmup: int) -> dict[str, Any] | None:
    """What only `warmup_stable_decay` is told: its last steps; the rate falls as 1 - sqrt (arXiv:2405.18392)."""
    left = n_steps - n_warmup
    if config.scheduler_type != "warmup_stable_decay" or left <= 0:
        return None
    return {"num_decay_steps": min(round(config.decay_ratio * n_steps), left), "decay_type": "1-sqrt"}
