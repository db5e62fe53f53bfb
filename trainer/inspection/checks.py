"""What looks wrong in clips: their audio, their texts, one for the other, and both across the splits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainer.data.columns import SPEAKER_NAMES
from trainer.data.drops import DROP_REASONS, Drop, count_by_reason
from trainer.data.grouping import cells
from trainer.inspection.characters import foreign_script, main_scripts, odd_characters
from trainer.inspection.entries import Entry, Groups, measured_clips, speech
from trainer.inspection.findings import Finding, make_finding
from trainer.inspection.rates import misfitting
from trainer.inspection.sound import SILENT, Sound
from trainer.inspection.texts import count_words, detect_languages, grouped, markup, shorten
from trainer.languages import language_name

_QUIET, _QUIET_BY = -45.0, 25.0
"""Very quiet is below this level, or below -35 and by so many dB under the usual of the data set."""
_CLIPPED = 0.001
_EDGE, _PAUSE = 2.0, 3.0
"""Seconds of silence that are many, at an end and in between."""
_FEW_WORDS = 100
"""Words of an evaluation split under which its WER says little."""


def find_dropped(drops: Sequence[Drop], stops: str | None, total: int) -> list[Finding]:
    text = ", ".join(f"{count:,} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    title = f"would be left out: {len(drops):,} of {total:,} clips: {text}"
    if stops is not None:
        title = f"a search would stop: {stops}"
    suspects = [(drop, f"{DROP_REASONS[drop.reason]}: {drop.detail}") for drop in drops]
    return make_finding("dropped", suspects, what=title)


def find_in_sound(entries: Sequence[Entry]) -> list[Finding]:
    """What is suspicious in the audio of clips, each finding with the worst clips first."""
    spoken = speech(entries)
    usual = statistics.median(sound.loud for _, sound in spoken) if spoken else 0.0
    limit = max(_QUIET, min(-35.0, usual - _QUIET_BY))
    silent = ((-s.loud, e, _why_silent(s)) for e, s in measured_clips(entries) if s.is_silent and e.key)
    quiet = ((-s.loud, e, f"loud parts at {s.loud:.0f} dBFS") for e, s in spoken if s.loud <= limit)
    clipped = (
        (s.clipped, e, f"{100 * s.clipped:.1f} % of the samples are cut off")
        for e, s in spoken
        if s.clipped >= _CLIPPED
    )
    long = (
        (seconds, e, f"{seconds:.1f} s of silence {where}")
        for e, s in spoken
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
    silences = [(seconds, where) for seconds, where in ends if seconds >= _EDGE]
    if sound.pause >= _PAUSE:
        silences.append((sound.pause, "in between"))
    return max(silences, default=(0.0, ""))


def find_copies(entries: Sequence[Entry]) -> list[Finding]:
    """Recordings that are there more than once: the same samples, in whatever lossless format.

    Silence is like other silence, and no copy.
    """
    by_kind: dict[str, list[tuple[Entry, str]]] = {}
    for group in grouped(speech(entries), lambda pair: pair[1].digest).values():
        copies = [entry for entry, _ in group]
        splits, texts = {entry.split for entry in copies}, {entry.key for entry in copies}
        kinds = ["shared_audio"] * (len(splits) > 1) + ["same_audio_other_text"] * (len(texts) > 1)
        for entry in copies if len(copies) > 1 else ():
            others = [other for other in copies if other is not entry]
            other = next((one for one in others if one.split != entry.split), others[0])
            detail = f"the same audio as {other.name} ({other.split}), here {shorten(entry.text, 40)!r}"
            for kind in kinds or ["same_audio"]:
                by_kind.setdefault(kind, []).append((entry, detail))
    return [finding for kind, suspects in by_kind.items() for finding in make_finding(kind, suspects)]


def find_misfitting(groups: Groups) -> tuple[dict[str, float], list[Finding]]:
    """What is usual in each language, in letters a second, and texts that are far too long or short for their audio."""
    rates, suspects = {}, []
    for code, entries in groups.items():
        rate, misfits = misfitting([(entry, sound.spoken) for entry, sound in speech(entries)])
        if rate is not None:
            rates[code] = rate
        suspects += misfits
    return rates, make_finding("text_misfit", suspects)


def find_in_texts(groups: Groups, on_progress: Callable[[int, int], None]) -> list[Finding]:
    """What there is to say about the texts as such; what is told of one is not told again in other words."""
    marked, foreign, odd, findings = [], dict[Entry, str](), list[tuple[Entry, str]](), list[Finding]()
    for done, (code, entries) in enumerate(groups.items(), start=1):
        marked += [
            (one, f"{piece!r} in {shorten(one.text)!r}") for one in entries if (piece := markup(one.text))
        ]
        mostly, others = _other_languages(code, entries)
        foreign |= others
        odd += [pair for pair in odd_entries(entries) if pair[0] not in others]
        if mostly is not None:
            names = {"found": language_name(mostly), "named": language_name(code)}
            findings += make_finding("language_setting", None, **names)
        on_progress(done, len(groups))
    return [
        *findings,
        *make_finding("markup", marked),
        *make_finding("other_language", foreign.items()),
        *make_finding("odd_characters", odd),
    ]


def _other_languages(code: str, entries: Sequence[Entry]) -> tuple[str | None, dict[Entry, str]]:
    """The language of most texts where it is not the one named; those in another script or language than the rest."""
    texts = [entry.text for entry in entries]
    mostly, others = detect_languages(texts, code)
    rest, mains = language_name(mostly or code), main_scripts(texts)
    details = {}
    for at, other in others:
        looks = "like nonsense" if other == "zxx" else language_name(other)
        details[entries[at]] = f"looks {looks}, not {rest}: {shorten(texts[at])!r}"
    for entry in entries:
        if (name := foreign_script(entry.text, mains)) is not None:
            usual = " and ".join(sorted(mains))
            details[entry] = f"{name} letters, where the others have {usual}: {shorten(entry.text)!r}"
    return mostly, details


def odd_entries(entries: Sequence[Entry]) -> Iterable[tuple[Entry, str]]:
    """Clips of one language with characters that are wrong in any text, and what is wrong."""
    return ((entries[at], detail) for at, detail in odd_characters([entry.text for entry in entries]))


def find_shared_texts(entries: Sequence[Entry]) -> list[Finding]:
    """Texts that are in two splits, but for case and punctuation."""
    groups = grouped(filter(lambda entry: entry.key, entries), lambda entry: entry.key).values()
    shared = [group for group in groups if len({entry.split for entry in group}) > 1]
    suspects = []
    for group in shared:
        for entry in group:
            other = next(one for one in group if one.split != entry.split)
            same = (
                "the same text as" if other.text == entry.text else "but for case and punctuation the text of"
            )
            suspects.append((entry, f"{same} {other.name} ({other.split}): {shorten(entry.text)!r}"))
    judged = sum(entry.split != "train" for entry, _ in suspects)
    total = sum(entry.split != "train" for entry in entries)
    texts = f"{len(shared):,} text{'s' * (len(shared) != 1)}"
    text = f"{texts}, {judged:,} of {total:,} validation and test clips"
    return make_finding("shared_text", suspects, what=text)


def find_small_splits(entries: Sequence[Entry]) -> list[Finding]:
    """Validation or test splits with too few words for a WER that means much."""
    few, unit = [], ""
    for split, mine in grouped(entries, lambda entry: entry.split).items():
        number, own = count_words(entry.text for entry in mine)
        if split != "train" and number < _FEW_WORDS:
            # Half of the 95 % interval, in points, of a WER of 30 % over so many words, were they independent.
            points = 196 * math.sqrt(0.3 * 0.7 / max(1, number))
            unit = unit or own
            few.append(f"by {points:.0f} points on the {number:,} {own} of the {split} split")
    text = f"error rates are uncertain {', '.join(few)}"
    return make_finding("small_split", None, what=text, unit=unit) if few else []


def speakers_of(by_split: Groups) -> dict[str, set[str]]:
    """Who speaks in each split, as a column of a usual name tells it; nobody where there is none."""
    return {
        split: set(cells((one.clip for one in mine), SPEAKER_NAMES)) - {""}
        for split, mine in by_split.items()
    }


def shared_speaker_notes(speakers: Mapping[str, set[str]]) -> list[str]:
    """Whose voices are known from training: information rather than a fault."""
    learned = speakers.get("train", set())
    return [
        f"{len(mine & learned):,} of {len(mine):,} speakers of {split} are in train too: its WER is that of known "
        "voices; split_by=speaker keeps them apart where the data has no splits of its own"
        for split, mine in speakers.items()
        if split != "train" and mine & learned
    ]
