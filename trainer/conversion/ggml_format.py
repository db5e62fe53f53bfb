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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from trainer.conversion.formats import Decoding
from trainer.conversion.whisper_layout import whisper_layout
from trainer.data.audio import SAMPLE_RATE
from trainer.errors import ModelError

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

MODEL_FILE = "ggml-model.bin"
_MAGIC = 0x67676D6C
_FILE_TYPES = {"float16": 1, "int8": 2007, "q5_0": 2008}
"""Numbers in the file's head; those of blocks with 1000 times their version, 2."""
_FLOAT32, _FLOAT16 = 0, 1
_NAMES = (
    ("model.", ""),
    (".layers.", ".blocks."),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("embed_positions.weight", "positional_embedding"),
    ("embed_tokens", "token_embedding"),
    ("encoder_attn", "cross_attn"),
    ("self_attn", "attn"),
    ("attn_layer_norm", "attn_ln"),
    ("final_layer_norm", "mlp_ln"),
    (".q_proj", ".query"),
    (".k_proj", ".key"),
    (".v_proj", ".value"),
    (".out_proj", ".out"),
    (".fc1", ".mlp.0"),
    (".fc2", ".mlp.2"),
)
"""Parts of transformers' names of tensors and of whisper.cpp's, to be replaced in this order:
`model.encoder.layers.0.fc1.weight` is `encoder.blocks.0.mlp.0.weight` there."""
_FEED_FORWARD = 4
"""whisper.cpp takes the inner width of the feed-forward layers to be so many times the model's width."""


def convert(folder: Path, output: Path, quantization: str) -> None:
    """Write the model of a Hugging Face folder as `ggml-model.bin`; `int8` is whisper.cpp's q8_0.

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
        # (mels, frequencies): transformers holds them transposed.
        filters = np.ascontiguousarray(processor.feature_extractor.mel_filters.T, dtype="<f4")
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
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


def _write_tokens(file: BinaryIO, processor: WhisperProcessor) -> None:
    """The bytes of every text token; whisper.cpp names the special tokens behind them itself."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    bytes_of = {character: byte for byte, character in bytes_to_unicode().items()}
    tokens = {number: token for token, number in processor.tokenizer.get_vocab().items()}
    count = processor.tokenizer.convert_tokens_to_ids("<|endoftext|>")  # all ids above are special
    file.write(struct.pack("<i", count))
    for number in range(count):
        text = bytes(bytes_of[character] for character in tokens.get(number, ""))
        file.write(struct.pack("<i", len(text)) + text)


def _tensors(model: WhisperForConditionalGeneration, folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor in float32 by the name that whisper.cpp knows it by."""
    state = model.state_dict()
    embedding = state["model.decoder.embed_tokens.weight"]
    if not state.pop("proj_out.weight", embedding).equal(embedding):
        raise ModelError(f"{folder}: its output layer is not its token embedding, as whisper.cpp needs it")
    inner = _FEED_FORWARD * model.config.d_model
    for name, tensor in state.items():
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
            values = np.pad(values, [(0, missing if each == axis else 0) for each in range(values.ndim)])
        ggml_name = name
        for theirs, ours in _NAMES:
            ggml_name = ggml_name.replace(theirs, ours)
        yield ggml_name, values


def _write_tensor(file: BinaryIO, name: str, values: np.ndarray, quantization: str) -> None:
    """One tensor with its head: vectors and positions in float32, convolutions in float16, matrices as asked."""
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


def transcribe(folder: Path, decoding: Decoding, clips: Sequence[np.ndarray]) -> Iterator[str]:
    """Transcripts of clips by whisper.cpp on the CPU, in a process of its own: what it does not like ends it at once.

    Raises:
        ModelError: whisper.cpp cannot load or run the model; with the last words of its log.
    """
    path, count = folder / MODEL_FILE, 0
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        sounds, log = Path(scratch) / "clips.npz", Path(scratch) / "log"
        np.savez(sounds, *clips)
        command = [sys.executable, "-m", __name__]
        command += [str(path), str(sounds), json.dumps(dataclasses.asdict(decoding))]
        # A failed assertion would start a debugger.
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, encoding="utf-8"
            ) as process,
        ):
            for line in process.stdout or ():
                count += 1
                yield json.loads(line)
        if process.returncode or count != len(clips):
            raise ModelError(f"{path}: whisper.cpp cannot use it: {_last_words(log)}")


def _last_words(log: Path) -> str:
    """The last line of whisper.cpp's log that tells of an error, or the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [
        line for line in lines if any(word in line.lower() for word in ("error", "invalid", "fail", "assert"))
    ]
    return [*(lines[-1:] or ["it said nothing"]), *telling[-1:]][-1]


def _transcribe_here(model_file: str, clips_file: str, decoding: Decoding) -> None:
    """Print the transcript of each clip of a NumPy archive as a line of JSON.

    Without flash attention, which whisper.cpp (1.8.5) uses by default: it rounds the positions of a window up to a
    multiple of 256 and attends to the empty ones too, 36 beside Whisper's own 1,500 (ggml-org/whisper.cpp#3941).
    Logits of a random model of whisper-tiny's shape are 0.0025 (root mean square) from transformers' without it,
    0.46 with it.
    """
    from pywhispercpp.model import Model

    # Half the cores: its threads spin while they wait, and crawl where others want the cores too.
    threads = max(1, (os.cpu_count() or 1) // 2)
    model = Model(model_file, context_params={"flash_attn": False}, n_threads=threads)
    with np.load(clips_file) as clips:
        for name in clips.files:
            samples = clips[name]
            segments = model.transcribe(
                # It transcribes nothing of less than 0.1 s; silence behind a clip is what it would add itself.
                np.pad(samples, (0, max(0, SAMPLE_RATE - len(samples)))),
                language=decoding.language or "en",
                translate=decoding.task == "translate",
                no_timestamps=True,
                single_segment=True,
                no_context=True,
                temperature_inc=0.0,
                # The token at this index is the last one.
                max_tokens=decoding.max_new_tokens - 1,
                suppress_nst=decoding.suppresses_symbols,
                no_speech_thold=1.0,
                print_progress=False,
            )
            text = " ".join(segment.text.strip() for segment in segments).strip()
            print(json.dumps(text), flush=True)


if __name__ == "__main__":  # the process of `transcribe`
    _transcribe_here(sys.argv[1], sys.argv[2], Decoding(**json.loads(sys.argv[3])))
