"""How `tune-whisper` refuses what it cannot do: shared by the tests of all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
