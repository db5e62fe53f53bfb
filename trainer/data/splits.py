"""Train, validation and test: found under their usual names, made where missing, cut to the size wanted."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from trainer.config import TrainConfig
from trainer.data.sources import SPLIT_ALIASES
from trainer.errors import ConfigError, DataError


class _Named(Protocol):
    """What clips are told apart by."""

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> str: ...


ClipT = TypeVar("ClipT", bound=_Named)

_TRAIN_FOR_A_TEST = 20
"""Training clips from which a test split is made: a few clips are worth more as training than as a measure."""
_TRAIN_LEFT = 10
"""Training clips that a test split must leave over."""


def find_splits(config: TrainConfig, names: Iterable[str]) -> dict[str, str]:
    """Which of the source's splits plays which role (`train`, `validation`, `test`).

    A name that the user chose must be there; the usual names may differ (`dev`) or be missing.

    Raises:
        DataError: the training split, or one that was named, is not there; the message lists those that are.
        ConfigError: one split would be both.
    """
    there = list(names)
    found: dict[str, str] = {}
    for role in SPLIT_ALIASES:
        wanted, name = str(getattr(config, f"{role}_split")), split_of_role(config, role, there)
        if name is not None:
            found[role] = name
        elif role == "train" or wanted != role:
            shown = ", ".join(name or "(no name)" for name in there)
            raise DataError(
                f"data={config.data!r}: no split {wanted!r}; it has {shown}; set {role}_split to one of them"
            )
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        if first in found and found.get(second) == found[first]:
            raise ConfigError(
                f"{first}_split and {second}_split are both {found[first]!r}; give different splits"
            )
    return found


def split_of_role(config: TrainConfig, role: str, names: Collection[str]) -> str | None:
    """The split that the settings name for a role, or where they leave the default one of its usual names."""
    wanted = str(getattr(config, f"{role}_split"))
    if wanted in names:
        return wanted
    there = {name.lower(): name for name in names}
    usual = SPLIT_ALIASES[role] if wanted == role else ()
    return next((there[key] for key in (wanted.lower(), *usual) if key in there), None)


def complete_splits(
    config: TrainConfig, splits: Mapping[str, Sequence[ClipT]]
) -> tuple[dict[str, list[ClipT]], list[str]]:
    """The splits with a validation split in any case, and a test split where there is enough to make one of.

    Returns:
        Clips by role, and notes that say what was made of what.

    Raises:
        DataError: there is no validation split and too little to make one from.
    """
    done = {role: list(clips) for role, clips in splits.items()}
    total = len(done["train"])
    notes = []
    if "validation" not in done:
        if total >= 2:
            done["train"], done["validation"] = split_off(
                done["train"], config.validation_share, config.data_seed
            )
            notes.append(_made("validation", len(done["validation"]), total, config))
        elif "test" in done:
            done["validation"] = done.pop("test")
            notes.append(
                "WARNING: no validation split in the data and one training clip, too few to make one: "
                "the test split is used for validation, and nothing is left for a test"
            )
        else:
            raise DataError(
                f"data={config.data!r}: one training clip and no other split; at least two clips are needed"
            )
    if "test" not in splits:
        # As large as a validation split made of the same clips: its share is of all of them.
        share = config.validation_share * total / len(done["train"])
        rest = done["train"]
        apart: list[ClipT] = []
        if total >= _TRAIN_FOR_A_TEST and share < 1:
            rest, apart = split_off(rest, share, config.data_seed, "test")
        if apart and len(rest) >= _TRAIN_LEFT:
            done["train"], done["test"] = rest, apart
            notes.append(_made("test", len(apart), total, config))
        else:
            notes.append(
                f"no test split in the data, and too few training clips to make one ({total}; it takes "
                f"{_TRAIN_FOR_A_TEST}, and {_TRAIN_LEFT} must be left to train on): there is none, and the "
                "model card will have no test WER"
            )
    return {role: done[role] for role in SPLIT_ALIASES if role in done}, notes


def _made(role: str, taken: int, total: int, config: TrainConfig) -> str:
    return (
        f"no {role} split in the data: {taken} of the {total} training clips "
        f"({taken / total:.0%}) were set apart as one (data_seed={config.data_seed})"
    )


def cut_splits(
    config: TrainConfig, splits: Mapping[str, Sequence[ClipT]], unusable: Mapping[str, Sequence[ClipT]]
) -> tuple[dict[str, list[ClipT]], dict[str, list[ClipT]], list[str]]:
    """The splits cut to the number of clips wanted.

    Args:
        config: has the limits.
        splits: clips by role.
        unusable: clips by role that were left out of them.

    Returns:
        Clips by role, those of `unusable` that would have been chosen as well (few clips of many must not be
        weighed against all bad ones of the data), and notes.
    """
    limits = {
        "train": config.max_train_clips,
        "validation": config.max_eval_clips,
        "test": config.max_eval_clips,
    }
    seed, notes = config.data_seed, []
    done, passed = {}, {}
    for role, clips in splits.items():
        limit = limits[role]
        done[role], passed[role] = list(clips), list(unusable.get(role, ()))
        if limit is not None and limit < len(clips):
            notes.append(f"{role}: {limit} of {len(clips)} clips (data_seed={seed})")
            done[role] = subset(clips, limit, seed)
            last = max(_rank(seed, clip.name, clip.text) for clip in done[role])
            passed[role] = [clip for clip in passed[role] if _rank(seed, clip.name, clip.text) < last]
    return done, passed, notes


def split_off(
    clips: Sequence[ClipT], share: float, seed: int, order: str = "split"
) -> tuple[list[ClipT], list[ClipT]]:
    """Clips to keep and about `share` of them to set apart, the same for the same clips and seed.

    Clips with the same text (but for case and punctuation) go to one side, so that no sentence is both
    learned and judged by; only where almost all texts are the same this cannot be. `order` names the
    shuffling, for one choice to be no continuation of another.
    """
    wanted = min(max(1, round(share * len(clips))), len(clips) - 1)
    groups: dict[str, list[int]] = {}
    for position, clip in enumerate(clips):
        groups.setdefault(_text_key(clip.text), []).append(position)
    apart: set[int] = set()
    for key in sorted(groups, key=lambda key: _rank(seed, order, key)):
        if len(apart) + len(groups[key]) <= wanted:
            apart.update(groups[key])
    if not apart:
        smallest = min(groups.values(), key=len)
        apart.update(smallest if len(smallest) <= len(clips) / 2 else _ranked(clips, seed)[:wanted])
    keep = [clip for position, clip in enumerate(clips) if position not in apart]
    return keep, [clip for position, clip in enumerate(clips) if position in apart]


def subset(clips: Sequence[ClipT], limit: int, seed: int) -> list[ClipT]:
    """`limit` of the clips in their order, the same for the same clips and seed."""
    chosen = sorted(_ranked(clips, seed)[:limit])
    return [clips[position] for position in chosen]


def _ranked(clips: Sequence[ClipT], seed: int) -> list[int]:
    """All positions, shuffled. A clip's rank is its own, so new clips do not reshuffle the old ones."""
    return sorted(range(len(clips)), key=lambda at: (_rank(seed, clips[at].name, clips[at].text), at))


def _rank(seed: int, *parts: str) -> bytes:
    return hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()


def _text_key(text: str) -> str:
    """A text without case, punctuation and white space."""
    kept = (
        char
        for char in unicodedata.normalize("NFKC", text).casefold()
        if unicodedata.category(char)[0] in "LNM"
    )
    return "".join(kept)
