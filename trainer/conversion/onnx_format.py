"""The ONNX layout of Optimum's speech models, by torch's own exporter.

Optimum's exporter (`optimum-onnx` 0.1) admits no transformers 5, so the graphs are exported here under its names:
Optimum's `ORTModelForSpeechSeq2Seq` and others that know its layout find what they look for.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.conversion.onnx_names import (
    DECODER,
    DECODER_WITH_PAST,
    ENCODER,
    pasts,
    presents,
)

if TYPE_CHECKING:
    import torch
    from transformers import WhisperForConditionalGeneration

OPSET = 20
"""The lowest with `Gelu` as an operator; ONNX Runtime knows it from 1.17 on."""
_EMBEDDED_BYTES = 1 << 30
"""Weights above this go to a file of their own, `NAME_data`: a protobuf holds 2 GB at most."""
_COPIED = (
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


def convert(folder: Path, output: Path, quantization: str) -> None:
    """Write the model of a Hugging Face folder as ONNX graphs, with its tokenizer and configurations.

    Args:
        folder: the model, as `trainer.conversion.hugging_face.write_model` writes it.
        output: folder to make.
        quantization: `float32`, or `int8`: weights of matrix products in 8 bits, quantised by ONNX Runtime.
    """
    import torch
    from transformers import WhisperForConditionalGeneration

    # Not the fused attention, whose export has branches on the batch size.
    model = WhisperForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", use_safetensors=True
    ).eval()
    output.mkdir(parents=True, exist_ok=True)
    large = 4 * model.num_parameters() > _EMBEDDED_BYTES
    with torch.no_grad(), _quietly(), tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        for name, program in _programs(model):
            if quantization == "int8":
                _save(program, Path(scratch) / name, large=large)
                _quantize(Path(scratch) / name, output / name, large=large)
            else:
                _save(program, output / name, large=large)
    for name in _COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, output / name)


def _programs(model: WhisperForConditionalGeneration) -> Iterator[tuple[str, Any]]:
    """File name and exported program of encoder, decoder and decoder with past, one at a time."""
    import torch

    from trainer.conversion.onnx_modules import Decoder, DecoderWithPast, Encoder

    config = model.config
    batch = torch.export.Dim("batch_size", max=4096)
    length = torch.export.Dim("decoder_sequence_length", max=config.max_target_positions - 1)
    past = torch.export.Dim("past_decoder_sequence_length", max=config.max_target_positions - 1)
    # Two of everything that may vary: torch takes a size of one for a constant.
    features = torch.zeros(2, config.num_mel_bins, 2 * config.max_source_positions)
    tokens = torch.full((2, 3), config.decoder_start_token_id)
    yield (
        ENCODER,
        _export(
            Encoder(model),
            (features,),
            ["input_features"],
            ["last_hidden_state"],
            {"input_features": {0: batch}},
        ),
    )
    hidden = Encoder(model)(features)
    yield (
        DECODER,
        _export(
            Decoder(model),
            (tokens, hidden),
            ["input_ids", "encoder_hidden_states"],
            ["logits", *presents(config.decoder_layers)],
            {"input_ids": {0: batch, 1: length}, "encoder_hidden_states": {0: batch}},
        ),
    )
    kept = Decoder(model)(tokens, hidden)[1:]
    one_layer = ({0: batch, 2: past}, {0: batch, 2: past}, {0: batch}, {0: batch})
    yield (
        DECODER_WITH_PAST,
        _export(
            DecoderWithPast(model),
            (tokens[:, :1], list(kept)),
            ["input_ids", *pasts(config.decoder_layers)],
            ["logits", *presents(config.decoder_layers, of_encoder=False)],
            {
                "input_ids": {0: batch},
                "past": [shape for _ in range(config.decoder_layers) for shape in one_layer],
            },
        ),
    )


def _export(
    module: torch.nn.Module,
    example: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    shapes: dict[str, Any],
) -> Any:
    import torch

    return torch.onnx.export(
        module.eval(),
        example,
        dynamo=True,
        input_names=inputs,
        output_names=outputs,
        dynamic_shapes=shapes,
        opset_version=OPSET,
        verbose=False,
    )


def _save(program: Any, path: Path, *, large: bool) -> None:
    """Write one graph, its weights beside it where they are large."""
    import onnx_ir

    onnx_ir.save(program.model, path, external_data=f"{path.name}_data" if large else None)


def _quantize(path: Path, output: Path, *, large: bool) -> None:
    """Write the graph of `path` with the weights of its matrix products in 8 bits, a scale for every column."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        path,
        output,
        op_types_to_quantize=["MatMul"],
        per_channel=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=large,
        extra_options={"MatMulConstBOnly": True},
    )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's progress, and without advice on packages and steps that are not needed."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
