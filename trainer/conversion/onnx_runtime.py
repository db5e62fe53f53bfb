"""Decoding with ONNX Runtime: the graphs of Optimum's layout in a greedy loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.conversion.decoding import Decoding
from trainer.conversion.onnx_names import DECODER, DECODER_WITH_PAST, ENCODER, pasts, presents
from trainer.data.audio import SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np

_BATCH = 8


def transcribe(
    folder: Path, decoding: Decoding, clips: Sequence[np.ndarray], heard: Callable[[int], None]
) -> list[str]:
    """Transcripts of clips by ONNX Runtime on the CPU; arguments as for `transformers_runtime.transcribe`."""
    from transformers import WhisperProcessor

    processor: WhisperProcessor = WhisperProcessor.from_pretrained(folder)
    model = OnnxWhisper(folder)
    texts: list[str] = []
    for start in range(0, len(clips), _BATCH):
        features = processor.feature_extractor(
            list(clips[start : start + _BATCH]), sampling_rate=SAMPLE_RATE, return_tensors="np"
        )["input_features"]
        tokens = model.generate(features, decoding.max_new_tokens)
        texts += [text.strip() for text in processor.batch_decode(tokens, skip_special_tokens=True)]
        heard(len(texts))
    return texts


class OnnxWhisper:
    """Encoder and decoder of a folder, with its generation config."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        # Waiting threads would spin and take the cores from whoever else computes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3

        def session(name: str) -> Any:
            return onnxruntime.InferenceSession(
                str(folder / name), options, providers=["CPUExecutionProvider"]
            )

        self._encoder, self._decoder = session(ENCODER), session(DECODER)
        self._decoder_with_past = session(DECODER_WITH_PAST)
        self._layers: int = json.loads((folder / "config.json").read_text(encoding="utf-8"))["decoder_layers"]
        self._settings: dict[str, Any] = json.loads(
            (folder / "generation_config.json").read_text(encoding="utf-8")
        )

    def prefix(self) -> list[int]:
        """Start, language and task, where the model has them, and no timestamps."""
        settings = self._settings
        language = settings.get("language")
        ids = [settings["decoder_start_token_id"]]
        if language:
            ids += [settings["lang_to_id"][f"<|{language}|>"], settings["task_to_id"][settings["task"]]]
        return [*ids, settings["no_timestamps_token_id"]]

    def generate(self, features: np.ndarray, max_new_tokens: int) -> np.ndarray:
        """Token ids (B, T) of clips with features (B, mels, frames), prefix and end tokens included."""
        import numpy as np

        hidden = self._encoder.run(None, {"input_features": features})[0]
        tokens = np.tile(np.array(self.prefix(), dtype=np.int64), (len(features), 1))
        made = self._decoder.run(None, {"input_ids": tokens, "encoder_hidden_states": hidden})
        logits = made[0]
        kept = dict(zip(pasts(self._layers), made[1:], strict=True))
        own = [
            name.replace("present.", "past_key_values.", 1)
            for name in presents(self._layers, of_encoder=False)
        ]
        end = self._settings["eos_token_id"]
        ended = np.zeros(len(features), dtype=bool)
        for step in range(max_new_tokens):
            following = np.where(ended, end, self._best(logits[:, -1], first=step == 0))
            tokens = np.concatenate([tokens, following[:, None]], axis=1)
            ended |= following == end
            if ended.all() or step == max_new_tokens - 1:
                break
            made = self._decoder_with_past.run(None, {"input_ids": tokens[:, -1:], **kept})
            logits = made[0]
            kept |= dict(zip(own, made[1:], strict=True))
        return tokens

    def _best(self, logits: np.ndarray, *, first: bool) -> np.ndarray:
        """The likeliest token of each row that the generation config does not forbid."""
        never = self._settings.get("suppress_tokens") or []
        never = never + (self._settings.get("begin_suppress_tokens") or [] if first else [])
        logits[:, never] = float("-inf")
        best: np.ndarray = logits.argmax(axis=-1)
        return best
