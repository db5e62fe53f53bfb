"""Other formats of an exported model: each converted into a folder below it, and checked there in its own runtime."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainer.conversion.formats import FORMATS, Decoding, Target, convert, read_decoding
from trainer.errors import DataError, UserError
from trainer.files import whole_folder
from tune.util.console import say
from tune.util.errors import first_line

if TYPE_CHECKING:
    from rich.status import Status

    from trainer.config import TrainConfig
    from trainer.conversion.check import Checker, FormatCheck

_FAILURES = (UserError, OSError, RuntimeError, ValueError)
"""What converters, runtimes and audio readers raise; none of it costs the finished model or the other formats."""
_README = Path(__file__).with_name("format_readme.md.jinja")


@dataclasses.dataclass
class FormatsOutcome:
    made: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Quantization and check, if there was one, by format, of those whose folders are there."""
    checks: list[FormatCheck] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    """A line for each format that could not be made, or drifted; its folder is not there."""


def add_formats(
    folder: Path, targets: Sequence[Target], config: TrainConfig | None, console: Console
) -> FormatsOutcome:
    """Convert the Hugging Face model of a folder into folders below it, named for their formats.

    Without `config` nothing is checked. Whatever goes wrong is a problem in what is returned; the model and the
    other formats stay.
    """
    outcome = FormatsOutcome()
    if not targets:
        return outcome
    with console.status("reading clips ...") as status:
        try:
            checker = _checker(folder, config, console, status) if config is not None else None
        except _FAILURES as error:
            names = ", ".join(target.name for target in targets)
            outcome.problems.append(
                f"{names}: not written, because they could not be checked: {_cause(error)}"
            )
            return outcome
        for target in targets:
            say(console, f"converting to {target.name} ({target.quantization})")
            try:
                _add(folder, target, checker, outcome)
            except _FAILURES as error:
                outcome.problems.append(f"{target.name}: could not be made: {_cause(error)}")
    return outcome


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"


def _checker(folder: Path, config: TrainConfig, console: Console, status: Status) -> Checker | None:
    """What formats are checked with; None, and a warning, where the data has gone."""
    from trainer.conversion.check import Checker, read_clips

    try:
        clips = read_clips(config, read_decoding(folder).window_seconds)
    except DataError as error:
        say(console, f"warning: converted models are not checked, because their data cannot be read: {error}")
        return None

    def progress(runtime: str, done: int, total: int) -> None:
        status.update(f"{runtime}: {done}/{total} clips")

    return Checker(config, folder, clips, progress)


def _add(folder: Path, target: Target, checker: Checker | None, outcome: FormatsOutcome) -> None:
    """Make one format; it takes its name only when it is checked."""
    with whole_folder(folder / target.name) as partial:
        convert(target, folder, partial)
        check = checker.check(target, partial) if checker else None
        if check is not None:
            outcome.checks.append(check)
            if check.problem:
                outcome.problems.append(check.problem)
                shutil.rmtree(partial)
                return
        (partial / "README.md").write_text(format_readme(target, read_decoding(folder), check), "utf-8")
    outcome.made[target.name] = {"quantization": target.quantization}
    if check is not None:
        outcome.made[target.name]["check"] = check.to_dict()


def format_readme(target: Target, decoding: Decoding, check: FormatCheck | None) -> str:
    """The README of a format's folder, Markdown; without `check` it says that nothing was checked."""
    from jinja2 import Template

    template = Template(_README.read_text(encoding="utf-8"), keep_trailing_newline=True)
    runtime = FORMATS[target.name].runtime
    return str(template.render(target=target, runtime=runtime, decoding=decoding, check=check))


def print_formats(outcome: FormatsOutcome, console: Console, where: Path) -> None:
    """The checks, and where the formats lie, below `where`."""
    for check in outcome.checks:
        say(
            console,
            f"{check.format} ({check.quantization}): WER {check.rate:.2f} % in {FORMATS[check.format].runtime}, "
            f"{check.hf_rate:.2f} % in transformers; {check.same}/{check.clips} the same; drift {check.drift:+.2f}, "
            f"tolerance {check.tolerance:.2f}",
        )
    for name in outcome.made:
        say(console, f"{FORMATS[name].runtime}: {where}/{name}, its README.md says how to use it")
