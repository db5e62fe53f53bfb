"""Texts that a model hears very differently: most likely wrong, where the model is good on the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer.inspection.entries import Entry
from trainer.inspection.findings import Finding, clips, suspect
from trainer.inspection.texts import shorten, text_keys
from trainer.scoring.counts import count_errors

_LEAST, _FARTHEST = 50.0, 6.0
"""A text is suspicious from this CER in percent and so many robust deviations above the usual one."""
_TOO_BAD = 40.0
"""Usual CER in percent of a model whose word is worth nothing."""


def find_unlike(
    entries: Sequence[Entry], heard: Mapping[tuple[str, str, str], str], model: str
) -> list[Finding]:
    """Clips whose text is far from what a model hears.

    Letters are compared without case, punctuation and spaces, which models put differently.

    Args:
        entries: all clips.
        heard: transcripts of the model by split, name and text of the clip.
        model: its name for people.
    """
    import numpy as np

    judged = [entry for entry in entries if (entry.split, entry.name, entry.text) in heard]
    if not judged:
        return []
    said = [heard[entry.split, entry.name, entry.text] for entry in judged]
    counts = count_errors([entry.key for entry in judged], text_keys(said), "characters")
    rates = 100.0 * np.asarray(counts.errors) / np.maximum(np.asarray(counts.lengths), 1)
    usual = float(np.median(rates))
    if usual > _TOO_BAD:
        title = f"{model} hears half of the clips with a CER above {usual:.0f} %: it cannot tell which texts are wrong"
        return [Finding("unlike_model", "note", title, "check with a model that knows the language better")]
    limit = max(_LEAST, usual + _FARTHEST * 1.4826 * float(np.median(np.abs(rates - usual))))
    found = sorted(np.flatnonzero(rates >= limit), key=lambda at: -rates[at])
    if not found:
        return []
    return [
        Finding(
            "unlike_model",
            "warning",
            f"{model} hears something else in {clips(len(found))}: CER of {limit:.0f} % and more, median {usual:.0f} %",
            "listen to them: the text is wrong, or the speech is hard to hear",
            [
                suspect(
                    judged[at],
                    f"CER {rates[at]:.0f} %: {shorten(judged[at].text)!r}, heard {shorten(said[at])!r}",
                )
                for at in found
            ],
        )
    ]
