"""Finding the same recording again: under another name, in another format, at another rate or level.

A print is a coarse picture of a clip, the energy in eight bands over sixteen stretches of it. Copies have prints that
are almost equal, and so do some clips that are no copies; which is which their waveforms tell.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.audio import SAMPLE_RATE

if TYPE_CHECKING:
    import numpy as np

BANDS, STRETCHES = 8, 16
_LOW, _HIGH = 200.0, 3600.0
"""In Hz: what a telephone's rate and strong compression leave whole."""
_WINDOW, _HOP = 512, 320
_AUDIBLE = 1e-3
"""Sound begins and ends 30 dB below the loud parts."""
_LEAST_FRAMES = 20
"""Of less sound, 0.4 s, no print is made: too many would be alike."""
LIKENESS = 0.75
"""Correlation of two prints from which they may be of one recording."""
SAME_WAVEFORM, SAME_WITH_TEXT = 0.9, 0.6
"""Correlation of two waveforms, at the best delay, from which they are one recording; less is enough for one text.

Of real speech, different clips of like length come to 0.25 at most, of synthetic speech, where a voice says a word
always the same way, to 0.79. Copies through MP3, Vorbis, 8 kHz, mu-law, gains and noise at 20 dB come to 0.98 at least,
those through the lowest rate of Opus and through clipping to 0.77 (measured).
"""


def make_print(audio: np.ndarray) -> tuple[bytes, float]:
    """The print of a clip, float32 (samples,) at 16 kHz.

    Returns:
        int8 (stretches x bands,), or nothing where there is too little sound; and the seconds from the first sound to
        the last, as far as they are heard in these bands: other formats keep those, whatever else they lose.
    """
    import numpy as np

    if len(audio) < _WINDOW:
        return b"", 0.0
    frames = np.lib.stride_tricks.sliding_window_view(audio, _WINDOW)[::_HOP]
    window, bands = _tables()
    energy = np.square(np.abs(np.fft.rfft(frames * window, axis=1))).astype(np.float32) @ bands
    total = energy.sum(axis=1)
    heard = np.flatnonzero(total > np.percentile(total, 95) * _AUDIBLE)
    if not len(heard) or heard[-1] - heard[0] < _LEAST_FRAMES:
        return b"", 0.0
    sound = energy[heard[0] : heard[-1] + 1]
    starts = np.linspace(0, len(sound), STRETCHES, endpoint=False).astype(int)
    stretches = np.add.reduceat(sound, starts, axis=0) / np.diff(np.append(starts, len(sound)))[:, None]
    # 40 dB below the loudest there is noise, which a copy may have another of.
    picture = np.log10(np.maximum(stretches, stretches.max() * 1e-4 + 1e-12))
    # Without the mean of each band, so that neither gain nor a change of tone shows.
    picture -= picture.mean(axis=0)
    size = float(np.abs(picture).max())
    mark = np.rint(picture / size * 127).astype(np.int8).tobytes() if size > 0.1 else b""
    return mark, len(sound) * _HOP / SAMPLE_RATE


@functools.cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """The window (512,), and which frequencies are in which band (257, bands)."""
    import numpy as np

    edges = np.geomspace(_LOW, _HIGH, BANDS + 1)
    frequencies = np.fft.rfftfreq(_WINDOW, 1 / SAMPLE_RATE)
    inside = (frequencies[:, None] >= edges[:-1]) & (frequencies[:, None] < edges[1:])
    return np.hanning(_WINDOW).astype(np.float32), inside.astype(np.float32)


def alike(prints: Sequence[bytes], seconds: Sequence[float]) -> list[tuple[int, int]]:
    """Pairs of clips that may be one recording, by their prints and how long their sound is; the likest first.

    Args:
        prints: of `make_print`, none of them empty.
        seconds: length of the sound of each, without the silence around.
    """
    import numpy as np

    if len(prints) < 2:
        return []
    order = np.argsort(seconds, kind="stable")
    lengths = np.asarray(seconds)[order]
    pictures = (
        np.frombuffer(b"".join(prints), dtype=np.int8).reshape(len(prints), -1)[order].astype(np.float32)
    )
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    found: list[tuple[float, int, int]] = []
    block = 1024
    for first in range(0, len(pictures), block):
        own = pictures[first : first + block]
        # Silence is found a little sooner or later in a copy with other noise.
        reach = lengths[min(first + block, len(lengths)) - 1]
        last = int(np.searchsorted(lengths, reach + _slack(reach), side="right"))
        for start in range(first, last, 4 * block):
            others = pictures[start : min(start + 4 * block, last)]
            likeness = own @ others.T
            for mine, other in np.argwhere(likeness >= LIKENESS):
                a, b = first + int(mine), start + int(other)
                if a < b and lengths[b] - lengths[a] <= _slack(lengths[a]):
                    found.append((float(likeness[mine, other]), int(order[a]), int(order[b])))
    return [(min(a, b), max(a, b)) for _, a, b in sorted(found, reverse=True)]


def _slack(seconds: float) -> float:
    return 0.15 + 0.03 * seconds


def waveform_likeness(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of two clips, float32 (samples,) at 16 kHz, at the best delay, whatever their levels: 0 to 1."""
    import numpy as np

    length = 1 << (len(first) + len(second) - 1).bit_length()
    frequencies = np.fft.rfftfreq(length, 1 / SAMPLE_RATE)
    passed = (frequencies >= _LOW) & (frequencies < _HIGH)
    spectra = [np.fft.rfft(audio, length) * passed for audio in (first, second)]
    sizes = [float(np.sqrt(np.sum(np.square(np.fft.irfft(spectrum, length))))) for spectrum in spectra]
    if min(sizes) == 0:
        return 0.0
    match = np.fft.irfft(spectra[0] * np.conj(spectra[1]), length)
    return float(np.abs(match).max() / (sizes[0] * sizes[1]))
