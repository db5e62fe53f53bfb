"""Which clips stay together when splits are made, those of one file, text or speaker; and what is set apart of them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.columns import SPEAKER_NAMES, named
from trainer.errors import DataError

FILE, TEXT, SPEAKER = "file", "text", "speaker"
"""What clips can be kept together by, besides columns of the data."""
_FEW_TEXTS, _MANY_REPEATS = 10, 10
"""Commands and digits: a few texts, each said many times. None may be missing from the training clips."""


@dataclasses.dataclass(frozen=True)
class Grouping:
    """A way to keep clips together."""

    by: tuple[str, ...]
    """What no two splits share: `file`, `text`, `speaker`, columns of the data."""
    mixed: str = ""
    """What splits share all the same, and why; empty where there is nothing to tell."""
    even: bool = False
    """Whether every text is divided alike among the splits."""

    def describe(self) -> str:
        shown = " and ".join(filter(None, (", ".join(self.by[:-1]), *self.by[-1:])))
        return f"splits are made by {shown}: none of them is in two splits{self.mixed}"


def groupings(config: TrainConfig, clips: Sequence[Clip]) -> list[Grouping]:
    """Ways to keep these clips together, the best first; one alone where `split_by` names it.

    Raises:
        DataError: `split_by` names a column that is not there.
    """
    speaker = next(filter(None, (named(SPEAKER_NAMES, columns) for columns in _tables(clips))), None)
    if config.split_by is None:
        return [Grouping((TEXT,))]
    if config.split_by != "auto":
        return [_asked(config, config.split_by, clips, speaker)]
    texts = len({text_key(clip.text) for clip in clips})
    few = f"; {texts:,} different texts are too few for that, so each is in all splits if possible"
    speakers = len(set(cells(clips, SPEAKER_NAMES)))
    if speakers < 2:
        return [Grouping((FILE, TEXT)), Grouping((FILE,), few, even=True)]
    shared = (
        f"; speakers ({speaker}) are in several, because {speakers:,} speakers who share texts cannot be divided into "
        f"splits of the wanted size (split_by={SPEAKER} keeps each in one)"
    )
    return [
        Grouping((FILE, TEXT, SPEAKER)),
        Grouping((FILE, TEXT), shared),
        Grouping((FILE, SPEAKER), few),
        Grouping((FILE,), few, even=True),
    ]


def _asked(config: TrainConfig, wanted: str, clips: Sequence[Clip], speaker: str | None) -> Grouping:
    by = [FILE]
    columns = dict.fromkeys(name for columns in _tables(clips) for name in columns)
    for name in (part.strip() for part in wanted.split(",")):
        if name == SPEAKER and speaker is None and SPEAKER not in columns:
            raise DataError(
                f"split_by={wanted!r}: data={config.data!r} has no column of speakers, such as "
                f"{', '.join(SPEAKER_NAMES[:3])}; name a column of it: {', '.join(columns)}"
            )
        if name not in (FILE, TEXT, SPEAKER) and (name := named([name.lower()], columns) or "") == "":
            raise DataError(
                f"split_by={wanted!r}: no such column in data={config.data!r}; give auto, null, or some of "
                f"{', '.join(dict.fromkeys((FILE, TEXT, SPEAKER, *columns)))}, with commas between"
            )
        by.append(name)
    return Grouping(tuple(dict.fromkeys(by)))


def _tables(clips: Sequence[Clip]) -> list[Mapping[str, list[Any]]]:
    """The columns of each table that clips are rows of, which share them."""
    return list({id(clip.columns): clip.columns for clip in clips}.values())


def cells(clips: Iterable[Clip], names: Sequence[str]) -> Iterator[str]:
    """What each clip has in a column of one of these names, in whatever case its own table writes it; empty without."""
    columns: dict[int, str | None] = {}
    for clip in clips:
        if (table := id(clip.columns)) not in columns:
            columns[table] = named(names, clip.columns)
        column = columns[table]
        yield clip.cell(column) if column is not None else ""


def group_clips(clips: Sequence[Clip], by: Sequence[str]) -> list[list[int]]:
    """Positions of the clips, those in one list that share something of `by`, also by way of others."""
    parent = list(range(len(clips)))

    def root(position: int) -> int:
        while parent[position] != position:
            parent[position] = parent[parent[position]]
            position = parent[position]
        return position

    for name in by:
        first: dict[Hashable, int] = {}
        for position, key in enumerate(_keys(clips, name)):
            if key is not None:
                one, other = root(first.setdefault(key, position)), root(position)
                parent[max(one, other)] = min(one, other)
    groups: dict[int, list[int]] = {}
    for position in range(len(clips)):
        groups.setdefault(root(position), []).append(position)
    return list(groups.values())


def _keys(clips: Sequence[Clip], name: str) -> Iterator[Hashable]:
    """What each clip is kept together by; None where nothing is known of it."""
    if name == TEXT:
        return (text_key(clip.text) or None for clip in clips)  # nothing is said in silent clips
    if name == FILE:
        return file_keys(clips)
    return (cell or None for cell in cells(clips, SPEAKER_NAMES if name == SPEAKER else [name.lower()]))


def file_keys(clips: Sequence[Clip]) -> Iterator[Hashable]:
    """The file of each clip, the same for all names of it; None where it has none or its name tells nothing.

    Audio inside a table goes by its name there, unless most of these are alike (`audio.wav` in every row).
    """
    known: dict[str, Hashable] = {"": None}
    differ = names_differ([clip.name for clip in clips if clip.embedded is not None])
    for clip in clips:
        if clip.embedded is not None:
            yield clip.name if differ else None
        else:
            if clip.path not in known:
                try:
                    status = os.stat(clip.path)  # noqa: PTH116 - pathlib takes twice as long
                    known[clip.path] = status.st_dev, status.st_ino
                except (OSError, ValueError):  # it is dropped later, with its reason
                    known[clip.path] = os.path.normpath(clip.path)
            yield known[clip.path]


def names_differ(names: Collection[str | None]) -> bool:
    """Whether audio inside a table can be told by its names: most of them are there, and not alike."""
    return len(set(filter(None, names))) > len(names) / 2


def audio_key(source: str | bytes | Path) -> int:
    """64 bits that stand for the content of an audio file, given itself or by its path; 0 where it cannot be read."""
    if not source:
        return 0
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8))  # type: ignore[arg-type]
    except (OSError, ValueError):  # it is dropped later, with its reason
        return 0
    return int.from_bytes(digest.digest())


def set_apart(
    clips: Sequence[Clip], share: float, seed: int, order: str, grouping: Grouping
) -> tuple[list[Clip], list[Clip], bool]:
    """The clips without about `share` of them, the same for the same clips and seed in whatever order; and these.

    `order` names the choice, so that one is no continuation of another. None are set apart where all clips belong
    together.

    Returns:
        Both parts; and whether those set apart are about as many, and as different, as one would wish.
    """
    sizes = Counter(clip.origin.source for clip in clips)
    wanted = {source: min(max(1, round(share * size)), size - 1) for source, size in sizes.items()}
    groups = group_clips(clips, grouping.by)
    if grouping.by == (TEXT,) and 2 * min(map(len, groups)) > len(clips):
        groups = [[at] for at in range(len(clips))]  # nobody asked for files or speakers to stay together
    if len(groups) < 2:
        return list(clips), [], False
    # By texts alone where these stay together: a clip more of a text changes nothing in the order.
    whole = TEXT in grouping.by

    def clip_rank(clip: Clip) -> bytes:
        key = text_key(clip.text)
        return rank(seed, order, key) if whole and key else rank(seed, order, key, clip.name)

    ordered = sorted(groups, key=lambda group: min(clip_rank(clips[at]) for at in group))
    if grouping.even:
        ordered = _evenly(clips, ordered)
    apart: set[int] = set()
    taken: Counter[str] = Counter()
    members = [Counter(clips[at].origin.source for at in group) for group in ordered]

    def take(index: int) -> None:
        apart.update(ordered[index])
        taken.update(members[index])

    for index, of in enumerate(members):
        if all(taken[source] + number <= wanted[source] for source, number in of.items()):
            take(index)
    for source in sizes:
        # The smallest group of a source of which none was small enough, if that leaves something of each.
        open_to = [
            index
            for index, of in enumerate(members)
            if of[source] and all(taken[other] + number < sizes[other] for other, number in of.items())
        ]
        if not taken[source] and open_to:
            take(min(open_to, key=lambda index: (len(ordered[index]), index)))
    few = whole and _few_texts(clips, apart, sum(wanted.values()))
    good = not few and all(wanted[name] / 2 <= taken[name] <= 2 * wanted[name] for name in sizes)
    keep = [clip for at, clip in enumerate(clips) if at not in apart]
    return keep, [clip for at, clip in enumerate(clips) if at in apart], good


def _evenly(clips: Sequence[Clip], ordered: Sequence[list[int]]) -> list[list[int]]:
    """The groups in an order of which every beginning has the same share of each text."""
    keys = [min(text_key(clips[at].text) for at in group) for group in ordered]
    sizes = Counter(keys)
    starts = {key: int.from_bytes(rank(0, key)[:4]) / 2**32 for key in sizes}
    seen: Counter[str] = Counter()
    positions = []
    for key in keys:
        positions.append((seen[key] + starts[key]) / sizes[key])
        seen[key] += 1
    return [ordered[at] for at in sorted(range(len(ordered)), key=lambda at: positions[at])]


def _few_texts(clips: Sequence[Clip], apart: set[int], wanted: int) -> bool:
    """Whether a split of whole texts would be a word or two that are never trained on."""
    different = len({text_key(clips[at].text) for at in apart})
    repeats = len(clips) / len({text_key(clip.text) for clip in clips})
    return different < min(wanted, 2) or (repeats >= _MANY_REPEATS and different < min(wanted, _FEW_TEXTS))


def rank(seed: int, *parts: str) -> bytes:
    """Where something comes in a shuffled order that is its own: new clips do not reshuffle the old ones."""
    return hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()


class _TextKeys(dict[int, int | None]):
    """For `str.translate`: what tells texts apart stays, what does not goes."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LNM" else None
        return self[code]


_TEXT_KEYS = _TextKeys()


@functools.lru_cache(maxsize=1 << 20)
def text_key(text: str) -> str:
    """A text without case, punctuation and white space.

    Splits ask for that of each clip several times; `load_clips` forgets them all in the end.
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_TEXT_KEYS)
