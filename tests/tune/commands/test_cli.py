"""The command line as others script it: frozen arguments, quick help, one clear line for every mistake."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from tune.cli import export_parser, main, search_parser, ui_parser
from tune.commands.sync import sync_parser

FROZEN = {
    "search": {
        **{"--space": None, "--trials": 8, "--model": None, "--data": None, "--language": None},
        **{"--experiment": None, "--storage": "experiments", "--tracking-uri": None, "--epochs": None},
        **{"--max-steps": None, "--set": [], "--gpus-per-trial": None, "--cpus-per-trial": None},
        **{"--max-concurrent": None, "--seed": 0, "--dry-run": False, "--resume": None, "--address": None},
        **{"--workers-per-trial": 1, "--deepspeed": None, "--max-failures": 2},
        **{"--time-budget": None, "--gpu-hours": None, "--plateau": None, "--plateau-points": 0.1},
        **{"--finalists": None, "--repeats": 2, "--warm-start": None, "--optuna-storage": None},
        **{"--keep-checkpoints": "best", "--track": ["mlflow"], "--take-over": False},
    },
    "export": {
        **{"experiment": None, "--output": None, "--storage": "experiments", "--trial": None},
        **{"--format": [], "--quantization": None, "--check": "quick"},
        **{"--push-to-hub": None, "--private": False, "--register": None, "--alias": None},
        **{"--from-model": None, "--data": None, "--language": None},
    },
    "ui": {"experiment": None, "--storage": "experiments", "--port": None},
    "sync": {"experiment": None, "--storage": "experiments", "--tracking-uri": None},
}


@pytest.mark.parametrize(
    ("name", "parser"),
    [
        *(("search", search_parser()), ("export", export_parser()), ("ui", ui_parser())),
        ("sync", sync_parser()),
    ],
)
def test_arguments_are_frozen(name: str, parser: object) -> None:
    actions = [action for action in parser._actions if action.dest != "help"]  # type: ignore[attr-defined]
    assert {(action.option_strings or [action.dest])[0]: action.default for action in actions} == FROZEN[name]


@pytest.mark.parametrize(
    "words",
    [[], ["export"], ["ui"], ["sync"], ["transcribe"], ["push"], ["evaluate"], ["inspect"], ["report"]],
)
def test_help_takes_half_a_second_of_one_core(words: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "tune", *words, "--help"], capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.startswith("usage: tune-whisper")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def audio_table(folder: Path, header: str, rows: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    soundfile.write(folder / "a.wav", [0.0, 0.1] * 8000, 16000)
    (folder / "data.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "data.csv"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


GOOD = "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true}\n"


def mistakes(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Arguments of each mistake, and what its line must say."""
    space = write(folder / "good.yaml", GOOD)
    no_text = audio_table(folder / "no_text", "audio,speaker", ["a.wav,me"])
    empty = audio_table(folder / "empty", "audio,text,split", ["a.wav,hello,train", "a.wav,there,train"])
    (folder / "experiments" / "taken").mkdir(parents=True)
    (folder / "old").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        write(folder / "old" / name, "{}")
    return {
        "space missing": (["--space", "lr_bach"], ["lr_bach", "no such file", "lr_batch"]),
        "bad yaml": (["--space", write(folder / "bad.yaml", GOOD + "a: [1, 2\n")], ["bad.yaml:3"]),
        "unknown key": (
            ["--space", write(folder / "key.yaml", "learning_rat: {type: float, low: 1, high: 2}\n")],
            ["key.yaml:1", "learning_rat", "learning_rate"],
        ),
        "reversed bounds": (
            ["--space", write(folder / "rev.yaml", "dropout: {type: float, low: 0.5, high: 0.1}\n")],
            ["rev.yaml:1", "dropout", "0.5", "0.1"],
        ),
        "bad value type": (
            [
                "--space",
                write(folder / "type.yaml", GOOD + "train_batch_size: {type: int, low: two, high: 8}\n"),
            ],
            ["type.yaml:2", "train_batch_size", "two"],
        ),
        "unknown model": (
            ["--space", space, "--model", "whisper-gigantic"],
            ["whisper-gigantic", "large-v3-turbo"],
        ),
        "pickled model": (
            ["--space", space, "--model", str(folder / "old")],
            ["pytorch_model.bin is a pickle", "convert it: python -c"],
        ),
        "missing data": (["--space", space, "--data", "/no/such/data"], ["/no/such/data"]),
        "no text column": (["--space", space, "--data", str(no_text)], ["text", "audio, speaker"]),
        "unknown language": (["--space", space, "--language", "belorusian"], ["belorusian", "belarusian"]),
        "empty split": (
            ["--space", space, "--data", str(empty), "--set", "row_filter=split=test"],
            ["row_filter"],
        ),
        "no such split": (
            ["--space", space, "--data", str(empty), "--set", "train_split=training2"],
            ["train"],
        ),
        "existing experiment": (["--space", space, "--experiment", "taken"], ["taken", "exists"]),
        "no such gpu": (["--space", space, "--gpus-per-trial", "1"], ["--gpus-per-trial 1", "0 GPU"]),
        "gpus of one worker": (
            ["--space", space, "--gpus-per-trial", "2"],
            ["--gpus-per-trial 2: ", "--workers-per-trial 2", "--gpus-per-trial 1"],
        ),
        "more gpus than workers": (
            ["--space", space, "--gpus-per-trial", "4", "--workers-per-trial", "2"],
            ["--gpus-per-trial 4: ", "--workers-per-trial 4", "--gpus-per-trial 2"],
        ),
        "fewer gpus than workers": (
            ["--space", space, "--gpus-per-trial", "1", "--workers-per-trial", "2"],
            ["--gpus-per-trial 1: ", "--workers-per-trial 1", "--gpus-per-trial 2", "or 0"],
        ),
        "a share for each of several": (
            ["--space", space, "--gpus-per-trial", "0.5", "--workers-per-trial", "2"],
            ["--gpus-per-trial 0.5: ", "--workers-per-trial 1", "--gpus-per-trial 2", "or 0"],
        ),
        "gpus no number": (["--space", space, "--gpus-per-trial", "one"], ["--gpus-per-trial", "one"]),
        "no trials": (["--space", space, "--trials", "0"], ["--trials 0", "at least 1"]),
        "bad set": (["--space", space, "--set", "dropout=2"], ["dropout", "0.9"]),
        "unknown set": (["--space", space, "--set", "drop_out=0.1"], ["drop_out", "dropout"]),
        "two budgets": (["--space", space, "--epochs", "1", "--max-steps", "5"], ["--max-steps", "--epochs"]),
        "store away": (["--space", space, "--tracking-uri", "http://127.0.0.1:9"], ["127.0.0.1:9"]),
        "bad duration": (["--space", space, "--time-budget", "8 hours"], ["--time-budget", "8h", "1h30m"]),
        "gpu hours": (["--space", space, "--gpu-hours", "-1"], ["--gpu-hours -1", "above 0"]),
        "gpu hours without": (["--space", space, "--gpu-hours", "4"], ["--gpu-hours 4", "--time-budget"]),
        "no plateau": (["--space", space, "--plateau", "0"], ["--plateau 0", "above 0"]),
        "no repeats": (["--space", space, "--repeats", "0"], ["--repeats 0", "--finalists 0"]),
        "warm start": (["--space", space, "--warm-start", "none"], ["none", "no experiment"]),
        "study away": (
            ["--space", space, "--optuna-storage", "sqlite:////no/such/x.db"],
            ["--optuna-storage"],
        ),
        "unknown experiment": (["export", "nothing", "--output", "out"], ["nothing", "no experiment"]),
    }


