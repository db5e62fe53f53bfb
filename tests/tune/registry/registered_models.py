"""Model folders as an export writes them, for tests of MLflow's registry: the demo's model and what it hears."""

from __future__ import annotations

import functools
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import soundfile
import soxr

import trainer

DEMO = Path(trainer.__file__).parent / "demo"
EVALUATION = {
    "experiment": "spring",
    "trial_id": "003-r1",
    "reported_validation_wer": 8.6412345,
    "evaluations": {
        split: {
            "before": {"wer": 68.5237 + number, "cer": 53.6, "clips": 96},
            "after": {"wer": 8.6412345 + number, "cer": 4.2, "clips": 96},
        }
        for number, split in enumerate(("validation", "test"))
    },
}


def export_demo(folder: Path, **generation: Any) -> Path:
    """The demo's model in `folder` with other values in its generation config."""
    shutil.copytree(DEMO / "model", folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 1} | generation, indent=2))
    (folder / "evaluation.json").write_text(json.dumps(EVALUATION))
    (folder / "train_config.json").write_text(json.dumps({"model": "demo"}))
    (folder / "README.md").write_text("---\nlanguage: [en]\n---\n\n# A model\n")
    return folder


def clips(count: int) -> list[bytes]:
    """The content of some of the demo's test clips: OGG files at 16 kHz."""
    rows = pyarrow.parquet.read_table(DEMO / "data" / "test.parquet").to_pylist()
    return [row["audio"]["bytes"] for row in rows[:count]]


def as_file(clip: bytes, kind: str, rate: int, channels: int = 1) -> bytes:
    """The same clip in another format at another sample rate."""
    samples, before = soundfile.read(io.BytesIO(clip), dtype="float32")
    if rate != before:
        samples = soxr.resample(samples, before, rate)
    file = io.BytesIO()
    soundfile.write(file, samples[:, None].repeat(channels, axis=1), rate, format=kind)
    return file.getvalue()


def heard(folder: Path, recordings: list[bytes]) -> list[str]:
    """What transformers' pipeline makes of recordings, decoded and resampled as for training."""
    from trainer.data.audio import read_audio

    transcribe = _pipeline(folder)
    return [transcribe(read_audio(recording))["text"].strip() for recording in recordings]


@functools.lru_cache
def _pipeline(folder: Path) -> Any:
    from transformers import pipeline

    return pipeline("automatic-speech-recognition", str(folder), device="cpu")
