"""The clips of a search and of its guards, and their features."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from trainer.config import CLIP_SETTINGS, SOUNDS, TrainConfig
from trainer.errors import ConfigError, DataError
from trainer.scoring.normalizers import make_normalizer, unit_note
from trainer.scoring.translation import TRANSLATE
from tune.util.console import ProgressBar, say, say_notes, short_source

if TYPE_CHECKING:
    from trainer.data.clips import ClipTable
    from trainer.data.prepared import PreparedData
    from trainer.data.split_data import SplitClips
    from tune.search.guards import Guard

_CHOICES = (
    *("data_config", "train_split", "validation_split", "test_split", "row_filter"),
    *("audio_column", "text_column", "language_column", "task_column"),
    *CLIP_SETTINGS,
    *("max_train_clips", "max_eval_clips", "validation_share", "data_seed", "split_by", "splits"),
)
"""Settings that say which clips are meant."""


_OF_ONE_DATA = (
    *(name for name in _CHOICES if name not in ("max_eval_clips", "data_seed")),
    *("source_weights", "objective", "train_on", "streaming", "max_hours", "full_window_evaluation"),
)


def load_table(base: TrainConfig, *, augments: bool) -> ClipTable:
    """The clips, and mistakes in the data before anything starts: also in folders of sounds, if trials change clips.

    Raises:
        DataError: the data, or a folder of sounds, is not there.
        ModelError: the model does not know a language of the data.
    """
    from trainer.augmentation.sounds import SoundFolder
    from trainer.data.clips import load_clips
    from trainer.data.labels import check_languages
    from trainer.model.processor import load_processor

    for setting in SOUNDS if augments else ():
        if (folder := getattr(base, setting)) is not None:
            SoundFolder(setting, folder)
    table = load_clips(base)
    check_languages(base, (clip for clips in table.splits.values() for clip in clips), load_processor(base))
    return table


def guard_config(base: TrainConfig, guard: Guard) -> TrainConfig:
    """The settings with which a guard is read, and measured in the whole window: the search's but for its data's."""
    usual = TrainConfig()
    return base.replace(data=guard.data, **{name: getattr(usual, name) for name in _OF_ONE_DATA})


def load_guards(base: TrainConfig, guards: Sequence[Guard]) -> dict[str, SplitClips]:
    """The clips of each guard, by its data. No audio is read.

    Raises:
        UserError: the data is not there or cannot be read, or has no clip with text.
    """
    from trainer.data.split_data import load_untrained

    found = {}
    for guard in guards:
        with _as_guard_errors(guard):
            found[guard.data] = load_untrained(guard_config(base, guard))
    return found


def prepare_guards(
    base: TrainConfig, guards: Sequence[Guard], loaded: Mapping[str, SplitClips], console: Console
) -> dict[str, PreparedData]:
    """Their features, computed where they are not in the cache; arguments and errors as of `load_guards`."""
    from trainer.data.prepared import PreparedData
    from trainer.data.split_data import prepare_split

    found = {}
    for guard in guards:
        with (
            _as_guard_errors(guard),
            ProgressBar(console, f"computing features of {short_source(guard.data)}") as bar,
        ):
            data = prepare_split(guard_config(base, guard), loaded[guard.data], bar.update)
        say(console, f"guard {describe_guard(guard, data.source.name, len(data))}")
        say_notes(console, data.notes)
        found[guard.data] = PreparedData.of_split(data.prepared)
    return found


def describe_guard(guard: Guard, split: str, clips: int) -> str:
    which = "clips" if split == "all" else f"clips of its {split} split"
    return (
        f"{guard.data}: {clips:,} {which}, at most {guard.max_loss:g} points more WER than the base model's"
    )


@contextlib.contextmanager
def _as_guard_errors(guard: Guard) -> Iterator[None]:
    """Raise errors of a guard's data as those of `--guard`."""
    try:
        yield
    except (DataError, ConfigError) as error:
        reason = str(error).splitlines()[0].replace(f"data={guard.data!r}: ", "")
        raise type(error)(f"--guard {guard.data}: {reason}") from error


