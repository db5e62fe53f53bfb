"""A data file: several sources in one data set, each with settings and a weight of its own.

sources:
  fleurs: {data: google/fleurs, data_config: be_by, language: be, weight: 0.5}
  own:
    data: recordings/          # relative to the file
    row_filter: quality=good
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from trainer.bounds import read_weight
from trainer.config import CLIP_SETTINGS, TrainConfig, check_value, field_type
from trainer.errors import ConfigError, DataError
from trainer.yaml_nodes import Problems, compose, items, line_of, nearest, scalar

SUFFIXES = (".yaml", ".yml")
MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Of tables; where there are several of one name the first is taken."""
SOURCE_SETTINGS = (
    *("data", "data_config", "train_split", "validation_split", "test_split"),
    *("audio_column", "text_column", "language_column", "task_column", "row_filter"),
    *(name for name in CLIP_SETTINGS if name != "empty_text"),  # an evaluation counts all clips in one way
    *("max_train_clips", "max_eval_clips", "language", "task"),
)
"""Settings that a source may have of its own; without one it has that of the training."""
WEIGHT = "weight"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OTHER_NAMES = {"path": "data", "split": "train_split", "filter": "row_filter", "config": "data_config"}
_Loaded = TypeVar("_Loaded")
_EXAMPLE = "as in sources: {own: {data: recordings/}}"


@dataclasses.dataclass(frozen=True)
class Source:
    name: str
    line: int
    """In which it begins."""
    settings: Mapping[str, Any]
    """Fields of `TrainConfig`."""
    weight: float = 1.0
    """How often each of its clips comes in an epoch, on average."""


@dataclasses.dataclass(frozen=True)
class Mix:
    path: str
    sources: tuple[Source, ...]

    @property
    def names(self) -> str:
        return ", ".join(source.name for source in self.sources)

    def load_each(
        self, config: TrainConfig, load: Callable[[TrainConfig, Source], _Loaded]
    ) -> tuple[list[_Loaded], list[str]]:
        """What is loaded of each source as a data set of its own, and a line for each that cannot be used."""
        loaded, problems = [], []
        for source in self.sources:
            try:
                loaded.append(load(config.replace(source_weights=None, **source.settings), source))
            except (ConfigError, DataError) as error:
                problems.append(f"{self.location(source)}: {error}")
        return loaded, problems

    def location(self, source: Source) -> str:
        """Where a source stands, for what is wrong with it: `mix.yaml:4: own`."""
        return f"{self.path}:{source.line}: {source.name}"


def is_mix(data: str) -> bool:
    return data.lower().endswith(SUFFIXES)


def read_mix(data: str) -> Mix:
    """The sources of a data file.

    Raises:
        DataError: it cannot be read or is wrong; every problem has a line with the file and its own line.
    """
    path = Path(data).expanduser()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"data={data!r}: no such file; give a data file with sources: {{...}}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise DataError(f"data={data!r}: cannot be read: {reason}") from error
    problems = Problems()
    sources = _read(text, path.parent, problems)
    if problems.found:
        lines = sorted(problems.found, key=lambda problem: problem[0])
        raise DataError("\n".join(f"{data}:{line}: {problem}" for line, problem in lines))
    return Mix(data, tuple(sources))


def _read(text: str, folder: Path, problems: Problems) -> list[Source]:
    root = compose(text, problems, empty=f"name sources, {_EXAMPLE}")
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        problems.add(root, f"must be a mapping with sources, {_EXAMPLE}")
        return []
    sources: list[Source] | None = None
    for key, key_node, node in items(root, problems):
        if key != "sources":
            problems.add(key_node, f"{key}: unknown key; a data file has sources, {_EXAMPLE}")
        elif not isinstance(node, yaml.MappingNode) or not node.value:
            problems.add(node, f"sources: must be a mapping of names and their settings, {_EXAMPLE}")
            sources = []
        else:
            named = items(node, problems, "sources: ")
            sources = [_source(name, at, value, folder, problems) for name, at, value in named]
    if sources is None:
        problems.add(root, f"sources is missing; add it, {_EXAMPLE}")
    if not problems.found:
        for one, other in itertools.combinations(sources or (), 2):
            if one.settings == other.settings:
                problem = f"{other.name}: is the same as {one.name}; name it once, with a weight of 2"
                problems.add(other.line, problem)
    if sources and not any(source.weight for source in sources):
        problems.add(root, "sources: every weight is 0, so nothing is trained on; raise one")
    return sources or []


def _source(name: str, name_node: yaml.Node, node: yaml.Node, folder: Path, problems: Problems) -> Source:
    """A source with those of its settings that are right."""
    line, settings, weight, where = line_of(name_node), dict[str, Any](), 1.0, f"{name}: "
    if not _NAME.fullmatch(name):
        problems.add(name_node, f"{name!r}: is not a valid name; use letters, digits, '.', '_' and '-'")
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{where}must be a mapping of settings, as in {{data: recordings/}}")
        return Source(name, line, settings)
    for key, key_node, value_node in items(node, problems, where):
        if key == WEIGHT:
            number = read_weight(scalar(value_node))
            if number is None:
                problems.add(
                    value_node, f"{where}weight={scalar(value_node)!r}: must be a number from 0 to 1000"
                )
            else:
                weight = number
        elif key in SOURCE_SETTINGS:
            as_text = field_type(key)[0] is str and not field_type(key)[1]
            try:
                settings[key] = check_value(key, scalar(value_node, as_text=as_text))
            except ConfigError as error:
                problems.add(value_node, f"{where}{error}")
        else:
            near = _OTHER_NAMES.get(key) or nearest(key, (*SOURCE_SETTINGS, WEIGHT))
            hint = (
                f"did you mean {near}?" if near else f"a source has {', '.join((*SOURCE_SETTINGS, WEIGHT))}"
            )
            problem = f"unknown setting {key!r}; {hint}"
            if key in TrainConfig.__dataclass_fields__:
                problem = f"{key} holds for all sources; give it by --set {key}=..."
            problems.add(key_node, f"{where}{problem}")
    data = settings.get("data")
    if not any(key.value == "data" for key, _ in node.value):
        problems.add(name_node, f"{where}data is missing; add data: and a path or a hub data set")
    elif data is not None and is_mix(data):
        problems.add(name_node, f"{where}data={data!r}: is a data file itself; name its sources here")
    own = {name: settings[name] for name in ("data", "audio_dir") if settings.get(name) is not None}
    settings |= {name: _from(folder, value) for name, value in own.items()}
    return Source(name, line, settings, weight)


def is_hub_name(data: str) -> bool:
    """Whether this may be a data set of the hub, where it is nothing here."""
    named = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", data)
    return named is not None and not data.lower().endswith(MANIFEST_SUFFIXES)


def _from(folder: Path, data: str) -> str:
    """Data as a source names it, paths relative to the file's folder; names of the hub as they are."""
    path = folder / data
    if data == "demo" or data.startswith(("/", "~")) or (is_hub_name(data) and not path.exists()):
        return data
    return os.path.normpath(path)
