"""300 damaged, cut and odd files: read rightly, or dropped with a reason; never a traceback, never a wrong length.

What they are made of is drawn with a seed, so that a number stands for a file; `make_case` makes it again.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from trainer.data.audio import AudioError, read_audio
from trainer.data.drops import DROP_REASONS

COUNT, GROUPS = 300, 4
RATES = (8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000)
FORMATS = {
    **dict.fromkeys(
        (("WAV", subtype) for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT")), RATES
    ),
    **dict.fromkeys(
        (("WAV", subtype) for subtype in ("DOUBLE", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM")), RATES
    ),
    **dict.fromkeys((("WAVEX", subtype) for subtype in ("PCM_16", "PCM_24", "FLOAT")), RATES),
    **dict.fromkeys(
        (("RF64", "PCM_16"), ("W64", "PCM_24"), ("AIFF", "PCM_16"), ("CAF", "FLOAT"), ("AU", "PCM_16")), RATES
    ),
    **dict.fromkeys((("FLAC", "PCM_16"), ("FLAC", "PCM_24"), ("OGG", "VORBIS")), RATES),
    ("WAV", "GSM610"): (8_000,),
    ("OGG", "OPUS"): (8_000, 16_000, 48_000),
    ("MP3", "MPEG_LAYER_III"): (8_000, 11_025, 16_000, 22_050, 44_100, 48_000),
}
#: Seconds that a coding may add: blocks of ADPCM, frames of MP3 and Opus.
MORE = {"ADPCM": 0.3, "GSM610": 0.09, "MPEG_LAYER_III": 0.21, "OPUS": 0.03, "VORBIS": 0.03}
SLACK = 0.11
"""Seconds that may be missing of what is announced before a clip is dropped."""


@dataclasses.dataclass
class Case:
    """A file, and what is known of it."""

    number: int
    kind: str
    damage: str
    content: bytes
    samples: np.ndarray
    """What was written: 16 kHz mono, or as long."""
    codec_adds: float
    must_read: bool = False
    """It is whole, if odd."""
    must_drop: tuple[str, ...] = ()
    """It cannot be whole, and says so."""
    any_length: bool = False
    """The damage may be to what says how long it is."""


def sound(random: np.random.Generator, seconds: float) -> np.ndarray:
    """float64 (samples,), 16 kHz: two notes that come and go."""
    time = np.arange(round(seconds * 16_000)) / 16_000
    low, high = random.uniform(100, 900), random.uniform(900, 2_500)
    return np.asarray(0.3 * np.sin(2 * np.pi * low * time) + 0.2 * np.sin(2 * np.pi * high * time + 1))


def written(
    random: np.random.Generator, kind: tuple[str, str], *, rate: int | None = None
) -> tuple[bytes, np.ndarray, int]:
    import soxr

    audio = sound(random, float(random.uniform(0.3, 1.0)))
    rate = rate or int(random.choice(FORMATS[kind]))
    channels = (
        1
        if kind[1] == "GSM610"
        else int(random.choice((1, 2) if kind[0] == "MP3" or "ADPCM" in kind[1] else (1, 2, 4)))
    )
    at_rate = audio if rate == 16_000 else soxr.resample(audio, 16_000, rate, quality="HQ")
    gains = random.uniform(0.5, 1.0, channels)
    buffer = io.BytesIO()
    soundfile.write(buffer, at_rate[:, None] * gains, rate, format=kind[0], subtype=kind[1])
    return buffer.getvalue(), (audio * gains.mean()).astype(np.float32), rate


def whole(case: Case, random: np.random.Generator, kind: tuple[str, str]) -> None:
    case.must_read = True


def cut(case: Case, random: np.random.Generator, kind: tuple[str, str]) -> None:
    """Anywhere; where more than a little is missing, the reason must say so, but for OGG cut between pages."""
    keep = int(random.integers(1, len(case.content)))
    case.content = case.content[:keep]
    case.any_length = True
    if kind[0] not in ("OGG",):
        case.must_drop = ("incomplete_audio", "unreadable_audio", "empty_audio")


def flip(case: Case, random: np.random.Generator, kind: tuple[str, str]) -> None:
    """Bytes anywhere."""
    content = bytearray(case.content)
    for place in random.integers(0, len(content), int(random.integers(1, 20))):
        content[place] ^= int(random.integers(1, 256))
    case.content, case.any_length = bytes(content), True


def flip_header(case: Case, random: np.random.Generator, kind: tuple[str, str]) -> None:
    content = bytearray(case.content)
    for place in random.integers(0, min(64, len(content)), int(random.integers(1, 5))):
        content[place] = int(random.choice((0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256)))))
    case.content, case.any_length = bytes(content), True


def appended(case: Case, random: np.random.Generator, kind: tuple[str, str]) -> None:
    garbage = (bytes(1_000), b"TAG" + bytes(125), random.bytes(int(random.integers(1, 5_000))), b"\n")
    case.content += garbage[int(random.integers(len(garbage)))]
    case.must_read = True


def prefixed(case: Case, random: np.random.Generator, kind: tuple[str, str]) -> None:
    """An ID3 tag before it, which players skip."""
    case.content = b"ID3\x03\0\0" + bytes([0, 0, 1, 44]) + bytes(172) + case.content
    case.must_read = kind[0] in ("MP3", "FLAC")
    case.any_length = not case.must_read


DAMAGES: tuple[Callable[[Case, np.random.Generator, tuple[str, str]], None], ...] = (
    *(whole, cut, cut, cut, flip, flip, flip_header, flip_header, appended, prefixed),
)


def make_case(number: int) -> Case:
    random = np.random.default_rng(number)
    kind = list(FORMATS)[number % len(FORMATS)]
    damage = DAMAGES[int(random.integers(len(DAMAGES)))]
    content, audio, _ = written(random, kind)
    adds = next((more for name, more in MORE.items() if name in kind[1]), 0.002)
    case = Case(number, "/".join(kind), damage.__name__, content, audio, adds)
    damage(case, random, kind)
    return case


def heard(read: Callable[[], np.ndarray]) -> np.ndarray | AudioError:
    try:
        return read()
    except AudioError as error:
        return error


def complaints(case: Case, path: Path) -> Iterator[str]:
    """What is wrong with the way in which a file is read."""
    result = heard(lambda: read_audio(path, max_seconds=30))
    inside = heard(lambda: read_audio(case.content, max_seconds=30)) if case.content else result
    seconds = len(case.samples) / 16_000
    if isinstance(result, AudioError):
        yield from _reasons(case, result)
        if not isinstance(inside, AudioError) or inside.reason != result.reason:
            yield f"from memory: {inside!r}"
    else:
        if not np.array_equal(result, inside):
            yield "other samples from memory"
        length = len(result) / 16_000
        if not np.isfinite(result).all():
            yield "not finite"
        if case.must_drop and (not case.any_length or length < seconds - SLACK - case.codec_adds):
            yield f"should be dropped; read {length:.3f} of {seconds:.3f} s"
        if not case.any_length and abs(length - seconds) > case.codec_adds + 0.002:
            yield f"wrong length {length:.3f} of {seconds:.3f} s"
        if (
            case.damage not in ("flip_header", "flip", "prefixed")
            and length > seconds + case.codec_adds + 0.002
        ):
            yield f"longer than what is held: {length:.3f} of {seconds:.3f} s"
        if case.damage in ("whole", "appended") and not case.codec_adds > 0.01:
            size = min(len(result), len(case.samples)) - 200
            difference = float(np.abs(result[200:size] - case.samples[200:size]).max())
            if difference > 0.12:
                yield f"other samples: by {difference:.2f}"


def _reasons(case: Case, error: AudioError) -> Iterator[str]:
    if case.must_read:
        yield f"should be read: {error.reason}: {error}"
    if error.reason not in DROP_REASONS or "\n" in str(error) or not str(error):
        yield f"no reason: {error.reason}: {error}"
    if case.must_drop and error.reason not in case.must_drop:
        yield f"another reason: {error.reason}: {error}"


@pytest.mark.occasional
@pytest.mark.parametrize("group", range(GROUPS))
def test_files_of_any_kind_and_damage(tmp_path: Path, group: int) -> None:
    found = []
    for number in range(group, COUNT, GROUPS):
        case = make_case(number)
        # Names say nothing: a third of them are wrong.
        path = tmp_path / f"{number}.{('wav', 'mp3', case.kind.split('/')[0].lower())[number % 3]}"
        path.write_bytes(case.content)
        found += [f"{number} {case.kind} {case.damage}: {told}" for told in complaints(case, path)]
        path.unlink()
    assert not found, "\n".join(found)