def look_at_clips(config: TrainConfig, *, augments: bool) -> tuple[ClipTable, list[str]]:
    """The clips before any is dropped for its audio, which is not read, and what was decided about the splits."""
    from trainer.data.drops import drops_note

    table = load_table(config, augments=augments)
    notes = list(table.notes)
    if table.drops:
        notes.append(drops_note(table.drops, table.total + len(table.drops)))
    return table, notes


_APART = 0.1
"""The share of words that one of two trained models has wrong and the other right, assumed before any is trained."""


def what_clips_show(base: TrainConfig, texts: Iterable[str]) -> str:
    """What differences validation clips with these texts can show, in one line: `22 validation clips: ...`.

    The 95 % interval of the difference between two models, `_APART` as far as they would be in each clip.
    """
    from trainer.scoring.intervals import LEAST, ratio

    normalizer = make_normalizer(base)
    lengths = np.array([len(normalizer(text).split()) for text in texts], float)
    lengths = lengths[lengths > 0]
    known = f"{len(lengths):,} validation clips"
    if len(lengths) < LEAST:
        return f"{known}: too few to show any difference"
    signs = np.where(np.arange(len(lengths)) % 2, 1.0, -1.0)
    _, error, quantile = ratio(signs * np.sqrt(_APART * lengths), lengths)
    points, needed = 100 * quantile * error, len(lengths) * (196 * error) ** 2
    text = f"{known}: differences under {points:.{0 if points >= 1.95 else 1}f} points are noise"
    return text if points <= 1 else f"{text}; about {float(f'{needed:.1g}'):,.0f} clips would show 1 point"


def prepare_features(
    base: TrainConfig,
    console: Console,
    table: ClipTable,
    *,
    augments: bool,
) -> PreparedData:
    """Features of all splits, with a progress bar where they have to be computed.

    Args:
        augments: whether trials may change the waveforms of clips, which are then kept.

    Raises:
        DataError: the data cannot be used.
        ModelError: the model cannot be found.
    """
    from trainer.data.prepared import prepare
    from trainer.training.suppressed import allowed_tokens_note

    begun = time.monotonic()
    with ProgressBar(console, "computing features") as progress:
        data = prepare(base, progress.update, table=table, waveforms=augments)
    allowed = allowed_tokens_note(base, data)
    notes = [*data.notes, *quick_notes(base, data), *([allowed] if allowed else [])]
    data = dataclasses.replace(data, notes=notes)
    say_notes(console, data.notes)
    kinds = data.splits["validation"].origins.kinds
    if base.task != TRANSLATE and any(kind.task == TRANSLATE for kind in kinds):
        say(
            console,
            "warning: clips to translate are measured by WER, like all others; --set task=translate measures all by "
            "chrF",
        )
    if note := unit_note(base):
        say(console, f"note: {note}")
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    how = "found in the cache" if data.reused else f"computed in {time.monotonic() - begun:.1f} s"
    say(console, f"data {base.data}: {sizes} clips (features {how})")
    return data


def quick_notes(base: TrainConfig, data: PreparedData) -> list[str]:
    """What looks wrong in texts and lengths, and the command that shows which clips it is; nothing for sound data."""
    from trainer.inspection.inspection import quick_look

    found = quick_look(base, data.splits)
    notes = [one.title for one in found if not one.suspects]
    warnings = [f"WARNING: {one.title}, such as {one.suspects[0].name}" for one in found if one.suspects]
    if not warnings:
        return notes
    return [*notes, *warnings, f"to see the clips: {_inspect_command(base)}"]


def _inspect_command(base: TrainConfig) -> str:
    """What looks at the same clips in earnest."""
    words = ["tune-whisper", "inspect", "--data", base.data, "--model", base.model]
    words += ["--language", base.language] if base.language else []
    for field in dataclasses.fields(base):
        value = getattr(base, field.name)
        if field.name in _CHOICES and value != field.default:
            words += ["--set", f"{field.name}={value}"]
    return shlex.join(words)
