"""Our greedy decoding beside transformers' `generate`, on the same encoder outputs.

    python benchmarks/decoding.py [--clips 96] [--batches 16 96] [--repeats 7] [--models demo tiny]

Every repeat runs both one after the other, so that what else the machine does hits both alike; ratios are taken within
a repeat. Where there is no GPU seconds are those of the processor. Clips are the demo's: with its own model (4 s), and
with the shape of whisper-tiny and random weights, which never ends a text (25 tokens).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shapes
import torch
from tables import spread
from transformers import GenerationMixin

from trainer.config import TrainConfig
from trainer.data.features import pad_features
from trainer.data.prepared import prepare
from trainer.model.greedy import GreedyDecoder
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Decode = Callable[[torch.Tensor], torch.Tensor]


def ways(config: TrainConfig, model: Any) -> dict[str, Decode]:
    """Each way to decode encoder outputs (B, positions, width)."""
    prefix = load_processor(config).tokenizer.prefix_tokens
    limit = min(model.generation_config.max_length + len(prefix), model.config.max_target_positions)
    greedy = GreedyDecoder(model)

    def generate(encoded: torch.Tensor) -> torch.Tensor:
        return GenerationMixin.generate(  # type: ignore[no-any-return]
            model,
            encoder_outputs=(encoded,),
            decoder_input_ids=torch.tensor([prefix], device=DEVICE).expand(len(encoded), -1),
            attention_mask=torch.ones(encoded.shape[:2], dtype=torch.long, device=DEVICE),
            max_length=limit,
        )

    return {"ours": lambda encoded: greedy.decode(encoded, prefix, limit), "generate": generate}


@torch.no_grad()
def encode(config: TrainConfig, model: Any) -> torch.Tensor:
    """What the model hears of the demo's validation clips, (clips, positions, width), those with long texts first."""
    split = prepare(config).splits["validation"]
    clips = sorted(range(len(split)), key=split.n_tokens, reverse=True)
    frames, parts = 2 * model.config.max_source_positions, []
    for first in range(0, len(clips), 8):
        rows = clips[first : first + 8]
        features = pad_features(
            [split.features(row) for row in rows], [split.fill(row) for row in rows], frames
        )
        parts.append(model.get_encoder()(features.to(DEVICE)).last_hidden_state)
    return torch.cat(parts)


def timed(decode: Decode, encoded: torch.Tensor, batch: int, end: int) -> tuple[float, list[list[int]]]:
    """Seconds for all clips, and their tokens up to the first end."""
    clock = time.perf_counter if DEVICE.type == "cuda" else time.process_time
    begun = clock()
    texts = [text for part in encoded.split(batch) for text in decode(part).tolist()]
    return clock() - begun, [text[: text.index(end)] if end in text else text for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--clips", type=int, default=96)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 96])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=["demo", "tiny"])
    asked = parser.parse_args()
    for name in asked.models:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            config = TrainConfig(
                model="demo" if name == "demo" else str(shapes.make_model(folder / name, name)),
                data="demo",
                cache_dir=str(folder / "cache"),
                max_train_clips=8,
                max_eval_clips=asked.clips,
                generation_max_length=None if name == "demo" else 25,
            )
            model = load_model(config, load_processor(config)).to(DEVICE).eval()
            encoded, end = encode(config, model), int(model.generation_config.eos_token_id)
            works = ways(config, model)
        for batch in asked.batches:
            rows = []
            for _ in range(asked.repeats + 1):
                found = {way: timed(work, encoded, batch, end) for way, work in works.items()}
                assert found["ours"][1] == found["generate"][1]
                rows.append((found["ours"][0], found["generate"][0] / found["ours"][0]))
            seconds, ratios = zip(*rows[1:], strict=True)  # the first one warms up
            what = f"{name}, {len(encoded)} clips by {batch}: ours {statistics.median(seconds):.3f} s"
            print(f"{what}, generate / ours {spread(ratios)}", flush=True)


if __name__ == "__main__":
    main()
