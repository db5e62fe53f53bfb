"""Clips whose audio is suspicious: silent, clipped, very quiet, with much silence around, there more than once."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, make_finding
from trainer.inspection.sound import SILENT, Sound
from trainer.inspection.texts import grouped, shorten

_QUIET, _QUIET_BY = -45.0, 25.0
"""Very quiet is below this level, or below -35 and by so many dB under the usual of the data set."""
_CLIPPED = 0.001
_EDGE, _PAUSE = 2.0, 3.0
"""Seconds of silence that are many, at an end and in between."""


def find_in_sound(entries: Sequence[Entry]) -> list[Finding]:
    """What is suspicious in the audio of clips, each finding with the worst clips first."""
    every = [(entry, sound) for entry in entries if (sound := entry.heard) is not None]
    speech = [(entry, sound) for entry, sound in every if not sound.is_silent]
    usual = statistics.median(sound.loud for _, sound in speech) if speech else 0.0
    limit = max(_QUIET, min(-35.0, usual - _QUIET_BY))
    silent = ((-s.loud, e, _why_silent(s)) for e, s in every if s.is_silent)
    quiet = ((-s.loud, e, f"loud parts at {s.loud:.0f} dBFS") for e, s in speech if s.loud <= limit)
    clipped = (
        (s.clipped, e, f"{100 * s.clipped:.1f} % of the samples are cut off")
        for e, s in speech
        if s.clipped >= _CLIPPED
    )
    long = (
        (seconds, e, f"{seconds:.1f} s of silence {where}")
        for e, s in speech
        for seconds, where in [_longest_silence(s)]
        if seconds
    )
    return [
        *make_finding("silent", _worst_first(silent)),
        *make_finding("quiet", _worst_first(quiet), usual=usual),
        *make_finding("clipped", _worst_first(clipped)),
        *make_finding("long_silence", _worst_first(long)),
    ]


def _worst_first(found: Iterable[tuple[float, Entry, str]]) -> list[tuple[Entry, str]]:
    return [(entry, detail) for _, entry, detail in sorted(found, key=lambda one: -one[0])]


def _why_silent(sound: Sound) -> str:
    if sound.loud < SILENT:
        return f"loud parts at {sound.loud:.0f} dBFS"
    return f"steady sound at {sound.loud:.0f} dBFS, varying by {sound.variation:.1f} dB"


def _longest_silence(sound: Sound) -> tuple[float, str]:
    """Seconds and where, of the longest silence that is too long."""
    ends = ((sound.lead, "before the first sound"), (sound.tail, "after the last sound"))
    found = [(seconds, where) for seconds, where in ends if seconds >= _EDGE]
    if sound.pause >= _PAUSE:
        found.append((sound.pause, "in between"))
    return max(found, default=(0.0, ""))


def find_copies(entries: Sequence[Entry]) -> list[Finding]:
    """Recordings that are there more than once: the same samples, in whatever lossless format.

    Silence is like other silence, and no copy.
    """
    heard = [
        (entry, sound.digest)
        for entry in entries
        if (sound := entry.heard) is not None and not sound.is_silent
    ]
    found: dict[str, list[tuple[Entry, str]]] = {}
    for group in grouped(heard, lambda pair: pair[1]).values():
        copies = [entry for entry, _ in group]
        splits, texts = {entry.split for entry in copies}, {entry.key for entry in copies}
        kinds = ["shared_audio"] * (len(splits) > 1) + ["same_audio_other_text"] * (len(texts) > 1)
        for entry in copies if len(copies) > 1 else ():
            others = [other for other in copies if other is not entry]
            other = next((one for one in others if one.split != entry.split), others[0])
            detail = f"the same audio as {other.name} ({other.split}), here {shorten(entry.text, 40)!r}"
            for kind in kinds or ["same_audio"]:
                found.setdefault(kind, []).append((entry, detail))
    return [finding for kind, suspects in found.items() for finding in make_finding(kind, suspects)]
