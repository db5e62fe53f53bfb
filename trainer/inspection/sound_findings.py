"""Clips whose audio is suspicious: silent, clipped, very quiet, with much silence around."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from trainer.inspection.findings import Entry, Finding, make_finding
from trainer.inspection.sound import Sound

SILENT = -75.0
"""Loud parts below this are no speech that anybody could transcribe: 16 bits have hardly anything there."""
_STEADY = 1.5
"""Variation in dB of noise and tones; of speech it is 8 and more, under much noise still 4 (measured)."""
_QUIET, _QUIET_BY = -45.0, 25.0
"""Very quiet is below this level, or below -35 and by so many dB under the usual of the data set."""
_CLIPPED = 0.001
_OFFSET = 0.02
_CANCELLED = 12.0
_EDGE, _EDGE_MORE = 2.0, 1.5
"""Seconds of silence at an end that are many: so many, and so many more than usual in the data set."""
_PAUSE, _PAUSE_MORE = 3.0, 2.0


def is_silent(sound: Sound) -> bool:
    """Whether there is nothing in a clip that could be speech."""
    return sound.loud < SILENT or (sound.variation < _STEADY and sound.seconds >= 0.5)


def find_in_sound(entries: Sequence[Entry]) -> list[Finding]:
    """What is suspicious in the audio of clips, each finding with the worst clips first."""
    every = [(entry, sound) for entry in entries if (sound := entry.heard) is not None]
    silent = [(entry, sound) for entry, sound in every if is_silent(sound)]
    speech = [(entry, sound) for entry, sound in every if not is_silent(sound)]

    def usual(measure: Callable[[Sound], float]) -> float:
        return statistics.median(measure(sound) for _, sound in speech) if speech else 0.0

    loud = usual(lambda sound: sound.loud)
    edge = max(_EDGE, usual(lambda sound: max(sound.lead, sound.tail)) + _EDGE_MORE)
    pause = max(_PAUSE, usual(lambda sound: sound.pause) + _PAUSE_MORE)

    def silence(sound: Sound) -> tuple[float, str]:
        found = [(sound.lead, edge, "before the first sound"), (sound.tail, edge, "after the last sound")]
        found.append((sound.pause, pause, "in between"))
        seconds, where = max(((one, where) for one, limit, where in found if one >= limit), default=(0.0, ""))
        return seconds, f"{seconds:.1f} s of silence {where}"

    def check(
        kind: str,
        pairs: list[tuple[Entry, Sound]],
        badness: Callable[[Sound], float],
        limit: float,
        told: Callable[[Sound], str],
    ) -> list[Finding]:
        chosen = [(entry, sound) for entry, sound in pairs if badness(sound) >= limit]
        chosen.sort(key=lambda pair: -badness(pair[1]))
        return make_finding(kind, [(entry, told(sound)) for entry, sound in chosen], usual=loud)

    quiet = max(_QUIET, min(-35.0, loud - _QUIET_BY))
    return [
        *check("silent", silent, lambda s: -s.loud, -math.inf, _why_silent),
        *check("quiet", speech, lambda s: -s.loud, -quiet, lambda s: f"loud parts at {s.loud:.0f} dBFS"),
        *check(
            "clipped",
            speech,
            lambda s: s.clipped,
            _CLIPPED,
            lambda s: f"{100 * s.clipped:.1f} % of the samples are cut off",
        ),
        *check(
            "channels_cancel",
            speech,
            lambda s: s.cancelled,
            _CANCELLED,
            lambda s: f"the mean of {s.channels} channels is {s.cancelled:.0f} dB below the louder one",
        ),
        *check(
            "offset",
            every,
            lambda s: abs(s.offset),
            _OFFSET,
            lambda s: f"the samples' mean is {s.offset:+.3f} of full scale",
        ),
        *check("long_silence", speech, lambda s: silence(s)[0], 0.1, lambda s: silence(s)[1]),
        *check("low_rate", every, lambda s: -s.rate, -15_999, lambda s: f"{s.rate:,} samples a second"),
    ]


def _why_silent(sound: Sound) -> str:
    if sound.loud < SILENT:
        return f"loud parts at {sound.loud:.0f} dBFS"
    return f"steady sound at {sound.loud:.0f} dBFS, varying by {sound.variation:.1f} dB"
