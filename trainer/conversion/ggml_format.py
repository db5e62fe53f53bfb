"""whisper.cpp's file format, and decoding with it.

Written to the letter of whisper.cpp's `models/convert-h5-to-ggml.py` and `examples/quantize` (MIT licence, The ggml
authors), which are in no Python package and take the mel filters from a checkout of openai/whisper: sizes, mel
filters, tokens as bytes, then every tensor with its name. Blocks are quantised by the package `gguf`, llama.cpp's own.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from trainer.conversion.decoding import Decoding, end_token
from trainer.conversion.whisper_layout import whisper_layout
from trainer.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

MODEL_FILE = "ggml-model.bin"
_MAGIC = 0x67676D6C
_FILE_TYPES = {"float16": 1, "int8": 2007, "q5_0": 2008}
"""Numbers in the file's head; those of blocks with 1000 times their version, 2."""
_FLOAT32, _FLOAT16 = 0, 1
_PARTS = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}
_WHOLE = {
    "encoder.layer_norm": "encoder.ln_post",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.layer_norm": "decoder.ln",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
}
_FEED_FORWARD = 4
"""whisper.cpp takes the inner width of the feed-forward layers to be so many times the model's width."""


def convert(folder: Path, output: Path, quantization: str) -> None:
    """Write the model of a Hugging Face folder as `ggml-model.bin`.

    Args:
        folder: the model, as `trainer.conversion.hugging_face.write_model` writes it.
        output: folder to make.
        quantization: `float16`, `int8` (whisper.cpp's q8_0) or `q5_0`; its convolutions know no float32.

    Raises:
        ModelError: the model has parts that whisper.cpp has not.
    """
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    with whisper_layout(folder) as source:
        processor: WhisperProcessor = WhisperProcessor.from_pretrained(source)
        model = WhisperForConditionalGeneration.from_pretrained(
            source, dtype=torch.float32, use_safetensors=True
        )
    output.mkdir(parents=True, exist_ok=True)
    with (output / MODEL_FILE).open("wb") as file:
        _write_head(file, model.config, quantization)
        _write_filters(file, processor)
        _write_tokens(file, processor)
        for name, tensor in _tensors(model, folder):
            _write_tensor(file, name, tensor, quantization)


def _write_head(file: BinaryIO, config: Any, quantization: str) -> None:
    numbers = (
        _MAGIC,
        config.vocab_size,
        config.max_source_positions,
        config.d_model,
        config.encoder_attention_heads,
        config.encoder_layers,
        config.max_target_positions,
        config.d_model,
        config.decoder_attention_heads,
        config.decoder_layers,
        config.num_mel_bins,
        _FILE_TYPES[quantization],
    )
    file.write(struct.pack(f"<{len(numbers)}i", *numbers))


def _write_filters(file: BinaryIO, processor: WhisperProcessor) -> None:
    """The mel filters, (mels, frequencies): transformers holds them transposed."""
    import numpy as np

    filters = np.ascontiguousarray(processor.feature_extractor.mel_filters.T, dtype="<f4")
    file.write(struct.pack("<2i", *filters.shape))
    file.write(filters.tobytes())


def _write_tokens(file: BinaryIO, processor: WhisperProcessor) -> None:
    """The bytes of every text token; whisper.cpp names the special tokens behind them itself."""
    tokens = {number: token for token, number in processor.tokenizer.get_vocab().items()}
    count = end_token(processor)
    bytes_of = _byte_of_character()
    file.write(struct.pack("<i", count))
    for number in range(count):
        text = bytes(bytes_of[character] for character in tokens.get(number, ""))
        file.write(struct.pack("<i", len(text)) + text)


