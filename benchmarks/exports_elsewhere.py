"""What an exported model transcribes elsewhere: in transformers 5 and 4.57, and in faster-whisper.

    python3.11 -m venv OLD && OLD/bin/pip install torch 'transformers==4.57.6' soundfile
    python3.11 -m venv FASTER && FASTER/bin/pip install faster-whisper soundfile
    python benchmarks/exports_elsewhere.py EXPORT --old OLD/bin/python --faster FASTER/bin/python

EXPORT is a folder that `tune-whisper export --format ctranslate2` wrote for German. A minute of German is joined from
clips of the test split of ../shared/data/speech_en_de; WERs are those of the project's normaliser. The table is in
docs/export.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import soundfile

from trainer.config import TrainConfig
from trainer.scoring.normalizers import make_normalizer

ROOT = Path(__file__).resolve().parent.parent
CLIPS = ROOT.parent / "shared" / "data" / "speech_en_de"
RATE, SECONDS, PAUSE = 16_000, 60.0, 0.5
PIPELINE = """
import json, sys, soundfile, torch, transformers
from transformers import AutoModelForSpeechSeq2Seq, WhisperProcessor, pipeline
folder, path, _ = sys.argv[1:]
WhisperProcessor.from_pretrained(folder), AutoModelForSpeechSeq2Seq.from_pretrained(folder)
samples, rate = soundfile.read(path, dtype="float32")
transcribe = pipeline("automatic-speech-recognition", folder)
result = transcribe({"raw": samples, "sampling_rate": rate}, return_timestamps=True)
print(json.dumps({"version": "transformers " + transformers.__version__, "text": result["text"],
                  "segments": len(result["chunks"])}))
"""
FASTER = """
import importlib.metadata, json, sys
from faster_whisper import WhisperModel
folder, path, settings = sys.argv[1:]
segments, _ = WhisperModel(folder + "/ctranslate2", device="cpu").transcribe(path, **json.loads(settings))
texts = [segment.text.strip() for segment in segments]
print(json.dumps({"version": "faster-whisper " + importlib.metadata.version("faster-whisper"), "text": " ".join(texts),
                  "segments": len(texts)}))
"""


def join(clips: Path, path: Path) -> str:
    """Write clips of the test split one after the other, up to a minute; what is said in them."""
    with (clips / "metadata.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["language"], row["split"]) == ("de", "test")]
    pause = np.zeros(round(PAUSE * RATE), np.float32)
    parts, texts = list[np.ndarray](), list[str]()
    for row in rows:
        samples, _ = soundfile.read(clips / row["file_name"], dtype="float32")
        if sum(map(len, parts)) + len(samples) > SECONDS * RATE:
            break
        parts += [samples, pause]
        texts.append(row["sentence"])
    soundfile.write(path, np.concatenate(parts), RATE)
    return " ".join(texts)


def transcribed(python: str, code: str, folder: Path, path: Path, **settings: Any) -> dict[str, Any]:
    """What one program writes."""
    words = [python, "-c", code, str(folder), str(path), json.dumps(settings)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=path.parent)
    if done.returncode:
        sys.exit(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path, help="folder of an export, with ctranslate2")
    parser.add_argument("--old", required=True, help="Python with transformers 4.57")
    parser.add_argument("--faster", required=True, help="Python with faster-whisper")
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with metadata.csv and clips")
    asked = parser.parse_args()
    folder = asked.export.absolute()
    normalize = make_normalizer(TrainConfig(language="de"))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "joined.wav"
        reference = join(asked.clips, path)
        print(f"{soundfile.info(path).duration:.1f} s, {len(normalize(reference).split())} words", flush=True)
        print("| program | settings | WER % | segments |\n| --- | --- | --- | --- |")
        for python, code, settings in (
            (sys.executable, PIPELINE, {}),
            (asked.old, PIPELINE, {}),
            (asked.faster, FASTER, {}),
            (asked.faster, FASTER, {"suppress_tokens": []}),
        ):
            found = transcribed(python, code, folder, path, **settings)
            wer = 100 * jiwer.wer(normalize(reference), normalize(found["text"]))
            shown = ", ".join(f"`{name}={value}`" for name, value in settings.items()) or "its own"
            print(f"| {found['version']} | {shown} | {wer:.2f} | {found['segments']} |", flush=True)
            print(found["text"], file=sys.stderr)


if __name__ == "__main__":
    main()
