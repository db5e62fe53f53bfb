"""What waits for the MLflow store: records, in the order of their making, each run with its own queue."""

from __future__ import annotations

import getpass
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

Kind = Literal["create", "params", "metrics", "tags", "status", "upload"]

PER_CALL: dict[str, int] = {"metrics": 1000, "params": 100, "tags": 100}
"""What one `log_batch` may hold of each kind; the store refuses more."""
ALL_PER_CALL = 1000
"""What one `log_batch` may hold of all kinds together."""
Metric = tuple[str, float, int, int]
"""Key, value, timestamp in ms, step."""
_MAX_PARAM_LENGTH = 6000
_MAX_TAG_LENGTH = 8000


@dataclass(frozen=True)
class Record:
    """One thing to write. Frozen, so that the queue and its journal on disk cannot differ."""

    number: int
    """Rises with each record of an experiment."""
    kind: Kind
    content: Any
    """Of JSON. By `kind`: create: name, tags and start_ms; params and tags: key and value pairs; metrics:
    key, value, timestamp in ms and step each; status: RUNNING, or a final word, and the time in ms or None;
    upload: a path, relative to the journal's folder where it lies below it; or that and the folder of the run's
    artifacts where it goes."""

    @property
    def size(self) -> int:
        """How many params, points or tags it holds; 1 for any other kind."""
        return len(self.content) if self.kind in PER_CALL else 1


@dataclass(eq=False)
class Run:
    """One MLflow run and what the store has not taken of it."""

    key: str | None
    """The trial's id; None for the run of the search itself."""
    run_id: str | None = None
    """None until the store has created the run."""
    waiting: deque[Record] = field(default_factory=deque)
    """The writer takes from the left, all others only append."""
    closed: bool = False
    """Whether its end is known."""
    gone: bool = False
    """Whether the store has no such run, nor ever will: it was deleted, or refused."""
    create_tried: bool = False
    """Whether the store may have it without our knowing: an answer was lost, or an earlier process asked."""
    last_step: int = 0

    @property
    def size(self) -> int:
        """How much waits, counted as `Record.size` does."""
        return sum(record.size for record in self.waiting)

    def next_batch(self, up_to: int) -> list[Record]:
        """The next records that go in one call, none with a number above `up_to`; empty if none waits."""
        batch: list[Record] = []
        room = {**PER_CALL, "all": ALL_PER_CALL}
        for record in self.waiting:
            if record.number > up_to:
                break
            if record.kind not in PER_CALL:
                return batch or [record]
            for limit in (record.kind, "all"):
                room[limit] -= record.size
            if min(room.values()) < 0:
                break
            batch.append(record)
        return batch


def in_parts(kind: Kind, content: Any) -> Iterator[Any]:
    """`content` cut into pieces that one call can hold; nothing where there is nothing to write."""
    if kind not in PER_CALL:
        yield content
        return
    entries: Sequence[Any] = content
    for first in range(0, len(entries), PER_CALL[kind]):
        yield list(islice(entries, first, first + PER_CALL[kind]))


def param_pairs(params: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings as params, written as in YAML: `null`, `true`, numbers that read back exactly (`3e-05`)."""
    words = {None: "null", True: "true", False: "false"}
    return [
        (
            key,
            _clip(
                words[value] if value is None or isinstance(value, bool) else str(value), _MAX_PARAM_LENGTH
            ),
        )
        for key, value in params.items()
    ]


def tag_pairs(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    """Tags as the store takes them."""
    return [(key, _clip(str(value), _MAX_TAG_LENGTH)) for key, value in tags.items()]


def metric_points(metrics: Mapping[str, float], step: int, timestamp: float) -> list[Metric]:
    """Metrics of one moment; `timestamp` in seconds since the epoch."""
    return [(key, float(value), int(timestamp * 1000), int(step)) for key, value in metrics.items()]


def upload_contents(path: Path, folder: Path | None) -> list[str | list[str]]:
    """The contents of `upload` records for a file, or for all files of a folder, which go below its name.

    Args:
        path: what to upload.
        folder: the journal's, to which paths are relative: it may be elsewhere when they are delivered.
    """

    def name(file: Path) -> str:
        if folder is not None and file.is_relative_to(folder):
            return str(file.relative_to(folder))
        return str(file.absolute())

    if not path.is_dir():
        return [name(path)]
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
    return [[name(file), file.parent.relative_to(path.parent).as_posix()] for file in files]


def _clip(text: str, length: int) -> str:
    """`text` shortened to what MLflow stores, with a note that says so."""
    note = f"... ({len(text)} characters)"
    return text if len(text) <= length else text[: length - len(note)] + note


def creation(parent_run_id: str, trial_id: str, name: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """The content of the record that creates the child run of a trial."""
    own = {"mlflow.parentRunId": parent_run_id, "trial_id": trial_id, "status": "running"}
    pairs = tag_pairs({**system_tags(), "role": "trial", **tags, **own})
    return {"name": name, "tags": dict(pairs), "start_ms": now_ms()}


def system_tags() -> dict[str, str]:
    """Who ran what, for MLflow's own columns."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user of a container often has no name
        user = str(os.getuid())
    return {"mlflow.user": user, "mlflow.source.name": "tune-whisper", "mlflow.source.type": "LOCAL"}


def now_ms() -> int:
    """The time as MLflow notes it."""
    return int(time.time() * 1000)
