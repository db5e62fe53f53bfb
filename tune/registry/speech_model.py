"""How MLflow calls a registered model: recordings in, text out. A copy of this file travels with every model.

MLflow's transformers flavour has a pyfunc of its own. It hands bytes to transformers' pipeline (5.23), which wants the
program ffmpeg to decode them, and which refuses audio that is longer than the model's window. This one decodes with
soundfile and resamples with soxr, which come with the model's Python packages, as the training did; and it cuts long
recordings at their pauses, which Silero VAD finds. The pipeline itself, and so the text, is the same.

Nothing of this project is imported here: what is, must be a pinned requirement of the model (see `model_store`).
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_RATE = 16_000
"""Samples a second that every Whisper hears."""
_BLOCK = 1 << 20
"""Samples of each channel that are read at once: libsndfile cannot seek in some formats, and so not tell how many."""
_PAUSE, _MARGIN = 500, 200
"""Milliseconds of silence that part two pieces of a long recording, and that are kept before and after speech."""


class SpeechModel:
    """What `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, pipeline: Any, gap: str) -> None:
        """Args:
        pipeline: transformers' pipeline for speech recognition.
        gap: what stands between the texts of two pieces of one recording.
        """
        self._pipeline = pipeline
        self._gap = gap

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[str]:
        """Transcripts of recordings.

        Args:
            model_input: a table with one column, a list, or a single recording. Each is the content of a WAV, FLAC,
                OGG or MP3 file of any sample rate, as bytes or as base64 text.
            params: none are known.

        Returns:
            The text of each recording, in their order.

        Raises:
            MlflowException: a recording cannot be decoded; over HTTP that is status 400.
        """
        recordings = [_read(number, value) for number, value in enumerate(_values(model_input), start=1)]
        return [self._transcribe(recording) for recording in recordings]

    def _transcribe(self, recording: np.ndarray) -> str:
        """The text of float32 (samples,) at 16 kHz."""
        window = int(self._pipeline.feature_extractor.n_samples)
        if len(recording) <= window:
            return self._text(recording)
        texts = [self._text(recording[start:end]) for start, end in _speech(recording, window)]
        return self._gap.join(text for text in texts if text)

    def _text(self, clip: np.ndarray) -> str:
        return str(self._pipeline(clip)["text"]).strip()


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> SpeechModel:
    """What MLflow calls to load the model whose files are in `path`."""
    import mlflow
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SpeechModel(mlflow.transformers.load_model(path), (model_config or {}).get("gap", " "))


def _speech(recording: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """First sample of each stretch of speech and the one after its last, none longer than so many samples."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    found = get_speech_timestamps(
        torch.from_numpy(recording),
        load_silero_vad(),  # its state is of one recording, and requests come at the same time
        max_speech_duration_s=longest / _RATE,
        min_silence_duration_ms=_PAUSE,
        speech_pad_ms=_MARGIN,
    )
    return [(span["start"], span["end"]) for span in found]


def _values(model_input: Any) -> list[Any]:
    """The recordings of whatever MLflow makes of a request: a table, a mapping of one column, a list, or one value."""
    values: Any = model_input
    if hasattr(values, "iloc"):
        values = values.iloc[:, 0] if values.ndim == 2 else values
    elif isinstance(values, dict):
        (values,) = values.values()
    if isinstance(values, (bytes, bytearray, str)) or not isinstance(values, Iterable):
        return [values]
    # Of {"inputs": [{"audio": ...}]} MLflow makes rows whose values are arrays of one value each.
    rows: list[Any] = [values] if getattr(values, "ndim", 1) == 0 else list(values)
    return [row.item() if getattr(row, "ndim", 1) == 0 else row for row in rows]


def _read(number: int, value: Any) -> np.ndarray:
    """The samples of one recording; raises `MlflowException`, which names it by its number."""
    import soundfile
    from mlflow.exceptions import MlflowException

    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray)):
        raise MlflowException.invalid_parameter_value(
            f"recording {number}: must be the content of an audio file, as bytes or base64 text; "
            f"got {type(value).__name__}"
        )
    try:
        return _samples(_decoded(bytes(value)))
    except (soundfile.SoundFileError, ValueError) as error:
        reason = str(getattr(error, "error_string", error)).rstrip(".")
        raise MlflowException.invalid_parameter_value(
            f"recording {number}: cannot be decoded as WAV, FLAC, OGG or MP3: {reason}"
        ) from error


def _decoded(content: bytes) -> bytes:
    """What base64 text stands for; anything else as it is. What comes by MLflow's `inputs` is still encoded.

    No audio file begins like base64 text: all have bytes in their first header that it cannot hold.
    """
    if not re.fullmatch(rb"[A-Za-z0-9+/=\s]*", content[:64]):
        return content
    try:
        return base64.b64decode(b"".join(content.split()), validate=True)
    except binascii.Error:
        return content


def _samples(content: bytes) -> np.ndarray:
    """float32 (samples,), 16 kHz mono; raises `SoundFileError`, or `ValueError` where nothing can be heard."""
    import numpy as np
    import soundfile
    import soxr

    with soundfile.SoundFile(io.BytesIO(content)) as file:
        rate, blocks = file.samplerate, [np.zeros((0, file.channels), dtype=np.float32)]
        while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
            blocks.append(block)
    mono = np.concatenate(blocks).mean(axis=1)
    if rate != _RATE:
        mono = soxr.resample(mono, rate, _RATE, quality="HQ")
    if not len(mono):
        raise ValueError("no samples")
    if not np.isfinite(mono).all():
        raise ValueError("it has samples that are not finite numbers")
    return np.ascontiguousarray(mono, dtype=np.float32)
