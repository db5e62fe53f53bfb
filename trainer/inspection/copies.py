"""The same recording more than once: as a copy, in another format, with another text, in two splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainer.audio import AudioError, read_audio
from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, Suspect, clips, suspect
from trainer.inspection.prints import SAME_WAVEFORM, SAME_WITH_TEXT, alike, waveform_likeness
from trainer.inspection.sound import Sound, Unusable
from trainer.inspection.sound_findings import is_silent
from trainer.inspection.texts import repeated, shorten

MOST_PAIRS = 3000
"""Pairs with like prints whose waveforms are compared, the likest first: each takes some hundredths of a second."""


class _Groups:
    """Which clips are one recording, by union-find; each with how that was seen."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))
        self.how: dict[int, str] = {}

    def find(self, at: int) -> int:
        while self._parents[at] != at:
            self._parents[at] = self._parents[self._parents[at]]
            at = self._parents[at]
        return at

    def join(self, positions: Sequence[int], how: str) -> None:
        for other in positions[1:]:
            first, second = sorted((self.find(positions[0]), self.find(other)))
            self._parents[second] = first
            for position in (positions[0], other):
                self.how.setdefault(position, how)


def find_copies(
    entries: Sequence[Entry], on_progress: Callable[[int, int], None] | None = None
) -> tuple[list[list[int]], dict[int, str], int]:
    """Clips that are one recording.

    Args:
        entries: clips, those that were listened to with what was heard.
        on_progress: called with pairs compared and pairs in all.

    Returns:
        Groups of positions; of each position how it was seen (`same file` ...); pairs left uncompared.
    """
    groups = _Groups(len(entries))
    # Also of clips that were not listened to.
    usable = [
        at for at, entry in enumerate(entries) if entry.clip.path and not isinstance(entry.sound, Unusable)
    ]
    for places in repeated(entries[at].clip.path for at in usable).values():
        groups.join([usable[place] for place in places], "the same file")
    told = [(at, entry.heard) for at, entry in enumerate(entries)]
    heard = [(at, sound) for at, sound in told if sound is not None and not is_silent(sound)]
    for digest, how in ((_file, "a copy of the file"), (_samples, "the same samples")):
        for places in repeated(digest(sound) for _, sound in heard).values():
            groups.join([heard[place][0] for place in places], how)
    left = _join_alike(entries, heard, groups, on_progress)
    members: dict[int, list[int]] = {}
    for at in range(len(entries)):
        members.setdefault(groups.find(at), []).append(at)
    return [group for group in members.values() if len(group) > 1], groups.how, left


def _file(sound: Sound) -> bytes:
    return sound.file_digest


def _samples(sound: Sound) -> bytes:
    return sound.sample_digest


def _join_alike(
    entries: Sequence[Entry],
    heard: Sequence[tuple[int, Sound]],
    groups: _Groups,
    on_progress: Callable[[int, int], None] | None,
) -> int:
    """Join clips whose waveforms are one, where their prints are alike; returns how many were not compared."""
    # One of each group so far is enough.
    marked = [(at, sound) for at, sound in heard if sound.mark and groups.find(at) == at]
    longest = max((sound.seconds for _, sound in heard), default=0.0) + 1
    pairs = alike([sound.mark for _, sound in marked], [sound.marked_seconds for _, sound in marked])
    for done, (first, second) in enumerate(pairs[:MOST_PAIRS], start=1):
        positions = [marked[first][0], marked[second][0]]
        if groups.find(positions[0]) != groups.find(positions[1]):
            try:
                # The limit is that of files which announce no length.
                sounds = [read_audio(entries[at].clip.source(), max_seconds=longest) for at in positions]
            except AudioError:  # gone since it was listened to
                continue
            same_text = entries[positions[0]].key == entries[positions[1]].key
            if waveform_likeness(*sounds) >= (SAME_WITH_TEXT if same_text else SAME_WAVEFORM):
                groups.join(positions, "the same recording, coded anew")
        if on_progress is not None:
            on_progress(done, min(len(pairs), MOST_PAIRS))
    return max(0, len(pairs) - MOST_PAIRS)


def find_in_copies(
    entries: Sequence[Entry], groups: Sequence[Sequence[int]], how: dict[int, str]
) -> list[Finding]:
    """What is wrong with recordings that are there more than once."""
    between, contrary, within = [], [], []
    for group in groups:
        members = [entries[at] for at in group]
        if len({entry.split for entry in members}) > 1:
            between.append(group)
        if len({entry.key for entry in members}) > 1:
            contrary.append(group)
        elif len({entry.split for entry in members}) == 1:
            within.append(group)
    found = []
    if between:
        found.append(
            Finding(
                "shared_audio",
                "warning",
                f"the same audio in two splits: {_told(between)}",
                "remove one of each: a model that has heard a clip in training is not measured by it",
                _suspects(entries, between, how),
            )
        )
    if contrary:
        found.append(
            Finding(
                "same_audio_other_text",
                "warning",
                f"the same audio with different texts: {_told(contrary)}",
                "one of the texts is wrong: listen, and keep the right one",
                _suspects(entries, contrary, how, texts=True),
            )
        )
    if within:
        found.append(
            Finding(
                "same_audio",
                "warning",
                f"the same audio more than once: {_told(within)}",
                "keep one of each, unless they are meant to count double",
                _suspects(entries, within, how),
            )
        )
    return found


def _told(groups: Sequence[Sequence[int]]) -> str:
    number = sum(map(len, groups))
    noun = "1 recording" if len(groups) == 1 else f"{len(groups):,} recordings"
    return f"{clips(number)} of {noun}"


def _suspects(
    entries: Sequence[Entry], groups: Sequence[Sequence[int]], how: dict[int, str], *, texts: bool = False
) -> list[Suspect]:
    suspects = []
    for group in groups:
        for at in group:
            other = next(
                (one for one in group if one != at and entries[one].split != entries[at].split),
                next(one for one in group if one != at),
            )
            said = f", here {shorten(entries[at].text, 40)!r}" if texts else ""
            detail = f"{how.get(at, 'the same audio')} as {entries[other].place}{said}"
            suspects.append(suspect(entries[at], detail.replace("a copy of the file as", "a copy of")))
    return suspects
