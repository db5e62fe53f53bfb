"""Splits that were made once, in a file: which clips were trained on and which were not, whatever becomes of the data.

A clip is told by its file's name, relative to the table so that data may move, and its text; audio inside a table that
has no names of its own by its content. Of these, of its speaker, and of the audio of clips that features were made of,
the file has but 64-bit hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.columns import SPEAKER_NAMES
from trainer.data.grouping import audio_key, cells, names_differ, text_key
from trainer.data.sources import SPLIT_ALIASES
from trainer.errors import DataError, one_line

_ROLES = tuple(SPLIT_ALIASES)
UNMARKED = "unmarked"
"""Beside the roles: rows without a mark, or with another name of a split. Those that were kept have their role."""
_TRAIN = 1 << _ROLES.index("train")
_KEYS = ("file", "text", "speaker", "audio")
_SCHEMA = {"role": pa.uint8(), **dict.fromkeys(_KEYS, pa.uint64())}


def encode_splits(splits: Mapping[str, Sequence[Clip]], audio: Mapping[str, Sequence[int]]) -> bytes:
    """The content of a file for these clips by role.

    `audio` has the `audio_key` of each clip's file by role, 0 where it is not known; it is empty where none is.
    """
    sizes = [len(splits.get(role, ())) for role in _ROLES]
    columns = _keys([clip for role in _ROLES for clip in splits.get(role, ())])
    columns["role"] = np.repeat(np.arange(len(_ROLES), dtype=np.uint8), sizes)
    audio_keys = [key for role in _ROLES for key in audio.get(role, ())] if audio else [0] * sum(sizes)
    columns["audio"] = np.array(audio_keys, np.uint64)
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: columns[name] for name in _SCHEMA}), buffer, compression="zstd")
    return buffer.getvalue()


def read_kept_splits(path: str) -> KeptSplits:
    """The splits that a file keeps.

    Raises:
        DataError: it is not there, or is no such file.
    """
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError("no such file")
        table = pq.read_table(file)
        if any(table[name].type != kind or table[name].null_count for name, kind in _SCHEMA.items()):
            raise ValueError("its columns are not those of splits")
        columns = {name: table[name].to_numpy() for name in _SCHEMA}
        if columns["role"].max(initial=0) >= len(_ROLES):
            raise ValueError("its roles are not those of splits")
    except (pa.ArrowException, OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"splits={path!r}: is not a file with splits ({one_line(error)}); give splits.parquet of an "
            "experiment, or null"
        ) from error
    return KeptSplits(path, _with_pairs(columns))


@dataclasses.dataclass(frozen=True)
class KeptSplits:
    """Roles of clips by what tells them apart."""

    path: str
    columns: Mapping[str, np.ndarray]
    """The number of each clip's role, and its keys as `_keys` gives them."""

    def roles(self, name: str, keys: np.ndarray) -> np.ndarray:
        """uint8: the roles in which some keys of a kind are, one bit each; 0 for those that are not known."""
        bits = np.zeros(len(keys), np.uint8)
        for number in range(len(_ROLES)):
            known = self.columns[name][self.columns["role"] == number]
            bits |= np.isin(keys, known).astype(np.uint8) << number
        return np.where(keys == 0, np.uint8(0), bits)

    def trained_on(self, clips: Sequence[Clip]) -> np.ndarray:
        """bool: which were trained on, by file and text; of clips in two splits only the audio says it."""
        trained_on: np.ndarray = self.roles("pair", _keys(clips)["pair"]) == _TRAIN
        return trained_on

    def has_audio(self, role: str, audio: np.ndarray) -> np.ndarray:
        """bool: which audio was in `train`, `validation` or `test`, by its key, whatever its name and text are now."""
        has_audio: np.ndarray = self.roles("audio", audio) & (1 << _ROLES.index(role)) != 0
        return has_audio

    def assign(
        self, config: TrainConfig, splits: Mapping[str, Sequence[Clip]]
    ) -> tuple[dict[str, list[Clip]], list[tuple[str, Clip, str]], list[str]]:
        """The clips of a data set in the roles that they had; new ones are trained on where nothing speaks against it.

        Returns:
            Clips by role in their order; those left out with their role in the data and the reason; and notes.

        Raises:
            DataError: none of the validation clips is there.
        """
        done: dict[str, list[Clip]] = {role: [] for role in _ROLES}
        out: list[tuple[str, Clip, str]] = []
        counts: Counter[str] = Counter()
        unmarked = 0
        keys = {role: _keys(clips) for role, clips in splits.items()}
        kinds = ("pair", *_KEYS[:3])
        bits = {role: [self.roles(kind, mine[kind]) for kind in kinds] for role, mine in keys.items()}
        there = {file for role, mine in keys.items() for file in mine["file"][bits[role][0] != 0].tolist()}
        for role, clips in splits.items():
            columns = (keys[role]["file"], *bits[role])
            for clip, file, same, *others in zip(clips, *(each.tolist() for each in columns), strict=True):
                # Where no row of the file has the text that it had, its text was changed.
                if had := same or (others[0] if file not in there else 0):
                    roles = [name for number, name in enumerate(_ROLES) if had & (1 << number)]
                    # Of several that of the data, else training, which nothing is judged by.
                    chosen = role if role in roles else roles[0]
                    counts[chosen] += 1
                    done[chosen].append(clip)
                elif role == UNMARKED:
                    unmarked += 1
                elif why := _against(role, others):
                    out.append((role, clip, why))
                else:
                    done["train"].append(clip)
        numbers = self.columns["role"].tolist()
        sizes = {role: numbers.count(number) for number, role in enumerate(_ROLES)}
        if not done["validation"]:
            raise DataError(
                f"data={config.data!r}: has none of the {sizes['validation']:,} validation clips that "
                f"splits={self.path!r} names; restore the data, or set splits=null to make new splits"
            )
        kept = ", ".join(f"{size:,} {role}" for role, size in sizes.items() if size)
        parts = [f"splits as they were kept ({kept})"]
        gone = sum(max(0, size - counts[role]) for role, size in sizes.items())
        parts += [f"{gone:,} of these clips are gone from the data"] if gone else []
        new = len(done["train"]) - counts["train"]
        parts += [f"{new:,} new clips count as training clips"] if new else []
        parts += [f"{len(out):,} new clips are left out"] if out else []
        notes = ["; ".join(parts)]
        if unmarked:
            notes.append(
                f"{unmarked:,} new clips without a split, or with a second name for the same split, are not used"
            )
        return {role: clips for role, clips in done.items() if clips or role == "train"}, out, notes


