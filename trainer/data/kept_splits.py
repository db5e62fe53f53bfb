"""Splits that were made once, in a file: which clips were trained on and which were not, whatever becomes of the data.

A clip is told by its file's name, relative to the table so that data may move, and its text. Of both, and of its
speaker, the file has but 64-bit hashes.
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
from trainer.data.grouping import ClipT, SplitClip, speaker_column, text_key
from trainer.data.sources import SPLIT_ALIASES
from trainer.errors import DataError

if TYPE_CHECKING:
    import numpy as np

SPLITS_FILE = "splits.parquet"
HELD_OUT = "held_out"
"""Reason for which a clip that is new is not used."""
_ROLES = tuple(SPLIT_ALIASES)
_TRAIN = 1 << _ROLES.index("train")
"""Its bit."""
_KEYS = ("file", "text", "speaker")


def encode_splits(splits: Mapping[str, Sequence[SplitClip]]) -> bytes:
    """The content of a file for these clips by role, as `ClipTable.whole` has them."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    clips = [clip for role in _ROLES for clip in splits.get(role, ())]
    sizes = [len(splits.get(role, ())) for role in _ROLES]
    columns = {"role": np.repeat(np.arange(len(_ROLES), dtype=np.uint8), sizes), **_keys(clips)}
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

    place = Path(path).expanduser()
    try:
        table = pq.read_table(place)
        role, *keys = (table[name].to_numpy() for name in ("role", *_KEYS))
        bits = (1 << role).astype(np.uint8)
        sizes = {name: int((role == number).sum()) for number, name in enumerate(_ROLES)}
        return KeptSplits(path, sizes, *(_Known.of(key, bits) for key in (_pairs(*keys[:2]), *keys)))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        reason = "no such file" if not place.exists() else (str(error).strip() or "damaged").splitlines()[0]
        raise DataError(
            f"splits={path!r}: is no file with splits ({reason}); give {SPLITS_FILE} of an experiment, or null"
        ) from error


@dataclasses.dataclass(frozen=True)
class _Known:
    """Roles by one key."""

    keys: np.ndarray
    """uint64, ascending, each once; never 0."""
    bits: np.ndarray
    """uint8: the roles in which it is, one bit each."""

    @classmethod
    def of(cls, keys: np.ndarray, bits: np.ndarray) -> _Known:
        """Put together what a file says of each key."""
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

    def trained_on(self, clips: Sequence[SplitClip]) -> list[bool]:
        """Which clips were trained on, by file and text, also where they were in another split as well."""
        keys = _keys(clips)
        roles = self.pairs.roles(_pairs(keys["file"], keys["text"]))
        return [bool(bits & _TRAIN) for bits in roles.tolist()]

    def assign(
        self, config: TrainConfig, splits: Mapping[str, Sequence[ClipT]]
    ) -> tuple[dict[str, list[ClipT]], list[tuple[str, ClipT, str]], list[str]]:
        """The clips of a data set in the roles that they had; new ones are trained on where nothing speaks against it.

        Args:
            config: names the data in errors.
            splits: clips by the role that the data gives them.

        Returns:
            Clips by role in their order; those left out with their role in the data and the reason; and notes.

        Raises:
            DataError: none of the validation clips is there.
        """
        done: dict[str, list[ClipT]] = {role: [] for role in _ROLES}
        out: list[tuple[str, ClipT, str]] = []
        found: Counter[str] = Counter()
        for role, clips in splits.items():
            keys = _keys(clips)
            roles = self._roles(keys)
            texts, speakers = self.texts.roles(keys["text"]), self.speakers.roles(keys["speaker"])
            bits = (one.tolist() for one in (roles, texts, speakers))
            for clip, had, text, speaker in zip(clips, *bits, strict=True):
                if had:
                    chosen = _one(had, role)
                    found[chosen] += 1
                    done[chosen].append(clip)
                elif why := _against(role, text, speaker):
                    out.append((role, clip, why))
                else:
                    done["train"].append(clip)
        if not done["validation"]:
            raise DataError(
                f"data={config.data!r}: has none of the {self.sizes['validation']:,} validation clips that "
                f"splits={self.path!r} names; bring the data back, or set splits=null to make new splits"
            )
        notes = self._notes(found, len(done["train"]) - found["train"], len(out))
        return {role: clips for role, clips in done.items() if clips or role == "train"}, out, notes

    def _roles(self, keys: Mapping[str, np.ndarray]) -> np.ndarray:
        """Roles of clips; of those whose texts were changed, those of their files; 0 of new ones."""
        import numpy as np

        pairs = self.pairs.roles(_pairs(keys["file"], keys["text"]))
        by_one = np.where(keys["file"] != 0, self.files.roles(keys["file"]), self.texts.roles(keys["text"]))
        return np.where(pairs != 0, pairs, by_one)

    def _notes(self, found: Counter[str], new: int, left_out: int) -> list[str]:
        sizes = ", ".join(f"{size:,} {role}" for role, size in self.sizes.items() if size)
        told = [f"splits as they were kept ({sizes})"]
        gone = sum(max(0, size - found[role]) for role, size in self.sizes.items())
        told += [f"{gone:,} of these clips are gone from the data"] if gone else []
        told += [f"{new:,} new clips count as training clips"] if new else []
        told += [f"{left_out:,} new clips are left out"] if left_out else []
        return ["; ".join(told)]


def _against(role: str, text: int, speaker: int) -> str:
    """Why a new clip is not to be trained on, by the roles of its text and speaker; empty where it may be."""
    if role != "train":
        return f"a new clip of the data's {role} split"
    for what, roles in (("text", text), ("speaker", speaker)):
        if roles and not roles & _TRAIN:
            return f"a new clip whose {what} is held out from training"
    return ""


def _one(roles: int, given: str) -> str:
    """The role of a clip that had several: as the data has it, else training, which nothing is judged by."""
    if roles & (1 << _ROLES.index(given)):
        return given
    return next(role for number, role in enumerate(_ROLES) if roles & (1 << number))


def _keys(clips: Sequence[SplitClip]) -> dict[str, np.ndarray]:
    """uint64 hashes of each clip's file, text and speaker; 0 where that is not known."""
    column = speaker_column(clips)
    return {
        "file": _hashes(_place(clip) for clip in clips),
        "text": _hashes(text_key(clip.text) for clip in clips),
        "speaker": _hashes(clip.cell(column) if column else "" for clip in clips),
    }


def _place(clip: SplitClip) -> str:
    """Its file as the data names it; empty where the name is made of its row."""
    if clip.embedded is not None and not clip.embedded.names[clip.row]:
        return ""
    return posixpath.normpath(clip.name.replace("\\", "/"))


def _pairs(files: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """uint64: one key of two."""
    import numpy as np

    pairs: np.ndarray = files * np.uint64(0x9E3779B97F4A7C15) ^ texts  # wraps around
    return pairs


def _hashes(values: Iterable[str]) -> np.ndarray:
    import numpy as np

    made = (
        int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest())
        if value
        else 0
        for value in values
    )
    return np.fromiter(made, np.uint64)
