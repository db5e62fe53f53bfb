"""Transcripts with the model's own timestamps, for models that have kept them: transformers' sequential algorithm."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainer.audio import SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np
    import torch

    from trainer.transcription.recogniser import Recogniser

_TIME_STEP = 0.02
"""Seconds from one timestamp token to the next."""
_FALLBACK: dict[str, Any] = {
    "temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    "compression_ratio_threshold": 1.35,  # of tokens; openai/whisper's 2.4 is of text
    "logprob_threshold": -1.0,
    "no_speech_threshold": 0.6,
    "condition_on_prev_tokens": False,
}
"""When the sequential algorithm decodes a window again (arXiv:2212.04356, section 4.5), as transformers advises."""


@dataclasses.dataclass(frozen=True)
class Heard:
    """Text with the model's own times, in seconds from the beginning of its clip."""

    start: float
    end: float
    text: str


def decode_with_times(
    recogniser: Recogniser,
    clips: Sequence[np.ndarray],
    languages: Sequence[str | None],
    on_progress: Callable[[float], None] | None = None,
) -> list[list[Heard]]:
    """Transcripts of clips of any length with the model's own timestamps, by transformers' sequential algorithm.

    A window is decoded again, at higher temperatures, where it repeats itself or the model is unsure.

    Args:
        recogniser: the model.
        clips: float32 (samples,) each, 16 kHz mono.
        languages: of each; `None` for a model that knows English only.
        on_progress: told now and then how many seconds of all clips are done.

    Returns:
        For each clip its texts in order.
    """
    import torch

    torch.manual_seed(0)  # higher temperatures draw at random; the same command gives the same text

    def work(clips: Sequence[np.ndarray], languages: Sequence[str | None]) -> list[list[Heard]]:
        return _decode_long(recogniser, clips, languages, on_progress)

    return recogniser.in_batches(work, clips, languages)


def _decode_long(
    recogniser: Recogniser,
    clips: Sequence[np.ndarray],
    languages: Sequence[str | None],
    on_progress: Callable[[float], None] | None,
) -> list[list[Heard]]:
    import torch

    features, mask = _long_features(recogniser, clips)
    settings = dict(_FALLBACK)
    if recogniser.multilingual:
        settings |= {"language": [f"<|{language}|>" for language in languages], "task": recogniser.task}
    hop = recogniser.processor.feature_extractor.hop_length / SAMPLE_RATE

    def tell(frames: torch.Tensor) -> None:
        if on_progress:
            on_progress(float(frames.min(dim=1).values.sum()) * hop)

    with torch.no_grad(), recogniser.arithmetic(), _mended(recogniser.model):
        out = recogniser.model.generate(
            features,
            attention_mask=mask,
            return_timestamps=True,
            return_segments=True,
            monitor_progress=tell,
            **settings,
        )
    return [
        [_heard(recogniser, segment, len(clip) / SAMPLE_RATE) for segment in segments]
        for segments, clip in zip(out["segments"], clips, strict=True)
    ]


def _heard(recogniser: Recogniser, segment: dict[str, Any], seconds: float) -> Heard:
    text = recogniser.processor.tokenizer.decode(segment["tokens"], skip_special_tokens=True)
    start, end = float(segment["start"]), float(segment["end"])
    start = min(start, seconds)
    return Heard(start, max(start, min(end, seconds)), text.strip())


def spoken_until(
    recogniser: Recogniser, clips: Sequence[np.ndarray], languages: Sequence[str | None]
) -> list[float | None]:
    """Where the model says that speech ends in clips that fit the window, in seconds; `None`: it does not say."""
    import torch
    from transformers import GenerationMixin
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    prefixes = [recogniser.prefix(language)[:-1] for language in languages]  # without <|notimestamps|>
    begin = len(prefixes[0])
    times = WhisperTimeStampLogitsProcessor(recogniser.model.generation_config, begin_index=begin)
    limit = min(
        recogniser.model.generation_config.max_length + begin, recogniser.model.config.max_target_positions
    )
    with torch.no_grad(), recogniser.arithmetic():
        encoded = recogniser.model.get_encoder()(recogniser.features(clips))
        shape = encoded.last_hidden_state.shape[:2]
        tokens = GenerationMixin.generate(
            recogniser.model,
            encoder_outputs=encoded,
            decoder_input_ids=torch.tensor(prefixes, device=recogniser.device),
            attention_mask=torch.ones(shape, dtype=torch.long, device=recogniser.device),
            max_length=limit,
            num_beams=1,
            logits_processor=[times],
        )
    end = recogniser.model.config.eos_token_id
    return [_last_time(row, times.timestamp_begin, end) for row in tokens[:, begin:].tolist()]


def _last_time(row: list[int], first: int, end: int) -> float | None:
    """The time that a transcript ends with, in seconds; `first` is the token of 0.00, `end` the last of a text."""
    tokens = row[: row.index(end)] if end in row else row
    if tokens and tokens[-1] >= first and any(token < first for token in tokens):
        return (tokens[-1] - first) * _TIME_STEP
    return None


def _long_features(recogniser: Recogniser, clips: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of whole clips, each with a window of silence and more behind it, and a mask of its own frames."""
    import torch

    extractor = recogniser.processor.feature_extractor
    hop = extractor.hop_length
    longest = max(len(clip) for clip in clips) + extractor.n_samples
    out = extractor(
        list(clips), sampling_rate=SAMPLE_RATE, return_tensors="pt", max_length=-(-longest // hop) * hop
    )
    features = out["input_features"]
    frames = torch.tensor([-(-len(clip) // hop) for clip in clips])
    mask = (torch.arange(features.shape[-1])[None] < frames[:, None]).long()
    return features.to(recogniser.device), mask.to(recogniser.device)


@contextlib.contextmanager
def _mended(model: Any) -> Iterator[None]:
    """Two methods of transformers' sequential algorithm (5.23) replaced on this model."""
    model._retrieve_max_frames_and_seek = _heed_mask
    model._get_input_segment = _whole_windows
    try:
        yield
    finally:
        del model._retrieve_max_frames_and_seek, model._get_input_segment


def _heed_mask(*, attention_mask: torch.Tensor, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames of each clip and where it begins, in place of transformers' (5.23) own.

    That heeds the mask only for several clips longer than a window, and else goes on to transcribe the padding.
    """
    import torch

    frames = attention_mask.sum(-1).cpu().long()
    return frames, torch.zeros_like(frames)


def _whole_windows(
    *,
    input_features: torch.Tensor,
    seek: torch.Tensor,
    num_segment_frames: int,
    batch_idx_map: list[int],
    **_: Any,
) -> torch.Tensor:
    """The next window of each clip, with the silence behind its end, in place of transformers' (5.23) own.

    That cuts the features at the clip's end and fills the window up with zeros, which in log-mel features are no
    silence but a din: a small model answers it with words that nobody said (measured: WER 88 in place of 24 %).
    """
    import torch

    starts = [int(seek[clip]) for clip in batch_idx_map]
    windows = [input_features[row, :, start : start + num_segment_frames] for row, start in enumerate(starts)]
    return torch.stack(windows)
