"""How to use an exported model: in transformers, faster-whisper and whisper.cpp, and with ONNX where it was made."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.config import TrainConfig

PLACE = "PATH_OF_THIS_FOLDER"
"""Stands for the model in the card's examples, until it is pushed to the hub under a name."""

_TRANSFORMERS = """\
**transformers**

```python
from transformers import pipeline

transcribe = pipeline("automatic-speech-recognition", "{place}")
print(transcribe("recording.wav")["text"])
```

Language, task and greedy decoding are in the generation config. Recordings longer than the model's window are best
cut at pauses, as this does:

```sh
tune-whisper transcribe {place} recording.mp3
```"""
_FASTER_WHISPER = """\
**faster-whisper**{convert}

```python
import numpy as np
from faster_whisper import WhisperModel, decode_audio

model = WhisperModel("{folder}")
audio = decode_audio("recording.wav")
audio = np.pad(audio, (0, -len(audio) % (30 * 16_000)))  # silence, as in training: faster-whisper's own is none
segments, info = model.transcribe(audio, {language}beam_size=1, without_timestamps=True)
print(" ".join(segment.text.strip() for segment in segments))
```"""
_TO_CTRANSLATE2 = """, converted once

```sh
pip install ctranslate2 faster-whisper
ct2-transformers-converter --model {place} --output_dir whisper-ct2 \\
    --copy_files tokenizer.json preprocessor_config.json --quantization float16
```"""
_WHISPER_CPP = """\
**whisper.cpp**{convert}

```sh
whisper-cli -m {file} {language}--no-timestamps --beam-size 1 --no-flash-attn -f recording.wav
```"""
_TO_GGML = """, converted once, beside clones of openai/whisper and ggml-org/whisper.cpp

```sh
python whisper.cpp/models/convert-h5-to-ggml.py {place} whisper .
```"""
_ONNX = """\
**ONNX Runtime**: `{folder}/README.md` has the code; files, inputs and outputs are named as Optimum names them."""


def usage(config: TrainConfig, formats: Mapping[str, str]) -> str:
    """The examples as Markdown.

    Args:
        config: the exported trial's settings.
        formats: other formats that lie beside the model, and each one's path below its folder.
    """

    def below(name: str) -> str:
        path = formats[name].strip("/")
        return PLACE if path in ("", ".") else f"{PLACE}/{path}"

    code = None if config.language is None else config.language
    parts = [_TRANSFORMERS.format(place=PLACE)]
    has_ct2, has_ggml = "ctranslate2" in formats, "ggml" in formats
    task = "" if config.task == "transcribe" else f'task="{config.task}", '
    parts.append(
        _FASTER_WHISPER.format(
            convert="" if has_ct2 else _TO_CTRANSLATE2.format(place=PLACE),
            folder=below("ctranslate2") if has_ct2 else "whisper-ct2",
            language=(f'language="{code}", ' if code else "") + task,
        )
    )
    parts.append(
        _WHISPER_CPP.format(
            convert="" if has_ggml else _TO_GGML.format(place=PLACE),
            file=below("ggml") if has_ggml else "ggml-model.bin",
            language=(f"--language {code} " if code else "")
            + ("" if config.task == "transcribe" else "--translate "),
        )
    )
    if "onnx" in formats:
        parts.append(_ONNX.format(folder=below("onnx")))
    return "\n\n".join(parts)
