"""What a search or training that is sent as a job was asked to be: checked here, resolved to hold on the cluster."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import MODEL_SHORT_NAMES
from tune.experiments.plan import EXPERIMENT_NAME, dated_name
from tune.remote.client import JobError
from tune.remote.jobs import JobRequest
from tune.remote.package import refuse_password
from tune.util.errors import ConfigError, option_name

_HOME_STORAGE = "~/experiments"
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_BUDGET = ("epochs", "max_steps")
_SETTINGS = ("model", "data", "language", "epochs", "max_steps", "deepspeed", "set")
"""Options of both commands that are settings, and so part of the resolved YAML."""


def read_request(words: Sequence[str], name: str | None) -> JobRequest:
    """Check the arguments after `--` as far as this can be done without the cluster's data, and resolve them.

    The space or the training's config and all settings beside it become one YAML; the other arguments stay arguments.
    A search gets its experiment's name here, so that it is known before it starts.

    Args:
        words: as given.
        name: of the job; None for the experiment's.

    Raises:
        UserError: they cannot be right, hold a secret, or would lose the results.
    """
    if not words:
        raise ConfigError(
            "submit: nothing to run; give the search's arguments after --, as in "
            "tune-whisper submit --address http://HEAD:8265 -- --space lr_batch --storage /mnt/shared/experiments"
        )
    for i, word in enumerate(words):
        option = word if word.startswith("--") else words[i - 1]
        refuse_password(
            option.partition("=")[0] if option.startswith("--") else "the arguments after --", word
        )
    training = words[0] == "train"
    if not training and not words[0].startswith("-"):
        raise ConfigError(f"{words[0]!r}: cannot be sent; a search (--space ...) or train ... can")
    request = _training(words[1:], name) if training else _search(words, name)
    for option, text in (("--experiment", request.experiment), ("--name", request.name)):
        if text is not None and not EXPERIMENT_NAME.fullmatch(text):
            raise ConfigError(
                f"{option} {text!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
            )
    try:
        version = importlib.metadata.version("tune-whisper")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    request.metadata |= {"name": request.name, "tune_whisper": version}
    return request


def _search(words: Sequence[str], name: str | None) -> JobRequest:
    from tune.commands.search import read_request as read_search
    from tune.commands.search import search_parser
    from tune.space.space import load_space

    arguments = _parse(search_parser(), words)
    asked = read_search(arguments, words)
    options = _options(arguments, words)
    if arguments.resume:
        request = JobRequest(words=options, name=name or arguments.resume, experiment=arguments.resume)
        request.metadata = {"command": "search", "experiment": arguments.resume, "resumed": "yes"}
    else:
        space = load_space(arguments.space, asked.settings)
        experiment = arguments.experiment or name or dated_name(space.path.stem)
        request = JobRequest(words=options, name=name or experiment, experiment=experiment)
        request.metadata = {
            **{"command": "search", "experiment": experiment},
            **{"space": space.path.name, "trials": str(arguments.trials)},
        }
        if arguments.experiment is None:
            request.words.append(f"--experiment={experiment}")
        request.words[:0] = ["--space", _resolve(request, space.path, space.to_dict(), space.fixed)]
    _check_tracking(request, arguments.tracking_uri)
    if not arguments.dry_run:
        _place(request, arguments)
    return request


def _training(words: Sequence[str], name: str | None) -> JobRequest:
    from tune.commands.train import read_request as read_training
    from tune.commands.train import train_parser
    from tune.experiments.training_plan import given_settings

    arguments = _parse(train_parser(), words)
    asked = read_training(arguments)
    settings = dict(asked.settings)
    if asked.config is not None:
        given = given_settings(asked.config)
        if any(settings.get(budget) is not None for budget in _BUDGET):
            given = {key: value for key, value in given.items() if key not in _BUDGET}
        settings = given | settings
    stem = f"train-{asked.config.stem}" if asked.config else "train"
    request = JobRequest(words=["train"], name=name or dated_name(stem), experiment=None)
    request.metadata = {"command": "train"}
    if asked.config is not None:
        request.metadata["config"] = asked.config.name
    if settings:
        request.words.append(_resolve(request, asked.config or Path("train.yaml"), settings, settings))
    request.words += _options(arguments, words)
    _check_tracking(request, arguments.tracking_uri)
    _place(request, arguments)
    return request


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments, with None for `storage` where it is not given."""
    parser.set_defaults(storage=None)
    arguments = parser.parse_args(words)
    if arguments.address:
        raise ConfigError("--address: belongs before --; the job finds its own cluster")
    return arguments


