"""What is installed: a wheel holds all that the program needs, and what is imported is declared."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("trainer", "tune", "tune_whisper")
WITHOUT_IMPORT = {"scikit-learn"}
"""Declared though no line imports it: Optuna's importances need it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since setuptools writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in (*PACKAGES, "search_spaces"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "ds_config.json", "ds_config_zero3.json"):
        shutil.copy(ROOT / name, source)
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, source)
    [found] = folder.glob("*.whl")
    return found


def pip(*words: object) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words), "--no-deps", "--no-index", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


CHECK = """
import sys, trainer, tune_whisper
from pathlib import Path
from trainer.config import TrainConfig
from trainer.deepspeed import packaged_file, zero_stage
from tune.pages.page import render_page
from tune.space.space import load_space, packaged_spaces
assert trainer.__file__.startswith(sys.argv[1]), trainer.__file__
for number, name in ((2, "ds_config.json"), (3, "ds_config_zero3.json")):
    assert str(packaged_file(name)).startswith(sys.argv[1]), packaged_file(name)
    assert zero_stage(TrainConfig(deepspeed=name).deepspeed) == number
assert [load_space(name).parameters for name in packaged_spaces()]
for package in (trainer, tune_whisper):
    assert (Path(package.__file__).parent / "py.typed").is_file()
assert list((Path(trainer.__file__).parent / "demo" / "model").iterdir())
"""


@pytest.mark.parametrize("how", ["--target", "--prefix"])
def test_everything_is_found_wherever_pip_put_it(how: str, wheel: Path, tmp_path: Path) -> None:
    """`--prefix` lies as an installation for one user does, which pip refuses in a virtual environment."""
    # Else pip would take the environment's own installation away, as one that this replaces.
    pip("install", "--ignore-installed", how, tmp_path / "there", wheel)
    [package] = (tmp_path / "there").rglob("trainer/__init__.py")
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHECK, str(tmp_path / "there")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def imported() -> dict[str, set[str]]:
    """The modules of other packages, and the files that import them."""
    found = defaultdict(set)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                if name.split(".")[0] not in {*sys.stdlib_module_names, *PACKAGES}:
                    found[name].add(str(path.relative_to(ROOT)))
    return found


def requirement(text: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!;]", text)[0]).lower()


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    needed = {requirement(text) for text in PROJECT["dependencies"]}
    extras = PROJECT["optional-dependencies"]
    optional = {requirement(text) for name, texts in extras.items() if name != "dev" for text in texts}
    tops = {top: {requirement(name) for name in names}
            for top, names in importlib.metadata.packages_distributions().items()}  # fmt: skip
    used: set[str] = set()
    undeclared = {}
    for name, files in imported().items():
        top = name.split(".")[0]
        providers = tops.get(top, {requirement(top)})
        if top == "google":  # one namespace of many distributions
            parts = name.split(".")[: 3 if ".cloud." in name else 2]
            providers = {requirement(re.sub(r"_v\d.*", "", "-".join(parts)))}
        if not providers & (needed | optional):
            undeclared[name] = sorted(files)
        used |= providers
    assert undeclared == {}, "add what provides it to pyproject.toml"
    assert needed - used - WITHOUT_IMPORT == set()
