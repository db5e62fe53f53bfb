"""Clips that cannot be used: why, how many, and from how many on nothing is trained on what is left."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence, Sized

from trainer.config import TrainConfig
from trainer.data.columns import shown
from trainer.data.sources import SPLIT_ALIASES
from trainer.data.text import TOKEN, has_words
from trainer.errors import DataError

HELD_OUT, OTHER_SPLIT = "held_out", "other_split"
#: Reasons for which a clip is dropped, and how they are told.
DROP_REASONS = {
    "too_long_audio": "audio longer than the model's window",
    "too_long_text": "text longer than the model can write",
    "empty_text": "no text",
    "unreadable_audio": "unreadable audio",
    "incomplete_audio": "audio that is cut off or damaged",
    "empty_audio": "no audio in the file",
    "missing_channel": "without the requested channel",
    "wrong_times": "with impossible times",
    OTHER_SPLIT: "with a file that is in another split too",
    HELD_OUT: "new, but held out from training by the kept splits",
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


def count_by_reason(drops: Sequence[Drop]) -> dict[str, int]:
    """Dropped clips by reason, the most frequent first."""
    return dict(Counter(drop.reason for drop in drops).most_common())


def is_usable(config: TrainConfig, text: str) -> bool:
    """Whether a clip of this text has something to teach: words, or with `empty_text=keep` that nothing is said."""
    return has_words(text) or (config.empty_text == "keep" and not text)


def check_tokens(config: TrainConfig, clips: Sequence[tuple[str, str]]) -> None:
    """Stop where texts, given with the names of their clips, have tokens of Whisper, which would be taught as text.

    Raises:
        DataError: some have.
    """
    marked = [(name, text) for name, text in clips if "<|" in text and TOKEN.search(text)]
    if marked:
        name, text = map(shown, marked[0])
        raise DataError(
            f"data={config.data!r}: {len(marked):,} of {len(clips):,} texts hold tokens of Whisper, which would be "
            f"learned as text (the first is {name}: {text!r}); remove them, or set strip_tokens=true"
        )


def empty_text(split: str, name: str, text: str) -> Drop:
    """The drop of a clip whose text has no words."""
    return Drop(split, name, "empty_text", f"no letter or digit in {shown(text)!r}" if text else "no text")


def check_usable(
    config: TrainConfig, drops: Sequence[Drop], *, left: Mapping[str, Sized], window: float | None = None
) -> None:
    """Stop where nothing of a split is left: no share of drops that is allowed would help.

    `left` are the clips of each split that can be used.

    Raises:
        DataError: a split has no usable clip.
    """
    for role, usable in left.items():
        if not usable:
            mine = [drop for drop in drops if drop.split == role]
            first = f" (the first is {_first(mine)})" if mine else ""
            setting = f" with {role}_split" if role in SPLIT_ALIASES else ""
            raise DataError(
                f"data={config.data!r}: no clip of the {role} split can be used: {describe_drops(mine, window)}"
                f"{first}; correct them, or name another split{setting}"
            )


def check_drops(config: TrainConfig, drops: Sequence[Drop], *, total: int, window: float) -> list[str]:
    """A note on what is dropped, if anything is; too much of it stops a run, which would be about other data.

    Raises:
        DataError: more than the tolerable share is dropped.
    """
    if not drops:
        return []
    bad = [drop for drop in drops if drop.reason not in (HELD_OUT, OTHER_SPLIT)]  # of those nothing is wrong
    wanted = total - len(drops) + len(bad)
    share = len(bad) / max(wanted, 1)
    if share > config.max_dropped_share:
        # Rounded up to whole percents: the value that is proposed must let this very data pass.
        enough = min(1.0, (int(share * 100) + 1) / 100)
        text = describe_drops(bad, window)
        raise DataError(
            f"data={config.data!r}: {len(bad)} of {wanted} clips ({share:.1%}) cannot be used: {text} "
            f"(the first is {_first(bad)}); max_dropped_share={config.max_dropped_share:g} allows fewer; "
            f"to go on without them: --set max_dropped_share={enough:g}"
        )
    return [drops_note(drops, total, window)]


def drops_note(drops: Sequence[Drop], total: int, window: float | None = None) -> str:
    return f"dropped {len(drops)} of {total} clips: {describe_drops(drops, window)}"


def _first(drops: Sequence[Drop]) -> str:
    """The first clip that was dropped, why, and where to look if its file is missing."""
    detail = drops[0].detail
    text = f"{shown(drops[0].name)}: {detail}"
    missing = detail.startswith("file not found") and not detail.endswith("names in the table")
    return f"{text}; audio_dir=FOLDER says where files are" if missing else text


def describe_drops(drops: Sequence[Drop], window: float | None = None) -> str:
    """How many for which reason, in words; `window` is the model's in seconds, once it is known."""
    text = ", ".join(f"{count} {DROP_REASONS[reason]}" for reason, count in count_by_reason(drops).items())
    return text if window is None else text.replace("model's window", f"model's window of {window:g} s")
