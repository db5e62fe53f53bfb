"""The demo's model with Whisper's window of 30 s, and used to it: what a 30 s comparison needs offline.

    python benchmarks/long_window.py FOLDER [--samples 1600]

Lengthening its table of positions is not enough: it never heard 26 s of silence behind a clip, and is lost there. So
the longer model is taught to say with 30 s of padding what the demo's own says with 4 s, errors and all (distillation
on the demo's training clips, without their texts): nothing that a search on that data could learn is in it.
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path
from typing import Any

import datasets
import shapes
import soundfile
import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor

SHORT_FRAMES = 400
"""The demo's own window of 4 s in frames of 10 ms."""
BATCH = 8
LEARNING_RATE = 5e-4
WARMUP_STEPS = 10


def load_features(folder: Path, split: str) -> torch.Tensor:
    """Log-mel features of 30 s of each clip, [clips, 80, 3000]; the first 4 s are those of the short window."""
    processor = WhisperProcessor.from_pretrained(folder)
    extractor: Any = processor.feature_extractor
    rows = datasets.load_dataset(
        "parquet", data_files={split: str(shapes.DEMO / "data" / f"{split}.parquet")}
    )
    clips = rows[split].cast_column("audio", datasets.Audio(decode=False))
    waves = [soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")[0] for row in clips]
    found = [
        extractor(wave, sampling_rate=16_000, return_tensors="pt").input_features.half() for wave in waves
    ]
    return torch.cat(found)


@torch.no_grad()
def transcribe(
    model: WhisperForConditionalGeneration, features: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the decoder is given for each clip, prompt and its transcript, [clips, tokens], and where that counts."""
    settings = model.generation_config
    end = settings.eos_token_id
    prompt = [
        settings.decoder_start_token_id,
        settings.lang_to_id["<|en|>"],
        settings.task_to_id["transcribe"],
        settings.no_timestamps_token_id,
    ]
    said: list[list[int]] = []
    for batch in torch.split(features, 32):
        for row in model.generate(
            batch[:, :, :SHORT_FRAMES].float(), language="en", task="transcribe"
        ).tolist():
            said.append([*prompt, *(token for token in row if token < end)])
    longest = max(map(len, said))
    tokens = torch.tensor([row + [end] * (longest - len(row)) for row in said])
    told = torch.tensor([[place < len(row) for place in range(longest)] for row in said])
    return tokens, told


def teach(folder: Path, samples: int, seed: int = 0) -> float:
    """Train the model of `folder` on `samples` clips; its divergence from the demo's model over the last 20 steps."""
    torch.manual_seed(seed)
    features = load_features(folder, "train")
    teacher = WhisperForConditionalGeneration.from_pretrained(shapes.DEMO / "model").eval()
    student = WhisperForConditionalGeneration.from_pretrained(folder)
    tokens, told = transcribe(teacher, features)
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE)
    steps = samples // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, (steps - step) / max(1, steps - WARMUP_STEPS))
    )
    order = torch.cat([torch.randperm(len(features)) for _ in range(samples // len(features) + 1)])
    begun, printed, losses = time.monotonic(), time.monotonic(), []
    for step in range(steps):
        chosen = order[step * BATCH : (step + 1) * BATCH]
        heard, before, here = features[chosen].float(), tokens[chosen], told[chosen]
        with torch.no_grad():
            goal = teacher(input_features=heard[:, :, :SHORT_FRAMES], decoder_input_ids=before).logits[here]
        logits = student(input_features=heard, decoder_input_ids=before).logits[here]
        loss = torch.nn.functional.kl_div(
            logits.log_softmax(-1), goal.log_softmax(-1), log_target=True, reduction="batchmean"
        )
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(float(loss))
        if time.monotonic() - printed > 10 or step + 1 == steps:
            printed = time.monotonic()
            left = (printed - begun) / (step + 1) * (steps - step - 1)
            print(
                f"30 s model: step {step + 1}/{steps}, {left:.0f} s left, divergence {losses[-1]:.3f}",
                flush=True,
            )
    student.save_pretrained(folder)
    return sum(losses[-20:]) / len(losses[-20:])


def make(folder: Path, samples: int = 1600) -> Path:
    """The model in `folder`, which is made only where it is not there yet."""
    if not (folder / "made").is_file():
        shapes.lengthen_demo(folder)
        teach(folder, samples)
        (folder / "made").touch()
    return folder


def main() -> None:
    """Make it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1600)
    arguments = parser.parse_args()
    make(arguments.folder, arguments.samples)


if __name__ == "__main__":
    main()
