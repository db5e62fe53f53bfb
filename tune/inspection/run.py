"""One inspection with its progress, and with what a model hears in every clip where one is named."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING

from trainer.config import TrainConfig
from trainer.mix import is_mix
from tune.util.console import ProgressBar, make_console

if TYPE_CHECKING:
    from trainer.inspection.inspection import Inspection
    from tune.experiments.models import NamedModel
    from tune.experiments.storage import Storage


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
    from trainer.data.streaming.stream import is_far, keep_sample
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
        progress = stack.enter_context(ProgressBar(console, "reading the data"))
        given, note = config, None
        if sample is not None and is_far(config.data):
            config, note = keep_sample(config, sample)
            sample = None  # all that is here
        inspection = inspect_data(
            config,
            with_model=with_model,
            all_languages=all_languages,
            sample=sample,
            on_progress=progress.show,
        )
        if note is not None:
            shown = inspection.config.replace(data=given.data, data_config=given.data_config)
            inspection = dataclasses.replace(
                inspection,
                config=shown,
                notes=[note, *inspection.notes],
                # That a sample is small says nothing of the data.
                findings=[one for one in inspection.findings if one.kind != "small_split"],
            )
        if judge is None:
            return inspection
        heard: dict[tuple[str, str, str], str] = {}
        # Of a data file each clip is written in its source's language at once.
        for code in [config.language] if is_mix(config.data) else inspection.languages:
            heard |= _transcribe(config.replace(language=code), judge, progress)
    found = find_unlike(inspection.entries, heard, judge.shown)
    return dataclasses.replace(inspection, findings=ranked([*inspection.findings, *found]))


def _transcribe(
    config: TrainConfig, judge: NamedModel, progress: ProgressBar
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
