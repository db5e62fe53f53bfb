"""`--check-with MODEL`: what a model hears in every clip, beside its text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainer.config import TrainConfig

if TYPE_CHECKING:
    from trainer.inspection.inspection import Inspection
    from tune.evaluated_models import NamedModel


class Judge:
    """A model that transcribes a data set to find texts that are not of their audio."""

    def __init__(self, config: TrainConfig, model: NamedModel) -> None:
        """Check the model before hours are spent; raises `ModelError`.

        Args:
            config: the settings of the data as given, without a choice of languages made for the inspection.
            model: the model; the one to tune may be another.
        """
        from trainer.scoring.decoding import check_model

        self._config = config.replace(model=model.source)
        self._shown = model.shown
        check_model(self._config)

    def added_to(self, inspection: Inspection, on_progress: Callable[[str, int, int], None]) -> Inspection:
        """The inspection with what the model hears, language by language.

        Raises:
            DataError: too much of the data cannot be used with the model.
            ModelError: it does not know a language of the data.
        """
        from trainer.inspection.inspection import ranked
        from trainer.inspection.unlike import find_unlike

        heard: dict[tuple[str, str, str], str] = {}
        for code in inspection.languages:
            heard |= self._transcribe(self._config.replace(language=code), on_progress)
        found = find_unlike(inspection.entries, heard, self._shown)
        return dataclasses.replace(inspection, findings=ranked([*inspection.findings, *found]))

    def _transcribe(
        self, config: TrainConfig, on_progress: Callable[[str, int, int], None]
    ) -> dict[tuple[str, str, str], str]:
        from trainer.scoring.decoding import Decoder
        from tune.trainable import prepare_data

        data = prepare_data(config, functools.partial(on_progress, "computing features"))
        decoder = Decoder(config)
        heard = {}
        for name, split in data.splits.items():
            show = functools.partial(on_progress, f"transcribing {name} with {self._shown}")
            found = decoder.transcribe(split, show)
            for row, text in enumerate(found.texts):
                heard[name, split.name(row), split.text(row)] = text
        return heard
