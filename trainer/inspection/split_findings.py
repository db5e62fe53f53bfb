"""What is wrong between clips and splits by their texts: leaks, repetitions, splits too small to measure by."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, clips, listed, suspect
from trainer.inspection.texts import count_words, repeated, shorten

FEW_WORDS = 100
"""Words of an evaluation split under which its WER says little."""


def find_shared_texts(entries: Sequence[Entry]) -> list[Finding]:
    """Texts that are in two splits, but for case and punctuation."""
    groups = [
        [entries[at] for at in positions] for positions in repeated(entry.key for entry in entries).values()
    ]
    shared = [group for group in groups if len({entry.split for entry in group}) > 1]
    if not shared:
        return []
    suspects = []
    for group in shared:
        for entry in group:
            other = next(one for one in group if one.split != entry.split)
            same = (
                "the same text as" if other.text == entry.text else "but for case and punctuation the text of"
            )
            suspects.append(suspect(entry, f"{same} {other.place}: {shorten(entry.text)!r}"))
    judged = sum(entry.split != "train" for group in shared for entry in group)
    total = sum(entry.split != "train" for entry in entries)
    return [
        Finding(
            "shared_text",
            "warning",
            f"the same text in two splits: {leak_count(len(shared), judged, total)}",
            "remove them from one of the splits: WER on sentences that were learned is too good",
            suspects,
        )
    ]


def leak_count(texts: int, judged: int, total: int) -> str:
    """`3 texts, 4 of 100 validation and test clips`."""
    return f"{texts:,} text{'s' * (texts != 1)}, {judged:,} of {total:,} validation and test clips"


def find_repeated_texts(entries: Sequence[Entry], copies: Sequence[Sequence[int]]) -> list[Finding]:
    """Texts of several recordings of one split; copies of one recording are told elsewhere."""
    extra = {at for group in copies for at in group[1:]}
    left = [entry for at, entry in enumerate(entries) if at not in extra]
    groups = [
        [left[at] for at in positions]
        for positions in repeated((entry.split, entry.key) for entry in left).values()
    ]
    number = sum(map(len, groups))
    if not number:
        return []
    groups.sort(key=len, reverse=True)
    # Where most sentences are read by several people, that is how the data was made.
    by_design = number > 0.05 * len(entries)
    most = groups[0]
    example = f", most often {shorten(most[0].text, 40)!r} ({len(most)} times)" if len(most) > 2 else ""
    return [
        Finding(
            "same_text",
            "note" if by_design else "warning",
            f"the same text for several recordings: {clips(number)} of {len(groups):,} texts{example}",
            "fine where several people read the same sentence; else look for texts that were given to the wrong clip",
            [
                suspect(entry, f"{len(group)} clips of {entry.split} have {shorten(entry.text)!r}")
                for group in groups
                for entry in group
            ],
        )
    ]


def find_small_splits(entries: Sequence[Entry]) -> list[Finding]:
    """Validation or test splits with too few words for a WER that means much."""
    texts: dict[str, list[str]] = {}
    for entry in entries:
        texts.setdefault(entry.split, []).append(entry.text)
    found = []
    for split, mine in texts.items():
        number, unit = count_words(mine)
        if split != "train" and number < FEW_WORDS:
            found.append(
                Finding(
                    "small_split",
                    "warning",
                    small_split(split, number, unit),
                    f"make it larger: 1,000 {unit} are known to 3 points, 5,000 to a little over one",
                )
            )
    return found


def small_split(split: str, number: int, unit: str) -> str:
    """How little a WER on so few words says."""
    points = f"{uncertainty(number):.0f} points"
    return f"the {split} split has only {number:,} {unit}: its error rate is uncertain by {points}"


def uncertainty(words: int) -> float:
    """Half of the 95 % interval, in points, of a WER of 30 % over so many words, were they independent."""
    return 196 * math.sqrt(0.3 * 0.7 / max(1, words))


def find_shared_speakers(entries: Sequence[Entry]) -> list[Finding]:
    """Speakers of validation or test that are in train too: information rather than a fault."""
    speakers: dict[str, set[str]] = {}
    for entry in entries:
        if entry.speaker:
            speakers.setdefault(entry.split, set()).add(entry.speaker)
    learned = speakers.pop("train", set())
    shared = {split: sorted(mine & learned) for split, mine in speakers.items() if mine & learned}
    if not shared:
        return []
    told = " and ".join(
        f"{len(names):,} of {len(speakers[split]):,} speakers of {split}" for split, names in shared.items()
    )
    return [
        Finding(
            "shared_speakers",
            "note",
            f"{told} are in train too: {listed(next(iter(shared.values())))}",
            "WER is then that of known voices; keep them apart where new people will speak to the model",
        )
    ]
