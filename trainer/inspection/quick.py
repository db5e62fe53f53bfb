"""What a search says about its data before it spends anything: checks of texts and lengths that take a moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainer.data.clip import Clip
from trainer.inspection.entries import make_entry
from trainer.inspection.findings import Finding, make_finding, ranked
from trainer.inspection.rates import find_misfits
from trainer.inspection.text_findings import find_shared_texts, find_small_splits, odd_entries
from trainer.inspection.texts import shorten

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedSplit

_FAR = 2.0
"""Times longer or shorter than usual: lengths are with the silence around, which differs."""


def quick_look(splits: Mapping[str, PreparedSplit]) -> list[Finding]:
    """Look at texts and lengths, without reading audio: a few seconds for 100,000 clips."""
    entries, seconds = [], []
    for split, clips in splits.items():
        for i in range(len(clips)):
            entries.append(make_entry(split, Clip(clips.name(i), clips.text(i)), ""))
            seconds.append(clips.seconds(i))
    _, misfits = find_misfits(seconds, [entry.units for entry in entries], ratio=_FAR)
    odd = [
        (entries[at], f"{entries[at].units} letters in {seconds[at]:.1f} s: {shorten(entries[at].text)!r}")
        for at, _ in misfits
    ]
    return ranked(
        [
            *find_shared_texts(entries),
            *make_finding("text_misfit", odd),
            *make_finding("odd_characters", odd_entries(entries)),
            *find_small_splits(entries),
        ]
    )