def _byte_of_character() -> dict[str, int]:
    """Which byte each character of a byte-level BPE token stands for (GPT-2's table).

    Printable characters of Latin-1 are themselves, the other bytes are the characters from U+0100 on, in order.
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _tensors(model: WhisperForConditionalGeneration, folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor in float32 by the name that whisper.cpp knows it by."""
    import numpy as np

    state = model.state_dict()
    embedding = state["model.decoder.embed_tokens.weight"]
    if not state.get("proj_out.weight", embedding).equal(embedding):
        raise ModelError(f"{folder}: its output layer is not its token embedding, as whisper.cpp needs it")
    inner = _FEED_FORWARD * model.config.d_model
    for name, tensor in state.items():
        if name == "proj_out.weight":
            continue
        values = tensor.float().cpu().numpy()
        if ".fc" in name and not name.endswith("fc2.bias"):
            axis = 1 if name.endswith("fc2.weight") else 0
            missing = inner - values.shape[axis]
            if missing < 0:
                raise ModelError(
                    f"{folder}: its feed-forward layers are {values.shape[axis]} wide; whisper.cpp knows {inner}, "
                    f"{_FEED_FORWARD} x d_model, at most"
                )
            # Units without weights change nothing: gelu(0) is 0.
            padding = [(0, missing if each == axis else 0) for each in range(values.ndim)]
            values = np.pad(values, padding)
        yield _ggml_name(name), values


def _ggml_name(name: str) -> str:
    """`model.encoder.layers.0.fc1.weight` is `encoder.blocks.0.mlp.0.weight` there."""
    side, _, rest = name.removeprefix("model.").partition(".")
    if not rest.startswith("layers."):
        for theirs, ours in _WHOLE.items():
            if f"{side}.{rest}".startswith(theirs):
                return ours + f"{side}.{rest}".removeprefix(theirs)
        return f"{side}.{rest}"
    _, layer, part = rest.split(".", 2)
    part, _, kind = part.rpartition(".")
    return f"{side}.blocks.{layer}.{_PARTS[part]}.{kind}"


def _write_tensor(file: BinaryIO, name: str, values: np.ndarray, quantization: str) -> None:
    """One tensor with its head: vectors and positions in float32, convolutions in float16, matrices as asked."""
    import numpy as np

    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        values = values[:, None]
    shape = values.shape
    if values.ndim < 2 or name.endswith(("conv1.bias", "conv2.bias", "positional_embedding")):
        kind, content = _FLOAT32, values.astype("<f4").tobytes()
    elif quantization == "float16" or values.ndim != 2:
        kind, content = _FLOAT16, values.astype("<f2").tobytes()
    else:
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        blocks = GGMLQuantizationType.Q8_0 if quantization == "int8" else GGMLQuantizationType.Q5_0
        kind, content = int(blocks), quantize(np.ascontiguousarray(values), blocks).tobytes()
    label = name.encode()
    file.write(struct.pack("<3i", len(shape), len(label), kind))
    file.write(struct.pack(f"<{len(shape)}i", *reversed(shape)))
    file.write(label + content)


def transcribe(
    folder: Path, decoding: Decoding, clips: Sequence[np.ndarray], progress: Callable[[int], None]
) -> list[str]:
    """Transcripts of clips by whisper.cpp on the CPU, in a process of its own: what it does not like ends it at once.

    Raises:
        ModelError: whisper.cpp cannot load or run the model; with the last words of its log.
    """
    import numpy as np

    path = folder / MODEL_FILE
    texts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        np.savez(Path(scratch) / "clips.npz", *clips)
        command = [sys.executable, "-m", "trainer.conversion.ggml_process"]
        command += [str(path), str(Path(scratch) / "clips.npz"), json.dumps(dataclasses.asdict(decoding))]
        log = Path(scratch) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                # A failed assertion would start a debugger.
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
            with process:
                for line in process.stdout or ():
                    texts.append(json.loads(line))
                    progress(len(texts))
        if process.returncode or len(texts) != len(clips):
            raise ModelError(f"{path}: whisper.cpp cannot use it: {_last_words(log)}")
    return texts


def _last_words(log: Path) -> str:
    """The last line of whisper.cpp's log that tells of an error, or the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [
        line for line in lines if any(word in line.lower() for word in ("error", "invalid", "fail", "assert"))
    ]
    return [*(lines[-1:] or ["it said nothing"]), *telling[-1:]][-1]
