"""What a search or training that is sent as a job was asked to be: checked here, resolved to hold on the cluster."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BUDGETS, MODEL_SHORT_NAMES
from trainer.mix import is_mix, read_mix
from trainer.optimizers import extra_of
from tune.experiments.plan import EXPERIMENT_NAME, dated_name
from tune.remote.client import JobError
from tune.remote.jobs import JobRequest
from tune.remote.package import refuse_password
from tune.search.guards import Guard
from tune.util.errors import ConfigError, option_name

if TYPE_CHECKING:
    from tune.space.space import SearchSpace

_HOME_STORAGE = "~/experiments"
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".yaml", ".yml")
_RESOLVED = ("model", "data", "language", "epochs", "max_steps", "deepspeed", "set", "space", "storage")
"""Options that are part of the resolved YAML, or told anew."""


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
    option = "the arguments after --"
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else option
        refuse_password(option, word)
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
    asked, options = read_search(arguments, words), _options(arguments, words)
    metadata = {"command": "search"}
    if arguments.resume:
        experiment, metadata["resumed"] = arguments.resume, "yes"
    else:
        space = load_space(arguments.space, asked.settings)
        experiment = arguments.experiment or name or dated_name(space.path.stem)
        metadata |= {"space": space.path.name, "trials": str(arguments.trials)}
    metadata["experiment"] = experiment
    request = JobRequest(words=options, name=name or experiment, experiment=experiment, metadata=metadata)
    if not arguments.resume:
        request.words = ["--space", _search_space(request, space), *options]
        if arguments.experiment is None:
            request.words.append(f"--experiment={experiment}")
    for guard in asked.guard:
        _check_source(request, "--guard", guard.data)
    _check_tracking(request, arguments.tracking_uri)
    if not arguments.dry_run:
        _place(request, arguments)
    return request


def _search_space(request: JobRequest, space: SearchSpace) -> str:
    """The name of the YAML that holds the space."""
    ranges = space.ranges.get("optimizer", ())
    found = [space.fixed.get("optimizer"), *(value for one in ranges for value in one.points() or ())]
    optimizers = [value for value in found if value is not None]
    return _resolve(request, space.path, space.to_dict(), space.fixed, optimizers)


def _training(words: Sequence[str], name: str | None) -> JobRequest:
    from tune.commands.train import read_request as read_training
    from tune.commands.train import train_parser
    from tune.experiments.training_plan import given_settings

    arguments = _parse(train_parser(), words)
    asked = read_training(arguments)
    settings, file = dict(asked.settings), asked.config or Path("train.yaml")
    if asked.config is not None:
        given = given_settings(asked.config)
        if any(settings.get(budget) is not None for budget in BUDGETS):
            given = {key: value for key, value in given.items() if key not in BUDGETS}
        settings = given | settings
    stem = f"train-{asked.config.stem}" if asked.config else "train"
    request = JobRequest(words=["train"], name=name or dated_name(stem), experiment=None)
    request.metadata = {"command": "train", **({"config": file.name} if asked.config else {})}
    if settings:
        optimizers = [settings["optimizer"]] if "optimizer" in settings else []
        request.words.append(_resolve(request, file, settings, settings, optimizers))
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
    """The options that were given and are not resolved, as words again."""
    given = {word.partition("=")[0] for word in words}
    options = []
    for name, value in vars(arguments).items():
        option = "--from" if name == "origin" else option_name(name)
        if option not in given or name in _RESOLVED:
            continue
        if name == "guard":  # repeated, where other lists follow one option
            options += [f"{option}={guard}" for guard in map(Guard.parse, value)]
        elif isinstance(value, list):
            options += [option, *map(str, value)]
        else:
            options.append(option if value is True else f"{option}={value}")
    return options


def _resolve(
    request: JobRequest,
    file: Path,
    content: Mapping[str, Any],
    settings: Mapping[str, Any],
    optimizers: Sequence[str],
) -> str:
    """Give the request its YAML, named after the file that most of it is from, and check its sources; its name.

    Comments stay here. DeepSpeed's settings are in it as text already, wherever they were read from.
    """
    import yaml

    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    refuse_password(str(file), text)
    request.settings = {f"{file.stem}.yaml": text}
    found = ["deepspeed" if settings.get("deepspeed") is not None else None, *map(extra_of, optimizers)]
    request.extras = tuple(extra for extra in dict.fromkeys(found) if extra is not None)
    for key in ("data", "model"):
        _check_source(request, f"--{key}", settings.get(key))
    for key in ("noise_dir", "impulse_dir"):
        _check_source(request, key, settings.get(key))
    return f"{file.stem}.yaml"


def _place(request: JobRequest, arguments: argparse.Namespace) -> None:
    """Where the results go; raises `JobError` where that is the job's working directory, which Ray deletes."""
    request.storage = given = _HOME_STORAGE if arguments.storage is None else arguments.storage.text
    request.words.append(f"--storage={given}")
    if arguments.storage is None:
        request.notes.append(
            f"--storage is not given: results go to {_HOME_STORAGE} on the head's machine; on a cluster of several "
            "nodes give a folder that all of them share, s3://BUCKET/... or gs://BUCKET/..."
        )
    elif "://" not in given and not given.startswith(("/", "~")):
        raise JobError(
            f"--storage {given}: is relative to the job's working directory, which Ray deletes with the job; give a "
            "folder that all nodes share (/mnt/...; any absolute path on a cluster of one node), s3://BUCKET/... or "
            "gs://BUCKET/..."
        )


def _check_source(request: JobRequest, option: str, value: Any) -> None:
    """Data and models are not sent: refuse what cannot be found on the cluster, say what must be there.

    What a data file names is looked at too where it can be read here.
    """
    if not isinstance(value, str) or value in MODEL_SHORT_NAMES or "://" in value:
        return
    if value.startswith(("/", "~")):
        there, sources = "is not sent; every node must see it under this path", list[str]()
        if is_mix(value) and Path(value).expanduser().is_file():
            mix = read_mix(value)
            named = [(mix.place(source), source.settings["data"]) for source in mix.sources]
            sources = [f"{at}: data {data}: {there}" for at, data in named if data.startswith(("/", "~"))]
        elif is_mix(value):
            there += ", and what it names too"
        request.notes += [f"{option} {value}: {there}", *sources]
    elif value.startswith(".") or value.endswith(_TABLES) or Path(value).exists():
        raise JobError(
            f"{option} {value}: is not sent with the job; put it where every node sees it and give the absolute path "
            "there, or name one on the Hugging Face hub"
        )


def _check_tracking(request: JobRequest, uri: str | None) -> None:
    """An MLflow store that the job could not find or would lose with its working directory."""
    if uri is None:
        if os.environ.get("MLFLOW_TRACKING_URI"):
            request.notes.append(
                "MLFLOW_TRACKING_URI is set here and is not sent; to use that store give --tracking-uri after --"
            )
    elif uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        raise JobError(
            f"--tracking-uri {uri}: is relative to the job's working directory, which Ray deletes with the job; "
            "leave it out (the store is then in the experiment) or give sqlite:////ABSOLUTE/PATH or a server"
        )
    elif urllib.parse.urlsplit(uri).hostname in ("localhost", "127.0.0.1", "::1"):
        request.notes.append(f"--tracking-uri {uri}: means the cluster's head node itself, not this machine")