def _options(arguments: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """The options that were given and are no settings, as words again."""
    given = {word.partition("=")[0] for word in words}
    options = []
    for name, value in vars(arguments).items():
        option = "--from" if name == "origin" else option_name(name)
        if option not in given or name in (*_SETTINGS, "space", "storage"):
            continue
        if value is True:
            options.append(option)
        elif isinstance(value, list):
            options += [option, *map(str, value)]
        else:
            options.append(f"{option}={value}")
    return options


def _resolve(request: JobRequest, file: Path, content: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Give the request its YAML, named after the file that most of it is from, and check its sources; its name.

    Comments stay here. DeepSpeed's settings are in it as text already, wherever they were read from.
    """
    import yaml

    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    refuse_password(str(file), text)
    name = f"{file.stem}.yaml"
    request.settings[name] = text
    request.deepspeed = settings.get("deepspeed") is not None
    for key in ("data", "model"):
        _check_source(request, f"--{key}", settings.get(key))
    return name


def _place(request: JobRequest, arguments: argparse.Namespace) -> None:
    """Where the results go: not into the job's working directory.

    Raises:
        JobError: the place given would be deleted with that directory.
    """
    if arguments.storage is None:
        request.notes.append(
            f"--storage is not given: results go to {_HOME_STORAGE} on the head's machine; on a cluster of several "
            "nodes give a folder that all of them share, s3://BUCKET/... or gs://BUCKET/..."
        )
    request.storage = given = _HOME_STORAGE if arguments.storage is None else arguments.storage.text
    request.words.append(f"--storage={given}")
    if "://" not in given and not given.startswith(("/", "~")):
        raise JobError(
            f"--storage {given}: is relative to the job's working directory, which Ray deletes with the job; give a "
            "folder that all nodes share (/mnt/...; any absolute path on a cluster of one node), s3://BUCKET/... or "
            "gs://BUCKET/..."
        )


def _check_source(request: JobRequest, option: str, value: Any) -> None:
    """Data and models are not sent: refuse what cannot be found on the cluster, say what must be there."""
    if not isinstance(value, str) or value in MODEL_SHORT_NAMES or "://" in value:
        return
    if value.startswith(("/", "~")):
        request.notes.append(f"{option} {value}: is not sent; every node must see it under this path")
    elif value.startswith(".") or value.endswith(_TABLES) or Path(value).exists():
        raise JobError(
            f"{option} {value}: is not sent with the job; put it where every node sees it and give the absolute path "
            "there, or name one on the Hugging Face hub"
        )


def _check_tracking(request: JobRequest, uri: str | None) -> None:
    if uri is None:
        if os.environ.get("MLFLOW_TRACKING_URI"):
            request.notes.append(
                "MLFLOW_TRACKING_URI is set here and is not sent; to use that store give --tracking-uri after --"
            )
        return
    path = uri.removeprefix("sqlite:///")
    if path != uri and not path.startswith("/"):
        raise JobError(
            f"--tracking-uri {uri}: is relative to the job's working directory, which Ray deletes with the job; "
            "leave it out (the store is then in the experiment) or give sqlite:////ABSOLUTE/PATH or a server"
        )
    if urllib.parse.urlsplit(uri).hostname in ("localhost", "127.0.0.1", "::1"):
        request.notes.append(f"--tracking-uri {uri}: means the cluster's head node itself, not this machine")
