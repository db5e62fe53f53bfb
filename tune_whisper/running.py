"""`search` and `train`: the commands of the same names, each in a process of its own.

Ray, its signals and its switches (Train V2 is chosen once in a process) stay out of the notebook's process, which can
run one after the other and has no Ray of its own shut down.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainer.errors import UserError
from tune.search.records import Trial
from tune.util.errors import SpaceError, option_words
from tune_whisper.experiment import Experiment, load_experiment
from tune_whisper.keywords import ARGUMENTS, in_keywords
from tune_whisper.notebook import in_notebook, live_output, progress_page, small_table

if TYPE_CHECKING:
    from tune.tracking.sync import Log

_Path = str | os.PathLike[str]
_SECONDS = 0.5
"""Between two looks at what another process does."""


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
    target_wer: float | None = None,
    finalists: int | None = None,
    repeats: int | None = None,
    guard: str | Sequence[str] | None = None,
    warm_start: str | Sequence[str] | None = None,
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
    dry_run: bool = False,
    measure: bool = False,
    on_trial_end: Callable[[Trial], object] | None = None,
    quiet: bool = False,
) -> Experiment:
    """Search hyperparameters, as `tune-whisper search` does; what is not given has the command's default.

    Args:
        space: a packaged name, a file, or what a space file holds, as a mapping. All other options are those of
            `tune-whisper search --help`.
        settings: other fields of `TrainConfig`, as `--set` gives them.
        guard: one `DATA` or `DATA:MAX_LOSS`, or several.
        deepspeed: True for the packaged settings, or a file.
        dry_run: check everything and start nothing; with `measure` time a few steps where trials run.
        on_trial_end: called in this process with each trial, and each repeat of a finalist, that has ended. An
            exception of it interrupts the search as Ctrl-C does, and is raised.
        quiet: print nothing.

    Returns:
        the experiment, also one without a result (`status` is `failed`, the trials have their errors); of a dry run
        the `plan` alone.

    Raises:
        UserError: something that was given cannot be used; its class and words are those of the command.
        KeyboardInterrupt: it was interrupted; `resume` goes on with it.
    """
    return _run(search, locals())


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
    return _run(train, locals())


def _run(function: Callable[..., Experiment], given: Mapping[str, Any]) -> Experiment:
    options = dict(given)
    own = ("space", "config", "quiet", "on_trial_end")
    space, config, quiet, on_trial_end = (options.pop(name, None) for name in own)
    # They may hold passwords, and everybody on the machine sees a process's arguments.
    addresses = {name: options.pop(name, None) or None for name in ("notify", "tracking_uri")}
    variables = {ARGUMENTS: json.dumps(option_words(**addresses))}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "space.yaml" if isinstance(space, Mapping) else None
        if made is not None:
            _write_space(space, made)
        words = [] if config is None else [os.fspath(config)]
        words += option_words(space=made or space, **options)
        shown = _Shown(Path(folder) / "answer.json", quiet or options.get("dry_run", False), on_trial_end)
        with in_keywords(function, made):
            return _in_own_process(function.__name__, words, shown, variables)


def _write_space(space: Mapping[str, Any], path: Path) -> None:
    import yaml

    try:
        text = yaml.safe_dump(dict(space), sort_keys=False)
    except yaml.YAMLError as error:
        raise SpaceError(f"space: must hold plain numbers, texts, lists and mappings: {error}") from error
    path.write_text(text, encoding="utf-8")


class _Shown:
    """What is seen of a search or a training while another process runs it."""

    def __init__(self, answer: Path, quiet: bool, on_trial_end: Callable[[Trial], object] | None) -> None:
        self.answer = answer
        """The file in which `tune_whisper.process` answers."""
        self.lines: collections.deque[str] = collections.deque(maxlen=500)
        """The last that it printed."""
        self._draw = live_output() if not quiet and in_notebook() else None
        self._prints = not quiet and self._draw is None
        self._on_trial_end = on_trial_end
        self._since = time.time()
        self._ended: set[str] = set()
        self._log: Log | None = None
        self._drawn: tuple[int, int] | None = None
        self._printed = 0

    def read(self) -> dict[str, str]:
        """The answer as far as there is one."""
        content: dict[str, str] = {}
        if self.answer.is_file():
            content = json.loads(self.answer.read_text(encoding="utf-8"))
        return content

    def take_lines(self, printed: Iterable[str]) -> None:
        """Take in what the process prints; in a notebook it is shown by `update`."""
        for line in printed:
            self.lines.append(line)
            self._printed += 1
            if self._prints:
                print(line, end="", flush=True)

    def update(self, *, ended: bool = False) -> None:
        """Read what is new of the experiment's log, once there is one, where anybody wants to know; draw the one output
        of a notebook's cell anew.
        """
        if self._draw is None and self._on_trial_end is None:
            return
        if self._log is None and (begun := self.read()).get("folder"):
            from tune.experiments.folder import ExperimentFolder
            from tune.tracking.sync import Log

            self._log = Log(ExperimentFolder(begun["experiment"], Path(begun["folder"])))
        if self._log is not None:
            self._log.read()
        saved = self._log.saved if self._log else None
        known = (saved.state.events if saved else 0, self._printed)
        if self._draw is None or (known == self._drawn and not ended):
            return
        self._drawn, table = known, ""
        if saved and saved.state.records:
            from tune.experiments.results import results_of

            results = results_of(saved.folder, saved.state)
            entries = [*results["trials"], *results["repeats"]]
            for entry in entries:
                if entry["status"] == "interrupted" and not ended:
                    entry["status"] = "running"
            table = small_table(entries)
        self._draw(progress_page(table, [*self.lines], ended=ended))

    def tell(self) -> None:
        """Call `on_trial_end` with each training that has ended since the last time, in this session."""
        state = self._log.saved.state if self._log else None
        session = state.session if state else None
        if self._on_trial_end is None or state is None or session is None or session.began < self._since:
            return
        for run in (*state.records.all(), *state.repeats.all()):
            if run.status != "running" and run.session == session.session and run.trial_id not in self._ended:
                self._ended.add(run.trial_id)
                self._on_trial_end(run)


def _in_own_process(
    command: str, words: list[str], shown: _Shown, variables: Mapping[str, str]
) -> Experiment:
    """Run a command as `tune_whisper.process`; what it prints is shown here.

    It is in a session of its own, so that Ctrl-C reaches it once, from here; it ends where this process does, with
    the pipe to it. An exception of the caller's own interrupts it too.
    """
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tune_whisper.process", str(shown.answer), command, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        start_new_session=True,
    )
    reader = threading.Thread(target=shown.take_lines, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        while process.poll() is None:
            shown.update()
            shown.tell()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS)
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        if process.stdin is not None:
            process.stdin.close()
        reader.join(2)  # longer where a process that it left behind holds the pipe
        shown.update(ended=True)
    shown.tell()
    answer = shown.read()
    if "interrupted" in answer:
        raise KeyboardInterrupt
    if "error" in answer:
        raised = getattr(importlib.import_module(answer["module"]), answer["class"])(answer["error"])
        assert isinstance(raised, UserError)
        raise raised
    if "ended" not in answer:
        last = "".join([*shown.lines][-30:]).strip()
        raise RuntimeError(f"{command} ended with exit code {process.returncode}: {last}")
    name, storage, folder = answer["experiment"], answer["storage"], Path(answer["folder"])
    if "plan" in answer:
        return Experiment(name, storage, folder, status="planned", plan=answer["plan"])
    return load_experiment(name, storage=storage)
