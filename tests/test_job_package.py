"""What goes along with a job and what never does: staging, arguments made to hold on the cluster, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainer
from tune.cli import main
from tune.errors import UserError
from tune.job_arguments import read_request
from tune.job_package import PACKAGED_SETTINGS, pinned_requirements, stage
from tune.job_parsers import list_parser, logs_parser, status_parser, stop_parser, submit_parser
from tune.job_secrets import find_secret, is_secret_name
from tune.jobs import JobError, cluster_address

SPACE = "learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}\n"
PASSWORD = "hunter2hunter2"
STORAGE = ["--storage", "/mnt/shared/experiments"]


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


PLACE = {"--address": None, "--project": None, "--location": None}
FROZEN = {
    "submit": {
        **PLACE,
        **{"--name": None, "--follow": False, "--file": [], "--env": []},
        **{"--no-install": False, "--allow-version-mismatch": False},
    },
    "status": {**PLACE, "job": None, "--json": False},
    "logs": {**PLACE, "job": None, "--follow": False},
    "stop": {**PLACE, "job": None, "--wait": 90.0},
    "list": {**PLACE, "--all": False, "--json": False},
}


def test_arguments_are_frozen() -> None:
    parsers = (submit_parser(), status_parser(), logs_parser(), stop_parser(), list_parser())
    for (name, expected), parser in zip(FROZEN.items(), parsers, strict=True):
        actions = [action for action in parser._actions if action.dest != "help"]
        found = {(action.option_strings or [action.dest])[0]: action.default for action in actions}
        assert found == expected, name


def test_the_package_holds_the_program_and_the_named_files_only(here: Path) -> None:
    (here / "staged").mkdir()
    request = read_request(["--space", "space.yaml", *STORAGE], None)
    staged = stage(here / "staged", request.files, ["optuna==5.0.0"])
    assert request.words[:2] == ["--space", "inputs/space.yaml"]
    assert (here / "staged" / "inputs" / "space.yaml").read_text() == SPACE
    root = Path(trainer.__file__).resolve().parent.parent
    expected = {"tune/cli.py", "trainer/train.py", "trainer/demo/model/model.safetensors", "requirements.txt"}
    assert expected | {f"search_spaces/{path.name}" for path in root.glob("search_spaces/*.yaml")} <= set(
        staged
    )
    assert {name for name in PACKAGED_SETTINGS if (root / name).is_file()} <= set(staged)
    top = {place.split("/")[0] for place in staged}
    assert top <= {"tune", "trainer", "search_spaces", "inputs", "requirements.txt", *PACKAGED_SETTINGS}
    assert not [place for place in staged if "__pycache__" in place or "/." in place or place.startswith(".")]
    assert sum((here / "staged" / place).stat().st_size for place in staged) < 20_000_000


def test_the_packaged_program_runs_by_itself(here: Path) -> None:
    (here / "staged").mkdir()
    stage(here / "staged", {}, [])
    code = "import tune.cli, trainer, tune.search_space as s; print(tune.cli.__file__, s.packaged_spaces())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here / "staged",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(here / "staged") in done.stdout
    assert "lr_batch" in done.stdout


def test_requirements_are_pinned_without_ray_and_builds() -> None:
    plain, with_deepspeed = pinned_requirements(deepspeed=False), pinned_requirements(deepspeed=True)
    assert all("==" in line and "+" not in line for line in plain)
    names = {line.partition("==")[0] for line in plain}
    assert {"torch", "transformers", "optuna", "mlflow", "accelerate"} <= names
    assert not {name for name in names if name.startswith("ray") or name in {"pytest", "ruff", "deepspeed"}}
    assert any(line.startswith("deepspeed==") for line in with_deepspeed)


def test_a_search_gets_its_name_here(here: Path) -> None:
    request = read_request(["--space", "lr_batch", *STORAGE], None)
    assert request.experiment is not None and request.experiment.startswith("lr_batch-20")
    assert request.words == ["--space", "lr_batch", *STORAGE, "--experiment", request.experiment]
    assert request.files == {}
    named = read_request(["--space", "lr_batch", "--experiment", "mine", *STORAGE], None)
    assert (named.name, named.words.count("--experiment")) == ("mine", 1)
    assert named.metadata["experiment"] == "mine"
    assert json.loads(json.dumps(named.metadata)) == named.metadata
    assert read_request(["--space", "lr_batch", *STORAGE], "job").experiment == "job"


def test_a_search_that_goes_on_keeps_its_name(here: Path) -> None:
    request = read_request(["--resume", "mine", "--trials", "4", *STORAGE], None)
    assert (request.name, request.experiment, request.files) == ("mine", "mine", {})
    assert request.words == ["--resume", "mine", "--trials", "4", *STORAGE]


def test_deepspeed_settings_go_along(here: Path) -> None:
    (here / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    for words in (
        ["--set", "deepspeed=zero.json"],
        ["--set=deepspeed=zero.json"],
        ["--deepspeed", "zero.json"],
        ["--deepspeed=zero.json"],
    ):
        request = read_request(["--space", "space.yaml", *STORAGE, *words], None)
        assert request.files["inputs/zero.json"] == Path("zero.json")
        assert request.words[-3].endswith("inputs/zero.json") and "zero.json" not in request.words
        assert request.deepspeed
    default = read_request(["--deepspeed", "--space", "lr_batch", *STORAGE], None)
    assert default.deepspeed and default.files == {}
    assert not read_request(["--space", "lr_batch", *STORAGE], None).deepspeed
    packaged = read_request(["--space", "lr_batch", *STORAGE, "--set", "deepspeed=ds_config.json"], None)
    assert packaged.files == {}


def test_a_training_takes_its_config_along(here: Path) -> None:
    command = pytest.importorskip("tune.commands.train")
    options = {option for action in command.train_parser()._actions for option in action.option_strings}
    place = ["--output" if "--output" in options else "--storage", "/mnt/shared/model"]
    (here / "small.yaml").write_text("learning_rate: 1e-4\n")
    request = read_request(["train", "small.yaml", *place], None)
    assert request.words == ["train", "inputs/small.yaml", *place]
    assert request.files == {"inputs/small.yaml": Path("small.yaml")}
    assert request.name.startswith("train-small-20")
    with pytest.raises(JobError, match="job's working directory"):
        read_request(["train", "small.yaml", place[0], "model"], None)


def test_what_the_user_should_know(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    request = read_request(["--space", "lr_batch", *STORAGE, "--data", "/mnt/shared/data.csv"], None)
    assert "every node must see it" in request.notes[0]
    assert "is not sent" in request.notes[1] and "mlflow:5000" not in request.notes[1]
    local = read_request(["--space", "lr_batch", *STORAGE, "--tracking-uri", "http://localhost:5000"], None)
    assert "head node" in local.notes[0]


REFUSED = {
    "nothing": ([], "nothing to run"),
    "another command": (["ui"], "cannot be sent"),
    "a space that is not there": (["--space", "lr_bach", *STORAGE], "lr_bach: no such file"),
    "an unknown setting": (["--space", "lr_batch", *STORAGE, "--set", "epoch=3"], "epoch"),
    "an impossible number": (["--space", "lr_batch", *STORAGE, "--trials", "0"], "--trials 0"),
    "neither space nor experiment": (STORAGE, "--space: is missing"),
    "a relative storage": (
        ["--space", "lr_batch", "--storage", "experiments"],
        "--storage experiments: is relative",
    ),
    "data of this machine": (
        ["--space", "lr_batch", *STORAGE, "--data", "data.csv"],
        "--data data.csv: is not sent",
    ),
    "a relative store": (
        ["--space", "lr_batch", *STORAGE, "--tracking-uri", "sqlite:///mlflow.db"],
        "--tracking-uri sqlite:///mlflow.db: is relative",
    ),
    "the cluster twice": (["--space", "lr_batch", "--address", "auto"], "belongs before --"),
    "a name that is none": (["--space", "lr_batch", *STORAGE, "--experiment", "a b"], "--experiment 'a b'"),
    "a password in the store": (
        ["--space", "lr_batch", "--tracking-uri", f"http://me:{PASSWORD}@mlflow:5000"],
        "--tracking-uri: holds a password in an address",
    ),
    "a token in the address": (
        ["--space", "lr_batch", "--data", f"https://x/y?token={PASSWORD}"],
        "--data: holds",
    ),
    "a setting named like a secret": (
        ["--space", "lr_batch", "--set", f"api_key={PASSWORD}"],
        "--set: holds",
    ),
    "the same in one word": (["--space", "lr_batch", f"--set=password={PASSWORD}"], "--set: holds"),
    "an access token": (
        ["--space", "lr_batch", "--model", "hf_" + "a1B2" * 8],
        "--model: holds an access token",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_sent(
    here: Path, capsys: pytest.CaptureFixture[str], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, message = REFUSED[case]
    assert main(["submit", "--address", "http://127.0.0.1:9", "--", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and message in printed.err and len(printed.err.splitlines()) == 1
    assert PASSWORD not in printed.err and "a1B2a1B2" not in printed.err


@pytest.mark.parametrize("name", [".env", "id_rsa"])
def test_secret_files_are_refused(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = [
        "submit",
        "--address",
        "http://127.0.0.1:9",
        "--file",
        name,
        "--",
        "--space",
        "lr_batch",
        *STORAGE,
    ]
    assert main(words) == 2
    assert f"{name}: looks like a secret by its name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["# hf_" + "a1B2" * 8, "# postgresql://me:hunter2@db/x", "# password: hunter2hunter2", "# $PLANTED"],
)
def test_a_secret_inside_a_file_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", "correct horse battery staple")
    text = text.replace("$PLANTED", "correct horse battery staple").replace("# password", "password")
    (here / "staged").mkdir()
    (here / "other.yaml").write_text(SPACE + text)
    with pytest.raises(UserError, match=r"other\.yaml: seems to hold") as caught:
        stage(here / "staged", {"inputs/other.yaml": here / "other.yaml"}, [])
    assert "hunter2" not in str(caught.value) and "horse" not in str(caught.value)


def test_environment_of_the_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for item, message in {
        f"HF_TOKEN={PASSWORD}": "--env HF_TOKEN: looks like a secret",
        "MLFLOW_TRACKING_URI=http://x": "use --tracking-uri after --",
        "RAY_JOB_STOP_WAIT_TIME_S=1": "is decided by the job",
        PASSWORD: "must be NAME=VALUE",
    }.items():
        assert main(["submit", "--env", item, "--", "--space", "lr_batch", *STORAGE]) == 2
        printed = capsys.readouterr().err
        assert message in printed and PASSWORD not in printed


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *(("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("db_password", True), ("apiKey", True)),
        *(("TOKENIZERS_PARALLELISM", False), ("HF_HUB_OFFLINE", False), ("NCCL_DEBUG", False)),
        *(("max_train_clips", False), ("label_smoothing", False)),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) == secret


@pytest.mark.parametrize("text", ["postgresql://me:@bc@db/x", "https://host/x?se=2027&sig=a%2Bb"])
def test_a_secret_in_an_address_is_one(text: str) -> None:
    assert find_secret(text) is not None


def test_harmless_text_is_no_secret() -> None:
    for text in (
        "s3://bucket/experiments?endpoint_override=minio:9000",
        "postgresql://me@db/x",
        "openai/whisper-small",
    ):
        assert find_secret(text) is None


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


def test_the_address_in_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(JobError, match=r"RAY_ADDRESS=10\.0\.0\.1:6379: .* http://10\.0\.0\.1:8265"):
        cluster_address(None)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://head:8265/")
    assert cluster_address(None) == "http://head:8265"
    assert cluster_address("https://other") == "https://other"


def test_without_a_storage_results_go_to_the_home_on_the_head(here: Path) -> None:
    request = read_request(["--space", "lr_batch", "--trials", "2"], None)
    assert request.words[-2:] == ["--storage", "~/experiments"]
    assert request.storage == "~/experiments"
    assert any("--storage is not given" in note for note in request.notes)
