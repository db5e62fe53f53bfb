"""`tune-whisper ui` in a process of its own: it answers, opens the right page, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
from pathlib import Path

import psutil
import pytest
from made_logs import MadeLog
from mlflow_server import DIRECT, running_ui, search_runs
from processes import free_port

from tune.cli import main
from tune.experiments.events import ResultsWritten
from tune.experiments.experiment import Experiment
from tune.experiments.folder import ExperimentFolder
from tune.experiments.mlflow_store import default_tracking_uri

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment `new one` holds four trials."""
    storage = tmp_path_factory.mktemp("my experiments")
    made = MadeLog(storage / "new one")
    made.session(trials=4)
    for number in range(1, 5):
        settings = (1e-4 * number, 0.1 * (number - 1), 4 * number, number)
        wers = [60.0 / (rung + 1) + number for rung in range(2 if number == 4 else 3)]
        made.trial(f"{number:03d}", *wers, **dict(zip(SETTINGS, settings, strict=True)))
    made.finish()
    made.append(ResultsWritten())
    made.deliver()
    made.close()
    return storage


def write_experiment(folder: Path, uri: str) -> None:
    made = MadeLog(folder, uri)
    made.session()
    made.close()


def processes_with(words: str) -> list[str]:
    """Command lines of running processes that hold `words`."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if words in line]


def test_it_serves_until_it_is_told_to_stop(storage: Path) -> None:
    port = free_port()
    with running_ui(storage, port) as (process, url):
        base = url.split("/#/")[0]
        assert base == f"http://127.0.0.1:{port}"
        with DIRECT.open(base) as page:
            assert b"<title>MLflow</title>" in page.read()
        runs = search_runs(base, 'tags.role = "trial"')
        assert [run["info"]["run_name"].split()[0] for run in runs] == ["001", "002", "003", "004"]
        parent = search_runs(base, 'tags.role = "experiment"')[0]["info"]["run_id"]
        with DIRECT.open(f"{base}/get-artifact?path=experiment.yaml&run_uuid={parent}") as artifact:
            assert artifact.read() == (storage / "new one" / "experiment.yaml").read_bytes()
        assert len(processes_with(f"--host 127.0.0.1 --port {port}")) == 2  # mlflow and its one worker
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=200)
    assert process.returncode == 0
    assert errors.startswith("It is there in some seconds; Ctrl-C ends it.\n")
    assert "Traceback" not in output + errors
    assert processes_with(f"--host 127.0.0.1 --port {port}") == []


def refused(capsys: pytest.CaptureFixture[str], storage: Path, *words: object) -> str:
    assert main(["ui", *map(str, words), "--storage", str(storage)]) == 2
    return capsys.readouterr().err


def test_a_port_that_is_taken(storage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        told = refused(capsys, storage, "new one", "--port", taken)
        assert f"--port {taken}: cannot be used, or others use it; choose another" in told
    assert "--port 70000: cannot be used" in refused(capsys, storage, "new one", "--port", 70000)


def test_a_folder_that_was_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_experiment(tmp_path / "moved", f"sqlite:///{tmp_path}/before/mlflow.db")
    told = refused(capsys, tmp_path, "moved")
    assert "its MLflow store " in told and "before/mlflow.db is gone" in told
    MadeLog(tmp_path / "own").session()
    own = ExperimentFolder("own", (tmp_path / "own").rename(tmp_path / "elsewhere"))
    (own.path / "mlflow.db").touch()
    assert Experiment.read(own).tracking_uri == default_tracking_uri(own.path)


@pytest.mark.slow
@pytest.mark.occasional
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_a_browser_shows_wer_and_settings_side_by_side(storage: Path, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("screenshot", ROOT / "docs" / "screenshot.py")
    assert spec is not None
    assert spec.loader is not None
    screenshot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(screenshot)
    with running_ui(storage, free_port()) as (_, url), screenshot.chromium(2000, 2000) as browser:
        compared = screenshot.photograph_compare_view(
            browser, screenshot.compare_url(url), str(tmp_path / "compare.png")
        )
        listed = screenshot.photograph_list(browser, url, str(tmp_path / "list.png"))
    assert "Comparing 4 Runs from 1 Experiment" in compared
    for text in (compared, listed):
        for word in (*SETTINGS, "wer", "001 lr=0.0001", "004 lr=0.0004"):
            assert word[:13] in text  # the list cuts long names
    assert "early_stopped" in listed
    assert (tmp_path / "compare.png").stat().st_size > 50_000
