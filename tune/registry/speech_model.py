"""How MLflow calls a registered model: recordings in, text out. A copy of this file travels with every model.

MLflow's transformers flavour has a pyfunc of its own. It hands bytes to transformers' pipeline (5.23), which wants the
program ffmpeg to decode them, and which refuses audio that is longer than the model's window. This one decodes with
soundfile and resamples with soxr, which come with the model's Python packages, as the training did; and it cuts long
recordings at their pauses. The pipeline itself, and so the text, is the same.

What is imported from `trainer` here travels along (see `model_files`); anything else must be a pinned requirement.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from trainer.audio import SAMPLE_RATE, AudioError, read_audio
from trainer.transcription.pauses import find_spans, measure_speech

if TYPE_CHECKING:
    import numpy as np

PAUSE = 0.5
"""Seconds of silence that part two pieces of a recording that is longer than the model's window."""


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
        probabilities, samples = measure_speech([recording])
        spans = find_spans(probabilities, samples, pause=PAUSE, longest=window / SAMPLE_RATE)
        texts = [self._text(recording[start:end]) for start, end in spans]
        return self._gap.join(text for text in texts if text)

    def _text(self, clip: np.ndarray) -> str:
        return str(self._pipeline(clip)["text"]).strip()


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> SpeechModel:
    """What MLflow calls to load the model whose files are in `path`."""
    import mlflow
    from transformers.utils import logging

    logging.disable_progress_bar()
    return SpeechModel(mlflow.transformers.load_model(path), (model_config or {}).get("gap", " "))


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
    from mlflow.exceptions import MlflowException

    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, (bytes, bytearray)):
        raise MlflowException.invalid_parameter_value(
            f"recording {number}: must be the content of an audio file, as bytes or base64 text; "
            f"got {type(value).__name__}"
        )
    try:
        return read_audio(_decoded(bytes(value)))
    except AudioError as error:
        raise MlflowException.invalid_parameter_value(f"recording {number}: {error}") from error


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
