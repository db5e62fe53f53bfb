"""Sentences, voices and sound of the demo: what espeak-ng says, and what is done to the sound afterwards."""

from __future__ import annotations

import io
import itertools
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

Wave = NDArray[np.float32]
SAMPLE_RATE = 16_000
MAX_SECONDS = 4.0

# No two of the words sound alike (no "to" beside "two", no "read" beside "red"): a label can be told by ear.
SLOTS = {
    "number": ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    "room": ("kitchen", "bedroom", "garage", "garden", "bathroom"),
    "device": ("light", "fan", "heater", "radio", "window", "door", "camera"),
    "colour": ("red", "green", "blue", "yellow"),
    "person": ("mother", "brother", "doctor"),
    "day": ("today", "tomorrow", "monday"),
}
OTHERS = (
    "turn", "on", "off", "the", "open", "close", "stop", "play", "wait", "call", "my", "show", "make",
    "minutes", "songs", "weather", "messages", "louder",
)  # fmt: skip
WORDS = (*itertools.chain(*SLOTS.values()), *OTHERS)

# A small grammar: each slot is filled from the list of that name.
TEMPLATES = (
    "turn on the {room} {device}",
    "turn off the {room} {device}",
    "open the {room} {device}",
    "close the {room} {device}",
    "make the {room} light {colour}",
    "make the {device} louder",
    "play {number} songs",
    "play {number} {colour} songs",
    "play my songs {day}",
    "wait {number} minutes",
    "stop the radio",
    "call my {person}",
    "call my {person} {day}",
    "show my messages",
    "show {number} messages",
    "show the weather {day}",
    "turn the heater on {day}",
)


@dataclass(frozen=True)
class Speaker:
    """One voice of espeak-ng (accent and variant), its pace and pitch, and the channel it comes through."""

    name: str
    accent: str
    variant: str
    speed: int = 165
    pitch: int = 50
    noise: str = ""
    snr: tuple[float, float] = (99.0, 99.0)
    band: tuple[float, float] | None = None


# The base model hears plain American and British voices, without noise.
BASE_ACCENTS = ("en-us", "en-gb")
BASE_VARIANTS = ("m1", "m2", "m3", "m4", "m5", "m6", "m7", "f1", "f2", "f3", "f4")

LINE = (80.0, 5000.0)
# The target speakers: accents (and mostly voices) the base model never heard, with some noise, three of them
# through a narrow line. It hears most of their words wrong, but a few hundred clips are enough to learn them.
TARGET_SPEAKERS = (
    Speaker("isla", "en-gb-scotland", "klatt", 175, 60, "pink", (26, 34)),
    Speaker("hamish", "en-gb-scotland", "m3", 185, 35, "white", (26, 34), LINE),
    Speaker("delroy", "en-029", "croak", 165, 40, "babble", (22, 30)),
    Speaker("alice", "en-gb-x-gbclan", "klatt2", 170, 70, "pink", (26, 34)),
    Speaker("frank", "en-gb-x-gbclan", "m7", 180, 30, "pink", (26, 34), LINE),
    Speaker("nigel", "en-gb-x-gbcwmd", "klatt3", 160, 35, "white", (26, 34)),
    Speaker("tony", "en-us-nyc", "m5", 190, 45, "babble", (22, 30), LINE),
    Speaker("rosa", "en-us-nyc", "klatt4", 170, 65, "pink", (26, 34)),
)


def check_espeak() -> None:
    """End the program with one line that says how to get espeak-ng where it is not installed."""
    if shutil.which("espeak-ng") is None:
        raise SystemExit("error: espeak-ng is not installed (Debian and Ubuntu: apt-get install espeak-ng)")


def sentence(rng: np.random.Generator) -> str:
    """Draw one sentence: one to five words at random, or as often one from the grammar.

    The random ones keep the decoder from guessing words out of the grammar instead of listening.
    """
    if rng.random() < 0.5:
        count = int(rng.choice([1, 2, 3, 4, 5], p=[0.05, 0.15, 0.25, 0.3, 0.25]))
        return " ".join(rng.choice(WORDS, count))
    template = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    return template.format(**{slot: rng.choice(words) for slot, words in SLOTS.items()})


