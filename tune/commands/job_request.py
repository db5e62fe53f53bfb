"""What a search or training that is sent as a job was asked to be: checked here, its files' paths replaced."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import MODEL_SHORT_NAMES
from trainer.config_file import read_config_file
from trainer.deepspeed import PACKAGED
from trainer.errors import ConfigError
from trainer.optimizers import extra_of
from tune.commands import search, train
from tune.experiments.options import SearchOptions
from tune.experiments.storage import EXPERIMENT_NAME, dated_name
from tune.remote.client import JobError
from tune.remote.package import refuse_password
from tune.space.space import load_space, packaged_spaces

_HOME_STORAGE = "~/experiments"
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".yaml", ".yml")
_DELETED = "is relative to the job's working directory, which Ray deletes with the job"


@dataclasses.dataclass(kw_only=True)
class JobRequest:
    words: list[str]
    """The arguments of `tune-whisper` there: as given, but for the names of `files`, with the experiment's name."""
    name: str
    """Of the job: the experiment's."""
    storage: str
    """Where its results go."""
    files: list[Path]
    """The space or the training's config, DeepSpeed's settings."""
    extras: set[str]
    """Our optional packages that the cluster needs installed."""
    notes: list[str]
    """What the user should know before it runs."""


def read_request(words: Sequence[str]) -> JobRequest:
    """Check the arguments after `--` as far as this can be done without the cluster's data.

    Raises:
        UserError: they cannot be right, hold a secret, or would lose the results.
    """
    words = words[[*words[:1]] == ["search"] :]
    if not words:
        raise ConfigError(
            "submit: nothing to run; give a search with its arguments after --, as in tune-whisper submit "
            "--address http://HEAD:8265 -- search --space lr_batch --storage /mnt/shared/experiments"
        )
    option = "the arguments after --"
    for word in words:
        option = word.partition("=")[0] if word.startswith("--") else option
        refuse_password(option, word)
    if words[0] != "train" and not words[0].startswith("-"):
        raise ConfigError(f"{words[0]!r}: cannot be sent; only search ... and train ... can")
    request = _training(words) if words[0] == "train" else _search(words)
    if not EXPERIMENT_NAME.fullmatch(request.name):
        raise ConfigError(
            f"{request.name!r}: use letters, digits, '.', '_' and '-' in names, beginning with a letter or digit"
        )
    for path in request.files:
        refuse_password(str(path), path.read_text(encoding="utf-8"))
    return request


def _search(words: Sequence[str]) -> JobRequest:
    arguments = _parse(search.search_parser(), words)
    asked = SearchOptions().changed(search.read_options(arguments))
    asked.check(resumed=arguments.resume is not None)
    if arguments.resume is not None and arguments.space is None:
        return _request(words, arguments, arguments.resume, {}, {})
    space = load_space(arguments.space, asked.settings)
    files = {} if arguments.space in packaged_spaces() else {arguments.space: space.path}
    if arguments.resume is not None:
        return _request(words, arguments, arguments.resume, {}, files)
    name = arguments.experiment or dated_name(space.path.stem)
    if arguments.experiment is None:
        words = [*words, f"--experiment={name}"]
    request = _request(words, arguments, name, space.fixed, files)
    for each in space.ranges.get("optimizer", ()):
        request.extras |= {extra for value in each.points() or () if (extra := extra_of(value))}
    for guard in asked.guard:
        _check_source(request, "--guard", guard.data)
    return request


def _training(words: Sequence[str]) -> JobRequest:
    arguments = _parse(train.train_parser(), words[1:])
    settings, config = train.read_options(arguments), arguments.config
    if arguments.resume is not None:
        return _request(words, arguments, arguments.resume, {}, {})
    name = arguments.name or dated_name(f"train-{config.stem}" if config else "train")
    if arguments.name is None:
        words = [*words, f"--name={name}"]
    if config is None:
        return _request(words, arguments, name, settings, {})
    return _request(words, arguments, name, read_config_file(config) | settings, {str(config): config})


