"""How to use an exported model: in transformers, faster-whisper and whisper.cpp, and with ONNX where it was made."""

from __future__ import annotations

from collections.abc import Collection

from trainer.conversion.decoding import Decoding
from trainer.conversion.usage import PLACE, how_to_use

_TRANSFORMERS = f"""\
**transformers**

```python
from transformers import pipeline

transcribe = pipeline("automatic-speech-recognition", "{PLACE}")
print(transcribe("recording.wav")["text"])
```

Language, task and greedy decoding are in the generation config. Recordings longer than the model's window are best
cut at pauses, as this does:

```sh
tune-whisper transcribe {PLACE} recording.mp3
```"""
_CONVERT = """\
, converted once

```sh
pip install 'tune-whisper[{name}]'
tune-whisper export --from-model {place} --output whisper-{name} --format {name}
```"""
_ONNX = "**ONNX Runtime**: `onnx/README.md` has the code; files, inputs and outputs are named as Optimum names them."


def usage(decoding: Decoding, formats: Collection[str]) -> str:
    """The examples as Markdown.

    Args:
        decoding: how the model decodes.
        formats: other formats that lie beside the model, each in a folder of its name.
    """
    parts = [_TRANSFORMERS]
    for name, runtime in (("ctranslate2", "faster-whisper"), ("ggml", "whisper.cpp")):
        there = name in formats
        convert = "" if there else _CONVERT.format(name=name, place=PLACE)
        place = f"{PLACE if there else f'whisper-{name}'}/{name}"
        parts.append(f"**{runtime}**{convert}\n\n{how_to_use(name, decoding, place)}")
    if "onnx" in formats:
        parts.append(_ONNX)
    return "\n\n".join(parts)
