"""Our greedy decoding beside transformers' `generate` and our own of another commit, on the same encoder outputs.

    python benchmarks/decoding.py [--commit a5e398a] [--clips 96] [--batches 16 128] [--repeats 7]

Every repeat runs all of them one after the other, so that what else the machine does hits all alike; ratios are taken
within a repeat. Where there is no GPU seconds are those of the processor. Clips are the demo's: with its own model
(4 s), with the same model and Whisper's window of 30 s, and with the shape of whisper-tiny and random weights, which
never ends a text (25 tokens).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import shapes  # noqa: E402
import torch  # noqa: E402
from transformers import GenerationMixin  # noqa: E402

from trainer.config import TrainConfig  # noqa: E402
from trainer.data.features import pad_features  # noqa: E402
from trainer.data.prepared import prepare  # noqa: E402
from trainer.model.greedy import GreedyDecoder  # noqa: E402
from trainer.model.processor import load_processor  # noqa: E402
from trainer.model.whisper import load_model  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Decode = Callable[[torch.Tensor], torch.Tensor]


def of_commit(commit: str, folder: Path) -> Any:
    """The module for greedy decoding as it was."""
    path = folder / "greedy_before.py"
    shown = subprocess.run(
        ["git", "-C", str(ROOT), "show", f"{commit}:trainer/model/greedy.py"], capture_output=True, check=True
    )
    path.write_bytes(shown.stdout)
    spec = importlib.util.spec_from_file_location("greedy_before", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["greedy_before"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ways(config: TrainConfig, before: Any, model: Any, *, with_generate: bool) -> dict[str, Decode]:
    """Each way to decode encoder outputs (B, positions, width)."""
    prefix = load_processor(config).tokenizer.prefix_tokens
    limit = min(model.generation_config.max_length + len(prefix), model.config.max_target_positions)
    greedy = GreedyDecoder(model)

    def by_commit(encoded: torch.Tensor) -> torch.Tensor:
        if hasattr(before, "decode"):
            return before.decode(model, encoded, prefix, limit)  # type: ignore[no-any-return]
        return before.GreedyDecoder(model).decode(encoded, prefix, limit)  # type: ignore[no-any-return]

    def generate(encoded: torch.Tensor) -> torch.Tensor:
        return GenerationMixin.generate(  # type: ignore[no-any-return]
            model,
            encoder_outputs=(encoded,),
            decoder_input_ids=torch.tensor([prefix], device=DEVICE).expand(len(encoded), -1),
            attention_mask=torch.ones(encoded.shape[:2], dtype=torch.long, device=DEVICE),
            max_length=limit,
        )

    found: dict[str, Decode] = {
        "ours": lambda encoded: greedy.decode(encoded, prefix, limit),
        "before": by_commit,
    }
    return found | ({"generate": generate} if with_generate else {})


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


def timed(decode: Decode, encoded: torch.Tensor, batch: int) -> tuple[float, list[list[int]]]:
    """Seconds for all clips, and their tokens up to the first end."""
    texts: list[list[int]] = []
    clock = time.perf_counter if DEVICE.type == "cuda" else time.process_time
    begun = clock()
    for first in range(0, len(encoded), batch):
        texts += decode(encoded[first : first + batch]).tolist()
    return clock() - begun, texts


def cut(texts: list[list[int]], end: int) -> list[list[int]]:
    """Tokens up to the first end, where there is one."""
    return [text[: text.index(end)] if end in text else text for text in texts]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", default="a5e398a", help="our decoding before the one of today")
    parser.add_argument("--clips", type=int, default=96)
    parser.add_argument("--batches", type=int, nargs="+", default=[16])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=["demo", "demo 30 s", "tiny"])
    parser.add_argument("--generate", action="store_true", help="beside transformers' generate, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        before = of_commit(arguments.commit, folder)
        for name in arguments.models:
            path = {
                "demo": lambda: Path("demo"),
                "demo 30 s": lambda: shapes.lengthen_demo(folder / "long"),
            }.get(name, lambda name=name: shapes.make_model(folder / name, name))()
            config = TrainConfig(
                model=str(path),
                data="demo",
                cache_dir=str(folder / "cache"),
                max_train_clips=8,
                max_eval_clips=arguments.clips,
                generation_max_length=None if name.startswith("demo") else 25,
            )
            model = load_model(config, load_processor(config)).to(DEVICE).eval()
            encoded, end = encode(config, model), int(model.generation_config.eos_token_id)
            for batch in arguments.batches:
                works = ways(config, before, model, with_generate=arguments.generate)
                seconds: dict[str, list[float]] = {way: [] for way in works}
                texts = {}
                for repeat in range(arguments.repeats + 1):
                    for way, work in works.items():
                        spent, texts[way] = timed(work, encoded, batch)
                        if repeat:  # the first one warms up
                            seconds[way].append(spent)
                assert all(cut(found, end) == cut(texts["ours"], end) for found in texts.values())
                told = [f"ours {statistics.median(seconds['ours']):.3f} s"]
                for way in list(works)[1:]:
                    ratios = [other / ours for other, ours in zip(seconds[way], seconds["ours"], strict=True)]
                    told.append(
                        f"{way} / ours {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                    )
                print(f"{name}, {len(encoded)} clips by {batch}: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
