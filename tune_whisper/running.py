"""`search` and `train`: the commands of the same names, each in a process of its own.

Ray, its signals and its switches (Train V2 is chosen once in a process) stay out of the notebook's process, which can
run one after the other and has no Ray of its own shut down.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from trainer.errors import UserError
from tune.util.errors import SpaceError, option_words
from tune_whisper.experiment import Experiment, load_experiment

_Path = str | os.PathLike[str]


def search(
    space: _Path | Mapping[str, Any] | None = None,
    *,
    resume: str | None = None,
    trials: int | None = None,
    model: str | None = None,
    data: str | None = None,
    language: str | None = None,
    epochs: float | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int | None = None,
    time_budget: str | None = None,
    gpu_hours: float | None = None,
    plateau: int | None = None,
    plateau_points: float | None = None,
    finalists: int | None = None,
    repeats: int | None = None,
    guard: str | Sequence[str] | None = None,
    warm_start: str | None = None,
    experiment: str | None = None,
    storage: _Path | None = None,
    tracking_uri: str | None = None,
    track: Sequence[str] | None = None,
    notify: str | None = None,
    keep_checkpoints: Literal["best", "all"] | None = None,
    address: str | None = None,
    max_failures: int | None = None,
    save_every: float | None = None,
    workers_per_trial: int | None = None,
    deepspeed: str | bool | None = None,
    gpus_per_trial: float | None = None,
    cpus_per_trial: float | None = None,
    max_concurrent: int | None = None,
    take_over: bool = False,
    quiet: bool = False,
) -> Experiment:
    """Search hyperparameters, as `tune-whisper --space ...` does; what is not given has the command's default.

    Args:
        space: a packaged name, a file, or what a space file holds, as a mapping. All other options are those of
            `tune-whisper --help`.
        settings: other fields of `TrainConfig`, as `--set` gives them.
        guard: one `DATA` or `DATA:MAX_LOSS`, or several.
        deepspeed: True for the packaged settings, or a file.
        quiet: print nothing.

    Returns:
        the experiment, also one without a result (`status` is `failed`, the trials have their errors).

    Raises:
        UserError: something that was given cannot be used; its class and words are those of the command.
        KeyboardInterrupt: it was interrupted; `resume` goes on with it.
    """
    given = locals()
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(space, Mapping):
            import yaml

            given["space"] = Path(folder) / "space.yaml"
            try:
                text = yaml.safe_dump(dict(space), sort_keys=False)
            except yaml.YAMLError as error:
                raise SpaceError(
                    f"space: must hold plain numbers, texts, lists and mappings: {error}"
                ) from error
            given["space"].write_text(text, encoding="utf-8")
        return _run("search", given)


def train(
    config: _Path | None = None,
    *,
    from_experiment: str | None = None,
    trial: str | None = None,
    on: Literal["train+validation"] | None = None,
    resume: str | None = None,
    model: str | None = None,
    data: str | None = None,
    language: str | None = None,
    epochs: float | None = None,
    max_steps: int | None = None,
    settings: Mapping[str, Any] | None = None,
    name: str | None = None,
    storage: _Path | None = None,
    tracking_uri: str | None = None,
    track: Sequence[str] | None = None,
    notify: str | None = None,
    workers: int | None = None,
    deepspeed: str | bool | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float | None = None,
    address: str | None = None,
    max_failures: int | None = None,
    save_every: float | None = None,
    take_over: bool = False,
    quiet: bool = False,
) -> Experiment:
    """Train once, as `tune-whisper train` does; what is not given has the command's default.

    Args:
        config: a YAML file of settings. All other options are those of `tune-whisper train --help`.
        from_experiment: `--from`: take the settings of an experiment's best trial.
        settings: other fields of `TrainConfig`, as `--set` gives them.
        deepspeed: True for the packaged settings, or a file.
        quiet: print nothing.

    Returns:
        the training as an experiment of one trial.

    Raises:
        UserError: something that was given cannot be used; its class and words are those of the command.
        KeyboardInterrupt: it was interrupted; `resume` goes on with it.
    """
    return _run("train", locals())


def _run(command: str, given: Mapping[str, Any]) -> Experiment:
    options = dict(given)
    quiet, config = options.pop("quiet"), options.pop("config", None)
    words = [*([] if config is None else [os.fspath(config)]), *option_words(**options)]
    answer = _in_own_process(command, words, quiet=quiet)
    if "error" in answer:
        raised = getattr(importlib.import_module(answer["module"]), answer["class"])(answer["error"])
        assert isinstance(raised, UserError)
        raise raised
    return load_experiment(answer["experiment"], storage=answer["storage"])


def _in_own_process(command: str, words: list[str], *, quiet: bool) -> dict[str, str]:
    """What `tune_whisper.process` answers; what it prints is printed here, where a notebook shows it.

    It is in a session of its own, so that Ctrl-C reaches it once, from here; it ends where this process does, with
    the pipe to it.
    """
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "tune_whisper.process", str(answer), command, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        last = _shown(process, quiet=quiet)
        if not answer.is_file():
            raise RuntimeError(f"{command} ended with exit code {process.returncode}: {last}")
        content: dict[str, str] = json.loads(answer.read_text(encoding="utf-8"))
    if "interrupted" in content:
        raise KeyboardInterrupt
    return content


def _shown(process: subprocess.Popen[str], *, quiet: bool) -> str:
    """Print what a process prints until it has ended; its last lines."""
    lines: collections.deque[str] = collections.deque(maxlen=30)

    def show() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if not quiet:
                print(line, end="", flush=True)

    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    try:
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        if process.stdin is not None:
            process.stdin.close()
        reader.join(2)  # longer where a process that it left behind holds the pipe
    return "".join(lines).strip()
