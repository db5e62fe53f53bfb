"""What is wrong between clips and splits: the same recording or text more than once, splits too small to measure by."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from trainer.inspection.findings import Entry, Finding, Level, make_finding
from trainer.inspection.sound import Unusable
from trainer.inspection.sound_findings import is_silent
from trainer.inspection.texts import count_words, grouped, shorten

FEW_WORDS = 100
"""Words of an evaluation split under which its WER says little."""


def find_copies(entries: Sequence[Entry]) -> tuple[list[list[int]], dict[int, str]]:
    """Clips that are one recording: of one file, of equal files, or of equal samples in whatever lossless format.

    Returns:
        Groups of positions; of each position how it was seen (`the same file` ...).
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # Paths also of clips that were not listened to.
    paths: dict[int, Hashable] = {
        at: entry.clip.path
        for at, entry in enumerate(entries)
        if entry.clip.path and not isinstance(entry.sound, Unusable)
    }
    heard = {
        at: sound
        for at, entry in enumerate(entries)
        if (sound := entry.heard) is not None and not is_silent(sound)
    }
    seen: list[tuple[str, Mapping[int, Hashable]]] = [
        ("the same file as", paths),
        ("a copy of", {at: sound.file_digest for at, sound in heard.items()}),
        ("the same samples as", {at: sound.sample_digest for at, sound in heard.items()}),
    ]
    how: dict[int, str] = {}
    pairs = []
    for told, marks in seen:
        for group in grouped(marks, marks.__getitem__).values():
            if len(group) > 1:
                pairs += [(group[0], other) for other in group[1:]]
                how |= {at: told for at in group if at not in how}
    if not pairs:
        return [], {}
    rows, columns = zip(*pairs, strict=True)
    joined = coo_array(([True] * len(pairs), (rows, columns)), shape=(len(entries), len(entries)))
    _, labels = connected_components(joined, directed=False)
    groups = grouped(sorted(how), lambda at: int(labels[at]))
    return list(groups.values()), how


def find_in_copies(
    entries: Sequence[Entry], groups: Sequence[Sequence[int]], how: Mapping[int, str]
) -> list[Finding]:
    """What is wrong with recordings that are there more than once."""
    chosen: dict[str, list[Sequence[int]]] = {
        "shared_audio": [],
        "same_audio_other_text": [],
        "same_audio": [],
    }
    for group in groups:
        splits, keys = ({getattr(entries[at], name) for at in group} for name in ("split", "key"))
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
            for at in group:
                others = [entries[other] for other in group if other != at]
                other = next((one for one in others if one.split != entries[at].split), others[0])
                said = f", here {shorten(entries[at].text, 40)!r}" if kind == "same_audio_other_text" else ""
                suspects.append((entries[at], f"{how[at]} {other.place}{said}"))
        recordings = "1 recording" if len(mine) == 1 else f"{len(mine):,} recordings"
        found += make_finding(kind, suspects, recordings=recordings)
    return found


def find_shared_texts(entries: Sequence[Entry]) -> list[Finding]:
    """Texts that are in two splits, but for case and punctuation."""
    groups = grouped(entries, lambda entry: entry.key).values()
    shared = [group for group in groups if len({entry.split for entry in group}) > 1]
    suspects = []
    for group in shared:
        for entry in group:
            other = next(one for one in group if one.split != entry.split)
            same = (
                "the same text as" if other.text == entry.text else "but for case and punctuation the text of"
            )
            suspects.append((entry, f"{same} {other.place}: {shorten(entry.text)!r}"))
    judged = sum(entry.split != "train" for entry, _ in suspects)
    total = sum(entry.split != "train" for entry in entries)
    return make_finding("shared_text", suspects, told=leak_count(len(shared), judged, total))


def leak_count(texts: int, judged: int, total: int) -> str:
    """`3 texts, 4 of 100 validation and test clips`."""
    return f"{texts:,} text{'s' * (texts != 1)}, {judged:,} of {total:,} validation and test clips"


def find_repeated_texts(entries: Sequence[Entry], copies: Sequence[Sequence[int]]) -> list[Finding]:
    """Texts of several recordings of one split; copies of one recording are told elsewhere."""
    extra = {at for group in copies for at in group[1:]}
    left = [entry for at, entry in enumerate(entries) if at not in extra]
    by_text = grouped(left, lambda entry: (entry.split, entry.key)).values()
    groups = sorted((group for group in by_text if len(group) > 1), key=len, reverse=True)
    suspects = [
        (entry, f"{len(group)} clips of {entry.split} have {shorten(entry.text)!r}")
        for group in groups
        for entry in group
    ]
    most = groups[0] if groups else []
    example = f", most often {shorten(most[0].text, 40)!r} ({len(most)} times)" if len(most) > 2 else ""
    # Where most sentences are read by several people, that is how the data was made.
    level: Level = "note" if len(suspects) > 0.05 * len(entries) else "warning"
    return make_finding("same_text", suspects, level=level, texts=len(groups), example=example)


def find_small_splits(entries: Sequence[Entry]) -> list[Finding]:
    """Validation or test splits with too few words for a WER that means much."""
    found = []
    for split, mine in grouped(entries, lambda entry: entry.split).items():
        number, unit = count_words(entry.text for entry in mine)
        if split != "train" and number < FEW_WORDS:
            found += make_finding("small_split", None, told=small_split(split, number, unit), unit=unit)
    return found


def small_split(split: str, number: int, unit: str) -> str:
    """How little a WER on so few words says.

    Uncertain by half of the 95 % interval, in points, of a WER of 30 % over so many words, were they independent.
    """
    points = 196 * math.sqrt(0.3 * 0.7 / max(1, number))
    return f"the {split} split has only {number:,} {unit}: its error rate is uncertain by {points:.0f} points"


def find_shared_speakers(entries: Sequence[Entry]) -> list[Finding]:
    """Speakers of validation or test that are in train too: information rather than a fault."""
    speakers = {
        split: {entry.speaker for entry in mine}
        for split, mine in grouped((one for one in entries if one.speaker), lambda one: one.split).items()
    }
    learned = speakers.pop("train", set())
    shared = {split: sorted(mine & learned) for split, mine in speakers.items() if mine & learned}
    if not shared:
        return []
    told = " and ".join(
        f"{len(names):,} of {len(speakers[split]):,} speakers of {split}" for split, names in shared.items()
    )
    names = next(iter(shared.values()))
    rest = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return make_finding("shared_speakers", None, told=told, names=", ".join(names[:3]) + rest)
