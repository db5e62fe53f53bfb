"""The arguments of a search or training that is sent as a job: checked here, made to hold on the cluster."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import MODEL_SHORT_NAMES
from tune.errors import ConfigError
from tune.experiments.plan import EXPERIMENT_NAME, dated_name
from tune.job_package import PACKAGED_SETTINGS
from tune.job_secrets import check_words
from tune.job_words import option_value, positional, replace_option, replace_setting, setting_value
from tune.jobs import JobError

_HOME_STORAGE = "~/experiments"
_INPUTS = "inputs"
"""Folder of the user's files in the job's working directory."""
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


@dataclass(kw_only=True)
class JobRequest:
    """What a job runs."""

    words: list[str]
    """The arguments of `tune-whisper` there."""
    name: str
    experiment: str | None
    metadata: dict[str, str] = field(default_factory=dict)
    """What is kept with the job for people and programs to read; texts only, as Ray demands."""
    files: dict[str, Path] = field(default_factory=dict)
    """Local files by their place in the job's working directory."""
    notes: list[str] = field(default_factory=list)
    """What the user should know before it runs."""
    storage: str | None = None

    @property
    def deepspeed(self) -> bool:
        """Whether the arguments ask for DeepSpeed, so that the cluster needs it installed."""
        return any(re.match(r"(--set=)?(--)?deepspeed\b", word) for word in self.words)


def read_request(words: Sequence[str], name: str | None) -> JobRequest:
    """Check the arguments after `--` as far as this can be done without the cluster's data, and rewrite them.

    Files that they name (a space, DeepSpeed's settings, a training's config) go along with the job; a search gets
    its experiment's name here, so that it is known before it starts.

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
    check_words(words)
    if option_value(words, "--address"):
        raise ConfigError("--address: belongs before --; the job finds its own cluster")
    if words[0] == "train":
        request = _training(list(words), name)
    elif words[0].startswith("-"):
        request = _search(list(words), name)
    else:
        raise ConfigError(f"{words[0]!r}: cannot be sent; a search (--space ...) or train ... can")
    for option, text in (("--experiment", request.experiment), ("--name", request.name)):
        if text is None or EXPERIMENT_NAME.fullmatch(text):
            continue
        raise ConfigError(
            f"{option} {text!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
    _check_tracking(request)
    request.metadata |= {"name": request.name, "tune_whisper": _version()}
    return request


def _search(words: list[str], name: str | None) -> JobRequest:
    from tune.commands.search import check_what, search_parser, search_settings
    from tune.experiments.plan import SearchRequest, check_numbers

    arguments = search_parser().parse_args(words)
    check_what(arguments, words)
    settings = search_settings(arguments)
    check_numbers(
        SearchRequest(
            space=arguments.space or "",
            trials=arguments.trials,
            storage=arguments.storage,
            gpus_per_trial=arguments.gpus_per_trial,
            cpus_per_trial=arguments.cpus_per_trial,
            max_concurrent=arguments.max_concurrent,
            workers_per_trial=arguments.workers_per_trial,
            max_failures=arguments.max_failures,
        ),
        resumed=arguments.resume is not None,
    )
    if arguments.resume:
        request = JobRequest(words=words, name=name or arguments.resume, experiment=arguments.resume)
        request.metadata = {"command": "search", "experiment": arguments.resume, "resumed": "yes"}
    else:
        request = _new_search(words, name, arguments, settings)
    if not arguments.dry_run:
        request.storage = _place(request, "--storage")
    return request


def _new_search(
    words: list[str], name: str | None, arguments: argparse.Namespace, settings: dict[str, Any]
) -> JobRequest:
    """Name the experiment, and find the files and sources that its space and settings mean."""
    from tune.search_space import load_space

    space = load_space(arguments.space, settings)
    experiment = arguments.experiment or name or dated_name(space.path.stem)
    request = JobRequest(words=words, name=name or experiment, experiment=experiment)
    request.metadata = {
        **{"command": "search", "experiment": experiment},
        **{"space": space.path.name, "trials": str(arguments.trials)},
    }
    if arguments.experiment is None:
        request.words += ["--experiment", experiment]
    if not _is_packaged(space.path):
        replace_option(request.words, "--space", _add_file(request, space.path))
    _take_deepspeed_along(request)
    for key in ("data", "model"):
        _check_source(request, f"--{key}", settings.get(key) or space.fixed.get(key))
    return request


def _training(words: list[str], name: str | None) -> JobRequest:
    """The words of `train`, whose parser says what each is."""
    parser: argparse.ArgumentParser = importlib.import_module("tune.commands.train").train_parser()
    arguments = vars(parser.parse_args(words[1:]))
    given = arguments.get("config")
    config = Path(given).expanduser() if given else None
    name = name or arguments.get("experiment") or dated_name(f"train-{config.stem}" if config else "train")
    request = JobRequest(words=words, name=name, experiment=None, metadata={"command": "train"})
    if config is not None:
        if not config.is_file():
            raise JobError(f"{given}: no such file; the training's settings go along with the job")
        place = _add_file(request, config)
        index = positional(words, str(given))
        request.words[index] = place
        request.metadata["config"] = config.name
    _take_deepspeed_along(request)
    places = [
        option
        for option, key in (("--storage", "storage"), ("--output", "output"))
        if key in arguments and (option_value(words, option) or key == "output")
    ]
    for option in places or ["--storage"]:
        request.storage = _place(request, option)
    for key in ("data", "model"):
        _check_source(request, f"--{key}", setting_value(words, key))
    return request


def _take_deepspeed_along(request: JobRequest) -> None:
    """DeepSpeed's settings, given as `--deepspeed FILE` or `--set deepspeed=FILE`."""
    value = setting_value(request.words, "deepspeed")
    if value is None or value in PACKAGED_SETTINGS or value.lstrip().startswith("{"):
        return
    path = Path(value).expanduser()
    if not path.is_file():
        raise JobError(
            f"--deepspeed {value}: no such file; give a JSON file, {' or '.join(PACKAGED_SETTINGS)}"
        )
    replace_setting(request.words, "deepspeed", _add_file(request, path))


def _add_file(request: JobRequest, path: Path) -> str:
    place = f"{_INPUTS}/{path.name}"
    if request.files.get(place, path) != path:
        raise JobError(f"{path}: another file of this name goes along with the job; rename one")
    request.files[place] = path
    return place


def _is_packaged(path: Path) -> bool:
    """Whether a space file is one of those that every job takes along."""
    return path.resolve().parent == Path(__file__).resolve().parent.parent / "search_spaces"


def _place(request: JobRequest, option: str) -> str:
    """Where the results go, added to the words where it is missing: not into the job's working directory.

    Raises:
        JobError: the place given would be deleted with that directory.
    """
    given = option_value(request.words, option)
    if given is None:
        request.words += [option, _HOME_STORAGE]
        request.notes.append(
            f"{option} is not given: results go to {_HOME_STORAGE} on the head's machine; on a cluster of several "
            "nodes give a folder that all of them share, s3://BUCKET/... or gs://BUCKET/..."
        )
        return _HOME_STORAGE
    if "://" in given or given.startswith(("/", "~")):
        return given
    raise JobError(
        f"{option} {given}: is relative to the job's working directory, which Ray deletes with the job; give a folder "
        "that all nodes share (/mnt/...; any absolute path on a cluster of one node), s3://BUCKET/... or gs://BUCKET/..."
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


def _check_tracking(request: JobRequest) -> None:
    uri = option_value(request.words, "--tracking-uri")
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


def _version() -> str:
    try:
        return importlib.metadata.version("tune-whisper")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
