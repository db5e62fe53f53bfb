"""Transcribing the clips of a split with one model, timed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from trainer.config import TrainConfig
from trainer.data.features import pad_features
from trainer.errors import ConfigError, DivergedError
from trainer.memory import BatchSize, is_out_of_memory
from trainer.model.pretrained import find_model, load_model_config
from trainer.model.processor import load_processor, prefix_tokens
from trainer.model.whisper import load_model, resolve_precision, with_bf16_decoder

if TYPE_CHECKING:
    import torch

    from trainer.data.prepared import PreparedSplit
    from trainer.model.greedy import GreedyDecoder


@dataclasses.dataclass(frozen=True)
class Transcripts:
    """What a model wrote for a split, and how long that took."""

    texts: list[str]
    """In the split's order."""
    seconds: float
    """Wall time of encoder and decoder, without reading audio and computing features."""
    audio_seconds: float
    device: str
    precision: str
    batch_size: int
    """Clips that were transcribed at once."""

    @property
    def real_time_factor(self) -> float:
        """Seconds of decoding for a second of audio."""
        return self.seconds / self.audio_seconds


def transcribe_encoded(
    greedy: GreedyDecoder, prefixes: torch.Tensor, encoded: Any, *, in_step: bool = False
) -> torch.Tensor:
    """Token ids (B, T) for encoder outputs, without timestamps.

    Greedy decoding is our own. With beams, or where workers must take the same steps because DeepSpeed has
    split the parameters among them (`in_step`), it is the generic `generate` with Whisper's prefix as decoder input.
    Whisper's own adds windows over long audio and fallbacks, which a batch of one window each does not need, and
    in transformers 5.23 passes itself deprecated arguments; tests hold all three equal.

    A decoder in bfloat16 (`with_bf16_decoder`) computes in it, also within autocast, which it has no need of.

    Each transcript begins with one of the `prefixes`, (B, tokens).
    """
    import torch
    from transformers import GenerationMixin

    from trainer.model.greedy import is_plain_greedy

    model, hidden = greedy.model, encoded.last_hidden_state
    # Whisper's own does not count the prefix in `max_length`, the generic function does.
    limit = min(model.generation_config.max_length + prefixes.shape[1], model.config.max_target_positions)
    if is_plain_greedy(model.generation_config) and not in_step:
        low = model.proj_out.weight.dtype
        if low != torch.bfloat16:
            return greedy.decode(hidden, prefixes, limit)
        with torch.autocast(hidden.device.type, enabled=False):
            return greedy.decode(hidden.to(low), prefixes, limit)
    return GenerationMixin.generate(  # type: ignore[no-any-return]
        model,
        encoder_outputs=encoded,
        decoder_input_ids=prefixes,
        attention_mask=torch.ones(hidden.shape[:2], dtype=torch.long, device=hidden.device),
        max_length=limit,
    )


def check_model(config: TrainConfig) -> None:
    """Find out whether a model can be loaded, without loading it; one from the hub is fetched.

    Raises:
        ModelError: it is not there, is no Whisper model, or does not know the language.
    """
    load_model_config(config.model)
    load_processor(config)
    find_model(config.model, weights=True)


class Decoder:
    """A model on its device, ready to transcribe as evaluations of a training do."""

    def __init__(self, config: TrainConfig) -> None:
        """Load `config.model`; raises `ModelError`, or `ConfigError` for a precision that the device lacks."""
        import torch

        from trainer.model.greedy import GreedyDecoder

        self.config = config
        self.processor = load_processor(config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.precision = resolve_precision(config.precision)
        self.model = load_model(config, self.processor).to(self.device).eval()
        if self.precision == "bf16":
            self.model = with_bf16_decoder(self.model)
        self.greedy = GreedyDecoder(self.model)

    @property
    def device_name(self) -> str:
        """The device in words: `NVIDIA H100`, `2 CPU threads`."""
        import torch

        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return f"{torch.get_num_threads()} CPU threads"

    def arithmetic(self) -> torch.autocast:
        """The precision in which the model computes, as a context."""
        import torch

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def decode(self, features: torch.Tensor, prefixes: Sequence[Sequence[int]]) -> list[list[int]]:
        """Token ids of each clip, its prefix in front; copying them back waits for the device.

        Args:
            features: (B, mel bands, frames).
            prefixes: of each clip, all of one length.

        Raises:
            DivergedError: the model's numbers are not finite.
        """
        import torch

        with torch.inference_mode(), self.arithmetic():
            encoded = self.model.get_encoder()(features.to(self.device).to(self.model.dtype))
            if not bool(encoded.last_hidden_state.isfinite().all()):
                raise DivergedError(
                    f"model={self.config.model!r}: its numbers are not finite; take another model, or precision=fp32"
                )
            begins = torch.tensor(prefixes, device=self.device)
            tokens: list[list[int]] = transcribe_encoded(self.greedy, begins, encoded).tolist()
        return tokens

    def texts(self, tokens: list[list[int]]) -> list[str]:
        decoded = self.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in decoded]

    def transcribe(
        self, split: PreparedSplit, on_progress: Callable[[int, int], None] | None = None
    ) -> Transcripts:
        """Transcribe all clips of a split, the first one twice: it warms the device up.

        Args:
            split: prepared with features of this model's extractor.
            on_progress: called with clips done and clips in all.

        Raises:
            DivergedError: the model's numbers are not finite.
            ConfigError: not even one clip fits in memory.
        """
        origins, frames = split.origins, 2 * int(self.model.config.max_source_positions)
        prefix_of = [prefix_tokens(origin.config(self.config), self.processor) for origin in origins.kinds]
        texts: list[str] = []
        spent = 0.0

        def padded(rows: Sequence[int]) -> torch.Tensor:
            features, fills = [split.features(row) for row in rows], [split.fill(row) for row in rows]
            return pad_features(features, fills, frames, half=self.device.type == "cuda")

        def transcribe_part(part: slice) -> None:
            nonlocal spent
            begun = time.monotonic()
            texts.extend(self.texts(self.decode(batch[part], prefixes[part])))
            spent += time.monotonic() - begun
            if on_progress is not None:
                on_progress(len(texts), len(split))

        size = BatchSize(self.config.eval_batch_size)
        try:
            self.decode(padded([0]), prefix_of[:1])  # warms the device up
            for first in range(0, len(split), size.loaded):
                rows = range(first, min(first + size.loaded, len(split)))
                prefixes = [prefix_of[origins.numbers[row]] for row in rows]
                batch = padded(rows)
                size.in_parts(len(rows), transcribe_part, self.greedy.forget)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"model={self.config.model!r}: a single clip does not fit in the memory of {self.device_name}; "
                "make room there, or take a smaller model"
            ) from error
        audio = sum(split.seconds(row) for row in range(len(split)))
        at_once = min(size.at_once, len(split))
        return Transcripts(texts, spent, audio, self.device_name, self.precision, at_once)
