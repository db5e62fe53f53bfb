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
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.columns import SPEAKER_NAMES
from trainer.data.grouping import audio_key, cells, names_differ, text_key
from trainer.data.sources import SPLIT_ALIASES
from trainer.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SPLITS_FILE = "splits.parquet"
_ROLES = tuple(SPLIT_ALIASES)
UNMARKED = "unmarked"
"""Beside the roles: rows without a mark, or with another name of a split. Those that were kept have their role."""
_TRAIN = 1 << _ROLES.index("train")
"""Its bit."""
_KEYS = ("file", "text", "speaker", "audio")


def encode_splits(splits: Mapping[str, Sequence[Clip]], audio: Mapping[str, Sequence[int]]) -> bytes:
    """The content of a file for these clips by role.

    `audio` has the `audio_key` of each clip's file by role, 0 where it is not known; it is empty where none is.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    clips = [clip for role in _ROLES for clip in splits.get(role, ())]
    sizes = [len(splits.get(role, ())) for role in _ROLES]
    columns = {"role": np.repeat(np.arange(len(_ROLES), dtype=np.uint8), sizes), **_keys(clips)}
    audio_keys = [key for role in _ROLES for key in audio.get(role, ())] if audio else [0] * len(clips)
    columns["audio"] = np.array(audio_keys, np.uint64)
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def read_kept_splits(path: str) -> KeptSplits:
    """The splits that a file keeps.

    Raises:
        DataError: it is not there, or is no such file.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError("no such file")
        table = pq.read_table(file)
        if any(table[name].type != kind or table[name].null_count for name, kind in _schema().items()):
            raise ValueError("its columns are not those of splits")
        role, *keys = (table[name].to_numpy() for name in _schema())
        if role.max(initial=0) >= len(_ROLES):
            raise ValueError("its roles are not those of splits")
        bits = (1 << role).astype(np.uint8)
        sizes = {name: int((role == number).sum()) for number, name in enumerate(_ROLES)}
        return KeptSplits(path, sizes, *(_Known.of(key, bits) for key in (_pairs(*keys[:2]), *keys)))
    except (pa.ArrowException, OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip() or "damaged").splitlines()[0]
        raise DataError(
            f"splits={path!r}: is no file with splits ({reason}); give {SPLITS_FILE} of an experiment, or null"
        ) from error


def _schema() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {"role": pa.uint8(), **dict.fromkeys(_KEYS, pa.uint64())}


