"""How much longer a training step takes where waveforms are changed: `robust`'s settings beside none, on the CPU.

    python benchmarks/augmented_step.py [--shape demo tiny] [--repeats 5] [--steps 12] [--output FILE]

`tiny` is whisper-tiny's shape with a window of 8 s, on clips of 6 to 8 s (the demo's, joined); `demo` the demo's model
and clips. Both trainings take turns with the same clips and window, on one thread. A step's time is the CPU time from
the end of one optimiser step to that of the next, so that other work on the machine counts less.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "peers")]

import numpy as np  # noqa: E402
import plain  # noqa: E402
import shapes  # noqa: E402
import soundfile  # noqa: E402
import torch  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

from trainer.config import TrainConfig  # noqa: E402
from trainer.train import train  # noqa: E402

CHANGED: dict[str, Any] = {"augment": 0.9, "augment_speed": 0.3, "augment_noise": 0.5}
"""As `robust.yaml` tries first; everything else as by default."""
RATE = 16_000


def joined_clips(folder: Path, clips: int) -> Path:
    """A folder of clips of 6 to 8 s and their texts, from the demo's training clips."""
    folder.mkdir()
    rows, sound, words = ["file_name,sentence,split"], np.zeros(0, np.float32), ""
    for row in plain.load_splits(shapes.DEMO / "data", {"train": None})["train"]:
        heard, said = soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")[0], row["text"]
        if len(sound) + len(heard) > 8 * RATE:
            if len(sound) >= 6 * RATE:
                soundfile.write(folder / f"{len(rows)}.flac", sound, RATE)
                rows.append(f"{len(rows)}.flac,{words.strip()},{'validation' if len(rows) < 4 else 'train'}")
            sound, words = np.zeros(0, np.float32), ""
        sound, words = np.concatenate([sound, heard]), f"{words} {said}"
        if len(rows) > clips + 3:
            break
    (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
    return folder


def step(config: TrainConfig) -> float:
    """CPU seconds of a step, in the median."""
    times: list[float] = []
    handle = register_optimizer_step_post_hook(lambda *_: times.append(time.process_time()))
    try:
        train(config)
    finally:
        handle.remove()
    return statistics.median(after - before for before, after in itertools.pairwise(times[2:]))


def configuration(shape: str, folder: Path, steps: int) -> TrainConfig:
    """A short training of a shape."""
    shared: dict[str, Any] = {
        **{"cache_dir": str(folder / "cache"), "max_steps": steps, "evaluations": 1, "max_eval_clips": 1},
        **{"learning_rate": 1e-5, "generation_max_length": 8},
    }
    if shape == "demo":
        return TrainConfig(model="demo", data="demo", audio_window=4.0, **shared)
    model, data = shapes.make_model(folder / "model", shape), joined_clips(folder / "clips", 80)
    return TrainConfig(model=str(model), data=str(data), audio_window=8.0, train_batch_size=8, **shared)


def main() -> None:
    """Measure in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["demo", "tiny"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path, help="JSON")
    asked = parser.parse_args()
    if asked.steps < 4:
        parser.error(f"--steps {asked.steps}: must be at least 4; the first three are not measured")
    torch.set_num_threads(1)
    told: dict[str, dict[str, list[float]]] = {}
    for shape in asked.shape:
        with tempfile.TemporaryDirectory() as name:
            config = configuration(shape, Path(name), asked.steps)
            settings = {"none": config, "robust": config.replace(**CHANGED)}
            for each in settings.values():
                train(each.replace(max_steps=1))  # features, waveforms, imports
            found: dict[str, list[float]] = {each: [] for each in settings}
            for _ in range(asked.repeats):
                for each, its in settings.items():
                    found[each].append(step(its))
        ratios = [changed / as_is for as_is, changed in zip(*found.values(), strict=True)]
        told[shape] = {**found, "ratio": ratios}
        milliseconds = {each: f"{1000 * statistics.median(values):.0f} ms" for each, values in found.items()}
        print(
            f"{shape}: {milliseconds}, ratio {statistics.median(ratios):.2f} "
            f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})",
            flush=True,
        )
    if asked.output:
        asked.output.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
