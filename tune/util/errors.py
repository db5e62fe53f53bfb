"""Mistakes in what was given to a search: each printed as one line a problem, exit code 2, no traceback."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from trainer.errors import ConfigError, UserError


class SpaceError(UserError):
    """The search space cannot be found or used; one line a problem, with file and line."""


class ExperimentError(UserError):
    """The experiment exists already, cannot be found, or holds nothing that can be used."""


class ResourceError(UserError):
    """The cluster has not the GPUs, CPUs or memory that a trial asks for."""


class TrackingError(UserError):
    """A store such as MLflow cannot be reached, written to or served; passwords in its address are never shown."""


def option_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def option_words(**options: Any) -> list[str]:
    """Options by their names as words of a command; those that are None or False are not given."""
    words: list[str] = []
    for name, value in options.items():
        option = "--from" if name == "from_experiment" else option_name(name)
        if value is None or value is False:
            continue
        if name == "settings":
            words += [f"--set={key}={_text(each)}" for key, each in value.items()]
        elif value is True:
            words.append(option)
        elif name == "track":
            words += [option, *([value] if isinstance(value, str) else value)]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            words += [f"{option}={each}" for each in value]
        else:
            words.append(f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def _text(value: Any) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def check_least(request: Any, **least: int) -> None:
    """Raise `ConfigError` where a number, by the name of its field, is below the least that it can be."""
    for name, number in least.items():
        given = getattr(request, name)
        if given is not None and given < number:
            raise ConfigError(f"{option_name(name)} {given}: must be at least {number}")


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line; its class where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def error_line(report: str) -> str:
    """The line of Ray's failure report, or a message, that names the error: a traceback's last, else the first.

    Ray's memory monitor ends a worker where a node's main memory runs out, and says it in four lines.
    """
    if "Failure #" in report:  # the line with the last failure's number and time says nothing of it
        report = report.rsplit("Failure #", maxsplit=1)[-1].partition("\n")[2] or report
    if "node running low on memory" in report:
        node = re.search(r"Memory on the node \(IP: ([^,)]+)", report)
        where = f"node {node[1]}" if node else "its node"
        return (
            f"main memory (RAM) ran out on {where}, and Ray ended the process; run fewer trials at a time "
            "(--max-concurrent) or on nodes with more memory: smaller batches do not help"
        )
    lines = [line for line in report.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b.*:", line)]
    return named[-1] if named else lines[0] if lines else "unknown error"