def different_sentences(
    rng: np.random.Generator, count: int, draw: Callable[[np.random.Generator], str] = sentence
) -> list[str]:
    """So many of them, none twice, in any order."""
    unique: dict[str, None] = {}
    while len(unique) < count:
        unique[draw(rng)] = None
    return [str(text) for text in rng.permutation(list(unique))]


def base_speaker(rng: np.random.Generator) -> Speaker:
    """Draw one of the plain voices that the base model is trained on."""
    accent, variant = str(rng.choice(BASE_ACCENTS)), str(rng.choice(BASE_VARIANTS))
    speed, pitch = int(rng.integers(140, 196)), int(rng.integers(30, 71))
    return Speaker(f"{accent}-{variant}", accent, variant, speed, pitch)


def say(text: str, speaker: Speaker) -> Wave:
    """Speak *text*: mono, 16 kHz, without the silence around it, at a fixed peak."""
    manner = ["-v", f"{speaker.accent}+{speaker.variant}", "-s", str(speaker.speed), "-p", str(speaker.pitch)]
    spoken = subprocess.run(["espeak-ng", *manner, "--stdout", text], check=True, capture_output=True).stdout
    wave, rate = soundfile.read(io.BytesIO(spoken), dtype="float32")
    wave = soxr.resample(wave, rate, SAMPLE_RATE)
    loud = np.flatnonzero(np.abs(wave) > 0.01 * np.abs(wave).max())
    wave = wave[loud[0] : loud[-1] + 1]
    return np.asarray(0.5 * wave / np.abs(wave).max(), dtype=np.float32)


def pad(wave: Wave, rng: np.random.Generator) -> Wave:
    """Put 0.05 to 0.35 s of silence before the words and 0.1 s after them, and keep to the model's window."""
    before = int(rng.uniform(0.05, 0.35) * SAMPLE_RATE)
    return np.pad(wave, (before, SAMPLE_RATE // 10))[: int(MAX_SECONDS * SAMPLE_RATE)]


def noise(kind: str, length: int, rng: np.random.Generator, babble: Wave | None) -> Wave:
    """Return *length* samples of white or pink noise, or of *babble* (many voices) from a random place."""
    if kind == "babble" and babble is not None:
        start = int(rng.integers(len(babble) - length))
        return babble[start : start + length]
    spectrum = np.fft.rfft(rng.standard_normal(length))
    if kind == "pink":
        spectrum /= np.sqrt(np.maximum(np.arange(len(spectrum)), 1.0))
    return np.fft.irfft(spectrum, length).astype(np.float32)


def make_babble(rng: np.random.Generator) -> Wave:
    """Lay twelve talkers over each other for 30 s: the words cannot be told, only that people speak."""
    track = np.zeros(30 * SAMPLE_RATE, dtype=np.float32)
    for _ in range(12):
        at = 0
        while at < len(track):
            wave = say(sentence(rng), base_speaker(rng))[: len(track) - at]
            track[at : at + len(wave)] += wave
            at += len(wave)
    return track


def through_channel(wave: Wave, speaker: Speaker, rng: np.random.Generator, babble: Wave | None) -> Wave:
    """Add the speaker's noise at a random level of his range, then cut to his band (a telephone's, say)."""
    if speaker.noise:
        added = noise(speaker.noise, len(wave), rng, babble)
        snr = rng.uniform(*speaker.snr)
        wave = wave + added * np.sqrt(np.mean(wave**2) / np.mean(added**2) / 10 ** (snr / 10))
    if speaker.band:
        spectrum = np.fft.rfft(wave)
        frequency = np.fft.rfftfreq(len(wave), 1 / SAMPLE_RATE)
        spectrum[(frequency < speaker.band[0]) | (frequency > speaker.band[1])] = 0
        wave = np.fft.irfft(spectrum, len(wave)).astype(np.float32)
    return np.asarray(0.5 * wave / np.abs(wave).max(), dtype=np.float32)


def encode(wave: Wave, small: bool = True) -> bytes:
    """Encode as OGG/Opus at about 21 kbit/s (smaller headers than Vorbis'), or as FLAC, which is quick."""
    buffer = io.BytesIO()
    if small:
        soundfile.write(buffer, wave, SAMPLE_RATE, format="OGG", subtype="OPUS", compression_level=0.95)
    else:
        soundfile.write(buffer, wave, SAMPLE_RATE, format="FLAC")
    return buffer.getvalue()
