"""Where output goes: places are checked before the work; nobody reads on, a disk is full, Ctrl-C comes."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tune.cli import main

ROOT = Path(__file__).resolve().parents[3]


def start(*words: str, **options: object) -> subprocess.Popen[str]:
    """`python -m ...`, with an output that is written in large pieces."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        stderr=subprocess.PIPE,
        text=True,
        env=kept | {"PYTHONPATH": str(ROOT), **options.pop("env", {})},  # type: ignore[dict-item]
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_nobody_reads_or_the_disk_is_full(unbuffered: dict[str, str], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    for output, told in ((write, ""), (os.open("/dev/full", os.O_WRONLY), "No space left on device")):
        process = start("tune", "list", stdout=output, cwd=tmp_path, env=unbuffered)
        os.close(output)
        message = f"error: the output cannot be written: {told}\n" if told else ""
        assert process.communicate(timeout=100)[1] == message
        assert process.returncode == 1


def test_files_are_written_also_where_the_output_cannot_be(tmp_path: Path) -> None:
    """What hours of decoding have found was lost with it."""
    words = ["inspect", "--data", "demo", "--sample", "2", "--output", "out"]
    with Path("/dev/full").open("w") as full:
        process = start("tune", *words, stdout=full, cwd=tmp_path)
        assert "No space left on device" in process.communicate(timeout=100)[1]
    assert process.returncode == 1
    assert {path.suffix for path in (tmp_path / "out").iterdir()} >= {".json", ".html"}


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("tune list", "tune.util.environment"),
        ("tune evaluate demo --data demo", "torch"),
        ("trainer config.yaml", "yaml"),
        ("trainer config.yaml", "transformers"),
    ],
)
def test_ctrl_c_while_modules_are_imported(words: str, module: str, tmp_path: Path) -> None:
    """Before that there is Python's own start only."""
    (tmp_path / "config.yaml").write_text("model: demo\ndata: demo\noutput_dir: out\n")
    package, *rest = words.split()
    code = f"""
import importlib.abc, os, runpy, signal, sys
class CtrlC(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, CtrlC())
sys.argv = {[package, *rest]!r}
runpy.run_module({package!r}, run_name="__main__")
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    options: Any = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run([sys.executable, "-c", code], check=False, **options)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_ctrl_c_in_the_midst_of_a_training(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "model: demo\ndata: demo\nmax_train_clips: 48\nmax_eval_clips: 8\nepochs: 400\noutput_dir: out\n"
    )
    process = start("trainer", "config.yaml", stdout=subprocess.PIPE, cwd=tmp_path)
    assert any(line.startswith("before: ") for line in process.stdout)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=100)[1].endswith("interrupted\n")
    assert process.returncode == 130


PLACES = [
    "evaluate demo --data demo --output {}/x",
    "inspect --output {}/x",
    "export --from-model demo --output {}/x",
    "report nothing --output {}/x.html",
    "--space lr_batch --trials 1 --storage {}/x",
    "train --storage {}/x",
    "transcribe demo talk.wav --output {}/x",
]


@pytest.mark.parametrize("words", PLACES)
def test_places_of_output_are_checked_before_the_work(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A place that takes no files, one below a file, and a disk that is full."""
    import numpy as np
    import soundfile

    monkeypatch.chdir(tmp_path)
    soundfile.write("talk.wav", np.zeros(1600), 16_000)
    Path("file").touch()
    option = next(word for word in words.split() if word in ("--output", "--storage"))
    for place in ("/proc", "file"):
        assert main(words.format(place).split()) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith(f"error: {option} {place}/x")
        assert "cannot be written" in error or "no folder" in error
    Path("full").mkdir()
    # No byte fits into any file, as on a disk that is full.
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        started = time.monotonic()
        assert main(words.format("full").split()) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert time.monotonic() - started < 20
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert told[0].startswith(f"error: {option} full/x")
    assert "cannot be written: File too large" in told[0]


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--space lr_batch --take-over", "--resume EXPERIMENT"),
        ("train --take-over", "--resume EXPERIMENT"),
        ("--space lr_batch --plateau-points 1", "--plateau N"),
        ("--space lr_batch --finalists 0 --repeats 3", "--finalists of at least 1"),
    ],
)
def test_options_without_effect_are_refused(words: str, needed: str, refused: Callable[..., str]) -> None:
    assert f": needs {needed}" in refused(*words.split())
