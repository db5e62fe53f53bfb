"""The demo's clips as arrays, put together to recordings; and a model that was taught timestamps on them."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from trainer.data.audio import SAMPLE_RATE
from trainer.model.pretrained import DEMO_MODEL

DATA = DEMO_MODEL.parent / "data"


@functools.cache
def demo_clips(split: str = "test") -> list[tuple[np.ndarray, str]]:
    """Samples (float32, 16 kHz) and text of each clip of a split."""
    import pyarrow.parquet as pq

    rows = pq.read_table(DATA / f"{split}.parquet").to_pylist()
    return [
        (soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")[0], row["text"]) for row in rows
    ]


def joined(clips: Sequence[np.ndarray], pause: float, noise: float = 0.0) -> np.ndarray:
    """Clips with so many seconds of noise of this amplitude (or silence) before, between and after them."""
    random = np.random.default_rng(0)
    length = round(pause * SAMPLE_RATE)
    parts = [noise * random.standard_normal(length)]
    for clip in clips:
        parts += [clip, noise * random.standard_normal(length)]
    return np.concatenate(parts).astype(np.float32)


def teach_timestamps(folder: Path, *, windows: int = 600, steps: int = 500) -> Path:
    """The demo's model with its decoder taught timestamps on windows of the training clips; about a minute.

    As Whisper was: every text between the times where it begins and ends, and of a clip that the window cuts off
    only the time where it begins.
    """
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor
    from transformers.modeling_outputs import BaseModelOutput

    random = np.random.default_rng(0)
    torch.manual_seed(0)
    processor = WhisperProcessor.from_pretrained(DEMO_MODEL)
    model = WhisperForConditionalGeneration.from_pretrained(DEMO_MODEL)
    model.requires_grad_(False)
    model.get_decoder().requires_grad_(True)
    examples = [_window(processor.tokenizer, model, random) for _ in range(windows)]
    with torch.no_grad():
        features = processor.feature_extractor(
            [audio for audio, _ in examples], sampling_rate=SAMPLE_RATE, return_tensors="pt"
        ).input_features
        encoded = torch.cat([model.get_encoder()(part).last_hidden_state for part in features.split(32)])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    model.train()
    prefix = processor.tokenizer.prefix_tokens[:-1]
    for _ in range(steps):
        chosen = random.integers(len(examples), size=16)
        texts = [[*prefix, *examples[index][1], model.config.eos_token_id] for index in chosen]
        longest = max(len(text) for text in texts)
        inputs = torch.full((16, longest), model.config.eos_token_id)
        labels = torch.full((16, longest), -100)
        for row, text in enumerate(texts):
            inputs[row, : len(text) - 1] = torch.tensor(text[:-1])
            labels[row, len(prefix) - 1 : len(text) - 1] = torch.tensor(text[len(prefix) :])
        logits = model(encoder_outputs=BaseModelOutput(encoded[chosen]), decoder_input_ids=inputs).logits
        torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    model.generation_config.max_length = 60  # times are tokens too
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _window(tokenizer: object, model: object, random: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """A window of clips with pauses, and its tokens with times."""
    clips, length = demo_clips("train"), 4 * SAMPLE_RATE
    first = model.generation_config.no_timestamps_token_id + 1
    audio, tokens = np.zeros(length, np.float32), []
    place = round(random.uniform(0, 0.5) * SAMPLE_RATE)
    while place < length:
        clip, text = clips[random.integers(len(clips))]
        end = place + len(clip)
        tokens.append(first + round(place / SAMPLE_RATE / 0.02))
        audio[place:end] = clip[: length - place]
        if end > length:
            break
        tokens += tokenizer(f" {text}", add_special_tokens=False).input_ids
        tokens.append(first + round(end / SAMPLE_RATE / 0.02))
        place = end + round(random.uniform(0.5, 1.2) * SAMPLE_RATE)
        if random.random() < 0.2:
            break
    return audio, tokens


def recording(
    first: int, count: int, *, pause: float = 0.8
) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """Training clips with so many seconds of silence between, and start, end and text of each."""
    parts, cues, place = [np.zeros(SAMPLE_RATE, np.float32)], [], SAMPLE_RATE
    for audio, text in demo_clips("train")[first : first + count]:
        cues.append((place / SAMPLE_RATE, (place + len(audio)) / SAMPLE_RATE, text))
        parts += [audio, np.zeros(round(pause * SAMPLE_RATE), np.float32)]
        place += len(audio) + round(pause * SAMPLE_RATE)
    return np.concatenate(parts), cues


def _stamp(seconds: float) -> str:
    whole = round(1000 * seconds)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02},{whole % 1000:03}"


def srt(cues: Sequence[tuple[float, float, str]]) -> str:
    """The same as a SubRip file."""
    return "\n".join(
        f"{number}\n{_stamp(start)} --> {_stamp(end)}\n<i>{text}</i>\n"
        for number, (start, end, text) in enumerate(cues, start=1)
    )
