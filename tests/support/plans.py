"""Plans as the commands make them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tune.commands.train import plan_training, read_options, train_parser
from tune.experiments.options import SearchOptions
from tune.experiments.storage import Storage
from tune.runs.plan import Plan, make_plan
from tune.space.space import SearchSpace, load_space

LR = "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
Load = Callable[..., SearchSpace]
"""Of the fixture `load` in tests/tune/space."""


def search_plan(storage: Storage, name: str | None = None, **options: Any) -> Plan:
    asked = SearchOptions(**options)
    return make_plan(asked, load_space(asked.space, asked.settings), storage, name)


def training_plan(*words: object) -> Plan:
    arguments = train_parser().parse_args(list(map(str, words)))
    return plan_training(arguments, read_options(arguments))


def space_of(folder: Path, text: str, rate: float = 1e-3) -> SearchSpace:
    """The space of a file with this text, for a model of this usual learning rate."""
    path = folder / "space.yaml"
    path.write_text(text)
    return load_space(str(path)).resolve(rate)
