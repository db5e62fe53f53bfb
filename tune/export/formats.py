"""Other formats of an exported model: each converted into a folder below it, and checked there in its own runtime."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from trainer.config import DataError
from trainer.conversion.formats import Target
from tune.util.console import clock, say
from tune.util.errors import UserError, first_line

if TYPE_CHECKING:
    from rich.status import Status

    from trainer.config import TrainConfig
    from trainer.conversion.check import Checker, FormatCheck

EVALUATION_FILE = "evaluation.json"
"""In an exported folder: error rates before and after, and the other formats with what they were checked by."""


@dataclasses.dataclass
class FormatsOutcome:
    """What became of the formats that were asked for."""

    made: list[Target] = dataclasses.field(default_factory=list)
    """Those whose folders are there."""
    checks: list[FormatCheck] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    """A line for each format that could not be made, or drifted; its folder is not there."""

    def paths(self) -> dict[str, str]:
        """Where each format lies below the model's folder; of whisper.cpp's the file."""
        from trainer.conversion.ggml_format import MODEL_FILE

        return {
            target.name: f"{target.name}/{MODEL_FILE}" if target.name == "ggml" else target.name
            for target in self.made
        }

    def to_dict(self) -> dict[str, Any]:
        """For `evaluation.json`."""
        paths = self.paths()
        return {
            target.name: {
                "path": paths[target.name],
                "quantization": target.quantization,
                "checks": [dataclasses.asdict(found) for found in self.checks if found.format == target.name],
            }
            for target in self.made
        }


def add_formats(
    folder: Path,
    targets: Sequence[Target],
    config: TrainConfig | None,
    *,
    every_clip: bool,
    console: Console,
) -> FormatsOutcome:
    """Convert the model of a folder into folders below it, named for their formats.

    Args:
        folder: a Hugging Face model.
        targets: formats to make; `hf` is the folder itself.
        config: its language, normaliser and data count; None converts without a check.
        every_clip: check on all clips of validation and test, not only on some of validation.
        console: told what is done, and how far it is.

    Returns:
        What became of them: whatever goes wrong is a problem there, and the model and the other formats stay.
    """
    outcome = FormatsOutcome()
    wanted = [target for target in targets if target.name != "hf"]
    if not wanted:
        return outcome
    with console.status("reading clips ...") as status:
        progress = _Progress(console, status)
        # Converters, runtimes and audio readers raise what they like, with no base in common: RuntimeError, OSError,
        # classes of their own. None of it may cost the model, which is finished, or the other formats.
        try:
            checker = _checker(folder, config, every_clip, progress) if config is not None else None
        except Exception as error:  # noqa: BLE001 - told with its cause
            names = ", ".join(target.name for target in wanted)
            outcome.problems.append(f"{names}: not made, for they could not be checked: {_cause(error)}")
            return outcome
        for target in wanted:
            progress.stage(f"converting to {target.name} ({target.quantization})")
            try:
                _add(folder, target, checker, outcome)
            except Exception as error:  # noqa: BLE001 - told with its cause
                outcome.problems.append(f"{target.name}: could not be made: {_cause(error)}")
    return outcome


def _cause(error: Exception) -> str:
    """What went wrong, in one line."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def _add(folder: Path, target: Target, checker: Checker | None, outcome: FormatsOutcome) -> None:
    """Make one format; it takes its name only when it is checked."""
    from trainer.conversion.convert import convert
    from trainer.conversion.decoding import read_decoding
    from trainer.conversion.usage import format_readme

    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        convert(target, folder, partial)
        checks = checker.check(target, partial) if checker else []
        outcome.checks += checks
        drifted = [found for found in checks if found.drifted]
        if drifted:
            outcome.problems += [found.problem() for found in drifted]
            return
        readme = format_readme(target, read_decoding(folder), checks)
        (partial / "README.md").write_text(readme, encoding="utf-8")
        partial.rename(folder / target.name)
        outcome.made.append(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _checker(folder: Path, config: TrainConfig, every_clip: bool, progress: _Progress) -> Checker | None:
    """What formats are checked with; None, and a warning, where the data has gone."""
    from trainer.conversion.check import QUICK_CLIPS, Checker
    from trainer.conversion.clips import read_clips
    from trainer.conversion.decoding import read_decoding

    try:
        window = read_decoding(folder).window_seconds
        clips = read_clips(config, window, None if every_clip else QUICK_CLIPS)
    except DataError as error:
        say(
            progress.console,
            f"warning: converted models are not checked, for their data is not there: {error}",
        )
        return None
    count = sum(len(split.audio) for split in clips)
    progress.stage(f"transcribing {count} clips for comparison")
    return Checker(config, folder, clips, progress.heard)


class _Progress:
    """One line that changes on a terminal; a line a stage elsewhere."""

    def __init__(self, console: Console, status: Status) -> None:
        self.console = console
        self._status = status
        self._runtime = ""
        self._begun, self._first = time.monotonic(), 0

    def stage(self, text: str) -> None:
        """Something else is done now."""
        self._status.update(f"{text} ...")
        if not self.console.is_terminal:
            say(self.console, text)

    def heard(self, runtime: str, done: int, total: int) -> None:
        """So many clips of all were transcribed by a runtime."""
        now = time.monotonic()
        if runtime != self._runtime:  # loading is over; from here on it goes at one pace
            self._runtime, self._begun, self._first = runtime, now, done
        left = (now - self._begun) / (done - self._first) * (total - done) if done > self._first else None
        told = f", about {clock(left)} left" if left is not None else ""
        self._status.update(f"{runtime}: {done}/{total} clips{told}")


def print_formats(outcome: FormatsOutcome, console: Console, where: str) -> None:
    """The checks as a table, and where the formats lie.

    Args:
        outcome: what became of them.
        console: where to print.
        where: the model's folder as the user knows it.
    """
    if outcome.checks:
        table = Table(box=None, pad_edge=False, header_style="bold")
        left = ("format", "weights", "runtime", "split")
        for name in (*left, "clips", "WER", "in transformers", "same", "drift", "tolerance", "speed"):
            table.add_column(name, justify="left" if name in left else "right")
        for found in outcome.checks:
            table.add_row(*_cells(found), style="red" if found.drifted else None)
        console.print()
        console.print(table)
    for target in outcome.made:
        say(console, f"{target.format.runtime}: {where}/{target.name}, how to use it is in its README.md")


def _cells(found: FormatCheck) -> list[str]:
    from trainer.conversion.formats import FORMATS

    return [
        found.format,
        found.quantization,
        FORMATS[found.format].runtime,
        found.split,
        str(found.clips),
        f"{found.wer:.2f} %",
        f"{found.hf_wer:.2f} %",
        f"{found.same}/{found.clips}",
        f"{found.drift:+.2f}",
        f"± {found.tolerance:.2f}",
        f"{found.speed:.1f}x",
    ]
