"""The README of a converted model: what it is, how it was checked, how to use it. Model cards have the same code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.conversion.decoding import Decoding
from trainer.conversion.ggml_format import MODEL_FILE

if TYPE_CHECKING:
    from trainer.conversion.check import FormatCheck
    from trainer.conversion.formats import Target

PLACE = "PATH_OF_THIS_FOLDER"
"""Stands in the examples for the folder that they are in: only its reader knows where it lies."""

_CTRANSLATE2 = """\
```sh
pip install faster-whisper
```

```python
import numpy as np
from faster_whisper import WhisperModel, decode_audio

{short}model = {model}("{place}")
audio = decode_audio("recording.wav")
audio = np.pad(audio, (0, -len(audio) % ({window:g} * 16_000)))  # silence up to the end of the last window
segments, info = model.transcribe(audio, {language}task="{task}", beam_size=1, without_timestamps=True{suppress})
print(" ".join(segment.text.strip() for segment in segments))
```

The silence matters: faster-whisper by itself fills up the features of the last window with zeros, which is no silence
but a sound of middling loudness, and not what the model was trained on. {symbols}Leave out
`without_timestamps=True` for segments with times, and add `word_timestamps=True` for those of words."""
_ALL_SYMBOLS = """\
`suppress_tokens=[]` matters too: without it faster-whisper
never writes brackets, quotation marks, `:`, `/` and some eighty other signs, whatever the model's own list says. """
_SHORT_CTRANSLATE2 = """\

class ShortWindow(WhisperModel):
    \"""faster-whisper pads every window to 30 s; this model hears {window:g} s at once.\"""

    def encode(self, features):
        return super().encode(features[..., : self.feature_extractor.nb_max_frames])


"""
_GGML = """\
```sh
whisper-cli -m {place}/{file} {flags}--no-timestamps --beam-size 1 --no-flash-attn{nst} \\
    -f recording.wav
```

or in Python

```sh
pip install pywhispercpp
```

```python
from pywhispercpp.model import Model

model = Model("{place}/{file}", context_params={{"flash_attn": False}})
segments = model.transcribe("recording.wav", {language}translate={translate}, no_timestamps=True{suppress})
print(" ".join(segment.text for segment in segments))
```

Leave out the timestamp option for segments with times. Recordings of less than 0.1 s are not heard at all. Flash
attention is off because whisper.cpp's attends to positions that are not there (its pull request 3941): with it
transcripts may differ from those of transformers."""
_SHORT_GGML = """

This model hears {window:g} s at once, and whisper.cpp takes every window for 30 s long: give it clips of at most
{window:g} s, one at a time."""


def format_readme(target: Target, decoding: Decoding, checks: Sequence[FormatCheck]) -> str:
    """The README of a format's folder, Markdown.

    Args:
        target: what the model was converted to.
        decoding: how the model decodes.
        checks: what the conversion was checked by; empty where there was no data.
    """
    spoken = f"language `{decoding.language}`, " if decoding.language else ""
    return (
        f"# Whisper for {target.format.runtime}\n\n"
        "The Whisper of the Hugging Face folder that lies above this one, converted; "
        f"weights in {target.quantization}, {spoken}task `{decoding.task}`. "
        "tune-whisper trains on transcripts without timestamps: a model still writes them, but they may be worse "
        "than the base model's.\n\n"
        f"## Use\n\n{how_to_use(target.name, decoding)}\n\n## Checked\n\n{_checked(checks)}\n"
    )


def how_to_use(name: str, decoding: Decoding, place: str = PLACE) -> str:
    """Code that transcribes with a converted model, Markdown.

    Args:
        name: its format, any but `hf`.
        decoding: how the model decodes.
        place: the path of its folder.
    """
    return {"ctranslate2": _ctranslate2, "ggml": _ggml}[name](decoding, place)


def _ctranslate2(decoding: Decoding, place: str) -> str:
    short = decoding.short_window
    return _CTRANSLATE2.format(
        place=place,
        short=_SHORT_CTRANSLATE2.format(window=decoding.window_seconds) if short else "",
        model="ShortWindow" if short else "WhisperModel",
        language=f'language="{decoding.language}", ' if decoding.language else "",
        task=decoding.task,
        window=decoding.window_seconds,
        suppress="" if decoding.suppresses_symbols else ", suppress_tokens=[]",
        symbols="" if decoding.suppresses_symbols else _ALL_SYMBOLS,
    )


def _ggml(decoding: Decoding, place: str) -> str:
    translates = decoding.task == "translate"
    flags = [f"--language {decoding.language}"] if decoding.language else []
    flags += ["--translate"] if translates else []
    note = _SHORT_GGML.format(window=decoding.window_seconds) if decoding.short_window else ""
    text = _GGML.format(
        place=place,
        file=MODEL_FILE,
        flags="".join(f"{flag} " for flag in flags),
        nst=" --suppress-nst" if decoding.suppresses_symbols else "",
        language=f'language="{decoding.language}", ' if decoding.language else "",
        translate=translates,
        suppress=", suppress_nst=True" if decoding.suppresses_symbols else "",
    )
    return text + note


def _checked(checks: Sequence[FormatCheck]) -> str:
    if not checks:
        return "Not checked: the data of the training was not there when the model was converted."
    rows = [
        "Error rates in percent (WER, of translations 100 - chrF) of the same clips, decoded greedily and without "
        "timestamps.",
        "",
        "| split | clips | this model | in transformers | same transcripts | drift | tolerance |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for found in checks:
        rows.append(
            f"| {found.split} | {found.clips} | {found.wer:.2f} | {found.hf_wer:.2f} | {found.same} of {found.clips} | "
            f"{found.drift:+.2f} | {found.tolerance:.2f} |"
        )
    rows += [
        "",
        "In the drift a clip has at most as many errors as words, so that one that runs on counts once.",
    ]
    return "\n".join(rows)
