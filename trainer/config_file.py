"""The settings of a training from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from trainer.bounds import WEIGHT_OF
from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.yaml_nodes import Problems, compose, items, scalar


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings that a YAML file gives, checked.

    Raises:
        ConfigError: the file is missing or no YAML mapping, or has wrong settings; a line for each mistake.
    """
    problems, values = Problems(), dict[str, Any]()
    try:
        root = compose(
            path.read_text(encoding="utf-8"), problems, empty="give settings, one KEY: VALUE per line"
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if isinstance(root, yaml.MappingNode):
        # As text: YAML would read the language `no` as false, and `1e-5` as text anyway.
        values = {key: _plain(node) for key, _, node in items(root, problems)}
    elif root is not None:
        problems.add(root, "must hold settings, one KEY: VALUE per line")
    mistakes = [f"line {line}: {text}" for line, text in problems.found]
    if not mistakes:
        try:
            config = TrainConfig.from_dict(values)
            names = dict.fromkeys("source_weights" if key.startswith(WEIGHT_OF) else key for key in values)
            return {name: getattr(config, name) for name in names}
        except ConfigError as error:
            mistakes = str(error).splitlines()
    raise ConfigError("\n".join(f"{path}: {each}" for each in mistakes))


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(each) for each in node.value]
    return scalar(node, as_text=True)
