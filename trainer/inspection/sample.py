"""A look at the audio of data before a run reads all of it: is every file there, and what is in some of each split?"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Sequence

from trainer.config import TrainConfig
from trainer.data.audio import AudioError, decode_each
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.drops import Drop, check_drops, check_usable
from trainer.data.embedded import is_file
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import DataError
from trainer.model.processor import load_processor, window_seconds

SAMPLED = 64
"""Clips of each split that are decoded."""


@contextlib.contextmanager
def prepared_sample(config: TrainConfig, table: ClipTable, *, waveforms: bool) -> Iterator[PreparedData]:
    """Some clips of each split as `prepare` makes them, in the block alone, judged by the rules for all.

    Args:
        table: all clips, as `load_clips` gives them.
        waveforms: as of `prepare`.

    Raises:
        DataError: files are missing, or clips of the sample cannot be used, that are more than the settings allow.
        ModelError: the model cannot be found.
    """
    window = window_seconds(load_processor(config).feature_extractor)
    there: dict[str, list[Clip]] = {}
    missing: list[Drop] = []
    for role, clips in table.splits.items():
        found = [not clip.path or is_file(clip.path) for clip in clips]  # one inside a table is
        there[role] = list(itertools.compress(clips, found))
        gone = [clip for clip, is_there in zip(clips, found, strict=True) if not is_there]
        for _, problem in decode_each((clip.source() for clip in gone[:1]), max_seconds=window):
            assert isinstance(problem, AudioError)
            missing += [Drop(role, clip.name, problem.reason, str(problem)) for clip in gone]
    check_usable(config, missing, left=there, window=window)
    check_drops(config, [*table.drops, *missing], total=table.total + len(table.drops), window=window)
    few = {role: _spread(clips) for role, clips in there.items()}
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as cache:
        sample = dataclasses.replace(table, splits=few, drops=[], without_text={}, whole={})
        try:
            data = prepare(config.replace(cache_dir=cache), table=sample, waveforms=waveforms)
        except DataError as error:
            raise DataError(f"{error} (of {sample.total} clips that were read, as a sample)") from error
        yield data


def _spread(clips: Sequence[Clip]) -> list[Clip]:
    """So many of them, from the first to the last."""
    every = max(1.0, len(clips) / SAMPLED)
    return [clips[int(number * every)] for number in range(min(SAMPLED, len(clips)))]
