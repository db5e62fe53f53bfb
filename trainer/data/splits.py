"""Train, validation and test: found under their usual names, made where missing, cut to the size wanted."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.columns import some
from trainer.data.drops import OTHER_SPLIT, Drop, check_usable
from trainer.data.grouping import Grouping, file_keys, groupings, rank, set_apart
from trainer.data.sources import SPLIT_ALIASES
from trainer.errors import ConfigError, DataError

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
    roles: dict[str, str] = {}
    for role in SPLIT_ALIASES:
        wanted, name = str(getattr(config, f"{role}_split")), split_of_role(config, role, there)
        if name is not None:
            roles[role] = name
        elif (role == "train" and config.splits is None) or wanted != role:
            shown = some([name or "(no name)" for name in there])
            raise DataError(
                f"data={config.data!r}: no split {wanted!r}; it has {shown}; set {role}_split to one of them"
            )
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        if first in roles and roles.get(second) == roles[first]:
            raise ConfigError(
                f"{first}_split and {second}_split are both {roles[first]!r}; give different splits"
            )
    return roles


def split_of_role(config: TrainConfig, role: str, names: Collection[str]) -> str | None:
    """The split that the settings name for a role, or where they leave the default one of its usual names."""
    wanted = str(getattr(config, f"{role}_split"))
    if wanted in names:
        return wanted
    there = {name.lower(): name for name in names}
    usual = SPLIT_ALIASES[role] if wanted == role else ()
    return next((there[key] for key in (wanted.lower(), *usual) if key in there), None)


def complete_splits(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]]
) -> tuple[dict[str, list[Clip]], list[str]]:
    """The splits with a validation split in any case, and a test split where there is enough to make one of; and notes.

    Raises:
        DataError: there is no validation split and too little to make one from, or `split_by` does not fit the data.
    """
    if "validation" not in splits and len(splits["train"]) < 2:
        if "test" not in splits:
            raise DataError(
                f"data={config.data!r}: one training clip and no other split; at least two clips are needed"
            )
        note = (
            "WARNING: no validation split in the data and one training clip, too few to make one: "
            "the test split is used for validation, so there will be no test WER"
        )
        return {"train": list(splits["train"]), "validation": list(splits["test"])}, [note]
    if "validation" in splits and "test" in splits:
        return {role: list(clips) for role, clips in splits.items()}, []
    # The best way to keep clips together that makes what is missing; else one that makes a validation split.
    second: tuple[dict[str, list[Clip]], list[str]] | None = None
    for grouping in groupings(config, splits["train"]):
        made, notes, good = _make_missing(config, splits, grouping)
        if good:
            return made, notes
        if made["validation"] and second is None:
            second = made, notes
    if second is None:
        raise DataError(
            f"data={config.data!r}: a validation split cannot be made, since all {len(splits['train']):,} training "
            f"clips belong together ({' and '.join(grouping.by)}); give one, or set split_by"
        )
    return second


def name_source(source: str, notes: Iterable[str]) -> list[str]:
    """Notes on one source; as they are of data without sources."""
    warning = "WARNING: "
    return [
        note if not source else f"{warning * note.startswith(warning)}{source}: {note.removeprefix(warning)}"
        for note in notes
    ]


def complete_by_source(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]]
) -> tuple[dict[str, list[Clip]], list[str]]:
    """`complete_splits` of a data set whose sources may lack different splits: those that lack the same together.

    So no text, file or speaker of these is in two of the splits that are made. Other sources are not looked at.
    """
    has: dict[str, list[str]] = {}
    for role, clips in splits.items():
        for source in dict.fromkeys(clip.origin.source for clip in clips):
            has.setdefault(source, []).append(role)
    alike: dict[tuple[str, ...], list[str]] = {}
    for source, roles in has.items():
        alike.setdefault(tuple(roles), []).append(source)
    if len(has) < 2:
        return complete_splits(config, splits)
    done: dict[str, list[Clip]] = {}
    notes = []
    for lot, sources in alike.items():
        part = {role: [clip for clip in splits[role] if clip.origin.source in sources] for role in lot}
        made, made_notes = complete_splits(config, part) if "train" in part else (part, [])
        notes += name_source(", ".join(sources), made_notes)
        for role, clips in made.items():
            done.setdefault(role, []).extend(clips)
    measured = {clip.origin.source for clip in done.get("validation", ())}
    notes += [
        f"WARNING: {source}: has no validation clips, so nothing is measured on it; give it a validation split"
        for source in has
        if source not in measured
    ]
    return {role: done[role] for role in SPLIT_ALIASES if role in done}, notes


def _make_missing(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]], grouping: Grouping
) -> tuple[dict[str, list[Clip]], list[str], bool]:
    """The splits with those that were missing, notes, and whether these are about as large and different as wished."""
    done = {role: list(clips) for role, clips in splits.items()}
    total, good = len(done["train"]), True
    notes: list[str] = []
    if "validation" not in done:
        done["train"], done["validation"], good = set_apart(
            done["train"], config.validation_share, config.data_seed, "split", grouping
        )
        if not done["validation"]:
            return done, [], False
        notes.append(_made_note(config, "validation", len(done["validation"]), total))
    if "test" not in splits:
        # As large as a validation split made of the same clips: its share is of all of them.
        share = config.validation_share * total / len(done["train"])
        rest, fits = done["train"], True
        apart: list[Clip] = []
        if total >= _TRAIN_FOR_A_TEST and share < 1:
            rest, apart, fits = set_apart(rest, share, config.data_seed, "test", grouping)
        if apart and len(rest) >= _TRAIN_LEFT:
            done["train"], done["test"] = rest, apart
            notes.append(_made_note(config, "test", len(apart), total))
        else:
            notes.append(
                f"no test split in the data, and too few training clips to make one ({total}; it takes "
                f"{_TRAIN_FOR_A_TEST}, and {_TRAIN_LEFT} must remain for training): there will be no test WER"
            )
        good = good and fits
    if config.split_by is not None and len(done) > len(splits):
        notes.append(grouping.describe())
    return {role: done[role] for role in SPLIT_ALIASES if role in done}, notes, good


def _made_note(config: TrainConfig, role: str, taken: int, total: int) -> str:
    return (
        f"no {role} split in the data: {taken} of the {total} training clips "
        f"({taken / total:.0%}) were set apart as one (data_seed={config.data_seed})"
    )


def leave_out_shared_files(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]]
) -> tuple[dict[str, list[Clip]], list[Drop]]:
    """The splits without training clips whose files are in another one, and without test files in validation.

    Raises:
        DataError: nothing is left of a split.
    """
    kept = {role: list(clips) for role, clips in splits.items()}
    if config.split_by is None:
        return kept, []
    drops, seen = list[Drop](), set[Hashable]()
    for role in filter(splits.__contains__, reversed(SPLIT_ALIASES)):
        keys = file_keys(splits[role])
        pairs = [(clip, None if clip.embedded else key) for clip, key in zip(splits[role], keys, strict=True)]
        kept[role] = [clip for clip, key in pairs if key not in seen]
        why = "its file is in another split too; split_by=null keeps it in both"
        drops += [Drop(role, clip.name, OTHER_SPLIT, why) for clip, key in pairs if key in seen]
        seen.update(key for _, key in pairs if key is not None)
    check_usable(config, drops, left=kept)
    return kept, drops


def cut_splits(
    config: TrainConfig, splits: Mapping[str, Sequence[Clip]], unusable: Mapping[str, Sequence[Clip]]
) -> tuple[dict[str, list[Clip]], dict[str, list[Clip]], list[str]]:
    """The splits cut to the number of clips wanted.

    Returns:
        Clips by role, those of `unusable` that would have been chosen as well (few clips of many must not be
        weighed against all bad ones of the data), and notes.
    """
    seed, notes = config.data_seed, []
    done, passed = {}, {}
    for role, clips in splits.items():
        limit = config.max_train_clips if role == "train" else config.max_eval_clips
        done[role], passed[role] = list(clips), list(unusable.get(role, ()))
        if limit is not None and limit < len(clips):
            notes.append(f"{role}: {limit} of {len(clips)} clips (data_seed={seed})")
            done[role] = [clips[at] for at in subset(clips, limit, seed)]
            last = max(rank(seed, clip.name, clip.text) for clip in done[role])
            passed[role] = [clip for clip in passed[role] if rank(seed, clip.name, clip.text) < last]
    return done, passed, notes


def subset(clips: Sequence[Clip], limit: int, seed: int) -> list[int]:
    """Positions of `limit` of the clips, in their order: the same for the same clips and seed.

    A clip's rank is its own, so new clips do not reshuffle the old ones.
    """
    ranked = sorted(range(len(clips)), key=lambda at: (rank(seed, clips[at].name, clips[at].text), at))
    return sorted(ranked[:limit])
