"""What tests of many rooms share: how `tune-whisper` refuses what it cannot do, and a server that speaks S3."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3_server import S3Server, s3_server

from tune.cli import main


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The one line that `tune-whisper` with these words prints in the test's folder, where it leaves nothing."""
    monkeypatch.chdir(tmp_path)

    def refuse(*words: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        capfd.readouterr()
        assert main([*words]) == 2
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
        assert line.startswith("error: ")
        assert sorted(tmp_path.rglob("*")) == before, "something was left behind"
        return line

    return refuse


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """One with a bucket, for a file of tests."""
    with s3_server() as server:
        yield server