NAMES = [
    *("space missing", "bad yaml", "unknown key", "reversed bounds", "bad value type", "unknown model"),
    *(
        "pickled model",
        "missing data",
        "no text column",
        "unknown language",
        "empty split",
        "no such split",
        "existing experiment",
    ),
    *("no such gpu", "gpus of one worker", "more gpus than workers", "fewer gpus than workers"),
    *(
        "a share for each of several",
        "gpus no number",
        "no trials",
        "bad set",
        "unknown set",
        "two budgets",
        "store away",
    ),
    *(
        "bad duration",
        "gpu hours",
        "gpu hours without",
        "no plateau",
        "no repeats",
        "warm start",
        "study away",
    ),
    "unknown experiment",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_one_clear_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, expected = mistakes(tmp_path)[name]
    before = sorted(tmp_path.rglob("*"))
    assert main(words) == 2
    printed = capfd.readouterr()
    lines = [line for line in printed.err.splitlines() if line.strip()]
    assert len(lines) == 1, printed.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in printed.out + printed.err
    for text in expected:
        assert text in lines[0]
    assert sorted(tmp_path.rglob("*")) == before, "something was left behind"


def test_all_mistakes_are_tested(tmp_path: Path) -> None:
    assert list(mistakes(tmp_path)) == NAMES
    shutil.rmtree(tmp_path)


def test_all_problems_of_a_space_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "dropout: {type: float, low: 0.5, high: 0.1}\nlearning_rat: 1\nwarmup_ratio: {type: flat, low: 0, high: 1}\n"
    assert main(["--space", write(tmp_path / "many.yaml", text)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert [f"many.yaml:{number}" in line for number, line in enumerate(lines, start=1)] == [True] * 3


def test_dry_run_shows_the_plan_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["--space", "lr_batch.yaml", "--trials", "5", "--epochs", "2", "--dry-run", "--seed", "3"]) == 0
    )
    printed = capsys.readouterr().out
    for text in (
        "learning_rate",
        "001",
        "002",
        "003",
        "rungs at",
        "5 trials",
        "estimate: about",
        "nothing was run",
    ):
        assert text in printed
    assert "004 " not in printed
    assert not list(tmp_path.iterdir())
