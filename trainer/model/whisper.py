"""Loading Whisper from the hub, a folder or the embedded demo."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import ConfigError, TrainConfig
from trainer.errors import ModelError
from trainer.memory import BF16_CAPABILITY, gpu_capability
from trainer.model.adapters import add_adapters, base_of, has_adapter, merge_adapter
from trainer.model.generation import load_generation_config, set_generation
from trainer.model.pretrained import load_pretrained, model_path

if TYPE_CHECKING:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from trainer.model.processor import Processor


def load_model_config(config: TrainConfig) -> WhisperConfig:
    """The model's `WhisperConfig` (a small file, no weights)."""
    from transformers import AutoConfig

    loaded = load_pretrained(AutoConfig, config, "configuration")
    if loaded.model_type != "whisper":
        raise ModelError(
            f"model={config.model!r}: is a {loaded.model_type} model; only Whisper models can be tuned"
        )
    return loaded  # type: ignore[no-any-return]


def load_model(config: TrainConfig, processor: Processor) -> WhisperForConditionalGeneration:
    """The model in float32, ready to be trained or evaluated with the language and task of `config`.

    Dropout and SpecAugment are set on its configuration, language and task on its generation configuration
    (`forced_decoder_ids` fail after save and load), and generation uses the key-value cache. The encoder's
    positions are not trained: they are sinusoids, of which a short audio window uses only a part.
    """
    import torch

    # As arguments of from_pretrained they would become part of the generation config, too.
    own = load_model_config(config)
    own.dropout, own.apply_spec_augment = config.dropout, config.spec_augment
    own.mask_time_prob, own.mask_feature_prob = config.mask_time_prob, config.mask_feature_prob
    own.mask_time_length, own.mask_feature_length = config.mask_time_length, config.mask_feature_length
    own.mask_time_min_masks = 0  # Whisper's two stretches are more than the share in a window of few seconds
    model = _whole_weights(config, dtype=torch.float32, config=own)
    set_generation(model, config, processor)
    # WhisperEncoder fixes them when it is made; from_pretrained makes them trainable again (transformers 5.23).
    model.get_encoder().embed_positions.requires_grad_(False)
    # PyTorch 2.11 and later take it first on H100 and newer: it plans anew for each shape, of which labels have many.
    torch.backends.cuda.enable_cudnn_sdp(False)
    return model


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


def _whole_weights(config: TrainConfig, /, **kwargs: Any) -> WhisperForConditionalGeneration:
    """The model with all its weights, also where its folder holds adapters alone: the base model with them merged.

    Raises:
        ModelError: as `_load_weights`, or the base model cannot be loaded.
    """
    folder = Path(model_path(config))
    if not has_adapter(folder):
        return _load_weights(config, **kwargs)
    base = base_of(folder)
    try:
        model = _whole_weights(config.replace(model=base), **kwargs)
    except ModelError as error:
        raise ModelError(f"model={config.model!r}: has adapters for {base}, and {error}") from error
    model = merge_adapter(model, folder)
    model.generation_config = load_generation_config(config)
    return model


def _load_weights(config: TrainConfig, /, **kwargs: Any) -> WhisperForConditionalGeneration:
    """The model with all its weights.

    Raises:
        ModelError: the weights cannot be read, or are not those of the model that `config.json` describes.
    """
    from transformers import WhisperForConditionalGeneration
    from transformers.utils import logging

    # transformers would print a line for each weight that does not fit, and make up those that are missing.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, found = load_pretrained(
            WhisperForConditionalGeneration,
            config,
            "weights",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **kwargs,
        )
    finally:
        logging.set_verbosity(verbosity)
    unfit = [
        f"{name} has the shape {tuple(has)} and needs {tuple(needs)}"
        for name, has, needs in sorted(found["mismatched_keys"])
    ] + [f"{name} is missing" for name in sorted(found["missing_keys"])]
    if unfit:
        others = f" ({len(unfit) - 1} more do not fit)" if len(unfit) > 1 else ""
        raise ModelError(
            f"model={config.model!r}: the weights are not those of its config.json: {unfit[0]}{others}; "
            "take both from the same model"
        )
    return model  # type: ignore[no-any-return]


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
            "(Ampere); leave such nodes out, or begin anew with precision=fp16"
        )
    if precision != "auto":
        return precision
    return "bf16" if capability >= BF16_CAPABILITY else "fp16"
