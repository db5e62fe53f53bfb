"""Make the demo from nothing but espeak-ng: ``python tools/demo/make_demo.py --output DIR``.

Writes DIR/model, a Whisper of about a million parameters trained on plain synthetic speech, and
DIR/data/{train,validation,test}.parquet, speech of other accents through noise, which this model hears badly:
the demo's search closes that gap.
"""

from __future__ import annotations

import argparse
import io
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import folder  # beside this file
import jiwer
import numpy as np
import pyarrow
import pyarrow.parquet
import soundfile
import speech
import torch
from datasets import Audio, Features, Value
from tqdm import tqdm
from transformers import WhisperForConditionalGeneration, WhisperProcessor
from transformers.utils import logging

DEMO = Path(__file__).resolve().parents[2] / "trainer" / "demo"

SPLITS = {"train": 800, "validation": 96, "test": 96}
BASE_CLIPS, STEPS, SEED = 5000, 1600, 17
"""Clips of plain speech, and optimizer steps of 32 of them, that the base model is trained on."""
LABEL_PADDING = -100


@dataclass(frozen=True)
class Row:
    """One clip: its encoded sound, what is said, who says it and how long it is."""

    audio: bytes
    text: str
    speaker: speech.Speaker
    seconds: float


def make_rows(
    stage: str, seed: int, texts: list[str], speakers: list[speech.Speaker], babble: speech.Wave | None
) -> list[Row]:
    """Speak every text in its speaker's voice and channel.

    Each clip draws from a generator of its own, so that the order of the threads changes nothing.
    """

    def one(index: int) -> Row:
        rng = np.random.default_rng([seed, index])
        speaker = speakers[index]
        wave = speech.through_channel(speech.say(texts[index], speaker), speaker, rng, babble)
        wave = speech.pad(wave, rng)
        # Only the target clips are kept, so only they are worth the slow encoder.
        audio = speech.encode(wave, small=babble is not None)
        return Row(audio, texts[index], speaker, round(len(wave) / speech.SAMPLE_RATE, 3))

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(tqdm(pool.map(one, range(len(texts))), stage, len(texts)))


def make_base_rows(seed: int, count: int, stage: str) -> list[Row]:
    """Make *count* clips of the plain voices."""
    rng = np.random.default_rng(seed)
    texts = [speech.sentence(rng) for _ in range(count)]
    return make_rows(stage, seed, texts, [speech.base_speaker(rng) for _ in texts], None)


def make_target_rows(seed: int) -> dict[str, list[Row]]:
    """Make the three target splits: the speakers are in all of them, each sentence is in one only."""
    rng = np.random.default_rng(seed)
    babble = speech.make_babble(rng)
    count = sum(SPLITS.values())
    texts = speech.different_sentences(rng, count)
    people = [speech.TARGET_SPEAKERS[index % len(speech.TARGET_SPEAKERS)] for index in range(count)]
    rows = iter(make_rows("target clips", seed, texts, people, babble))
    return {name: list(itertools.islice(rows, size)) for name, size in SPLITS.items()}


def write_parquet(rows: list[Row], path: Path) -> None:
    """Write one split as Hugging Face lays it out: an Audio column, the text, and who speaks.

    Through pyarrow with the features' schema: datasets itself asks for torchcodec before it takes even bytes.
    """
    features = Features(
        audio=Audio(sampling_rate=speech.SAMPLE_RATE),
        text=Value("string"),
        speaker=Value("string"),
        accent=Value("string"),
        seconds=Value("float32"),
    )
    values = [
        {
            "audio": {"bytes": row.audio, "path": f"{path.stem}_{number:04d}.ogg"},
            "text": row.text,
            "speaker": row.speaker.name,
            "accent": row.speaker.accent,
            "seconds": row.seconds,
        }
        for number, row in enumerate(rows)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(values, features.arrow_schema), path)


def extract(processor: WhisperProcessor, rows: list[Row]) -> torch.Tensor:
    """Turn the clips into log-mel features, kept at half precision to save memory."""
    extractor: Any = processor.feature_extractor
    chunks = []
    for start in range(0, len(rows), 256):
        waves = [
            soundfile.read(io.BytesIO(row.audio), dtype="float32")[0] for row in rows[start : start + 256]
        ]
        chunk = extractor(waves, sampling_rate=speech.SAMPLE_RATE, return_tensors="pt")
        chunks.append(chunk.input_features.half())
    return torch.cat(chunks)


def labels_of(processor: WhisperProcessor, texts: list[str]) -> torch.Tensor:
    """Tokenize with Whisper's prefix, less the start token: the model puts that before the labels itself."""
    tokenizer: Any = processor.tokenizer
    sequences = [torch.tensor(ids[1:]) for ids in tokenizer(texts).input_ids]
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=LABEL_PADDING)


def word_error_rate(
    model: WhisperForConditionalGeneration, processor: WhisperProcessor, rows: list[Row]
) -> float:
    """Transcribe the clips greedily and return the word error rate in per cent."""
    tokenizer: Any = processor.tokenizer
    features, texts = extract(processor, rows).float(), []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(rows), 48):
            tokens = model.generate(input_features=features[start : start + 48], max_length=40)
            texts += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return 100 * float(jiwer.wer([row.text for row in rows], [text.strip() for text in texts]))


def pretrain(model: WhisperForConditionalGeneration, processor: WhisperProcessor, rows: list[Row]) -> None:
    """Train from scratch: AdamW, warm-up over a tenth of the steps, then linear decay to nothing."""
    batch_size, peak = 32, 2e-3
    features, labels = extract(processor, rows), labels_of(processor, [row.text for row in rows])
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)
    warmup = STEPS // 10
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (STEPS - step) / (STEPS - warmup))
    )
    generator = torch.Generator().manual_seed(SEED)
    order = torch.empty(0, dtype=torch.long)
    model.train()
    for _ in (bar := tqdm(range(STEPS), "training")):
        if len(order) < batch_size:
            order = torch.randperm(len(rows), generator=generator)
        batch, order = order[:batch_size], order[batch_size:]
        loss = model(input_features=features[batch].float(), labels=labels[batch]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def main() -> None:
    """Make the model and the data and print what was measured."""
    parser = argparse.ArgumentParser(
        prog="python tools/demo/make_demo.py", description="Make the demo's model and data."
    )
    parser.add_argument("--output", type=Path, default=DEMO, help="where model/ and data/ go")
    output = parser.parse_args().output
    speech.check_espeak()
    # Whisper's generate() warns of arguments that it passes to itself; nothing here can change that.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(2)
    started = time.monotonic()
    processor = folder.build_processor(SEED)
    model = folder.build_model(processor, SEED)
    splits = make_target_rows(SEED + 1)
    for name, rows in splits.items():
        write_parquet(rows, output / "data" / f"{name}.parquet")
    held_out = make_base_rows(SEED + 2, 200, "held-out clips")
    pretrain(model, processor, make_base_rows(SEED + 3, BASE_CLIPS, "base clips"))
    model.save_pretrained(output / "model")
    processor.save_pretrained(output / "model")
    print(f"parameters: {sum(parameter.numel() for parameter in model.parameters()):,}")
    print(f"base WER on its own held-out speech: {word_error_rate(model, processor, held_out):.1f}")
    for name in ("validation", "test"):
        print(f"base WER on target {name}: {word_error_rate(model, processor, splits[name]):.1f}")
    print(f"built in {(time.monotonic() - started) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
