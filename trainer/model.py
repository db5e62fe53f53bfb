"""Loading Whisper: the model and its processor from the hub, a folder or the embedded demo."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.errors import ModelError
from trainer.hub_models import fetch_model
from trainer.memory import is_out_of_memory

if TYPE_CHECKING:
    from transformers import WhisperConfig, WhisperForConditionalGeneration, WhisperProcessor

DEMO_MODEL = Path(__file__).parent / "demo" / "model"


def model_path(config: TrainConfig) -> str:
    """What `from_pretrained` takes: a hub id or a folder.

    Raises:
        ModelError: the text is neither a short name, a hub id nor an existing folder.
    """
    source = config.model_source
    if source == "demo":
        return str(DEMO_MODEL)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model={config.model!r}: the folder has no config.json; give a Hugging Face model folder"
            )
        return str(folder)
    if "\\" in source or source.startswith(("/", ".", "~")) or source.count("/") != 1:
        names = ", ".join(MODEL_SHORT_NAMES)
        raise ModelError(
            f"model={config.model!r}: no such folder; give a folder, a hub id such as openai/whisper-small, "
            f"or one of {names}"
        )
    return source


def _load(loader: Any, config: TrainConfig, what: str, **kwargs: Any) -> Any:
    """`loader.from_pretrained`, with failures told in one line."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging

    # Bars of a second's length, once a trial, would bury what the search prints.
    logging.disable_progress_bar()
    path = model_path(config)
    # PyTorch tells of damaged files with RuntimeError; elsewhere that would be a fault of the program.
    damaged = (SafetensorError, pickle.UnpicklingError, EOFError, RuntimeError) if what == "weights" else ()
    try:
        if not Path(path).is_dir():
            path = fetch_model(path, weights=what == "weights")
        return loader.from_pretrained(path, **kwargs)
    except (OSError, ValueError, KeyError, StrictDataclassError, *damaged) as error:
        if is_out_of_memory(error):
            raise
        reason = _reason(error)
        if isinstance(error, damaged):
            # Behind the first sentence PyTorch advises to load the file in unsafe ways.
            reason = (
                f"{reason.split('. ')[0]}; the file is damaged or not this model's: copy or download it again"
            )
        raise ModelError(f"model={config.model!r}: cannot load the {what} from {path!r}: {reason}") from error


def _reason(error: BaseException) -> str:
    """The first line of an error's text, with the next one where it only announces that."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def load_model_config(config: TrainConfig) -> WhisperConfig:
    """The model's `WhisperConfig` (a small file, no weights)."""
    from transformers import AutoConfig

    loaded = _load(AutoConfig, config, "configuration")
    if loaded.model_type != "whisper":
        raise ModelError(
            f"model={config.model!r}: is a {loaded.model_type} model; only Whisper models can be tuned"
        )
    return loaded  # type: ignore[no-any-return]


def load_processor(config: TrainConfig) -> WhisperProcessor:
    """Feature extractor and tokenizer, with language and task set on the tokenizer's prefix.

    Raises:
        ModelError: the model cannot be loaded, has no tokenizer, or does not know the language or the task.
    """
    from transformers import WhisperProcessor

    processor = _load(WhisperProcessor, config, "processor")
    _check_tokenizer(config, processor.tokenizer)
    if not is_multilingual(processor):
        if config.language not in (None, "en") or config.task != "transcribe":
            raise ModelError(
                f"language={config.language!r}, task={config.task!r}: {config.model} only transcribes English; "
                "take a model without .en"
            )
        return processor  # type: ignore[no-any-return]
    tokenizer = processor.tokenizer
    # Looked up by name: transformers computes the id by counting, which for a language that is not in the
    # vocabulary (yue before large-v3) gives some other token.
    token = f"<|{config.language}|>"
    known = tokenizer.convert_tokens_to_ids(token)
    if config.language is None or known in (None, tokenizer.unk_token_id):
        raise ModelError(
            f"language={config.language!r}: {config.model} has no such language; "
            + (
                "give one (null is for .en models)"
                if config.language is None
                else "take a newer or another model"
            )
        )
    tokenizer.set_prefix_tokens(language=config.language, task=config.task, predict_timestamps=False)
    if tokenizer.prefix_tokens[1] != known:
        raise ModelError(f"model={config.model!r}: its tokenizer puts no {token} in front of transcripts")
    return processor  # type: ignore[no-any-return]


