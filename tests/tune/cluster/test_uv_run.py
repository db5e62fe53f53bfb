"""Ray below `uv run`, which it takes for a wish to upload the working folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
from rich.console import Console
from tune.cluster.session import ray_session

with ray_session(Console(), "local"):
    import ray  # as commands do: its constants are read then

    print("environment:", ray.get_runtime_context().runtime_env)
"""


@pytest.mark.slow
@pytest.mark.occasional
def test_the_working_folder_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    # What Ray looks for: a process above whose words begin with `uv run`.
    (tmp_path / "run").write_text(f"{sys.executable} child.py\n")
    done = subprocess.run(
        ["uv", "run"], executable="/bin/sh", cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "environment: {}"
