"""The command line: quick help, one clear line for every mistake."""

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile

from tune.cli import main
from tune.space.space import packaged_spaces


@pytest.mark.parametrize("words", [[], ["export"], ["inspect"], ["evaluate"]])
def test_help_imports_nothing_that_takes_seconds(words: list[str]) -> None:
    done = run_and_list_modules(*words, "--help")
    assert done.stdout.startswith("usage: tune-whisper")
    imported = {name.partition(".")[0] for name in done.stderr.split()}
    assert "argparse" in imported
    assert sorted(imported & set(HEAVY.split())) == []
    if not words:  # what a plain --help needs of our own is little, and stays so
        assert sorted({"rich", *PLANNING} & set(done.stderr.split())) == []


PLANNING = {"tune.runs.plan", "tune.experiments.state", "tune.experiments.events", "tune.space.space"}
HEAVY = (
    "torch transformers datasets evaluate ray optuna mlflow deepspeed numpy scipy pandas pyarrow plotly jinja2 "
    "sqlalchemy huggingface_hub fsspec requests"
)


def run_and_list_modules(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command; behind it, the names of all modules that were imported, on standard error."""
    program = (
        "import atexit, runpy, sys; sys.argv[0] = 'tune-whisper'; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        "runpy.run_module('tune', run_name='__main__', alter_sys=True)"
    )
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)


GOOD = "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}\n"
FILES = {
    "good.yaml": GOOD,
    "bad.yaml": f"{GOOD}a: [1, 2\n",
    "no_text/data.csv": "audio,speaker\na.wav,me\n",
    "empty/data.csv": "audio,text,split\na.wav,hello,train\na.wav,there,train\n",
    "old/config.json": "{}",
    "old/pytorch_model.bin": "{}",
    "experiments/taken/notes.txt": "",
}
DEMO = "--model demo --language en"
MISTAKES = {
    "space missing": ("--space lr_bach", ["lr_bach", "no such file", "lr_batch"]),
    "bad yaml": ("--space bad.yaml", ["bad.yaml:3"]),
    "unknown model": ("--model whisper-gigantic", ["whisper-gigantic", "large-v3-turbo"]),
    "pickled model": ("--model ./old", ["pytorch_model.bin is a pickle", "convert it: python -c"]),
    "no data": ("--language de", ["--data: is missing", "--language de is given", "--data demo"]),
    "no model": ("--data no_text/data.csv --language en", ["--model: is missing", "--model demo"]),
    "no language": ("--data no_text/data.csv --model demo", ["--language: is missing"]),
    "missing data": (f"--data /no/such/data {DEMO}", ["/no/such/data"]),
    "no text column": (f"--data no_text/data.csv {DEMO}", ["text", "audio, speaker"]),
    "unknown language": ("--language belorusian", ["belorusian", "belarusian"]),
    "empty split": (f"--data empty/data.csv {DEMO} --set row_filter=split=test", ["row_filter"]),
    "no such split": (f"--data empty/data.csv {DEMO} --set train_split=training2", ["train"]),
    "existing experiment": ("--experiment taken", ["taken", "exists"]),
    "fewer gpus than workers": (
        "--gpus-per-trial 1 --workers-per-trial 2",
        ["--gpus-per-trial 1: ", "--workers-per-trial 1", "--gpus-per-trial 2", "or 0"],
    ),
    "no number of gpus": ("--gpus-per-trial nan", ["--gpus-per-trial nan", "must be a finite number"]),
    "no trials": ("--trials 0", ["--trials 0", "at least 1"]),
    "store away": ("--tracking-uri http://127.0.0.1:9", ["127.0.0.1:9"]),
    "gpu hours": ("--gpu-hours -1", ["--gpu-hours -1", "above 0"]),
    "gpu hours without": ("--gpu-hours 4 --dry-run", ["--gpu-hours 4", "--time-budget"]),
    "unknown command": (
        "exprt x",
        ["'exprt': no such command; did you mean export? there are search, inspect"],
    ),
    "model without a name": ("evaluate ''", ["model ''", "has no config.json"]),
    "baseline without a name": ("evaluate demo --baseline ''", ["model ''", "has no config.json"]),
    "an option of another command": ("cluster delete lab --address x", ["arguments: --address x; see "]),
    "unknown option": ("--trails 4", ["unrecognized arguments: --trails 4; did you mean --trials?"]),
}
"""Words, of a search in a good space where they name neither space nor command; and what the line must say."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line(name: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    for file, content in FILES.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    for folder in ("no_text", "empty"):
        soundfile.write(tmp_path / folder / "a.wav", [0.0, 0.1] * 8000, 16000)
    words, expected = shlex.split(MISTAKES[name][0]), MISTAKES[name][1]
    if words[0].startswith("--") and words[0] != "--space":
        words[:0] = ["--space", "good.yaml"]
    line = refused(*words)
    assert all(text in line for text in expected), line


def test_dry_run_shows_the_plan_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["--space", "lr_batch.yaml", "--trials", "8", "--epochs", "2", "--dry-run", "--seed", "3"]) == 0
    )
    printed = capsys.readouterr().out
    told = "learning_rate|001|002|003|rungs at|8 trials|estimate: about|validation clips: diff"
    told += "|, and 6,400 in the 4 repeats of finalists"
    assert [text for text in told.split("|") if text not in printed] == []
    assert printed.endswith("nothing was run\n")
    assert "004 " not in printed
    assert not list(tmp_path.iterdir())


def test_help_names_all_packaged_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert len(packaged_spaces()) >= 5
    assert words >= {*packaged_spaces()}


def test_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tune-whisper {importlib.metadata.version('tune-whisper')}\n"


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("tune-whisper exp", {"export "}),
        ("tune-whisper --spa", {"--space "}),
        ("tune-whisper export --tr", {"--trial "}),
        ("tune-whisper  status --addr", {"--address "}),
        ("tune-whisper transcribe model a.wav --format s", {"srt "}),
        ("tune-whisper cluster d", {"delete "}),
        ("tune-whisper cluster scale lab --wo", {"--workers "}),
    ],
)
def test_a_shell_completes_words(line: str, ends: set[str], tmp_path: Path) -> None:
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n"}
    answer = {"_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "answer")}
    subprocess.run([sys.executable, "-m", "tune"], env={**os.environ, **asked, **answer}, check=True)
    assert set((tmp_path / "answer").read_text().split("\n")) == ends
