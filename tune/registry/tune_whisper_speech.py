"""How MLflow calls a registered model: recordings in, text out. A copy of this file travels with every model.

MLflow's own pyfunc of a transformers model needs the program ffmpeg to decode bytes, and refuses audio that is longer
than the model's window. This one decodes with soundfile and resamples with soxr, as the training did, and cuts long
recordings at their pauses, which Silero VAD finds.

Nothing of this project is imported here: what is, must be a pinned requirement of the model (see `register`).
"""

from __future__ import annotations

import base64
import contextlib
import io
from typing import Any

import numpy as np

_RATE = 16_000
_QUIET = 0.1
"""Peak of full scale to which quieter recordings are lifted: silero-vad finds no speech at -60 dBFS."""
_WITHOUT_SPACES = ("zh", "yue", "ja", "th", "lo", "my", "km", "bo")


class SpeechModel:
    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> list[str]:
        """Transcripts of recordings; one that cannot be decoded raises `MlflowException`, over HTTP status 400.

        MLflow makes of any request a table, whose only column has the content of a WAV, FLAC, OGG or MP3 file of any
        sample rate in each row, as bytes or as base64 text.
        """
        recordings = [_read(number, value) for number, value in enumerate(model_input.iloc[:, 0], start=1)]
        return [self._transcribe(recording) for recording in recordings]

    def _transcribe(self, recording: np.ndarray) -> str:
        """The text of float32 (samples,) at 16 kHz."""
        window = int(self._pipeline.feature_extractor.n_samples)
        whole = [(0, len(recording))]
        spans = whole if len(recording) <= window else _speech(recording, window)
        texts = [str(self._pipeline(recording[start:end])["text"]).strip() for start, end in spans]
        settings = self._pipeline.model.generation_config
        translates = getattr(settings, "task", None) == "translate"
        spaceless = getattr(settings, "language", None) in _WITHOUT_SPACES and not translates
        return ("" if spaceless else " ").join(text for text in texts if text)


def _load_pyfunc(path: str) -> SpeechModel:
    """What MLflow calls to load the model whose files are in `path`."""
    from transformers import pipeline

    return SpeechModel(pipeline("automatic-speech-recognition", path, model_kwargs={"use_safetensors": True}))


def _speech(recording: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """First sample of each stretch of speech and the one after its last, none longer than so many samples."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    spans = get_speech_timestamps(
        torch.from_numpy(recording),
        load_silero_vad(),  # its state is of one recording, and requests come at the same time
        min_speech_duration_ms=100,
        max_speech_duration_s=longest / _RATE,
        min_silence_duration_ms=500,
        speech_pad_ms=200,
    )
    return [(span["start"], span["end"]) for span in spans]


def _read(number: int, value: Any) -> np.ndarray:
    """float32 (samples,), 16 kHz mono; raises `MlflowException`, which names the recording by its number."""
    import soundfile
    import soxr
    from mlflow.exceptions import MlflowException

    if hasattr(value, "item"):  # of a request that names its columns
        value = value.item()
    with contextlib.suppress(ValueError):  # no audio file is base64 text
        value = base64.b64decode(value, validate=True)
    try:
        samples, rate = soundfile.read(io.BytesIO(value), dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, TypeError) as error:
        raise MlflowException.invalid_parameter_value(
            f"recording {number}: cannot be decoded as WAV, FLAC, OGG or MP3: {error}"
        ) from error
    recording = np.ascontiguousarray(soxr.resample(samples.mean(axis=1), rate, _RATE), dtype=np.float32)
    peak = float(np.abs(recording).max(initial=0))
    return recording * np.float32(_QUIET / peak) if 0 < peak < _QUIET else recording
