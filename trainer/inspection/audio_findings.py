"""Clips whose audio is suspicious: silent, clipped, very quiet, with much silence around, there more than once."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, make_finding
from trainer.inspection.sound import SILENT, Sound, Unusable, is_silent
from trainer.inspection.texts import grouped, shorten

_Pairs: TypeAlias = "list[tuple[Entry, Sound]]"

_QUIET, _QUIET_BY = -45.0, 25.0
"""Very quiet is below this level, or below -35 and by so many dB under the usual of the data set."""
_CLIPPED = 0.001
_EDGE, _EDGE_MORE = 2.0, 1.5
"""Seconds of silence at an end that are many: so many, and so many more than usual in the data set."""
_PAUSE, _PAUSE_MORE = 3.0, 2.0


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

    quiet = max(_QUIET, min(-35.0, loud - _QUIET_BY))
    # Which clips, how bad they are, from where on that is told, and how.
    checks: list[tuple[str, _Pairs, Callable[[Sound], float], float, Callable[[Sound], str]]] = [
        ("silent", silent, lambda s: -s.loud, -math.inf, _why_silent),
        ("quiet", speech, lambda s: -s.loud, -quiet, lambda s: f"loud parts at {s.loud:.0f} dBFS"),
        (
            "clipped",
            speech,
            lambda s: s.clipped,
            _CLIPPED,
            lambda s: f"{100 * s.clipped:.1f} % of the samples are cut off",
        ),
        ("long_silence", speech, lambda s: silence(s)[0], 0.1, lambda s: silence(s)[1]),
    ]
    findings = []
    for kind, pairs, badness, limit, told in checks:
        bad = [(badness(sound), entry, told(sound)) for entry, sound in pairs if badness(sound) >= limit]
        worst_first = sorted(bad, key=lambda one: -one[0])
        findings += make_finding(kind, [(entry, detail) for _, entry, detail in worst_first], usual=loud)
    return findings


def _why_silent(sound: Sound) -> str:
    if sound.loud < SILENT:
        return f"loud parts at {sound.loud:.0f} dBFS"
    return f"steady sound at {sound.loud:.0f} dBFS, varying by {sound.variation:.1f} dB"


def find_copies(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Groups of clips that are one recording: one file, equal files, or equal samples in whatever lossless format."""

    def place(entry: Entry) -> Hashable:
        return (entry.clip.path, entry.clip.span) if entry.clip.path else entry

    usable = [entry for entry in entries if not isinstance(entry.sound, Unusable)]
    # A file that was listened to is known by its samples wherever it is listed; silence is like other silence.
    digests = {
        place(entry): sound.sample_digest
        for entry in usable
        if (sound := entry.heard) is not None and not is_silent(sound)
    }
    groups = grouped(usable, lambda entry: digests.get(place(entry), place(entry)))
    return [group for group in groups.values() if len(group) > 1]


def find_in_copies(groups: Sequence[Sequence[Entry]]) -> list[Finding]:
    """What is wrong with recordings that are there more than once."""
    chosen: dict[str, list[Sequence[Entry]]] = {
        "shared_audio": [],
        "same_audio_other_text": [],
        "same_audio": [],
    }
    for group in groups:
        splits, keys = {entry.split for entry in group}, {entry.key for entry in group}
        if len(splits) > 1:
            chosen["shared_audio"].append(group)
        if len(keys) > 1:
            chosen["same_audio_other_text"].append(group)
        elif len(splits) == 1:
            chosen["same_audio"].append(group)
    found = []
    for kind, mine in chosen.items():
        suspects = []
        for group in mine:
            for entry in group:
                others = [other for other in group if other is not entry]
                other = next((one for one in others if one.split != entry.split), others[0])
                said = f", here {shorten(entry.text, 40)!r}" if kind == "same_audio_other_text" else ""
                suspects.append((entry, f"the same audio as {other.place}{said}"))
        recordings = "1 recording" if len(mine) == 1 else f"{len(mine):,} recordings"
        found += make_finding(kind, suspects, recordings=recordings)
    return found
