"""The one rule of the design: who may import whom, read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted([*(ROOT / "tune").rglob("*.py"), *(ROOT / "trainer").rglob("*.py")])


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at the top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def test_both_packages_were_found() -> None:
    assert {"cli.py", "train.py"} <= {path.name for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    names = imports(path)
    if path.is_relative_to(ROOT / "trainer"):
        forbidden = {name for name in names if name.split(".")[0] in {"tune", "ray", "optuna", "mlflow"}}
        assert not forbidden, "trainer/ must not know who searches"
        return
    assert "tune" not in names, "import ray.tune and tune.x, never the bare package"
    assert not {name for name in names if name == "ray" and "tune" in name}


def test_nobody_writes_from_ray_import_tune() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "ray":
                assert "tune" not in {alias.name for alias in node.names}, path


def test_nothing_heavy_on_the_way_to_the_command_line() -> None:
    import subprocess
    import sys

    heavy = "{'torch', 'ray', 'transformers', 'mlflow', 'optuna', 'datasets'}"
    code = f"import sys, tune.cli, tune.experiments.plan\nprint(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_a_search_imports_elsewhere_it_does_not_import_itself() -> None:
    import subprocess
    import sys

    code = (
        "import sys, tune.runs.search\n"
        "from tune.experiments.plan import SearchRequest, make_plan\n"
        "from tune.util.console import make_console\n"
        "from tune.runs.tracking import Tracking\n"
        "from tune.experiments.storage import Storage\n"
        "plan = make_plan(SearchRequest(space='lr_batch', trials=1, storage=Storage.parse('nowhere')))\n"
        "with Tracking(plan, make_console()):\n"
        "    pass\n"
        "print(sorted({'mlflow', 'transformers.processing_utils', 'transformers.trainer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
