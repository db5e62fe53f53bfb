"""A data set with faults planted in it, and which clips have which."""

import csv
import dataclasses
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import soundfile

from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.clips import load_clips

RATE = 16_000
NOT_ENGLISH = (
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "Il ne faut pas vendre la peau de l'ours avant de l'avoir tué.",
    "El perro corre por la calle todas las mañanas.",
)
ODD: tuple[Callable[[str], str], ...] = (
    lambda text: f"{text[:4]}\u200b{text[4:]}",  # zero-width space
    lambda text: text.replace("e", "\u0435", 1),  # Cyrillic
    lambda text: text.replace("e", "\ufffd", 1),
    lambda text: text.replace("e", "é", 1).encode().decode("cp1252"),
)
MARKUP: tuple[Callable[[str], str], ...] = (
    lambda text: f"<unk> {text}",
    lambda text: f"{text} [laughter]",
    lambda text: f"{text} &amp; more",
)


@dataclasses.dataclass
class Row:
    """One clip of the data set that is being made."""

    file_name: str
    sentence: str
    split: str


def load_rows(folder: Path, limit: int) -> list[Row]:
    """So many training clips of the demo, and all others, as FLAC files in `folder`."""
    rows = []
    (folder / "clips").mkdir(parents=True)
    for split, clips in load_clips(TrainConfig(max_train_clips=limit)).splits.items():
        for clip in clips:
            name = f"clips/{Path(clip.name).stem}.flac"
            soundfile.write(folder / name, read_audio(clip.source()), RATE)
            rows.append(Row(name, clip.text, split))
    return rows


