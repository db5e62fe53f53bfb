"""The generation config: how a model decodes, and what it never writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.model.pretrained import find_model, load_pretrained
from trainer.model.processor import is_multilingual

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperForConditionalGeneration

    from trainer.model.processor import Processor


def load_generation_config(config: TrainConfig) -> GenerationConfig:
    """The model's own, as its files have it; of an older model that has none, what its configuration says.

    Raises:
        ModelError: the model cannot be found.
    """
    from transformers import AutoConfig, GenerationConfig

    if (find_model(config) / "generation_config.json").is_file():
        return load_pretrained(GenerationConfig, config, "generation configuration")  # type: ignore[no-any-return]
    return GenerationConfig.from_model_config(load_pretrained(AutoConfig, config, "configuration"))


def set_generation(model: WhisperForConditionalGeneration, config: TrainConfig, processor: Processor) -> None:
    """Have the model decode with the language and task of `config`; what older models lack comes from the tokenizer."""
    generation, multilingual = model.generation_config, is_multilingual(processor)
    _fill(generation, processor, multilingual=multilingual)
    generation.forced_decoder_ids = None
    generation.language = config.language if multilingual else None
    generation.task = config.task if multilingual else None
    generation.use_cache = True
    # Written down even where it is 1: the pipeline would decode with 5 beams, and so to another WER.
    generation.num_beams = config.generation_num_beams
    generation.max_new_tokens = None
    limit = model.config.max_target_positions
    generation.max_length = min(config.generation_max_length or generation.max_length or limit, limit)


def _fill(generation: GenerationConfig, processor: Processor, *, multilingual: bool) -> None:
    """Add the ids that generation configs have had since 2023, and transformers' pipeline refuses to do without."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES, TASK_IDS

    needed = [
        "is_multilingual",
        "no_timestamps_token_id",
        *(["lang_to_id", "task_to_id"] if multilingual else []),
    ]
    lacking = [name for name in needed if getattr(generation, name, None) is None]
    if not lacking:
        return
    vocabulary: dict[str, int] = processor.tokenizer.get_vocab()
    languages = {f"<|{code}|>": vocabulary.get(f"<|{code}|>") for code in LANGUAGES}
    found = {
        "is_multilingual": multilingual,
        "no_timestamps_token_id": vocabulary.get("<|notimestamps|>"),
        "lang_to_id": {token: number for token, number in languages.items() if number is not None},
        "task_to_id": {task: vocabulary.get(f"<|{task}|>") for task in TASK_IDS},
    }
    for name in lacking:
        setattr(generation, name, found[name])


def allow_tokens(generation: GenerationConfig, taught: Iterable[int], first: Iterable[int]) -> list[int]:
    """Take tokens off the lists of those that are never written.

    Args:
        generation: changed in place.
        taught: tokens of the texts that are trained on.
        first: those of them that texts begin with.

    Returns:
        Those that stood on one of the lists, in increasing order.
    """
    taken: set[int] = set()
    for name, allowed in (("suppress_tokens", set(taught)), ("begin_suppress_tokens", set(first))):
        listed = getattr(generation, name, None) or []
        if found := allowed.intersection(listed):
            setattr(generation, name, [token for token in listed if token not in found])
            taken |= found
    return sorted(taken)