def _check_tokenizer(config: TrainConfig, tokenizer: Any) -> None:
    """Refuse a tokenizer that loses words: without its files transformers makes one of special tokens alone."""
    ids = tokenizer("a", add_special_tokens=False).input_ids
    if not tokenizer.decode(ids, skip_special_tokens=True).strip():
        raise ModelError(
            f"model={config.model!r}: the folder has no tokenizer that knows words (tokenizer.json, or vocab.json "
            "and merges.txt); copy it from the model that was fine-tuned"
        )


def is_multilingual(processor: WhisperProcessor) -> bool:
    """Whether the vocabulary has language tokens (`.en` models have none that are used)."""
    ids = processor.tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|en|>"])
    # In the `.en` vocabularies <|en|> exists but the models were never trained with it: their
    # <|endoftext|> is 50256, one below the multilingual one.
    return (
        ids[1] is not None and ids[1] != processor.tokenizer.unk_token_id and not _is_english_only(processor)
    )


def _is_english_only(processor: WhisperProcessor) -> bool:
    return bool(processor.tokenizer.convert_tokens_to_ids("<|endoftext|>") == 50256)


#: Peak learning rates by the model's width: its pre-training rate / 40 (whisper-large-v2: its own, 5e-6).
#: The narrowest entry is the embedded demo's, measured (see `trainer/demo/README.md`).
_LEARNING_RATES = {128: 1e-3, 384: 3.75e-5, 512: 2.5e-5, 768: 1.25e-5, 1024: 6.25e-6, 1280: 4.375e-6}


def default_learning_rate(config: TrainConfig) -> float:
    """The peak learning rate known to be good for the model's size (linear decay)."""
    if config.model_source == "openai/whisper-large-v2":
        return 5e-6
    width = load_model_config(config).d_model
    return _LEARNING_RATES[min(_LEARNING_RATES, key=lambda known: abs(known - width))]


def load_model(config: TrainConfig, processor: WhisperProcessor) -> WhisperForConditionalGeneration:
    """The model in float32, ready to be trained or evaluated with the language and task of `config`.

    Dropout and SpecAugment are set on its configuration, language and task on its generation configuration
    (`forced_decoder_ids` fail after save and load), and generation uses the key-value cache. The encoder's
    positions are not trained: they are sinusoids, of which a short audio window uses only a part.
    """
    import torch

    load_model_config(config)
    model = _load_weights(
        config,
        dtype=torch.float32,
        dropout=config.dropout,
        apply_spec_augment=config.spec_augment,
        mask_time_prob=config.mask_time_prob,
        mask_feature_prob=config.mask_feature_prob,
    )
    _set_generation(model, config, multilingual=is_multilingual(processor))
    # WhisperEncoder fixes them when it is made; from_pretrained makes them trainable again (transformers 5.23).
    model.get_encoder().embed_positions.requires_grad_(False)
    if config.freeze_encoder:
        model.freeze_encoder()
    return model


def _load_weights(config: TrainConfig, **kwargs: Any) -> WhisperForConditionalGeneration:
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
        model, found = _load(
            WhisperForConditionalGeneration,
            config,
            "weights",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **kwargs,
        )
    finally:
        logging.set_verbosity(verbosity)
    _check_weights(config, found)
    return model  # type: ignore[no-any-return]


def _check_weights(config: TrainConfig, found: Mapping[str, Any]) -> None:
    """Refuse weights of another model; `found` is what transformers tells about loading them."""
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


def _set_generation(
    model: WhisperForConditionalGeneration, config: TrainConfig, *, multilingual: bool
) -> None:
    generation = model.generation_config
    generation.forced_decoder_ids = None
    generation.language = config.language if multilingual else None
    generation.task = config.task if multilingual else None
    generation.use_cache = True
    # Written down even where it is 1: the pipeline would decode with 5 beams, and so to another WER.
    generation.num_beams = config.generation_num_beams
    generation.max_new_tokens = None
    limit = model.config.max_target_positions
    generation.max_length = min(config.generation_max_length or generation.max_length or limit, limit)
