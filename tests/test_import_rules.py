"""The house as its source shows it: who may import whom, how many files a folder holds, what stands on top."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = {
    "tune": [
        {"util"},
        {"pages", "space", "cluster", "remote"},
        {"search"},
        {"experiments"},
        {"tracking"},
        {"workers", "report", "evaluation", "inspection", "export", "registry"},
        {"runs"},
        {"commands"},
        {"cli"},
        {"__main__", "job_driver"},
    ],
    "trainer": [
        {"bounds", "errors", "files", "threads", "yaml_nodes"},
        {"languages", "deepspeed", "command", "manifest", "optimizers"},
        {"config"},
        {"config_file", "memory", "mix"},
        {"model"},
        {"data"},
        {"augmentation", "scoring"},
        {"training"},
        {"train"},
        {"probe", "inspection", "transcription", "conversion", "demo", "__main__"},
    ],
    "tune_whisper": [{"keywords", "notebook"}, {"experiment"}, {"running", "models"}, {"process"}],
}
"""A room imports rooms of lower rows only; rooms of one row never import each other."""
MOST_FILES = 20
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ROWS
    for path in sorted((ROOT / package).rglob("*.py"))
}
OF_TRAINER: dict[str, tuple[str, ...]] = {
    "space": tuple(
        f"trainer.{room}" for room in ("bounds", "config", "errors", "mix", "optimizers", "yaml_nodes")
    ),
    "search": (
        "trainer.config",
        "trainer.errors",
        "trainer.training.report",
        "trainer.scoring",
        "trainer.threads",
    ),
}
"""What these rooms, which decide and do nothing else, may import of the training."""


def imports(module: str) -> Iterator[str]:
    """Every module that a file imports: at the top, inside functions, for types only."""
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in FILES else str(node.module) for name in names)


def row(module: str) -> int:
    package, room = module.split(".")[:2]
    found = [place for place, rooms in enumerate(ROWS[package]) if room in rooms]
    assert found, f"{module}: is in no room"
    return found[0]


@pytest.mark.parametrize("module", [name for name in FILES if "." in name])
def test_imports_run_one_way(module: str) -> None:
    package, room = module.split(".")[:2]
    for name in imports(module):
        top = name.split(".")[0]
        assert top != "tune_whisper" or package == top, "the public face stands on top of all"
        if package == "trainer":
            assert top not in ("tune", "ray", "optuna", "mlflow"), "trainer/ must not know who searches"
        elif package == "tune":
            assert name != "tune", "import ray.tune and tune.x, never the bare package"
            if top == "trainer" and room in OF_TRAINER:
                assert name.startswith(OF_TRAINER[room]), f"{room}/ decides and does nothing else"
        if top == package and name != package and name.split(".")[1] != room:
            assert row(name) < row(module), f"{module} imports {name}, which is not below it"


def test_no_circles() -> None:
    below = {module: {name for name in imports(module) if name in FILES} for module in FILES}
    done: set[str] = set()
    while ready := {
        module for module, names in below.items() if module not in done and names <= done | {module}
    }:
        done |= ready
    assert not set(below) - done, "these import each other in a circle, or something that does"


def test_a_folder_can_be_seen_at_a_glance() -> None:
    folders: dict[Path, int] = defaultdict(int)
    for path in (*FILES.values(), *(ROOT / "tests").rglob("*.py")):
        folders[path.parent] += 1
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES} == {}
    assert {path.stem for path in (ROOT / "tune").glob("*.py")} == {
        "__init__",
        "__main__",
        "cli",
        "job_driver",
    }


def test_nobody_writes_from_ray_import_tune() -> None:
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "ray":
                assert "tune" not in {alias.name for alias in node.names}, path
