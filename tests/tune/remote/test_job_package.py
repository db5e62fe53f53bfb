"""What goes along with a job and what never does: staging, arguments made to hold on the cluster, refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainer
from tune.cli import main
from tune.commands.job_request import read_request
from tune.remote.client import JobError, cluster_address, connect
from tune.remote.package import check_environment, pinned_requirements, refuse_password, stage
from tune.util.errors import UserError

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
    request = read_request(["--space", "space.yaml", *STORAGE], None)
    there = here / "staged"
    count = stage(there, [*request.files, here / "data.csv"])
    staged = {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    root = Path(trainer.__file__).resolve().parent.parent
    patterns = (
        "search_spaces/*.yaml",
        "tune/*/templates/*",
        "tune/**/*.py",
        "trainer/demo/model/*.safetensors",
    )
    expected = {str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern)}
    assert {"tune/cli.py", "tune/pages/templates/page.css"} <= expected
    assert expected | {"space.yaml", "data.csv"} <= staged
    assert len(staged) == count
    assert {place.split("/")[0] for place in staged} == {
        *("tune", "trainer", "search_spaces", "space.yaml", "data.csv")
    }
    assert not [place for place in staged if "__pycache__" in place or "/." in place or place.startswith(".")]
    assert sum((there / place).stat().st_size for place in staged) < 20_000_000

    code = "import tune.cli, trainer, tune.space.space as s; print(tune.cli.__file__, s.packaged_spaces())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=there, env=environment, capture_output=True, text=True, check=True)
    assert str(there) in done.stdout and "lr_batch" in done.stdout, "it runs by itself"


def test_what_lies_about_in_a_checkout_stays_here(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "staged").mkdir()
    for package in ("tune", "trainer", "search_spaces"):
        folder = here / "checkout" / package
        folder.mkdir(parents=True)
        for name in ("code.py", ".env", "id_rsa", "auth.pem", "notes.txt"):
            (folder / name).write_text(PASSWORD)
        (folder / "link.py").symlink_to(here / ".env")
    monkeypatch.setattr("tune.remote.package._ROOT", here / "checkout")
    assert stage(here / "staged", []) == 3
    assert {path.name for path in (here / "staged").rglob("*") if path.is_file()} == {"code.py"}


def test_requirements_are_pinned_without_ray_and_builds() -> None:
    plain, with_deepspeed = pinned_requirements(()), pinned_requirements(["deepspeed"])
    assert all("==" in line and "+" not in line for line in plain)
    names = {line.partition("==")[0] for line in plain}
    assert {"torch", "transformers", "optuna", "mlflow", "accelerate"} <= names
    assert not {name for name in names if name.startswith("ray") or name in {"pytest", "ruff", "deepspeed"}}
    assert any(line.startswith("deepspeed==") for line in with_deepspeed)


def test_a_search_gets_its_name_here(here: Path) -> None:
    given = ["--space", "lr_batch", *STORAGE]
    request = read_request(given, None)
    assert request.experiment is not None and request.experiment.startswith("lr_batch-20")
    assert request.words == [*given, f"--experiment={request.experiment}"] and not request.files
    named = read_request([*given, "--experiment", "mine"], None)
    assert (named.name, named.experiment, named.words) == ("mine", "mine", [*given, "--experiment", "mine"])
    assert read_request(given, "job").experiment == "job"


def test_words_are_passed_on_and_paths_replaced(here: Path) -> None:
    (here / "spaces").mkdir()
    (here / "spaces" / "mine.yaml").write_text(SPACE)
    (here / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    rest = [
        "--set",
        "data_config=be_by",
        "--guard",
        "/a.csv:2",
        "--epochs",
        "2",
        "--experiment",
        "x",
        *STORAGE,
    ]
    for space in ("spaces/mine.yaml", "spaces/mine", f"{here}/spaces/mine.yaml"):
        for words in (
            ["--space", space, "--deepspeed=zero.json"],
            [f"--space={space}", "--set", "deepspeed=./zero.json"],
        ):
            request = read_request([*words, *rest], None)
            sent = [word.replace(space, "mine.yaml").replace("./", "") for word in words]
            assert request.words == [*sent, *rest]
            assert [path.name for path in request.files] == ["mine.yaml", "zero.json"]
            assert request.extras == ("deepspeed",)


def test_a_search_that_goes_on_keeps_its_name(here: Path) -> None:
    given = ["--resume", "mine", "--trials", "8", "--take-over", "--track", "mlflow", "tensorboard", *STORAGE]
    request = read_request(given, None)
    assert (request.name, request.experiment, request.words, request.files) == ("mine", "mine", given, [])


def test_a_training_takes_its_settings_along(here: Path) -> None:
    (here / "configs").mkdir()
    (here / "configs" / "small.yaml").write_text("learning_rate: 1e-4\nmax_steps: 8\n")
    rest = ["--from", "mine", *STORAGE, "--set", "seed=4"]
    request = read_request(["train", "configs/small.yaml", *rest], None)
    assert request.words == ["train", "small.yaml", *rest]
    assert request.name.startswith("train-small-20") and request.experiment is None
    assert request.files == [Path("configs/small.yaml")]
    given = ["train", "--model", "small", *STORAGE]
    assert read_request(given, None).words == given


def test_what_the_user_should_know(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    request = read_request(["--space", "lr_batch", "--data", "/mnt/shared/data.csv"], None)
    assert "every node must see it" in request.notes[0]
    assert "is not sent" in request.notes[1] and "mlflow:5000" not in request.notes[1]
    assert "--storage is not given: results go to ~/experiments on the head's machine" in request.notes[2]
    assert (request.words[-1], request.storage) == ("--storage=~/experiments", "~/experiments")
    local = read_request(["--space", "lr_batch", *STORAGE, "--tracking-uri", "http://localhost:5000"], None)
    assert "head node" in local.notes[0]


SEARCH = ["--space", "lr_batch"]
REFUSED = {
    "nothing": ([], "nothing to run"),
    "another command": (["ui"], "cannot be sent"),
    "a space that is not there": (["--space", "lr_bach", *STORAGE], "lr_bach: no such file"),
    "an unknown setting": ([*SEARCH, *STORAGE, "--set", "epoch=3"], "epoch"),
    "an impossible number": ([*SEARCH, *STORAGE, "--trials", "0"], "--trials 0"),
    "neither space nor experiment": (STORAGE, "--space: is missing"),
    "a relative storage": ([*SEARCH, "--storage", "experiments"], "--storage experiments: is relative"),
    "also of a training": (["train", "--storage", "model"], "--storage model: is relative"),
    "data of this machine": ([*SEARCH, *STORAGE, "--data", "data.csv"], "--data data.csv: is not sent"),
    "a guard of this machine": (
        [*SEARCH, *STORAGE, "--guard", "data.csv:2"],
        "--guard data.csv: is not sent",
    ),
    "a data file of this machine": (
        [*SEARCH, *STORAGE, "--data", "mix.yaml"],
        "--data mix.yaml: is not sent",
    ),
    "DeepSpeed's settings": (
        [*SEARCH, *STORAGE, "--deepspeed", "none.json"],
        "--deepspeed 'none.json': cannot be read",
    ),
    "a relative store": (
        [*SEARCH, *STORAGE, "--tracking-uri", "sqlite:///mlflow.db"],
        "--tracking-uri sqlite:///mlflow.db: is relative",
    ),
    "the cluster twice": ([*SEARCH, "--address", "auto"], "belongs before --"),
    "a name that is none": ([*SEARCH, *STORAGE, "--experiment", "a b"], "--experiment 'a b'"),
    "a password in the store": (
        [*SEARCH, "--tracking-uri", f"http://me:{PASSWORD}@mlflow:5000"],
        "--tracking-uri: holds a password or key in an address",
    ),
    "a token in the address": ([*SEARCH, f"--data=https://x/y?token={PASSWORD}"], "--data: holds"),
    "a password as a setting": ([*SEARCH, "--set", f"data=https://me:{PASSWORD}@x/y"], "--set: holds"),
    "a password in the space": (
        ["--space", "secret.yaml"],
        "secret.yaml:2: data='https://***@host/x': the address has keys",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_sent(here: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    (here / "secret.yaml").write_text(f"{SPACE}data: https://me:{PASSWORD}@host/x\n")
    (here / "mix.yaml").write_text("sources:\n  own: {data: recordings/, weight: -1}\n")
    words, message = REFUSED[case]
    words = [word.replace("{here}", str(here)) for word in words]
    assert main(["submit", "--address", "http://127.0.0.1:9", "--", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and message in printed.err and len(printed.err.splitlines()) == 1
    assert PASSWORD not in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--file", "none.csv"], "none.csv: cannot be read: No such file"),
        (["--file", "."], ".: the job has another file of this name"),
        (["--file", "large.csv"], "10 MB is too much to send with a job"),
        (["--file", "space.yaml"], "another file of this name"),
        (["--env", f"HF_TOKEN={PASSWORD}"], "--env HF_TOKEN: looks like a secret"),
        (["--env", f"apiKey={PASSWORD}"], "--env apiKey: looks like a secret"),
        (["--env", f"db_password={PASSWORD}"], "--env db_password: looks like a secret"),
        (["--env", "MLFLOW_TRACKING_URI=http://x"], "use --tracking-uri after --"),
        (["--env", "RAY_JOB_STOP_WAIT_TIME_S=1"], "is decided by the job"),
        (["--env", f"PROXY=http://me:{PASSWORD}@host"], "--env PROXY: holds a password"),
        (["--env", PASSWORD], "must be NAME=VALUE"),
    ],
)
def test_files_and_variables_that_cannot_go_along(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (here / "large.csv").write_bytes(b"x" * 10_000_001)
    search = ["--space", "space.yaml", *STORAGE]
    assert main(["submit", "--address", "http://127.0.0.1:9", *words, "--", *search]) == 2
    printed = capsys.readouterr().err
    assert message in printed and PASSWORD not in printed


def test_harmless_variables_and_addresses() -> None:
    items = ["TOKENIZERS_PARALLELISM=true", "HF_HUB_OFFLINE=1", "NCCL_DEBUG=INFO", "PROXY=http://me@host:80"]
    assert check_environment(items) == dict(item.split("=") for item in items)
    for text in (
        "s3://bucket/x?endpoint_override=minio:9000",
        "postgresql://me@db/x",
        "openai/whisper-small",
    ):
        refuse_password("--data", text)
    for text in ("postgresql://me:@bc@db/x", "https://host/x?se=2027&sig=a%2Bb"):
        with pytest.raises(UserError, match="--data: holds a password or key in an address"):
            refuse_password("--data", text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "ray://head:10001",
            "--address ray://head:10001: is for Ray's own client; jobs go to http://head:8265",
        ),
        ("head:6379", "jobs go to http://head:8265"),
        ("auto", "jobs go to http://HEAD:8265"),
        ("http://", "is not the address"),
        (None, "--address: missing"),
    ],
)
def test_addresses_that_take_no_jobs(here: Path, given: str | None, message: str) -> None:
    with pytest.raises(JobError) as caught:
        cluster_address(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("headers", ['{"Authorization": null}', "[]", "planted"])
def test_headers_that_are_none(here: Path, monkeypatch: pytest.MonkeyPatch, headers: str) -> None:
    monkeypatch.setenv("RAY_JOB_HEADERS", headers)
    with pytest.raises(JobError, match="RAY_JOB_HEADERS: must be a JSON object of texts") as caught:
        connect("http://127.0.0.1:9")
    assert "planted" not in str(caught.value)


def test_the_address_in_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(JobError, match=r"RAY_ADDRESS=10\.0\.0\.1:6379: .* http://10\.0\.0\.1:8265"):
        cluster_address(None)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265/")
    assert cluster_address(None) == "http://head:8265"
    assert cluster_address("https://other") == "https://other"
