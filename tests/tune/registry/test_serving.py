"""`mlflow models serve`: the real server process answers HTTP requests with what is said in them."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow_server import wait_for
from registered_models import as_file, clips, export_demo, heard

from tune.registry.register import register_model

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Serving:
    """A registered model, served by its alias on a free port."""

    def __init__(self, folder: Path) -> None:
        self.model = export_demo(folder / "model", language="de")
        store = f"sqlite:///{folder / 'mlflow.db'}"
        address = register_model(
            self.model,
            tracking_uri=store,
            name="whisper-de",
            alias="champion",
            artifact_root=folder / "artifacts",
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        words = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", address]
        words += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(self.port)]
        # The server's own programs are found beside Python's; ffmpeg is nowhere.
        environment = {**os.environ, "MLFLOW_TRACKING_URI": store, "DO_NOT_TRACK": "true"}
        environment |= {"PATH": f"{Path(sys.executable).parent}:/bin", "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        self.log = folder / "serve.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
            )

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            with DIRECT.open(f"http://127.0.0.1:{self.port}/ping", timeout=2):
                return True
        except OSError:
            return False

    def ask(self, body: Any, content_type: str = "application/json") -> tuple[int, dict[str, Any]]:
        """Status and answer of one request."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/invocations",
            json.dumps(body).encode(),
            {"Content-Type": content_type},
        )
        try:
            with DIRECT.open(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> None:
        """End it with all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("serving"))
    try:
        wait_for(serving.is_up, 180)
        yield serving
    finally:
        serving.stop()


def base64_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


@pytest.mark.slow
def test_audio_files_by_http(serving: Serving) -> None:
    recordings = [as_file(clip, "WAV", 44_100, 2) for clip in clips(3)]
    expected = heard(serving.model, recordings)
    assert len({*expected}) == 3
    rows = [[base64_text(recording)] for recording in recordings]
    assert serving.ask({"inputs": [base64_text(recordings[0])]}) == (200, {"predictions": expected[:1]})
    table = {"dataframe_split": {"columns": ["audio"], "data": rows}}
    assert serving.ask(table) == (200, {"predictions": expected})


@pytest.mark.slow
def test_what_is_no_audio_is_told_to_the_client(serving: Serving) -> None:
    status, answer = serving.ask({"inputs": [base64_text(b"these are not the words")]})
    assert status == 400
    assert "recording 1: cannot be decoded as WAV, FLAC, OGG or MP3" in answer["message"]
    assert "stack_trace" not in answer
    good = clips(1)[0]
    assert serving.ask({"inputs": [base64_text(good)]}) == (
        200,
        {"predictions": heard(serving.model, [good])},
    )


@pytest.mark.slow
def test_the_call_of_the_documentation(serving: Serving, tmp_path: Path) -> None:
    """The Python lines of docs/mlflow.md, as they stand there."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "mlflow.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```python\n")[1:]]
    (code,) = [block for block in blocks if "/invocations" in block]
    (tmp_path / "recording.wav").write_bytes(as_file(clips(1)[0], "WAV", 22_050))
    code = code.replace("127.0.0.1:5001", f"127.0.0.1:{serving.port}")
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "NO_PROXY": "*"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = heard(serving.model, [(tmp_path / "recording.wav").read_bytes()])
    assert done.stdout.strip() == expected[0]
