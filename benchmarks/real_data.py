"""Real speech for `real.py`: German that Whisper knows, the same through a bad telephone, and Cherokee, which it lacks.

German: the 200 German clips of a folder with `metadata.csv` (`file_name, sentence, language`; derived from the
Rhasspy project's voice data set Kerstin, CC0), split 80/60/60 by `real_german_split.csv`. Cherokee: from a clone of
github.com/CherokeeLanguage/cherokee-audio-data; its part durbin-feeling-tones is CC0, the others CC BY-NC 4.0, so that
nothing of them is part of this repository.
"""

from __future__ import annotations

import io
import subprocess
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.signal
import soundfile
import soxr

from trainer.files import write_whole

RATE = 16_000
CHEROKEE_COMMIT = "9b8a9dc5b297c91df4407486ecefe1fb37ef5480"
CHEROKEE_PARTS = ("durbin-feeling-tones", "wwacc", "walc-1", "see-say-write")
CHEROKEE_SPLITS = {"train": 260, "validation": 48, "test": 48}
CHEROKEE_SECONDS = (1.0, 5.0)
SHORT_SECONDS = 5.5
TELEPHONE = (300, 3400)
"""Hz: the band that is left."""
SNR = 5.0
"""dB of the speech over white noise."""
SEED = 0
GERMAN_SPLIT = Path(__file__).with_name("real_german_split.csv")

Row = tuple[str, str, str]
"""Path of the audio, text, split."""


def make_german(source: Path, table: Path, longest: float = float("inf")) -> Path:
    """The table of the German clips of at most so many seconds, made where it is not there yet."""
    if not table.is_file():
        rows = [(str(source / name), text, split) for name, text, split in _german(source)]
        _write(table, [row for row in rows if soundfile.info(row[0]).duration <= longest])
    return table


def make_telephone(source: Path, folder: Path) -> Path:
    """The German clips in the band of a telephone, with white noise at 5 dB."""
    table = folder / "telephone.csv"
    if table.is_file():
        return table
    audio = folder / "telephone"
    audio.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    band = scipy.signal.butter(8, TELEPHONE, "bandpass", fs=RATE, output="sos")
    rows = []
    for name, text, split in _german(source):
        samples, rate = soundfile.read(source / name, dtype="float64")
        speech = scipy.signal.sosfilt(band, soxr.resample(samples, rate, RATE))
        noise = rng.standard_normal(len(speech))
        noise *= np.sqrt((speech**2).mean() / 10 ** (SNR / 10) / (noise**2).mean())
        spoiled = speech + noise
        path = audio / Path(name).name
        soundfile.write(path, 0.9 * spoiled / np.abs(spoiled).max(), RATE, subtype="PCM_16")
        rows.append((str(path), text, split))
    _write(table, rows)
    return table


def make_cherokee(repository: Path, folder: Path) -> Path:
    """The table of the Cherokee clips: 1 to 5 s, 260 to train on, 48 and 48, drawn with a seed; texts in NFC."""
    table = folder / "cherokee.csv"
    if table.is_file():
        return table
    audio = folder / "cherokee"
    audio.mkdir(parents=True, exist_ok=True)
    found: list[tuple[str, str]] = []
    for part in CHEROKEE_PARTS:
        listed = _git(repository, "ls-tree", "-r", "--name-only", "-z", CHEROKEE_COMMIT, part).decode()
        clips = (name for name in listed.split("\0") if name.endswith(".mp3") and "noisy" not in name)
        paths = {Path(name).stem: name for name in reversed(list(clips))}
        for line in _git(repository, "show", f"{CHEROKEE_COMMIT}:{part}/all.txt").decode().splitlines():
            fields = line.split("|")
            stem, text = Path(fields[3]).stem, unicodedata.normalize("NFC", fields[6].strip())
            if fields[2] == "chr" and text and stem in paths:
                found.append((paths[stem], text))
    rng = np.random.default_rng(SEED)
    rows: list[Row] = []
    splits = [split for split, clips in CHEROKEE_SPLITS.items() for _ in range(clips)]
    for number in rng.permutation(len(found)):
        if len(rows) == len(splits):
            break
        name, text = found[number]
        content = _git(repository, "show", f"{CHEROKEE_COMMIT}:{name}")
        samples, rate = soundfile.read(io.BytesIO(content))
        if CHEROKEE_SECONDS[0] <= len(samples) / rate <= CHEROKEE_SECONDS[1]:
            path = audio / name.replace("/", "-")
            path.write_bytes(content)
            rows.append((str(path), text, splits[len(rows)]))
    _write(table, rows)
    return table


def _german(source: Path) -> list[Row]:
    """Name in `source`, text and split of each clip."""
    clips = pd.read_csv(source / "metadata.csv", dtype=str, keep_default_na=False)
    texts = clips[clips.language == "de"].set_index("file_name").sentence
    splits = pd.read_csv(GERMAN_SPLIT)
    return list(zip(splits.file_name, texts[splits.file_name], splits.split, strict=True))


def _git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True).stdout


def _write(table: Path, rows: list[Row]) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    text = pd.DataFrame(rows, columns=["audio", "text", "split"]).to_csv(index=False, lineterminator="\r\n")
    write_whole(table, text)
