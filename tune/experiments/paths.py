"""Data and models named by paths, which mean the same wherever a process runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.errors import ConfigError
from trainer.mix import is_mix, read_mix
from tune.search.guards import Guard

_OPTIONAL_PATHS = ("splits", "audio_dir", "noise_dir", "impulse_dir")
PATH_SETTINGS = ("model", "data", "cache_dir", *_OPTIONAL_PATHS)
"""Settings that may be paths, which are made absolute."""


def without_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings for others to read: of files and folders of this machine the names alone."""
    return {
        name: Path(value).name if str(value).startswith(("/", "~")) else value
        for name, value in settings.items()
    }


def settled(base: TrainConfig) -> TrainConfig:
    """The same settings wherever a process runs, with a language of the data.

    Where a data file gives each source a language and the settings' is none of them, it is the first: the model is
    exported with it.

    Raises:
        DataError: the data file is wrong.
    """
    model, data = absolute_source(base.model, MODEL_SHORT_NAMES), absolute_source(base.data)
    paths = {"model": model, "data": data}
    for key in _OPTIONAL_PATHS:
        if (path := getattr(base, key)) is not None:
            paths[key] = str(_home_known(path).absolute())
    base = base.replace(**paths, cache_dir=str(Path(base.cache_dir).expanduser().absolute()))
    if not is_mix(base.data):
        return base
    own = [source.settings.get("language") for source in read_mix(base.data).sources]
    return base if None in own or base.language in own else base.replace(language=own[0])


def absolute_source(source: str, names: Collection[str] = ("demo",)) -> str:
    """A path made absolute, since trials run in folders of their own; what is no path unchanged.

    Args:
        names: what is no path also where a folder here has that name.
    """
    if source in names:
        return source
    path = _home_known(source)
    return str(path.absolute()) if path.exists() or path.is_absolute() else source


def absolute_guards(guards: Sequence[Guard], data: str) -> list[Guard]:
    """The same wherever a process runs; ConfigError where one is the data that is trained on, or given twice."""
    found: list[Guard] = []
    for given in guards:
        guard = dataclasses.replace(given, data=absolute_source(given.data))
        if same_source(guard.data, data):
            raise ConfigError(f"--guard {guard.data}: is the data that is trained on; give data that is not")
        if any(same_source(guard.data, other.data) for other in found):
            raise ConfigError(f"--guard {guard.data}: is given twice; give each data once")
        found.append(guard)
    return found


def same_source(first: str, second: str) -> bool:
    """Whether two ways to name data mean the same: paths, however they are written and behind links, or names."""
    return first == second or _resolved(first) == _resolved(second)


def _resolved(source: str) -> str:
    path = _home_known(source)
    return str(path.resolve()) if path.exists() else source


def _home_known(path: str) -> Path:
    """The path with `~` in full; as it is where nobody has this name, which is told once it is looked for."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
