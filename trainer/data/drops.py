"""Clips that cannot be used: why, how many, and how many are too many."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from trainer.config import TrainConfig
from trainer.errors import DataError

#: Reasons for which a clip is dropped, and how they are told.
DROP_REASONS = {
    "too_long_audio": "audio longer than the model's window",
    "too_long_text": "text longer than the model writes",
    "empty_text": "no text",
    "unreadable_audio": "unreadable audio",
    "empty_audio": "no audio in the file",
}


@dataclasses.dataclass(frozen=True)
class Drop:
    """A clip that cannot be used."""

    split: str
    """`train`, `validation` or `test`."""
    name: str
    """The file as the data set names it."""
    reason: str
    """One of `DROP_REASONS`."""
    detail: str
    """What exactly was found."""


def count_by_reason(drops: Sequence[Drop]) -> dict[str, int]:
    """Dropped clips by reason, the most frequent first."""
    return dict(Counter(drop.reason for drop in drops).most_common())


def empty_text(split: str, name: str, text: str) -> Drop:
    """The drop of a clip whose text has no words."""
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return Drop(split, name, "empty_text", f"no letter or digit in {shown!r}" if text else "no text")


def check_usable(
    config: TrainConfig, drops: Sequence[Drop], *, left: Mapping[str, int], window: float | None = None
) -> None:
    """Stop where nothing of a split is left: no share of drops that is allowed would help.

    Args:
        config: says which data it is.
        drops: the clips dropped.
        left: usable clips of each split.
        window: the model's window in seconds, once it is known.

    Raises:
        DataError: a split has no usable clip.
    """
    for role, usable in left.items():
        if not usable:
            mine = [drop for drop in drops if drop.split == role]
            first = f" (the first is {mine[0].name}: {mine[0].detail})" if mine else ""
            raise DataError(
                f"data={config.data!r}: no clip of the {role} split can be used: {_told(mine, window)}{first}; "
                f"mend them, or name another split with {role}_split"
            )


def check_drops(config: TrainConfig, drops: Sequence[Drop], *, total: int, window: float) -> list[str]:
    """Stop where too much is dropped: a run on what is left would be about other data than the user's.

    Args:
        config: its `max_dropped_share` is the limit.
        drops: the clips dropped.
        total: clips in all, dropped ones included.
        window: the model's window in seconds.

    Returns:
        A note for the user, or nothing where nothing was dropped.

    Raises:
        DataError: more than the tolerable share is dropped.
    """
    if not drops:
        return []
    told = _told(drops, window)
    share = len(drops) / total
    if share > config.max_dropped_share:
        # Rounded up to whole percents: the value that is proposed must let this very data pass.
        enough = min(1.0, (int(share * 100) + 1) / 100)
        first = f"{drops[0].name}: {drops[0].detail}"
        raise DataError(
            f"data={config.data!r}: {len(drops)} of {total} clips ({share:.1%}) cannot be used: {told} "
            f"(the first is {first}); max_dropped_share={config.max_dropped_share:g} allows fewer; "
            f"to go on without them: --set max_dropped_share={enough:g}"
        )
    return [f"dropped {len(drops)} of {total} clips: {told}"]


def _told(drops: Sequence[Drop], window: float | None) -> str:
    told = ", ".join(f"{count} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    return told if window is None else told.replace("model's window", f"model's window of {window:g} s")
