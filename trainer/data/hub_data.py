"""Data sets from the Hugging Face hub."""

from __future__ import annotations

import re
from typing import Any

from trainer.config import TrainConfig
from trainer.data.tables import Table, table_of_dataset
from trainer.errors import DataError

#: Branch on which the hub keeps a copy in Parquet of data sets that need a script.
PARQUET_BRANCH = "refs/convert/parquet"


def read_hub_dataset(config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]]:
    """All splits of a hub data set, downloaded into Hugging Face's own cache.

    Raises:
        DataError: the repository, its configuration or its files cannot be had.
    """
    notes: list[str] = []
    try:
        splits = _load(config.data, config.data_config)
    except _hub_errors() as error:
        # Once its copy is in Hugging Face's cache, a data set with a script fails in the second way.
        if not re.search(r"scripts are no longer supported|Couldn't find cache for", str(error)):
            raise _failed(config, error) from error
        splits = _load_parquet_copy(config)
        notes.append(f"{config.data} needs a loading script, so its Parquet copy ({PARQUET_BRANCH}) was used")
    return {str(name): [table_of_dataset(data, config.data)] for name, data in splits.items()}, notes


def _load(name: str, data_config: str | None, **options: Any) -> Any:
    from datasets import load_dataset
    from huggingface_hub.utils import logging

    # Every retry of every file would be a line of its own; a failure is told once, by who calls us.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return load_dataset(name, data_config, **options)


def _load_parquet_copy(config: TrainConfig) -> Any:
    """The copy has one folder per configuration, and nothing that names them to `load_dataset`."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFolder

    try:
        entries = HfApi().list_repo_tree(config.data, revision=PARQUET_BRANCH, repo_type="dataset")
        names = [entry.path for entry in entries if isinstance(entry, RepoFolder)]
        chosen = config.data_config or (names[0] if len(names) == 1 else None)
        if chosen not in names:
            raise DataError(
                f"data={config.data!r}: data_config={config.data_config!r} is not one of its configurations: "
                f"{_some(names)}; set data_config"
            )
        return _load(config.data, None, data_dir=chosen, revision=PARQUET_BRANCH)
    except _hub_errors() as error:
        raise _failed(config, error) from error


def _hub_errors() -> tuple[type[Exception], ...]:
    """What the two libraries raise for repositories, configurations and files that are not to be had."""
    from datasets.exceptions import DatasetsError

    # OSError has the errors of the network and of the hub (also of a full disk), ValueError unknown
    # configurations.
    # RuntimeError data sets that need a script.
    return (DatasetsError, OSError, ValueError, RuntimeError)


def _failed(config: TrainConfig, error: BaseException) -> DataError:
    text = " ".join(str(error).split()) or type(error).__name__
    which = f"data={config.data!r}" + (f", data_config={config.data_config!r}" if config.data_config else "")
    return DataError(f"{which}: no such folder here, and the hub data set cannot be loaded: {text[:400]}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" ... ({len(names)})" if len(names) > 12 else "")
