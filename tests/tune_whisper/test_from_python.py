"""The public face: the same options, checks and errors as the command, and results as typed values."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips
from made_experiments import made_trial, write_experiment

from tune.commands.evaluate import evaluate_parser
from tune.commands.search import search_parser
from tune.commands.train import train_parser
from tune.commands.transcribe import transcribe_parser
from tune_whisper import (
    ConfigError,
    DataError,
    ExperimentError,
    SpaceError,
    TrackingError,
    Trial,
    UserError,
    evaluate,
    load_experiment,
    running,
    search,
    train,
    transcribe,
)
from tune_whisper.keywords import in_keywords

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_heavy_is_imported() -> None:
    heavy = "{'torch', 'ray', 'transformers', 'mlflow', 'optuna', 'datasets', 'numpy', 'pandas', 'IPython'}"
    code = f"import sys, tune_whisper; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("function", "parser", "command_only", "renamed"),
    [
        (search, search_parser, set(), {}),
        (train, train_parser, set(), {"origin": "from_experiment"}),
        (evaluate, evaluate_parser, {"output", "json", "worst"}, {}),
        (transcribe, transcribe_parser, {"compare"}, {}),
    ],
)
def test_every_option_is_a_keyword(
    function: Callable[..., Any], parser: Any, command_only: set[str], renamed: dict[str, str]
) -> None:
    options = {action.dest for action in parser()._actions} - {"help", "version"} - command_only
    keywords = set(inspect.signature(function).parameters) - {"quiet", "on_trial_end"}
    assert keywords == {{"set": "settings", **renamed}.get(name, name) for name in options}


FALLING = {"type": "float", "low": 1e-3, "high": 1e-5}
FOUR = {"train_batch_size": {"type": "choice", "values": [4]}}
MISTAKES: list[tuple[Callable[..., Any], dict[str, Any], type[UserError], str]] = [
    (search, {"space": {"learning_rate": FALLING}}, SpaceError, "space: learning_rate: low=0.001 is above"),
    (
        search,
        {"space": "lr_batch", "settings": {"max_steps": None, "spec_augment": True, "dropout": 2}},
        ConfigError,
        "settings[\"dropout\"]='2': must be a number from 0 to 0.9",
    ),
    (search, {"space": "lr_batch", "settings": {"seed": 1}}, ConfigError, 'settings["seed"]: use seed'),
    (
        search,
        {"space": "lr_batch", "trials": "many"},
        ConfigError,
        "argument trials: invalid int value: 'many'; see help(search)",
    ),
    (search, {"space": "lr_batch", "plateau_points": 1}, ConfigError, "plateau=N; add that or remove"),
    (train, {"trial": "001"}, ConfigError, "from_experiment=EXPERIMENT, whose settings"),
    (
        train,
        {"from_experiment": "x", "track": ["mlflow", "tensorboard"], "trial": "001"},
        ExperimentError,
        "no experiment 'x' in experiments",
    ),
    (evaluate, {"model": "demo"}, ConfigError, "data: is needed, since demo does not say"),
    (
        evaluate,
        {"model": "demo", "data": "demo", "by": ["town", "accent"]},
        ConfigError,
        "by=town: no such column",
    ),
    (transcribe, {"model": "demo", "audio": "x.wav"}, DataError, "x.wav: no such file or folder"),
]


@pytest.mark.parametrize(("function", "options", "kind", "told"), MISTAKES)
def test_mistakes_are_raised_in_the_words_of_python(
    function: Callable[..., Any],
    options: dict[str, Any],
    kind: type[UserError],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        function(**options)
    assert told in str(error.value)
    assert " --" not in str(error.value)
    assert type(error.value) is kind


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("mend that, and tune-whisper --resume x goes on", "mend that, and search(resume='x') goes on"),
        (
            "mend that, and tune-whisper search --resume x goes on",
            "mend that, and search(resume='x') goes on",
        ),
        (
            "is a training; use tune-whisper train --resume x --storage s3://bucket/a, or another name",
            "is a training; use train(resume='x', storage='s3://bucket/a'), or another name",
        ),
        (
            "tune-whisper --resume 'my search' --storage " + shlex.quote("/mnt/it's my data") + " goes on",
            "search(resume='my search', storage=\"/mnt/it's my data\") goes on",
        ),
        ("use 'tune-whisper search --resume x' or not", "use 'search(resume='x')' or not"),
        (r"tune-whisper --resume C:\data\x goes on", r"search(resume='C:\\data\\x') goes on"),
        ("(--set max_steps=null: all)", '(settings["max_steps"]=None: all)'),
        (
            "--finalists 0 repeats nothing; hf download --local-dir x",
            "finalists=0 repeats nothing; hf download --local-dir x",
        ),
    ],
)
def test_flags_become_keywords_and_commands_calls(told: str, expected: str) -> None:
    with pytest.raises(UserError) as error, in_keywords(search):
        raise UserError(told)
    assert str(error.value) == expected


def test_a_space_of_other_than_plain_values() -> None:
    with pytest.raises(SpaceError, match="space: must hold plain numbers"):
        search({"learning_rate": {"type": "choice", "values": list(np.array([1e-5, 1e-4]))}})


def test_a_dry_run_is_a_plan_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    planned = search({"learning_rate": 1e-3, **FOUR}, trials=1, model="demo", data="demo", dry_run=True)
    assert planned.status == "planned"
    assert repr(planned).startswith(f"experiment {planned.name} in ")
    assert repr(planned).endswith("nothing was run\n")
    assert len(planned.trials) == 0
    assert not list(tmp_path.iterdir())


def test_addresses_with_passwords_are_in_no_process_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody on the machine sees the arguments of a process."""
    arguments: list[str] = []

    class Watched(subprocess.Popen[str]):
        def __init__(self, words: list[str], **options: Any) -> None:
            arguments.extend(words)
            super().__init__(words, **options)

    monkeypatch.setattr(running.subprocess, "Popen", Watched)
    store, post = "http://user:hidden@127.0.0.1:1", "http://127.0.0.1:1/hidden"
    with pytest.raises(TrackingError, match=r"http://user:\*{3}@127\.0\.0\.1:1: cannot"):
        search("lr_batch", storage=tmp_path, tracking_uri=store, notify=post, quiet=True)
    assert "search" in arguments
    assert not any("hidden" in word for word in arguments)


