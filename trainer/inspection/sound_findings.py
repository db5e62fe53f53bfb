"""Clips whose audio is suspicious: silent, clipped, very quiet, with much silence around."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, clips, suspect
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
    heard = [(entry, entry.heard) for entry in entries]
    pairs = [(entry, sound) for entry, sound in heard if sound is not None]
    silent = [(entry, sound) for entry, sound in pairs if is_silent(sound)]
    rest = [(entry, sound) for entry, sound in pairs if not is_silent(sound)]
    if not pairs:
        return []
    found = [_silent(silent), _quiet(rest), _clipped(rest), _cancelled(rest), _offset(pairs), _silences(rest)]
    found.append(_few_samples(pairs))
    return [finding for finding in found if finding is not None]


def _silent(silent: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    if not silent:
        return None
    return Finding(
        "silent",
        "warning",
        f"no speech in {clips(len(silent))}: silence, or steady noise",
        "listen to them and remove them: a model learns from them to write text where nothing is said",
        [
            suspect(
                entry,
                f"loud parts at {sound.loud:.0f} dBFS"
                if sound.loud < SILENT
                else f"steady sound at {sound.loud:.0f} dBFS, varying by {sound.variation:.1f} dB",
            )
            for entry, sound in sorted(silent, key=lambda pair: pair[1].loud)
        ],
    )


def _quiet(pairs: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    usual = statistics.median(sound.loud for _, sound in pairs) if pairs else 0.0
    quiet = [
        (entry, sound)
        for entry, sound in pairs
        if sound.loud < _QUIET or (sound.loud < -35 and sound.loud < usual - _QUIET_BY)
    ]
    if not quiet:
        return None
    return Finding(
        "quiet",
        "warning",
        f"very quiet: {clips(len(quiet))}; the loud parts of the data are usually at {usual:.0f} dBFS",
        "listen to them: the features do without the level, but noise drowns what is so quiet",
        [
            suspect(entry, f"loud parts at {sound.loud:.0f} dBFS")
            for entry, sound in sorted(quiet, key=lambda pair: pair[1].loud)
        ],
    )


def _clipped(pairs: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    clipped = [(entry, sound) for entry, sound in pairs if sound.clipped >= _CLIPPED]
    if not clipped:
        return None
    return Finding(
        "clipped",
        "warning",
        f"clipped: {clips(len(clipped))}, recorded or amplified above full scale",
        "record or export them again with a lower level; mild clipping can stay if such audio will be transcribed",
        [
            suspect(entry, f"{100 * sound.clipped:.1f} % of the samples are cut off")
            for entry, sound in sorted(clipped, key=lambda pair: -pair[1].clipped)
        ],
    )


def _cancelled(pairs: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    cancelled = [(entry, sound) for entry, sound in pairs if sound.cancelled >= _CANCELLED]
    if not cancelled:
        return None
    return Finding(
        "channels_cancel",
        "warning",
        f"channels that cancel each other: {clips(len(cancelled))}",
        "one channel is turned upside down; keep only one of them, since Whisper hears their mean",
        [
            suspect(
                entry,
                f"the mean of {sound.channels} channels is {sound.cancelled:.0f} dB below the louder one",
            )
            for entry, sound in sorted(cancelled, key=lambda pair: -pair[1].cancelled)
        ],
    )


def _offset(pairs: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    moved = [(entry, sound) for entry, sound in pairs if abs(sound.offset) >= _OFFSET]
    if not moved:
        return None
    return Finding(
        "offset",
        "warning",
        f"constant offset (DC): {clips(len(moved))}",
        "a fault of the recording; a high-pass filter (sox IN OUT highpass 20) removes it",
        [
            suspect(entry, f"the samples' mean is {sound.offset:+.3f} of full scale")
            for entry, sound in sorted(moved, key=lambda pair: -abs(pair[1].offset))
        ],
    )


def _silences(pairs: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    if not pairs:
        return None
    edge = statistics.median(max(sound.lead, sound.tail) for _, sound in pairs)
    pause = statistics.median(sound.pause for _, sound in pairs)
    edge_limit, pause_limit = max(_EDGE, edge + _EDGE_MORE), max(_PAUSE, pause + _PAUSE_MORE)
    found = []
    for entry, sound in pairs:
        kinds = [
            (sound.lead, edge_limit, "before the first sound"),
            (sound.tail, edge_limit, "after the last sound"),
            (sound.pause, pause_limit, "in between"),
        ]
        seconds, where = max(
            ((length, where) for length, limit, where in kinds if length >= limit), default=(0, "")
        )
        if where:
            found.append((seconds, suspect(entry, f"{seconds:.1f} s of silence {where}")))
    if not found:
        return None
    return Finding(
        "long_silence",
        "warning",
        f"long silence in {clips(len(found))}",
        "cut it off: Whisper tends to invent text for silence, and it costs time in every epoch",
        [one for _, one in sorted(found, key=lambda pair: -pair[0])],
    )


def _few_samples(pairs: Sequence[tuple[Entry, Sound]]) -> Finding | None:
    few = [(entry, sound) for entry, sound in pairs if sound.rate < 16_000]
    if not few:
        return None
    return Finding(
        "low_rate",
        "note",
        f"fewer than 16,000 samples a second: {clips(len(few))}",
        "Whisper was trained at 16 kHz; that is fine if what will be transcribed sounds so too, as on the telephone",
        [suspect(entry, f"{sound.rate:,} samples a second") for entry, sound in few],
    )
