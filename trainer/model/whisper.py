"""A Whisper to be trained or evaluated: with its dropout, how it decodes, what of it is trained, in which precision."""

from __future__ import annotations

import copy
import itertools
import os
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.memory import BF16_CAPABILITY, gpu_capability
from trainer.model.adapters import add_adapters
from trainer.model.pretrained import load_model_config, load_weights

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    from trainer.model.processor import Processor


def load_model(config: TrainConfig, processor: Processor) -> WhisperForConditionalGeneration:
    """The model in float32, ready to be trained or evaluated with the language and task of `config`.

    Dropout and SpecAugment are set on its configuration, language and task on its generation configuration
    (`forced_decoder_ids` fail after save and load), and generation uses the key-value cache. The encoder's
    positions are not trained: they are sinusoids, of which a short audio window uses only a part.
    """
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed, where it is installed, warns of it
    # As arguments of from_pretrained they would become part of the generation config, too.
    own = load_model_config(config.model)
    own.dropout, own.apply_spec_augment = config.dropout, config.spec_augment
    own.mask_time_prob, own.mask_feature_prob = config.mask_time_prob, config.mask_feature_prob
    own.mask_time_length, own.mask_feature_length = config.mask_time_length, config.mask_feature_length
    own.mask_time_min_masks = 0  # Whisper's two stretches are more than the share in a window of few seconds
    model = load_weights(config.model, own)
    set_generation(model, config, processor)
    # WhisperEncoder fixes them when it is made; from_pretrained makes them trainable again (transformers 5.23).
    model.get_encoder().embed_positions.requires_grad_(False)
    # PyTorch 2.11 and later take it first on H100 and newer: it plans anew for each shape, of which labels have many.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return model


def set_generation(model: WhisperForConditionalGeneration, config: TrainConfig, processor: Processor) -> None:
    """Have the model decode with the language and task of `config`; what older models lack comes from the tokenizer."""
    generation, multilingual = model.generation_config, processor.is_multilingual
    _add_missing_ids(generation, processor)
    generation.forced_decoder_ids = None
    generation.language = config.language if multilingual else None
    generation.task = config.task if multilingual else None
    generation.use_cache = True
    # Written down even where it is 1: the pipeline would decode with 5 beams, and so to another WER.
    generation.num_beams = config.generation_num_beams
    generation.max_new_tokens = None
    limit = model.config.max_target_positions
    generation.max_length = min(config.generation_max_length or generation.max_length or limit, limit)


def _add_missing_ids(generation: GenerationConfig, processor: Processor) -> None:
    """Add the ids that generation configs have had since 2023, and transformers' pipeline refuses to do without."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, TASK_IDS

    vocabulary: dict[str, int] = processor.tokenizer.get_vocab()
    ids: dict[str, Any] = {
        "is_multilingual": processor.is_multilingual,
        "no_timestamps_token_id": vocabulary.get("<|notimestamps|>"),
    }
    if processor.is_multilingual:
        tokens = (f"<|{code}|>" for code in LANGUAGES)
        ids["lang_to_id"] = {token: vocabulary[token] for token in tokens if token in vocabulary}
        ids["task_to_id"] = {task: vocabulary.get(f"<|{task}|>") for task in TASK_IDS}
    for name, value in ids.items():
        if getattr(generation, name, None) is None:
            setattr(generation, name, value)


def limit_training(model: WhisperForConditionalGeneration, config: TrainConfig) -> None:
    """Leave trainable only what `config.method` trains, which with LoRA are adapters that are put into the model.

    Raises:
        ConfigError: the encoder has fewer layers than are not to be trained.
    """
    check_depth(config, model.config)
    if config.method == "decoder":
        model.freeze_encoder()
    elif config.method == "lora":
        add_adapters(model, config)
    elif config.freeze_encoder_layers:
        encoder = model.get_encoder()
        for part in (encoder.conv1, encoder.conv2, *encoder.layers[: config.freeze_encoder_layers]):
            part.requires_grad_(False)


def check_depth(config: TrainConfig, model: WhisperConfig) -> None:
    """Raise `ConfigError` where more layers are not to be trained than the model's encoder has."""
    if config.freeze_encoder_layers > model.encoder_layers:
        raise ConfigError(
            f"freeze_encoder_layers={config.freeze_encoder_layers}: the encoder of {config.model} has "
            f"{model.encoder_layers} layers; give at most {model.encoder_layers}"
        )


def with_bf16_decoder(model: WhisperForConditionalGeneration) -> WhisperForConditionalGeneration:
    """The same model for decoding alone: a copy of its decoder in bfloat16, and the encoder itself.

    Autocast would cast the input of each layer at each token, a fifth of all that a GPU is asked to do for one, and
    all weights once a batch. The copy takes half of what the decoder's float32 weights take.
    """
    import torch

    encoder = model.get_encoder()
    kept: dict[int, Any] = {id(encoder): encoder}
    for weight in itertools.chain(model.get_decoder().parameters(), model.proj_out.parameters()):
        kept[id(weight)] = torch.nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False)
    # Wrapped by accelerate, for autocast: it would lead to the model itself.
    wrapped = model.__dict__.pop("forward", None)
    try:
        return copy.deepcopy(model, kept).eval()
    finally:
        if wrapped is not None:
            model.forward = wrapped


def resolve_precision(precision: str) -> str:
    """`auto` as what the device does well: bf16 from Ampere on, fp16 on older GPUs, fp32 elsewhere.

    Raises:
        ConfigError: fp16 was asked for without a GPU, or bf16 with one that lacks it.
    """
    capability = gpu_capability()
    if capability is None:
        if precision == "fp16":
            raise ConfigError("precision='fp16': needs a GPU; use auto, fp32 or bf16")
        return "fp32" if precision == "auto" else precision
    if precision == "bf16" and capability < BF16_CAPABILITY:
        raise ConfigError(
            f"precision='bf16': the GPU here has compute capability {capability:g}, and bf16 needs {BF16_CAPABILITY:g} "
            "(Ampere); leave out such nodes, or start again with precision=fp16"
        )
    if precision != "auto":
        return precision
    return "bf16" if capability >= BF16_CAPABILITY else "fp16"
