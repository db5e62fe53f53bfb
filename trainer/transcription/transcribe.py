"""Recordings to transcripts: cut at pauses that silero-vad finds, and decoded in batches as an evaluation does.

A Whisper that was fine-tuned on clips without timestamps cannot tell where in its window it stopped, so an algorithm
that goes on from there would lose or repeat words. Cuts that are made before decoding, in pauses, lose none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.config import TrainConfig
from trainer.data.audio import AUDIO_SUFFIXES, SAMPLE_RATE, AudioFile
from trainer.errors import DataError
from trainer.memory import BatchSize
from trainer.model.pretrained import load_generation_config
from trainer.model.processor import window_seconds
from trainer.scoring.decoding import Decoder
from trainer.scoring.hallucinations import COMPRESSION_RATIO, compression_ratio
from trainer.threads import one_torch_thread
from trainer.transcription.transcripts import Doubt, Segment

if TYPE_CHECKING:
    import torch

_PAUSE = 0.5
"""Seconds without speech that part two segments."""
_MARGIN = 0.2
"""Seconds kept before and after speech: soft beginnings and endings of words."""
_QUIET = 0.1
"""Peak of full scale to which quieter recordings are lifted: silero-vad finds no speech at -60 dBFS."""


def find_recordings(given: Sequence[Path]) -> dict[Path, Path]:
    """Every file that was given, and all audio files below every folder; and the path below that folder, or the name.

    Raises:
        DataError: a path is not there, or a folder holds no audio.
    """
    recordings: dict[Path, Path] = {}
    for path in given:
        if not path.exists():
            raise DataError(f"{path}: no such file or folder")
        if not path.is_dir():
            recordings.setdefault(path, Path(path.name))
            continue
        audio = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in AUDIO_SUFFIXES]
        files = [file for file in audio if file.name[0] != "."]
        if not files:
            raise DataError(f"{path}: has no audio file in it; looked for {', '.join(AUDIO_SUFFIXES)}")
        for file in files:
            recordings.setdefault(file, file.relative_to(path))
    return recordings


def read_recording(path: Path, channel: int | None = None) -> tuple[np.ndarray, AudioFile]:
    """Float32 (samples,) at 16 kHz as far as they can be decoded, quiet recordings lifted; and the file.

    Raises:
        AudioError: it cannot be read.
    """
    file = AudioFile(path, channel)
    samples = np.concatenate([np.zeros(0, np.float32), *file.stream()])
    peak = float(np.abs(samples).max(initial=0))
    return (samples * np.float32(_QUIET / peak) if 0 < peak < _QUIET else samples), file


def find_speech(samples: np.ndarray, longest: float) -> list[tuple[int, int]]:
    """First sample of each part in which somebody speaks, and the one after its last; none where nobody does.

    Args:
        samples: float32 (samples,), 16 kHz mono.
        longest: seconds that a part may last; longer ones are cut at their longest pause.
    """
    import torch

    with one_torch_thread():  # silero-vad 6.2 leaves the whole process one when it is imported
        from silero_vad import get_speech_timestamps

        spans = get_speech_timestamps(
            torch.from_numpy(samples),
            _speech_model(),
            sampling_rate=SAMPLE_RATE,
            min_speech_duration_ms=100,
            max_speech_duration_s=longest,
            min_silence_duration_ms=round(1000 * _PAUSE),
            speech_pad_ms=round(1000 * _MARGIN),
        )
    if spans and len(samples) <= longest * SAMPLE_RATE:
        return [(0, len(samples))]
    return [(int(span["start"]), int(span["end"])) for span in spans]


@functools.cache
def _speech_model() -> Any:
    from silero_vad import load_silero_vad

    return load_silero_vad()


class Transcriber:
    """A model and its processor on the GPU, where there is one."""

    def __init__(self, model: str, *, language: str | None, task: str | None, batch_size: int) -> None:
        """Load the model; several seconds.

        Args:
            model: hub id, folder or short name.
            language: Whisper's code or name; `None` takes the model's own, and where it has none it is detected.
            task: `transcribe` or `translate`; `None` takes the model's own.
            batch_size: segments decoded at once; halved where they do not fit in the GPU's memory.

        Raises:
            ModelError: it cannot be loaded, or has not that language or task.
            ConfigError: Whisper knows no such language.
        """
        from transformers import logging

        logging.set_verbosity_error()
        asked = TrainConfig(model=model, language=language or "en")
        own = load_generation_config(model)
        known = asked.language if language else getattr(own, "language", None)
        self.task = task or getattr(own, "task", None) or "transcribe"
        self._decoder = Decoder(asked.replace(task=self.task, language=known or asked.language))
        self._multilingual = self._decoder.processor.is_multilingual
        self.language = self._decoder.config.language if known or not self._multilingual else None
        self._size = BatchSize(batch_size)
        self.window = window_seconds(self._decoder.processor.feature_extractor)

    def transcribe(
        self,
        samples: np.ndarray,
        spans: Sequence[tuple[int, int]],
        on_progress: Callable[[int], None] = lambda sample: None,
    ) -> tuple[str | None, list[Segment]]:
        """The language, and a segment for each part of a recording that `find_speech` found.

        Args:
            samples: float32 (samples,), 16 kHz mono.
            spans: none longer than the window.
            on_progress: given the sample up to which the recording is transcribed.
        """
        language, segments = self.language, list[Segment]()
        if language is None and spans:
            language = self._detect_language(samples[slice(*spans[0])])
        model, tokenizer = self._decoder.model, self._decoder.processor.tokenizer
        prefix = list(tokenizer.prefix_tokens)
        if self._multilingual:
            prefix[1] = tokenizer.convert_tokens_to_ids(f"<|{language}|>")

        def decode(part: slice) -> None:
            clips = [samples[start:end] for start, end in batch[part]]
            tokens = self._decoder.decode(self._features(clips), [prefix] * len(clips))
            for (start, end), ids, text in zip(batch[part], tokens, self._decoder.texts(tokens), strict=True):
                doubt = _doubt(text, model.config.eos_token_id in ids[len(prefix) :])
                segments.append(Segment(start / SAMPLE_RATE, end / SAMPLE_RATE, text, doubt))

        for first in range(0, len(spans), self._size.loaded):
            batch = spans[first : first + self._size.loaded]
            self._size.in_parts(len(batch), decode, self._decoder.greedy.forget)
            on_progress(batch[-1][1])
        return language, segments

    def _detect_language(self, clip: np.ndarray) -> str:
        import torch

        settings = self._decoder.model.generation_config
        with torch.no_grad(), self._decoder.arithmetic():
            ids = self._decoder.model.detect_language(self._features([clip]), generation_config=settings)
        codes = {number: token for token, number in settings.lang_to_id.items()}
        return str(codes[int(ids[0])]).strip("<|>")

    def _features(self, clips: Sequence[np.ndarray]) -> torch.Tensor:
        """Float32 (batch, n_mels, n_frames): each clip and silence up to the window."""
        extractor = self._decoder.processor.feature_extractor
        out = extractor(list(clips), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        return out["input_features"].to(self._decoder.device)  # type: ignore[no-any-return]


def _doubt(text: str, ended: bool) -> Doubt | None:
    if compression_ratio(text) > COMPRESSION_RATIO:
        return "repeats"
    return None if ended else "breaks off"
