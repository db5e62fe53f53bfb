"""The log of an experiment in an object store, which cannot append: segments that are written whole.

The driver appends to `events.jsonl` in its working copy. In the store the same lines are in `events/`, in segments
`<owner>-<number>.jsonl`: each session writes its own, the last one anew until it is large enough. A reader joins
them by the number of each event. What a machine still wrote after another one had taken over is void.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import re
import threading
from pathlib import Path

from tune.experiments.events import LineError, SessionStarted, decode
from tune.experiments.folder import EVENTS_FOLDER
from tune.experiments.object_stores.object_store import ObjectStore
from tune.util.errors import ExperimentError
from tune.util.files import write_whole

SEGMENT_BYTES = 1 << 20
_READERS = 8


class SegmentUploader:
    """Brings what one session appends to the local log to the store, in segments of its own.

    Several threads may call it. It does not ask for the lease: publish only while that is held.
    """

    def __init__(
        self,
        store: ObjectStore,
        name: str,
        owner: str,
        path: Path,
        start: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Contacts nobody.

        Args:
            store: where experiments are kept.
            name: the experiment.
            owner: random name of this session, the one in its `SessionStarted`.
            path: the local `events.jsonl`.
            start: offset in bytes of the first line that is not in the store, as `download` returned it. Lines
                before the session's own, which an earlier session of this machine could not bring up, go with it.
            segment_bytes: size from which on a segment stays as it is.
        """
        self._store, self._owner, self._path = store, owner, path
        self._folder = f"{name}/{EVENTS_FOLDER}"
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._number = 1
        self._offset = start
        """Where the segment that still grows begins in the local file."""
        self._published = start
        """Up to where the local file is in the store."""

    def publish(self) -> None:
        """Bring all complete lines that are not in the store there; they are when this returns.

        A reader takes a session for begun, and its segments for something, once its `SessionStarted` is among them.

        Raises:
            StorageError: the store cannot be written now; the next call brings what is missing.
            OSError: the local file cannot be read.
        """
        with self._lock:
            if self._path.stat().st_size <= self._published:
                return
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
            content = content[: content.rfind(b"\n") + 1]
            while self._offset + len(content) > self._published:
                end = content.find(b"\n", self._segment_bytes - 1) + 1 or len(content)
                segment, content = content[:end], content[end:]
                self._store.write(f"{self._folder}/{self._owner}-{self._number:06d}.jsonl", segment)
                self._published = self._offset + end
                if end >= self._segment_bytes:
                    self._offset += end
                    self._number += 1


def read_segments(store: ObjectStore, name: str) -> bytes:
    """The whole log of an experiment; empty where there is none.

    Raises:
        ExperimentError: a line is damaged, an event is missing, or two machines wrote the same session.
        StorageError: the store cannot be read.
    """
    folder = f"{name}/{EVENTS_FOLDER}"
    found = [match for file in store.files(folder) if (match := re.fullmatch(r"(.+)-(\d+)\.jsonl", file))]
    found.sort(key=lambda match: (match[1], int(match[2])))
    with concurrent.futures.ThreadPoolExecutor(_READERS) as pool:
        contents = list(pool.map(lambda match: store.read(f"{folder}/{match[0]}"), found))
    owners: dict[str, _Written] = {}
    for index, (match, content) in enumerate(zip(found, contents, strict=True)):
        last = index + 1 == len(found) or found[index + 1][1] != match[1]
        written = owners.setdefault(match[1], _Written(match[1]))
        written.take(content, last, f"{store.address}/{folder}/{match[0]}")
    return _join([written for written in owners.values() if written.lines], f"{store.address}/{folder}")


def download(store: ObjectStore, name: str, path: Path) -> int:
    """Make the local log hold what the store has; more of the same that could not be brought up stays in it.

    A local log that goes another way than the store's is replaced: another machine has taken over since.

    Returns:
        The offset in bytes from which on the local log is not in the store, for `SegmentUploader`.

    Raises:
        ExperimentError: the log in the store is damaged.
        StorageError: the store cannot be read.
        OSError: the local file cannot be written.
    """
    content = read_segments(store, name)
    if content and not (path.exists() and path.read_bytes().startswith(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content, sync=True)
    return len(content)


@dataclasses.dataclass
class _Written:
    """What one session has in the store."""

    owner: str
    session: int | None = None
    """None where the session's beginning is not there: nothing it did was promised to anybody."""
    lines: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def take(self, content: bytes, last: bool, where: str) -> None:
        """Add a segment, the last one without what follows its last end of line."""
        lines = content.split(b"\n")
        torn = lines.pop()
        if torn and not last:
            raise ExperimentError(
                f"{where}: ends in mid-line, and a segment follows; bring the whole one back"
            )
        for index, line in enumerate(lines, start=1):
            try:
                entry = decode(line)
            except LineError as error:
                raise ExperimentError(
                    f"{where}: line {index} is damaged, {error}; bring the whole one back"
                ) from error
            event = entry.event
            if isinstance(event, SessionStarted) and event.owner == self.owner and self.session is None:
                self.session = event.session
            if self.lines.setdefault(entry.number, line) != line:
                raise ExperimentError(
                    f"{where}: line {index} is another event {entry.number} than an earlier line has"
                )


def _join(written: list[_Written], where: str) -> bytes:
    """The lines of all sessions by number, each up to where a later one begins."""
    begun = {each.session: each for each in written if each.session is not None}
    for each in written:
        if each.session is not None and begun[each.session] is not each:
            raise ExperimentError(
                f"{where}: {each.owner} and {begun[each.session].owner} both wrote session {each.session}; two "
                "machines ran the experiment at a time: remove the segments of one of them"
            )
    lines: dict[int, bytes] = {}
    limit: float = float("inf")
    for session in sorted(begun, reverse=True):
        lines |= {number: line for number, line in begun[session].lines.items() if number < limit}
        limit = min(limit, *begun[session].lines)
    for expected, number in enumerate(sorted(lines), start=1):
        if number != expected:
            raise ExperimentError(
                f"{where}: event {expected} is missing, events up to {max(lines)} are there; bring the segment that "
                "had it back, or resume on the machine that wrote it"
            )
    return b"".join(lines[number] + b"\n" for number in sorted(lines))