def test_an_experiment_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path / "experiments", [made_trial(1, [50.0, 30.0, 12.0])])
    monkeypatch.chdir(tmp_path)
    found = load_experiment("made")
    monkeypatch.chdir("/")
    assert "<html" in found.report().read_text()


def test_an_evaluation_is_typed_values(tmp_path: Path) -> None:
    small = {"max_eval_clips": 8, "generation_max_length": 20}
    found = evaluate("demo", data="demo", baseline="demo", settings=small, storage=tmp_path)
    assert found.rates["wer"].percent == found.baseline_rates["wer"].percent > 0
    assert found.comparisons["wer"].same_errors
    assert len(found.utterances) == found.results["clips"] == 8
    assert f"wer {found.rates['wer'].percent:.2f} %" in repr(found)


def test_a_transcript_is_typed_values(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", demo_clips()[0][0], 16_000)
    (tmp_path / "b.wav").write_text("no sound")
    said, unread = transcribe("demo", [tmp_path / "a.wav", tmp_path / "b.wav"], language="en")
    assert len(said.text.split()) > 1
    assert (said.language, said.incomplete) == ("en", None)
    assert (unread.text, unread.path.name) == ("", "b.wav")
    assert unread.incomplete is not None and "cannot be decoded" in unread.incomplete


RUNNING = """#!{python}
import json, signal, sys, time
from pathlib import Path
sys.path[:0] = {paths}
from made_experiments import MadeLog
made = MadeLog(Path("experiments/made").absolute())
made.now, made.tick = time.time(), 1e-3
answer = {{"experiment": "made", "storage": "experiments", "folder": str(made.folder)}}
Path(sys.argv[3]).write_text(json.dumps(answer))
try:
    made.session()
    made.trial("001", 50.0, 30.0, 12.0)
    made.begin("002")
    signal.pause()
except KeyboardInterrupt:
    print("saved where it was")
"""
"""What stands for `python -m tune_whisper.process`: a search of which one trial has ended, and one runs."""


@pytest.mark.parametrize("notebook", [False, True])
def test_an_exception_of_the_callback_interrupts_the_search_and_is_raised(
    notebook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(running, "in_notebook", lambda: notebook)
    monkeypatch.setattr(running, "live_output", lambda: drawn.append)
    monkeypatch.chdir(tmp_path)
    paths = [str(ROOT), str(ROOT / "tests" / "support")]
    Path("running").write_text(RUNNING.format(python=sys.executable, paths=paths))
    Path("running").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "running"))

    def refuse(trial: Trial) -> None:
        raise LookupError(f"{trial.trial_id} {trial.best_value} {trial.status}")

    with pytest.raises(LookupError, match=r"001 12\.0 completed"):
        search("lr_batch", on_trial_end=refuse)
    shown = drawn[-1] if notebook else capsys.readouterr().out
    assert "saved where it was" in shown
    if notebook:
        assert "<td>completed</td>" in shown and "<td>interrupted</td>" in shown
        assert capsys.readouterr().out == ""
