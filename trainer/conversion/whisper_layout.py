"""A model with a vocabulary of its own in the layout of Whisper's: the same model, told in other numbers.

CTranslate2 and whisper.cpp tell special tokens by their ids, which they compute from the size of the vocabulary:
51,864 tokens are an English model, 51,865 and 51,866 a multilingual one with 99 or 100 languages, and
`<|endoftext|>` is 50,257. A model with fewer tokens loads there, and then is prompted with the wrong ones.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

END, TIMESTAMPS, SIZE = 50_257, 50_365, 51_866
"""Ids of `<|endoftext|>` and `<|0.00|>`, and tokens in all, with 100 languages."""
_SIZES = (51_864, 51_865, 51_866)
_UNUSED_LOGIT = -1000.0
_LEAST_SHIFT = 0.05
_TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")


@contextlib.contextmanager
def whisper_layout(folder: Path) -> Iterator[Path]:
    """A Hugging Face folder with the same model in Whisper's own vocabulary: that folder itself where it has it.

    Raises:
        ModelError: as `write_whisper_layout`.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    if config.vocab_size in _SIZES and config.eos_token_id in (50_256, END):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        write_whisper_layout(folder, Path(scratch) / "model")
        yield Path(scratch) / "model"


def write_whisper_layout(folder: Path, output: Path) -> None:
    """Write the model of `folder` to `output` with each token at the id that it has in Whisper's vocabulary.

    The rows of the token embedding move with their tokens; logits and transcripts stay what they were. Ids that
    the model has no token for get a logit of about -1,000 whatever is heard (see `_unused_row`).

    Raises:
        ModelError: the model has more text tokens than Whisper, or special ones that Whisper has not.
    """
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    processor: WhisperProcessor = WhisperProcessor.from_pretrained(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    moved = _new_ids(folder, processor)
    rows = model.model.decoder.embed_tokens.weight.detach()
    wide = _unused_row(model).repeat(SIZE, 1)
    for old, new in moved.items():
        wide[new] = rows[old]
    model.resize_token_embeddings(SIZE, mean_resizing=False)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.copy_(wide)
    _renumber(model, moved)
    model.save_pretrained(output)
    for name in ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, output / name)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    _move_tokenizer(tokenizer, moved)
    (output / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def _special_tokens() -> list[str]:
    """Whisper's special tokens from `<|endoftext|>` on."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    times = [f"{index * 0.02:.2f}" for index in range(SIZE - TIMESTAMPS)]
    return [f"<|{name}|>" for name in ("endoftext", "startoftranscript", *LANGUAGES, *_TASKS, *times)]


def _new_ids(folder: Path, processor: WhisperProcessor) -> dict[int, int]:
    """The new id of every token by its old one."""
    tokens: dict[str, int] = processor.tokenizer.get_vocab()
    if "<|nocaptions|>" in tokens:  # the name in OpenAI's first release
        tokens["<|nospeech|>"] = tokens.pop("<|nocaptions|>")
    end = tokens["<|endoftext|>"]
    places = {token: END + index for index, token in enumerate(_special_tokens())}
    unknown = [token for token, number in tokens.items() if number >= end and token not in places]
    if unknown or end > END - 1:
        what = (
            f"tokens that Whisper has not ({', '.join(unknown[:3])})"
            if unknown
            else f"{end:,} text tokens, over {END - 1:,}"
        )
        raise ModelError(f"{folder}: has {what}, and so can be no ctranslate2 or ggml model; export it as hf")
    return {number: number if number < end else places[token] for token, number in tokens.items()}


def _unused_row(model: WhisperForConditionalGeneration) -> torch.Tensor:
    """An embedding, (d_model,), whose logit is the same far negative number at every step.

    What the embeddings are multiplied with leaves a layer norm: `h = w * x + b`, where the components of `x` sum
    to zero. So the product of `h` with `1 / w` is the sum of `b / w`, a constant; scaled, it is the logit wanted.
    """
    norm = model.model.decoder.layer_norm
    direction = 1.0 / norm.weight.detach()
    shift = float((norm.bias.detach() * direction).sum())
    if not abs(shift) > _LEAST_SHIFT:
        raise ModelError(
            "the model's own vocabulary cannot be told in Whisper's numbers, for its last layer norm has no shift; "
            "export it as hf"
        )
    row: torch.Tensor = direction * (_UNUSED_LOGIT / shift)
    return row


def _renumber(model: WhisperForConditionalGeneration, moved: Mapping[int, int]) -> None:
    """Put the new ids into the model's configuration and generation configuration."""
    for settings in (model.config, model.generation_config):
        for name in (
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "decoder_start_token_id",
            "no_timestamps_token_id",
            "prev_sot_token_id",
        ):
            old = getattr(settings, name, None)
            if old is not None:
                setattr(settings, name, moved[old])
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            if getattr(settings, name, None):
                setattr(settings, name, [moved[old] for old in getattr(settings, name)])
    for name in ("lang_to_id", "task_to_id"):
        ids: dict[str, int] = getattr(model.generation_config, name, None) or {}
        setattr(model.generation_config, name, {token: moved[old] for token, old in ids.items()})


def _move_tokenizer(tokenizer: dict[str, Any], moved: Mapping[int, int]) -> None:
    """Renumber the content of a `tokenizer.json` in place; ids without a token get a name that no text has."""
    specials = _special_tokens()
    text = {token: number for token, number in tokenizer["model"]["vocab"].items() if token not in specials}
    taken = set(text.values())
    text |= {f"<|unused_{number}|>": number for number in range(END - 1) if number not in taken}
    # The empty token of Whisper's multilingual vocabularies: newer versions of CTranslate2 know them by it.
    text |= {"": END - 1}
    tokenizer["model"]["vocab"] = text
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [
        {**like, "id": END + index, "content": token, "special": END + index < TIMESTAMPS}
        for index, token in enumerate(specials)
    ]
    prefix = (tokenizer.get("post_processor") or {}).get("special_tokens", {})
    for token in prefix.values():
        token["ids"] = [moved[old] for old in token["ids"]]
