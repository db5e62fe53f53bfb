"""What goes along with a job and what never does: staging, arguments made to hold on the cluster, refusals."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tune.commands.job_request import read_request
from tune.remote.package import pinned_requirements, stage

SPACE = "learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}\n"
PASSWORD = "hunter2hunter2"
PLACE = "/mnt/shared/experiments"
STORAGE = ["--storage", PLACE]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, full of what must not travel."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    (tmp_path / "data.csv").write_text("audio,text\n")
    (tmp_path / ".env").write_text(f"DB_PASSWORD={PASSWORD}\n")
    (tmp_path / "id_rsa").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    return tmp_path


def test_the_package_holds_the_program_and_the_named_files_only(here: Path) -> None:
    request = read_request(["--space", "space.yaml", *STORAGE])
    there = here / "staged"
    there.mkdir()
    stage(there, [*request.files, here / "data.csv"])
    files = {path.name for path in there.iterdir() if path.is_file()}
    assert files == {"space.yaml", "data.csv", "ds_config.json", "ds_config_zero3.json"}
    assert {path.name for path in there.iterdir() if path.is_dir()} == {"tune", "trainer", "search_spaces"}
    staged = [path for path in there.rglob("*") if path.is_file()]
    assert not [path for path in staged if path.suffix == ".pyc" or path.name.startswith(".")]
    assert sum(path.stat().st_size for path in staged) < 20_000_000

    code = "import tune.cli, trainer, tune.space.space as s; print(tune.cli.__file__, s.packaged_spaces())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=there, env=environment, capture_output=True, text=True, check=True)
    assert str(there) in done.stdout and "lr_batch" in done.stdout, "it runs by itself"


def test_requirements_are_pinned_without_ray_and_builds() -> None:
    plain, with_deepspeed = pinned_requirements(()), pinned_requirements(["deepspeed"])
    assert all("==" in line and "+" not in line for line in plain)
    names = {line.partition("==")[0] for line in plain}
    assert {"torch", "transformers", "optuna", "mlflow", "accelerate"} <= names
    assert not {name for name in names if name.startswith("ray") or name in {"pytest", "ruff", "deepspeed"}}
    assert any(line.startswith("deepspeed==") for line in with_deepspeed)


@pytest.mark.parametrize(
    ("given", "stem", "option"),
    [("--space lr_batch", "lr_batch", "--experiment"), ("train --model small", "train", "--name")],
)
def test_it_gets_its_name_here(here: Path, given: str, stem: str, option: str) -> None:
    words = [*given.split(), *STORAGE]
    request = read_request(words)
    assert request.name.startswith(f"{stem}-20") and not request.files
    assert request.words == [*words, f"{option}={request.name}"]
    if stem == "lr_batch":
        assert read_request(["search", *words]).words[:-1] == words


@pytest.mark.parametrize(
    ("given", "sent", "files"),
    [
        (
            "--space spaces/mine.yaml --deepspeed=zero.json {}",
            "--space mine.yaml --deepspeed=zero.json {}",
            2,
        ),
        (
            "--space=spaces/mine --set deepspeed=./zero.json {}",
            "--space=mine.yaml --set deepspeed=zero.json {}",
            2,
        ),
        ("--space {here}/spaces/mine.yaml --guard /a.csv:2 {}", "--space mine.yaml --guard /a.csv:2 {}", 1),
        ("--resume mine --trials 8 --take-over --track mlflow tensorboard", None, 0),
        (
            "train configs/small.yaml --name x --set seed=4 --epochs 2",
            "train small.yaml --name x --set seed=4 --epochs 2",
            1,
        ),
        ("train ./configs/small.yaml --name x", "train small.yaml --name x", 1),
        ("--space spaces/a=1.yaml {}", "--space a=1.yaml {}", 1),
        ("--space=spaces/a=1.yaml --deepspeed {}", "--space=a=1.yaml --deepspeed {}", 1),
    ],
)
def test_words_are_passed_on_and_paths_replaced(here: Path, given: str, sent: str | None, files: int) -> None:
    for name, text in {
        "spaces/mine.yaml": SPACE,
        "configs/small.yaml": "learning_rate: 1e-4\nmax_steps: 8\n",
        "spaces/a=1.yaml": SPACE,
        "zero.json": '{"zero_optimization": {"stage": 2}}',
        "ds_config.json": "{}",  # none of ours
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    rest = "--set data_config=be_by --epochs 2 --experiment x"
    words, expected = (
        text.replace("{}", rest).replace("{here}", str(here)).split() for text in (given, sent or given)
    )
    request = read_request([*words, *STORAGE])
    assert request.words == [*expected, *STORAGE]
    assert len(request.files) == files
    extras = {"deepspeed": "deepspeed", "tensorboard": "tensorboard"}
    assert request.extras == {extra for word, extra in extras.items() if word in given}
    assert request.name == ("mine" if "--resume" in given else "x")


def test_what_the_user_should_know(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    request = read_request(["--space", "lr_batch", "--data", "/mnt/shared/data.csv"])
    assert "--storage is not given: results go to ~/experiments on the head's machine" in request.notes[0]
    assert "every node must see it" in request.notes[1]
    assert "is not sent" in request.notes[2] and "mlflow:5000" not in request.notes[2]
    assert (request.words[-1], request.storage) == ("--storage=~/experiments", "~/experiments")


SEARCH = ["--space", "lr_batch"]
REFUSED = {
    "another command": (["ui"], "cannot be sent"),
    "a space that is not there": (["--space", "lr_bach", *STORAGE], "lr_bach: no such file"),
    "a relative storage": ([*SEARCH, "--storage", "experiments"], "--storage experiments: is relative"),
    "data of this machine": ([*SEARCH, *STORAGE, "--data", "data.csv"], "--data data.csv: is not sent"),
    "a guard of this machine": (
        [*SEARCH, *STORAGE, "--guard", "data.csv:2"],
        "--guard data.csv: is not sent",
    ),
    "a relative store": (
        [*SEARCH, *STORAGE, "--tracking-uri", "sqlite:///mlflow.db"],
        "--tracking-uri sqlite:///mlflow.db: is relative",
    ),
    "the cluster twice": ([*SEARCH, "--address", "auto"], "belongs before --"),
    "a password in the store": (
        [*SEARCH, "--tracking-uri", f"http://me:{PASSWORD}@mlflow:5000"],
        "--tracking-uri: holds a password or key in an address",
    ),
    "nothing": ([], "submit: nothing to run; give a search with its arguments after --"),
    "the word alone": (["search"], "submit: nothing to run"),
    "a token in the address": ([*SEARCH, f"--data=https://x/y?token={PASSWORD}"], "--data: holds"),
    "a password in the space": (
        ["--space", "secret.yaml"],
        "secret.yaml:2: data='https://***@host/x': the address has keys",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_sent(here: Path, refused: Callable[..., str], case: str) -> None:
    (here / "secret.yaml").write_text(f"{SPACE}data: https://me:{PASSWORD}@host/x\n")
    words, message = REFUSED[case]
    line = refused("submit", "--address", "http://127.0.0.1:9", "--", *words)
    assert message in line and PASSWORD not in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--file", "none.csv"], "none.csv: cannot be read: No such file"),
        (["--file", "large.csv"], "10 MB is too much to send with a job"),
        (["--file", "space.yaml"], "another file of this name"),
        (["--env", f"HF_TOKEN={PASSWORD}"], "--env HF_TOKEN: looks like a secret"),
        (["--env", "MLFLOW_TRACKING_URI=http://x"], "use --tracking-uri after --"),
        (["--env", f"PROXY=http://me:{PASSWORD}@host"], "--env PROXY: holds a password"),
        (["--env", PASSWORD], "must be NAME=VALUE"),
    ],
)
def test_files_and_variables_that_cannot_go_along(
    here: Path, refused: Callable[..., str], words: list[str], message: str
) -> None:
    (here / "large.csv").write_bytes(b"x" * 10_000_001)
    line = refused(
        "submit", "--address", "http://127.0.0.1:9", *words, "--", "--space", "space.yaml", *STORAGE
    )
    assert message in line and PASSWORD not in line
