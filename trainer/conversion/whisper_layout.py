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
from typing import Any

from trainer.errors import ModelError

END, TIMESTAMPS, SIZE = 50_257, 50_365, 51_866
"""Ids of `<|endoftext|>` and `<|0.00|>`, and tokens in all, with 100 languages."""
_SIZES = (51_864, 51_865, 51_866)
_UNUSED_LOGIT = -1000.0
_TASKS = ("translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps")


@contextlib.contextmanager
def whisper_layout(folder: Path) -> Iterator[Path]:
    """A Hugging Face folder with the same model in Whisper's own vocabulary: that folder itself where it has it.

    Otherwise each token goes to the id that it has in Whisper's vocabulary, and its row of the embedding with it;
    logits and transcripts stay what they were. Ids that the model has no token for get a logit of about -1,000
    whatever is heard.

    Raises:
        ModelError: the model has more text tokens than Whisper, or special ones that Whisper has not.
    """
    import torch
    from transformers import AutoConfig, WhisperForConditionalGeneration

    config = AutoConfig.from_pretrained(folder)
    if config.vocab_size in _SIZES and config.eos_token_id in (50_256, END):
        yield folder
        return
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = _special_tokens()
    moved = _new_ids(folder, tokenizer, special)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    # What the embeddings are multiplied with leaves a layer norm: `h = w * x + b`, where the components of `x` sum to
    # zero. So the product of `h` with `1 / w` is the sum of `b / w`, a constant; scaled, it is the logit wanted.
    norm = model.model.decoder.layer_norm
    direction = 1.0 / norm.weight.detach()
    unused = direction * (_UNUSED_LOGIT / (norm.bias.detach() * direction).sum())
    wide = unused.repeat(SIZE, 1)
    wide[list(moved.values())] = model.model.decoder.embed_tokens.weight.detach()[list(moved)]
    model.resize_token_embeddings(SIZE, mean_resizing=False)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.copy_(wide)
    for settings in (model.config, model.generation_config):
        for name, value in settings.to_dict().items():
            if value and name.endswith(("token_id", "suppress_tokens", "_to_id")):
                setattr(settings, name, _renumbered(value, moved))
    _move_tokenizer(tokenizer, moved, special)
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        output = Path(scratch)
        model.save_pretrained(output)
        for name in ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, output / name)
        (output / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
        yield output


def _special_tokens() -> dict[str, int]:
    """Whisper's special tokens with their ids, from `<|endoftext|>` on."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    times = [f"{index * 0.02:.2f}" for index in range(SIZE - TIMESTAMPS)]
    names = ("endoftext", "startoftranscript", *LANGUAGES, *_TASKS, *times)
    return {f"<|{name}|>": END + index for index, name in enumerate(names)}


def _new_ids(folder: Path, tokenizer: Mapping[str, Any], special: Mapping[str, int]) -> dict[int, int]:
    """The new id of every token by its old one, from the content of a `tokenizer.json`."""
    tokens = tokenizer["model"]["vocab"] | {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    end = tokens["<|endoftext|>"]
    unknown = [token for token, number in tokens.items() if number >= end and token not in special]
    problem = f"tokens that Whisper does not have ({', '.join(unknown[:3])})" if unknown else None
    if end > END - 1:
        problem = f"{end:,} text tokens, over {END - 1:,}"
    if problem:
        raise ModelError(
            f"{folder}: has {problem}, so it cannot be converted to ctranslate2 or ggml; export it as hf"
        )
    return {number: number if number < end else special[token] for token, number in tokens.items()}


def _renumbered(value: Any, moved: Mapping[int, int]) -> Any:
    """An id, a list of ids, or ids by name, each as the new one."""
    if isinstance(value, dict):
        return {name: moved[old] for name, old in value.items()}
    return [moved[old] for old in value] if isinstance(value, list) else moved[value]


def _move_tokenizer(tokenizer: dict[str, Any], moved: Mapping[int, int], special: Mapping[str, int]) -> None:
    """Renumber the content of a `tokenizer.json` in place; ids without a token get a name that no text has."""
    text = {token: number for token, number in tokenizer["model"]["vocab"].items() if token not in special}
    taken = set(text.values())
    text |= {f"<|unused_{number}|>": number for number in range(END - 1) if number not in taken}
    # The empty token of Whisper's multilingual vocabularies: newer versions of CTranslate2 know them by it.
    tokenizer["model"]["vocab"] = text | {"": END - 1}
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] = [
        {**like, "id": number, "content": token, "special": number < TIMESTAMPS}
        for token, number in special.items()
    ]
    for token in (tokenizer.get("post_processor") or {}).get("special_tokens", {}).values():
        token["ids"] = [moved[old] for old in token["ids"]]
