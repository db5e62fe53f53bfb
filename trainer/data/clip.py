"""One clip: a stretch of speech, what is said in it, and the row that says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.data.audio import AudioSource, Span
from trainer.data.columns import PLAIN, SOURCE_COLUMN, Origin, cell_text
from trainer.data.embedded import EmbeddedAudio


@dataclasses.dataclass(frozen=True, slots=True)
class Clip:
    """One example: a stretch of speech and what is said in it."""

    recording: str
    """The file as the data set names it, of which the clip may be a part."""
    text: str
    """The transcript as the data set has it; empty where there is none."""
    path: str = ""
    """File with the audio, where it is a file of its own."""
    embedded: EmbeddedAudio | None = None
    """Column with the audio inside, where it is not."""
    row: int = 0
    """Row in that column, and in the table."""
    columns: Mapping[str, list[Any]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """All plain columns of the table that the clip is a row of: shared, and no part of what the clip is."""
    origin: Origin = PLAIN
    """Shared as well."""
    span: Span | None = None
    """Where in the file it is; None where it is all of it."""
    channel: int | None = None
    """The one that is decoded, from 1; None is the mean of all."""

    @property
    def name(self) -> str:
        """The file and the part of it, for messages and lists: `talk.mp3 [12.50-31.20]`."""
        if self.span is None:
            return self.recording
        end = "" if self.span.end is None else f"{self.span.end:.2f}"
        return f"{self.recording} [{self.span.start:.2f}-{end}]"

    def cell(self, column: str) -> str:
        """What the clip's row has in a column of the data (speaker, accent ...); empty where it has none.

        The name of its source is in the column `source`, where the data has sources.
        """
        if column == SOURCE_COLUMN and self.origin.source:
            return self.origin.source
        values = self.columns.get(column)
        return "" if values is None else cell_text(values[self.row])

    def source(self) -> AudioSource:
        """Path or content of the audio file and what of it is the clip, as `read_audio` takes it."""
        file = self.path if self.embedded is None else self.embedded.read(self.row)
        return AudioSource(file, self.channel, self.span)

    def identity(self, seen: dict[str, str]) -> str:
        """What changes when the audio does: which files hold it, or are named by its row, and their last change.

        `seen` remembers files that hold many clips; give the same one for all clips.
        """
        part = f"[{self.span.start}-{self.span.end}]{self.span.problem}" if self.span else ""
        part += f"channel {self.channel}" if self.channel else ""
        if self.embedded is None:
            return _file_identity(self.path, seen) + part
        files = "|".join(_file_identity(path, seen) for path in self.embedded.origin)
        # A row with content may name a file too. It counts where it is there: to find out whether there is content
        # would be to read all of it.
        named = self.embedded.file(self.row)
        beside = f"|{_file_identity(named, seen)}" if named else ""
        return f"{files}[{self.row}]{self.embedded.column}/{self.name}{beside}{part}"


def _file_identity(path: str, seen: dict[str, str]) -> str:
    """A file by its path and by what it is itself, behind all links.

    Size and time of modification can be those of the file that it replaced (`cp -p`, `rsync -t`). Nobody can set the
    time of change, and the inode tells files apart that were written at the same time.
    """
    if not path:  # which pathlib would take for the working directory
        return ""
    if path not in seen:
        try:
            status = Path(path).stat()
            times = f"{status.st_mtime_ns}:{status.st_ctime_ns}"
            seen[path] = f"{path}:{status.st_size}:{times}:{status.st_ino}"
        except (OSError, ValueError):  # ValueError: a name that no file can have
            seen[path] = f"{path}:missing"
    return seen[path]
