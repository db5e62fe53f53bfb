"""Folders that are whole or do not count: a manifest of all their files, written last.

A killed process, a full disk or a broken copy leaves folders that look like checkpoints, or like features. So
`manifest.json` is under its name only when a folder is complete, and lists every other file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

from trainer.files import flush, write_whole

MANIFEST = "manifest.json"
_MIB = 2**20
WHOLE_BYTES = 64 * _MIB
"""Files below are read whole for their check sum, larger ones only at both ends."""


def files_of(folder: Path, whole_bytes: int = WHOLE_BYTES) -> dict[str, dict[str, int]]:
    """What the manifest says of the files that a folder holds: their `bytes`, and `crc32`.

    The CRC-32 of a file of `whole_bytes` and more is that of its first and its last MiB.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return {
        name: {"bytes": (folder / name).stat().st_size, "crc32": _crc32(folder / name, whole_bytes)}
        for name in names
        if name not in (MANIFEST, f".{MANIFEST}.partial")
    }


def manifest_of(files: Mapping[str, Mapping[str, int]]) -> str:
    """The manifest of a complete folder with these files."""
    return json.dumps({"files": files}, indent=2) + "\n"


def seal(folder: Path, whole_bytes: int = WHOLE_BYTES) -> None:
    """Write the manifest of a complete folder; a new one if there is one.

    All files are on the disk before the manifest takes its name.
    """
    files = files_of(folder, whole_bytes)
    for path in (*folder.rglob("*"), folder):
        if path.is_file() or path.is_dir():
            flush(path)
    write_whole(folder / MANIFEST, manifest_of(files), sync=True)
    flush(folder)


def problem_of(folder: Path, whole_bytes: int = WHOLE_BYTES) -> str | None:
    """What is wrong with a folder, in one line; `None` where all that its manifest lists is there.

    Files that are not in the manifest do not count.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        listed = [(str(name), int(file["bytes"]), int(file["crc32"])) for name, file in files.items()]
    except FileNotFoundError:
        return f"{MANIFEST} is missing" if folder.is_dir() else "the folder is missing"
    except OSError as error:
        return f"{MANIFEST} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    problems = (_problem_of_file(folder, *file, whole_bytes) for file in listed)
    return next((problem for problem in problems if problem is not None), None)


def _problem_of_file(folder: Path, name: str, size: int, crc32: int, whole_bytes: int) -> str | None:
    path = folder / name
    try:
        there = path.stat().st_size
        if there != size:
            return f"{name} has {there:,} of {size:,} bytes"
        return (
            None if _crc32(path, whole_bytes) == crc32 else f"{name} is damaged: its checksum does not match"
        )
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"


def _crc32(path: Path, whole_bytes: int) -> int:
    size, value = path.stat().st_size, 0
    with path.open("rb") as file:
        if size >= whole_bytes:
            value = zlib.crc32(file.read(_MIB))
            file.seek(size - _MIB)
        while piece := file.read(_MIB):
            value = zlib.crc32(piece, value)
    return value
