"""Where a recording can be cut: at its pauses, and where there are none at the quietest place in reach.

A Whisper that was fine-tuned on clips without timestamps cannot tell where in its window it stopped, so the
sequential algorithm, which goes on from there, would lose or repeat words (a test shows it). Cuts that are made
before decoding, in silence, lose none. Loudness decides, not a model of speech: noise is transcribed rather
than words be missed.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainer.audio import SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np

FRAME = SAMPLE_RATE // 100
"""Samples in which loudness is measured: 10 ms."""
_FRAMES_A_SECOND = SAMPLE_RATE // FRAME
_QUIETEST = -70.0
"""dB to full scale, below which everything is silence."""
_ABOVE_FLOOR = 8.0
"""dB above the noise around it from which a frame counts as sound."""
_CONTRAST = 12.0
"""dB that silence is below the loud parts around it."""
_REACH = 5.0
"""Seconds to either side that are around a frame."""
_STEADY = 3.0
"""dB by which noise goes up and down within a moment."""
_MOMENT = 30
"""Frames: a syllable is no longer."""
_SHORTEST_SOUND = 0.08
"""Seconds; less, on its own, is a click and no word."""
MARGIN = 0.2
"""Seconds kept before and after sound: soft beginnings and endings of words."""
_PRE_EMPHASIS = 0.97
"""Takes away hum and offset, which are loud and no speech, and lifts consonants, which are soft."""


def measure_levels(blocks: Iterable[np.ndarray]) -> tuple[np.ndarray, int]:
    """Loudness over time.

    Args:
        blocks: float32 (samples,) each, 16 kHz mono.

    Returns:
        float32 (frames,): power of every 10 ms after pre-emphasis; and the number of samples.
    """
    import numpy as np

    powers, rest, before, total = [], np.zeros(0, dtype=np.float32), np.float32(0.0), 0
    for block in blocks:
        if not len(block):
            continue
        lifted = block - _PRE_EMPHASIS * np.concatenate(([before], block[:-1])).astype(np.float32)
        before, total = block[-1], total + len(block)
        held = np.concatenate((rest, lifted))
        whole = len(held) // FRAME * FRAME
        powers.append(np.square(held[:whole].reshape(-1, FRAME)).mean(axis=1))
        rest = held[whole:]
    if len(rest):
        powers.append(np.square(rest).mean(keepdims=True))
    return (np.concatenate(powers) if powers else np.zeros(0, dtype=np.float32)), total


def find_spans(powers: np.ndarray, samples: int, *, pause: float, longest: float) -> list[tuple[int, int]]:
    """The parts of a recording with sound in them, none longer than the model's window.

    Args:
        powers: as `measure_levels` returns them.
        samples: length of the recording.
        pause: seconds of silence that part two of them.
        longest: seconds that one may last.

    Returns:
        First sample of each and the one after its last, in order, without overlap; none where all is silent.
        Between two there is silence, or nothing at all where sound had to be cut.
    """
    import numpy as np

    loud, quiet = _smooth_decibels(powers, 5), _smooth_decibels(powers, 15)
    least, low, high = _local_levels(powers)
    wanted = round(pause * _FRAMES_A_SECOND)
    sound = loud > np.minimum(least + _ABOVE_FLOOR, high - _CONTRAST)
    for start, end in _runs(loud <= low + _ABOVE_FLOOR, wanted):
        if _is_steady(loud[start:end]):
            sound[start:end] = False
    pauses = _runs(loud <= np.minimum(low + _ABOVE_FLOOR, high - _CONTRAST), wanted)
    cuts = [start + int(quiet[start:end].argmin()) for start, end in pauses]
    pieces = _join(_cut(_runs(sound), cuts), wanted, cuts)
    shortest = round(_SHORTEST_SOUND * _FRAMES_A_SECOND)
    pieces = [(start, end) for start, end in pieces if end - start >= shortest]
    spans: list[tuple[int, int]] = []
    for start, end in _with_margins(pieces, len(powers)):
        spans += _split(start, end, quiet, int(longest * _FRAMES_A_SECOND))
    return [(start * FRAME, min(end * FRAME, samples)) for start, end in spans]


def quietest_place(audio: np.ndarray) -> int:
    """The sample in the middle half of a clip where a cut harms least."""
    powers, samples = measure_levels([audio])
    frames = len(powers)
    quiet = _smooth_decibels(powers, 15)
    low, high = frames // 4, max(frames // 4 + 1, 3 * frames // 4)
    return min(samples, (low + int(quiet[low:high].argmin())) * FRAME)


def _smooth_decibels(powers: np.ndarray, frames: int) -> np.ndarray:
    """dB of the power averaged over an odd number of frames around each."""
    import numpy as np

    if not len(powers):
        return powers
    padded = np.pad(powers.astype(np.float64), frames // 2, mode="edge")
    sums = np.concatenate(([0.0], np.cumsum(padded)))
    means = np.maximum(sums[frames:] - sums[:-frames], 0.0) / frames
    return np.asarray(10 * np.log10(np.maximum(means, 10 ** (_QUIETEST / 10))))


def _local_levels(powers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least, a low and a high loudness near every frame, in dB (frames,) each.

    What is near the least is silence (minimum statistics, Martin 2001, much simplified). But one dip of a tenth of
    a second sets it, and noise between two sentences then counts as sound; so the low one decides where to cut.
    Both only where the high one is well above them: else they are a part of the sound, as in music.
    """
    import numpy as np

    size = _FRAMES_A_SECOND // 2
    levels = _smooth_decibels(powers, 11)
    parts = -(-len(levels) // size)
    if not parts:
        return levels, levels, levels
    padded = np.pad(levels, (0, parts * size - len(levels)), mode="edge").reshape(parts, size)
    reach = round(_REACH * _FRAMES_A_SECOND / size)
    near = [padded[max(0, part - reach) : part + reach + 1] for part in range(parts)]
    found = np.array([np.percentile(each, (0, 10, 90)) for each in near])
    least, low, high = np.repeat(found, size, axis=0)[: len(levels)].T
    return least, low, high


def _is_steady(levels: np.ndarray) -> bool:
    """Whether the loudness of a pause, in dB, hardly moves from moment to moment: noise, not speech however soft."""
    import numpy as np

    edge = _FRAMES_A_SECOND // 10  # the sound before fades there
    inner = levels[edge:-edge] if len(levels) > 5 * edge else levels
    near = np.lib.stride_tricks.sliding_window_view(inner, min(len(inner), _MOMENT))
    moves = near.max(axis=1) - near.min(axis=1)
    return bool((moves <= _STEADY).mean() >= 0.8)


def _runs(frames: np.ndarray, shortest: int = 1) -> list[tuple[int, int]]:
    """First frame of each stretch of true ones, and the one after its last."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([False], frames, [False])).astype(np.int8)))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(start, end) for start, end in pairs if end - start >= shortest]


def _cut(runs: list[tuple[int, int]], cuts: list[int]) -> list[tuple[int, int]]:
    """Stretches of sound, parted where a cut falls inside one."""
    pieces = []
    for start, end in runs:
        inside = cuts[bisect.bisect_right(cuts, start) : bisect.bisect_left(cuts, end)]
        pieces += list(itertools.pairwise([start, *inside, end]))
    return pieces


def _join(pieces: list[tuple[int, int]], pause: int, cuts: list[int]) -> list[tuple[int, int]]:
    """Stretches with less than a pause and no cut between them become one."""
    joined: list[tuple[int, int]] = []
    for start, end in pieces:
        close = joined and start - joined[-1][1] < pause
        if close and bisect.bisect_left(cuts, joined[-1][1]) == bisect.bisect_right(cuts, start):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _with_margins(sounds: list[tuple[int, int]], frames: int) -> list[tuple[int, int]]:
    """Each stretch with some of the silence around it, at most up to the middle of what parts it from the next."""
    margin = round(MARGIN * _FRAMES_A_SECOND)
    wider = []
    for index, (start, end) in enumerate(sounds):
        before = (sounds[index - 1][1] + start) // 2 if index else 0
        after = (end + sounds[index + 1][0]) // 2 if index + 1 < len(sounds) else frames
        wider.append((max(before, start - margin), min(after, end + margin)))
    return wider


def _split(start: int, end: int, quiet: np.ndarray, longest: int) -> list[tuple[int, int]]:
    """A stretch in pieces that fit the window, each cut at the quietest place of the window's second half."""
    pieces = []
    while end - start > longest:
        low = start + longest // 2
        # What is left over must not be a scrap of a word.
        high = max(low + 1, min(start + longest, end - longest // 4))
        cut = low + int(quiet[low : high + 1].argmin())
        pieces.append((start, cut))
        start = cut
    return [*pieces, (start, end)]
