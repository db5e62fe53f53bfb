"""From a Hugging Face folder to another format, and from a folder of any format to transcripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.conversion.decoding import Decoding
from trainer.conversion.formats import Target
from trainer.conversion.quiet import quiet_libraries

if TYPE_CHECKING:
    import numpy as np


def convert(target: Target, folder: Path, output: Path) -> None:
    """Write the model of a Hugging Face folder to `output` in another format.

    Args:
        target: any but `hf`.
        folder: the model, as `trainer.conversion.hugging_face.write_model` writes it.
        output: folder to make; must not exist.

    Raises:
        ModelError: the format cannot hold the model.
    """
    quiet_libraries()
    if target.name == "ctranslate2":
        from trainer.conversion import ctranslate2_format

        ctranslate2_format.convert(folder, output, target.quantization)
    elif target.name == "ggml":
        from trainer.conversion import ggml_format

        ggml_format.convert(folder, output, target.quantization)
    else:
        raise ValueError(f"{target.name}: is not converted")


def transcribe(
    name: str, folder: Path, decoding: Decoding, clips: Sequence[np.ndarray], heard: Callable[[int], None]
) -> list[str]:
    """Transcripts of clips by the runtime of a format.

    Args:
        name: the format of the model in `folder`.
        folder: the model.
        decoding: how to decode; the same for all formats of a model.
        clips: float32 (samples,) each, 16 kHz mono, none longer than the window.
        heard: called with the number of clips done.

    Raises:
        ModelError: the runtime cannot load the model.
    """
    quiet_libraries()
    if name == "ctranslate2":
        from trainer.conversion import ctranslate2_format

        return ctranslate2_format.transcribe(folder, decoding, clips, heard)
    if name == "ggml":
        from trainer.conversion import ggml_runtime

        return ggml_runtime.transcribe(folder, decoding, clips, heard)
    from trainer.conversion import transformers_runtime

    return transformers_runtime.transcribe(folder, decoding, clips, heard)
