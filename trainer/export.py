"""A training checkpoint as a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from trainer.config import TrainConfig
from trainer.model import load_model, load_processor


def write_model(config: TrainConfig, checkpoint: Path, output: Path) -> None:
    """Write weights (safetensors), processor and generation config of `checkpoint` to `output`.

    What belongs to training only stays behind: optimiser, dropout, SpecAugment.

    Raises:
        ModelError: the checkpoint cannot be loaded.
    """
    plain = config.replace(
        model=str(checkpoint),
        dropout=0.0,
        spec_augment=False,
        freeze_encoder=False,
    )
    processor = load_processor(plain)
    model = load_model(plain, processor)
    model.save_pretrained(output)
    processor.save_pretrained(output)
