"""The demo's model with Whisper's window of 30 s, and used to it: what a 30 s comparison needs offline.

Lengthening its table of positions is not enough: it never heard 26 s of silence behind a clip, and is lost there. So
the longer model is taught to say with 30 s of padding what the demo's own says with 4 s, errors and all (distillation
on the demo's training clips, without their texts): nothing that a search on that data could learn is in it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent / "peers")]

import plain  # noqa: E402
import shapes  # noqa: E402
import torch  # noqa: E402
from transformers import WhisperForConditionalGeneration  # noqa: E402

SHORT_FRAMES = 400
"""The demo's own window of 4 s in frames of 10 ms."""
BATCH = 8
LEARNING_RATE = 5e-4
WARMUP_STEPS = 10


def load_features(folder: Path) -> torch.Tensor:
    """Log-mel features of 30 s of the training clips, [clips, 80, 3000]; the first 4 s are the short window's."""
    splits = plain.add_features(
        plain.load_splits(shapes.DEMO / "data", {"train": None}), plain.load_processor(folder)
    )
    return torch.stack([row["input_features"].half() for row in splits["train"].with_format("torch")])


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


def teach(folder: Path, samples: int) -> None:
    """Train the model of `folder` to say what the demo's own does."""
    torch.manual_seed(0)
    features = load_features(folder)
    teacher = WhisperForConditionalGeneration.from_pretrained(shapes.DEMO / "model").eval()
    student = WhisperForConditionalGeneration.from_pretrained(folder)
    tokens, told = transcribe(teacher, features)
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE)
    steps = samples // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, (steps - step) / max(1, steps - WARMUP_STEPS))
    )
    order = torch.cat([torch.randperm(len(features)) for _ in range(samples // len(features) + 1)])
    begun = printed = time.monotonic()
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
        if time.monotonic() - printed > 10 or step + 1 == steps:
            printed = time.monotonic()
            left = (printed - begun) / (step + 1) * (steps - step - 1)
            print(
                f"30 s model: step {step + 1}/{steps}, {left:.0f} s left, divergence {loss.item():.3f}",
                flush=True,
            )
    student.save_pretrained(folder)


def make(folder: Path, samples: int = 1600) -> Path:
    """The model in `folder`, which is made (3 minutes on two CPU cores) only where it is not there yet."""
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shapes.lengthen_demo(unfinished)
        teach(unfinished, samples)
        unfinished.rename(folder)
    return folder