def _against(role: str, others: Sequence[int]) -> str:
    """Why a new clip is not to be trained on, by the roles of its file, text and speaker; empty where it may be."""
    if role != "train":
        return f"a new clip of the data's {role} split"
    for what, roles in zip(_KEYS, others, strict=False):
        if roles and not roles & _TRAIN:
            return f"a new clip whose {what} is held out from training"
    return ""


def _keys(clips: Sequence[Clip]) -> dict[str, np.ndarray]:
    """uint64 hashes of each clip's file, text and speaker, 0 where that is not known, and one of file and text."""
    differ: dict[int, bool] = {}
    files = np.fromiter((_file_key(clip, differ) for clip in clips), np.uint64)
    texts, speakers = _hashes(text_key(clip.text) for clip in clips), _hashes(cells(clips, SPEAKER_NAMES))
    return _with_pairs({"file": files, "text": texts, "speaker": speakers})


def _with_pairs(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    pairs = columns["file"] * np.uint64(0x9E3779B97F4A7C15) ^ columns["text"]  # wraps around
    return {**columns, "pair": pairs}


def _file_key(clip: Clip, differ: dict[int, bool]) -> int:
    """Of its file as the data names it; of its content where the names inside a table tell nothing.

    `differ` remembers of which columns they do; give the same one for all clips.
    """
    if clip.embedded is not None:
        if (column := id(clip.embedded)) not in differ:
            differ[column] = names_differ(clip.embedded.names)
        if not differ[column] or not clip.embedded.names[clip.row]:
            return audio_key(clip.source().file)
    return _hash(posixpath.normpath(clip.recording.replace("\\", "/")))


def _hashes(values: Iterable[str]) -> np.ndarray:
    return np.fromiter((_hash(value) if value else 0 for value in values), np.uint64)


def _hash(value: str) -> int:
    return int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest())
