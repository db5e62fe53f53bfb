"""One inspection with its progress, and with what a model hears in every clip where one is named."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from trainer.config import TrainConfig
from tune.util.console import clock, make_console, say

if TYPE_CHECKING:
    from typing_extensions import Self

    from trainer.inspection.inspection import Inspection
    from tune.experiments.models import NamedModel
    from tune.experiments.storage import Storage

_LINE_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""


def run_inspection(
    config: TrainConfig,
    *,
    with_model: bool,
    all_languages: bool,
    sample: int | None,
    check_with: str | None,
    storage: Storage,
) -> Inspection:
    """Look at the data, with progress on standard error.

    Args:
        config: the settings of the data as given.
        with_model: whether `config.model` says what is too long.
        all_languages: take the clips of all languages of the data.
        sample: listen to so many clips only.
        check_with: a model that transcribes all clips, to find texts that are not of their audio.
        storage: where models of experiments are.

    Raises:
        DataError: the data cannot be read, or too much of it cannot be used with the model.
        ModelError: a model cannot be found, or does not know a language of the data.
    """
    from trainer.inspection.findings import ranked
    from trainer.inspection.inspection import inspect_data
    from trainer.inspection.text_findings import find_unlike

    console = make_console(error=True)
    with contextlib.ExitStack() as stack:
        judge = None
        if check_with is not None:  # before hours are spent
            from trainer.scoring.decoding import check_model
            from tune.experiments.models import open_model

            with console.status("looking at the model ..."):
                judge = stack.enter_context(open_model(check_with, storage))
                check_model(config.replace(model=judge.source))
        progress = stack.enter_context(PhaseProgress(console))
        inspection = inspect_data(
            config,
            with_model=with_model,
            all_languages=all_languages,
            sample=sample,
            on_progress=progress.show,
        )
        if judge is None:
            return inspection
        heard: dict[tuple[str, str, str], str] = {}
        for code in inspection.languages:
            heard |= _transcribe(config.replace(language=code), judge, progress)
    found = find_unlike(inspection.entries, heard, judge.shown)
    return dataclasses.replace(inspection, findings=ranked([*inspection.findings, *found]))


def _transcribe(
    config: TrainConfig, judge: NamedModel, progress: PhaseProgress
) -> dict[tuple[str, str, str], str]:
    """What the model hears, by split, name and text of the clip."""
    from trainer.data.prepared import prepare
    from trainer.scoring.decoding import Decoder

    config = config.replace(model=judge.source)
    data = prepare(config, functools.partial(progress.show, "computing features"))
    decoder = Decoder(config)
    heard = {}
    for name, split in data.splits.items():
        show = functools.partial(progress.show, f"transcribing {name} with {judge.shown}")
        for row, text in enumerate(decoder.transcribe(split, show).texts):
            heard[name, split.name(row), split.text(row)] = text
    return heard


class _Speed(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.0f}/s" if task.speed else "", style="dim")


class PhaseProgress:
    """What is being done and the time left: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, _Speed(), TimeRemainingColumn(), console=console, transient=True)
        self._task: TaskID | None = None
        self._phase = ""
        self._begun = self._last = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:  # else a line would be printed
            self._progress.stop()

    def show(self, phase: str, done: int, total: int) -> None:
        """Tell how far a phase is: what is being done, how many are done and how many there are."""
        if self._task is None or phase != self._phase:
            self._phase = phase
            self._begun = self._last = time.monotonic()
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(phase, total=total)
        if self._console.is_terminal:
            self._progress.update(self._task, completed=done, total=total)
        elif time.monotonic() - self._last >= _LINE_SECONDS and 0 < done < total:
            self._last = time.monotonic()
            left = (self._last - self._begun) * (total - done) / done
            say(self._console, f"{phase}: {done:,} of {total:,}, about {clock(left)} left")
