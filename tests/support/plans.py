"""Plans as the commands make them."""

from __future__ import annotations

from typing import Any

from tune.commands.train import plan_training, read_options, train_parser
from tune.experiments.experiment import Experiment
from tune.experiments.options import SearchOptions
from tune.experiments.storage import Storage
from tune.runs.plan import Plan, make_plan
from tune.space.space import load_space


def search_plan(
    storage: Storage, name: str | None = None, *, earlier: Experiment | None = None, **options: Any
) -> Plan:
    """Of a search with these options."""
    asked = SearchOptions(**options)
    return make_plan(asked, load_space(asked.space, asked.settings), storage, name, earlier=earlier)


def training_plan(*words: object) -> Plan:
    """Of `tune-whisper train` with these words."""
    arguments = train_parser().parse_args(list(map(str, words)))
    return plan_training(arguments, read_options(arguments))
