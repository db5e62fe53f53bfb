"""The demo's clips as arrays, put together to recordings."""

import functools
import io
from collections.abc import Sequence

import numpy as np
import soundfile

from trainer.data.audio import SAMPLE_RATE
from trainer.data.sources import DEMO_DATA


@functools.cache
def demo_clips(split: str = "test") -> list[tuple[np.ndarray, str]]:
    """Samples (float32, 16 kHz) and text of each clip of a split."""
    import pyarrow.parquet as pq

    rows = pq.read_table(DEMO_DATA / f"{split}.parquet").to_pylist()
    return [
        (soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")[0], row["text"]) for row in rows
    ]


def joined(clips: Sequence[np.ndarray], pause: float) -> np.ndarray:
    """Clips with so many seconds of silence before, between and after them."""
    silence = np.zeros(round(pause * SAMPLE_RATE), np.float32)
    return np.concatenate([silence, *(part for clip in clips for part in (clip, silence))])


def recording(first: int, count: int) -> tuple[np.ndarray, list[tuple[float, float, str]]]:
    """Training clips with 0.8 seconds of silence between, and start, end and text of each."""
    clips, cues, place = demo_clips("train")[first : first + count], [], 0.8
    for audio, text in clips:
        end = place + len(audio) / SAMPLE_RATE
        cues.append((place, end, text))
        place = end + 0.8
    return joined([audio for audio, _ in clips], 0.8), cues


def _stamp(seconds: float) -> str:
    whole = round(1000 * seconds)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02},{whole % 1000:03}"


def srt(cues: Sequence[tuple[float, float, str]]) -> str:
    """The same as a SubRip file."""
    return "\n".join(
        f"{number}\n{_stamp(start)} --> {_stamp(end)}\n<i>{text}</i>\n"
        for number, (start, end, text) in enumerate(cues, start=1)
    )
