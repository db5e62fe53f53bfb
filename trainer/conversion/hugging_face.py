"""A training checkpoint as a plain Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from trainer.config import TrainConfig
from trainer.conversion.quiet import quiet_libraries
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model


def write_model(config: TrainConfig, checkpoint: Path, output: Path) -> None:
    """Write weights (safetensors), processor and generation config of `checkpoint` to `output`.

    What belongs to training only stays behind: optimiser, dropout, SpecAugment. Added are `preprocessor_config.json`,
    which transformers 5 writes no more and faster-whisper, Optimum and transformers.js look for; and, where the model
    names none, the attention heads that word timestamps come from: all of the decoder's upper half, OpenAI's default.
    The folder loads in transformers 4.57, too, and decodes there as here.

    Raises:
        ModelError: the checkpoint cannot be loaded.
    """
    quiet_libraries()
    plain = config.replace(model=str(checkpoint), dropout=0.0, spec_augment=False)
    processor = load_processor(plain)
    model = load_model(plain, processor)
    if not getattr(model.generation_config, "alignment_heads", None):
        layers, heads = model.config.decoder_layers, model.config.decoder_attention_heads
        model.generation_config.alignment_heads = [
            [layer, head] for layer in range(layers // 2, layers) for head in range(heads)
        ]
    # Version 4's pipeline takes 5 beams unless it is told here; version 5's asks the generation config.
    beams = {"num_beams": model.generation_config.num_beams}
    model.config.task_specific_params = {"automatic-speech-recognition": beams}
    model.save_pretrained(output)
    processor.save_pretrained(output)
    processor.feature_extractor.save_pretrained(output)