class Planter:
    """Plants faults in training clips that have none yet; `faults` is where they are, by the kind of finding."""

    def __init__(self, folder: Path, rows: list[Row]) -> None:
        self.folder, self.rows = folder, rows
        self.faults: dict[str, set[str]] = {}
        self.swapped: set[str] = set()
        self._noise = np.random.default_rng(0)
        self._free = [row for row in rows if row.split == "train"]
        random.Random(0).shuffle(self._free)

    def take(self, letters: int = 0) -> Row:
        """A training clip without a fault, whose text has so many letters e."""
        row = next(row for row in self._free if row.sentence.count("e") >= letters)
        self._free.remove(row)
        return row

    def mark(self, kind: str, *names: str) -> None:
        """Remember where a fault is."""
        self.faults.setdefault(kind, set()).update(names)

    def audio(self, row: Row) -> np.ndarray:
        """float32 (samples,) at 16 kHz."""
        return read_audio(self.folder / row.file_name)

    def change(self, kind: str, row: Row, audio: np.ndarray) -> None:
        """Give a clip other audio, in the same file."""
        soundfile.write(self.folder / row.file_name, audio, RATE)
        self.mark(kind, row.file_name)

    def spoil(self, kind: str, texts: Iterable[str | Callable[[str], str]]) -> None:
        """Give clips other texts, or change those that they have."""
        for text in texts:
            row = self.take(letters=2)
            row.sentence = text if isinstance(text, str) else text(row.sentence)
            self.mark(kind, row.file_name)

    def write(self) -> Path:
        """Write the manifest; the folder."""
        with (self.folder / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([field.name for field in dataclasses.fields(Row)])
            writer.writerows(dataclasses.astuple(row) for row in self.rows)
        return self.folder

    def plant_all(self) -> Path:
        """Plant every fault and write the manifest; the folder."""
        for plant in (
            self.plant_swaps,
            self.plant_sounds,
            self.plant_copies,
            self.plant_leaks,
            self.plant_texts,
            self.plant_drops,
        ):
            plant()
        return self.write()

    def plant_sounds(self) -> None:
        """Silence, clipping, level."""
        for level in (0.0, 1e-4, 0.02):
            row = self.take()
            self.change("silent", row, level * self._noise.standard_normal(len(self.audio(row))))
        for gain in (3, 8, 30):
            row = self.take()
            self.change("clipped", row, clipped(self.audio(row), gain))
        row = self.take()
        lossy = "clips/clipped.mp3"
        soundfile.write(self.folder / lossy, clipped(self.audio(row), 6), RATE)
        row.file_name = lossy
        self.mark("clipped", lossy)
        row = self.take()
        self.change("quiet", row, 0.006 * self.audio(row))
        row = self.take()
        self.change("long_silence", row, np.append(self.audio(row), np.zeros(5 * RATE)))
        row = self.take()
        half = np.array_split(self.audio(row), 2)
        self.change("long_silence", row, np.concatenate([half[0], np.zeros(6 * RATE), half[1]]))

    def copy(self, row: Row, name: str, *, split: str = "train", text: str | None = None) -> str:
        """Another row with a clip's audio, whose file is written elsewhere."""
        self.rows.append(Row(f"clips/{name}", text or row.sentence, split))
        return f"clips/{name}"

    def plant_copies(self) -> None:
        """Copies of files, a file listed twice, and the same samples in another lossless format."""
        row = self.take()
        (self.folder / self.copy(row, "copy.flac")).write_bytes((self.folder / row.file_name).read_bytes())
        self.mark("same_audio", row.file_name, "clips/copy.flac")
        row = self.take()
        self.copy(row, Path(row.file_name).name)
        self.mark("same_audio", row.file_name)
        row = self.take()
        soundfile.write(self.folder / self.copy(row, "copy.wav"), self.audio(row), RATE)
        self.mark("same_audio", row.file_name, "clips/copy.wav")

    def plant_leaks(self) -> None:
        """The same audio and the same text in two splits."""
        row = self.take()
        leak = self.copy(row, "leak.wav", split="test", text="these are not the words at all")
        soundfile.write(self.folder / leak, self.audio(row), RATE)
        self.mark("shared_audio", row.file_name, leak)
        self.mark("same_audio_other_text", row.file_name, leak)
        row = self.take()
        leak = self.copy(row, "leak.flac", split="validation")
        (self.folder / leak).write_bytes((self.folder / row.file_name).read_bytes())
        self.mark("shared_audio", row.file_name, leak)
        self.mark("shared_text", row.file_name, leak)
        held_out = [one for one in self.rows if one.split == "validation"]
        for other, change in zip(held_out, (str, str.upper, lambda text: f"«{text.lower()}!»"), strict=False):
            row = self.take()
            row.sentence = change(other.sentence)
            self.mark("shared_text", row.file_name, other.file_name)

    def plant_swaps(self) -> None:
        """Four long texts given to clips of texts 2.4 times shorter, where that can be seen."""
        for _ in range(4):
            first, second = next(
                (first, second)
                for first in self._free
                for second in self._free
                if len(first.sentence) >= 2.4 * len(second.sentence) > 0
            )
            for row in (first, second):
                self._free.remove(row)
                self.swapped.add(row.file_name)
            self.mark("text_misfit", second.file_name)
            first.sentence, second.sentence = second.sentence, first.sentence

    def plant_texts(self) -> None:
        """Texts that nobody said."""
        self.spoil("other_language", NOT_ENGLISH)
        self.spoil("other_language", ["Это совсем другой текст, не тот."])
        self.spoil("odd_characters", ODD)
        self.spoil("markup", MARKUP)

    def plant_drops(self) -> None:
        """Clips that no training can use."""
        too_long, broken, empty, missing, silent = (self.take() for _ in range(5))
        self.change("dropped", too_long, np.tile(self.audio(too_long), 60)[: 31 * RATE])
        (self.folder / broken.file_name).write_bytes(b"RIFF but no more")
        (self.folder / empty.file_name).write_bytes(b"")
        (self.folder / missing.file_name).unlink()
        silent.sentence = "..."
        self.mark("dropped", *(row.file_name for row in (broken, empty, missing, silent)))


def clipped(audio: np.ndarray, gain: float) -> np.ndarray:
    """Amplified so many times beyond full scale."""
    return np.clip(gain * audio / np.abs(audio).max(), -1, 1)