@dataclasses.dataclass(frozen=True)
class _Known:
    """Roles by one key."""

    keys: np.ndarray
    """uint64, ascending, each once; never 0."""
    bits: np.ndarray
    """uint8: the roles in which it is, one bit each."""

    @classmethod
    def of(cls, keys: np.ndarray, bits: np.ndarray) -> _Known:
        import numpy as np

        known, where = np.unique(keys, return_inverse=True)
        together = np.zeros(len(known), np.uint8)
        np.bitwise_or.at(together, where, bits)
        return cls(known[known != 0], together[known != 0])

    def roles(self, keys: np.ndarray) -> np.ndarray:
        """uint8: the roles of some keys, 0 for those that are not known."""
        import numpy as np

        if not len(self.keys):
            return np.zeros(len(keys), np.uint8)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.bits[at], 0).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class KeptSplits:
    """Roles of clips by what tells them apart."""

    path: str
    sizes: Mapping[str, int]
    """Clips of each role."""
    pairs: _Known
    """By file and text."""
    files: _Known
    texts: _Known
    speakers: _Known
    audio: _Known

    def trained_on(self, clips: Sequence[Clip]) -> list[bool]:
        """Which clips were trained on, by file and text; of those that are in two splits, only the audio tells."""
        keys = _keys(clips)
        return list((self.pairs.roles(_pairs(keys["file"], keys["text"])) == _TRAIN).tolist())

    def has_audio(self, role: str, audio: Sequence[int]) -> list[bool]:
        """Which audio was in `train`, `validation` or `test`, by its key, whatever its name and text are now."""
        import numpy as np

        bit = 1 << _ROLES.index(role)
        return list((self.audio.roles(np.array(audio, np.uint64)) & bit != 0).tolist())

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
        pairs = {role: self.pairs.roles(_pairs(key["file"], key["text"])) for role, key in keys.items()}
        there = {file for role, key in keys.items() for file in key["file"][pairs[role] != 0].tolist()}
        for role, clips in splits.items():
            known = [self.files, self.texts, self.speakers]
            bits = [one.roles(keys[role][name]) for one, name in zip(known, _KEYS, strict=False)]
            columns = (keys[role]["file"], pairs[role], *bits)
            for clip, key, same, *others in zip(clips, *(column.tolist() for column in columns), strict=True):
                # Where no row of the file has the text that it had, its text was changed.
                if had := same or (others[0] if key not in there else 0):
                    chosen = _one(had, "train" if role == UNMARKED else role)
                    counts[chosen] += 1
                    done[chosen].append(clip)
                elif role == UNMARKED:
                    unmarked += 1
                elif why := _against(role, others):
                    out.append((role, clip, why))
                else:
                    done["train"].append(clip)
        if not done["validation"]:
            raise DataError(
                f"data={config.data!r}: has none of the {self.sizes['validation']:,} validation clips that "
                f"splits={self.path!r} names; bring the data back, or set splits=null to make new splits"
            )
        notes = self._notes(counts, len(done["train"]) - counts["train"], len(out))
        if unmarked:
            notes.append(f"{unmarked:,} new clips without a split, or of a second name of one, are not used")
        return {role: clips for role, clips in done.items() if clips or role == "train"}, out, notes

    def _notes(self, found: Counter[str], new: int, left_out: int) -> list[str]:
        sizes = ", ".join(f"{size:,} {role}" for role, size in self.sizes.items() if size)
        parts = [f"splits as they were kept ({sizes})"]
        gone = sum(max(0, size - found[role]) for role, size in self.sizes.items())
        parts += [f"{gone:,} of these clips are gone from the data"] if gone else []
        parts += [f"{new:,} new clips count as training clips"] if new else []
        parts += [f"{left_out:,} new clips are left out"] if left_out else []
        return ["; ".join(parts)]


def _against(role: str, others: Sequence[int]) -> str:
    """Why a new clip is not to be trained on, by the roles of its file, text and speaker; empty where it may be."""
    if role != "train":
        return f"a new clip of the data's {role} split"
    for what, roles in zip(_KEYS, others, strict=False):
        if roles and not roles & _TRAIN:
            return f"a new clip whose {what} is held out from training"
    return ""


def _one(roles: int, given: str) -> str:
    """The role of a clip that had several: as the data has it, else training, which nothing is judged by."""
    if roles & (1 << _ROLES.index(given)):
        return given
    return next(role for number, role in enumerate(_ROLES) if roles & (1 << number))


def _keys(clips: Sequence[Clip]) -> dict[str, np.ndarray]:
    """uint64 hashes of each clip's file, text and speaker; 0 where that is not known."""
    import numpy as np

    differ: dict[int, bool] = {}
    return {
        "file": np.fromiter((_file_key(clip, differ) for clip in clips), np.uint64),
        "text": _hashes(text_key(clip.text) for clip in clips),
        "speaker": _hashes(cells(clips, SPEAKER_NAMES)),
    }


def _file_key(clip: Clip, differ: dict[int, bool]) -> int:
    """Of its file as the data names it; of its content where the names inside a table tell nothing.

    `tell` remembers of which columns they do; give the same one for all clips.
    """
    if clip.embedded is not None:
        if (column := id(clip.embedded)) not in differ:
            differ[column] = names_differ(clip.embedded.names)
        if not differ[column] or not clip.embedded.names[clip.row]:
            return audio_key(clip.source().file)
    return _hash(posixpath.normpath(clip.recording.replace("\\", "/")))


def _pairs(files: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """uint64: one key of two."""
    import numpy as np

    pairs: np.ndarray = files * np.uint64(0x9E3779B97F4A7C15) ^ texts  # wraps around
    return pairs


def _hashes(values: Iterable[str]) -> np.ndarray:
    import numpy as np

    return np.fromiter((_hash(value) if value else 0 for value in values), np.uint64)


def _hash(value: str) -> int:
    return int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest())