def _parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The arguments, with None for `storage` where it is not given."""
    parser.set_defaults(storage=None)
    arguments = parser.parse_args(words)
    if arguments.address:
        raise ConfigError("--address: belongs before --; the job finds its own cluster")
    return arguments


def _request(
    words: Sequence[str],
    arguments: argparse.Namespace,
    name: str,
    settings: Mapping[str, Any],
    files: Mapping[str, Path],
) -> JobRequest:
    """What is sent: `settings` are those of all its trainings, `files` what goes along, by how it was written."""
    files = dict(files)
    for item in (f"deepspeed={arguments.deepspeed or ''}", *arguments.set):
        key, _, text = item.partition("=")
        if key == "deepspeed" and text not in PACKAGED and Path(text).is_file():
            files[text] = Path(text)
    names = {Path(written): path.name for written, path in files.items()}
    sent, notes = [_as_sent(word, names) for word in words], list[str]()
    storage = arguments.storage.text if arguments.storage else _HOME_STORAGE
    if arguments.storage is None:
        sent.append(f"--storage={_HOME_STORAGE}")
        notes.append(
            f"--storage is not given: results go to {_HOME_STORAGE} on the head's machine; on a cluster of several "
            "nodes give a folder that all of them share, s3://BUCKET/... or gs://BUCKET/..."
        )
    elif "://" not in storage and not storage.startswith(("/", "~")):
        raise JobError(
            f"--storage {storage}: {_DELETED}; give a folder that all nodes share (/mnt/...; any absolute "
            "path on a cluster of one node), s3://BUCKET/... or gs://BUCKET/..."
        )
    extras = {extra_of(settings.get("optimizer") or ""), "deepspeed" if settings.get("deepspeed") else None}
    extras |= {"tensorboard", "wandb"} & set(arguments.track or ())
    request = JobRequest(
        words=sent,
        name=name,
        storage=storage,
        files=list(files.values()),
        extras={extra for extra in extras if extra},
        notes=notes,
    )
    for key in ("data", "model", "noise_dir", "impulse_dir"):
        _check_source(request, f"--{key}" if key in ("data", "model") else key, settings.get(key))
    _check_tracking(request, arguments.tracking_uri)
    if arguments.notify:
        raise JobError(
            "--notify: its address is a secret, and everybody on the cluster can read a job's words; "
            "set TUNE_WHISPER_NOTIFY in the cluster's environment"
        )
    return request


def _as_sent(word: str, names: Mapping[Path, str]) -> str:
    """A word with the name that its file has there; the file is all of it, or what follows a `=`."""
    for begin in (0, *(place for place, letter in enumerate(word, 1) if letter == "=")):
        if name := names.get(Path(word[begin:])):
            return word[:begin] + name
    return word


def _check_source(request: JobRequest, option: str, value: Any) -> None:
    """Data and models are not sent: refuse what cannot be found on the cluster, say what must be there."""
    if not isinstance(value, str) or value in MODEL_SHORT_NAMES or "://" in value:
        return
    if value.startswith(("/", "~")):
        request.notes.append(
            f"{option} {value}: is not sent; every node must see it, and the files that it names, under this path"
        )
    elif value.startswith(".") or value.endswith(_TABLES) or Path(value).exists():
        raise JobError(
            f"{option} {value}: is not sent with the job; put it where every node sees it and give the absolute path "
            "there, or name one on the Hugging Face hub"
        )


def _check_tracking(request: JobRequest, uri: str | None) -> None:
    """An MLflow store that the job would not know of, or lose with its working directory."""
    if uri is None and os.environ.get("MLFLOW_TRACKING_URI"):
        request.notes.append(
            "MLFLOW_TRACKING_URI is set here and is not sent; to use that store give --tracking-uri after --"
        )
    if uri and uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        raise JobError(
            f"--tracking-uri {uri}: {_DELETED}; leave it out (the store is then in the experiment) or give "
            "sqlite:////ABSOLUTE/PATH or a server"
        )
