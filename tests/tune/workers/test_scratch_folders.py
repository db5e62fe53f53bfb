"""Folders with a name that others can guess, in a temporary directory that all users share."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.training.distributed import scratch_folder
from tune.workers.worker_group import Worker

SOMEBODY = 12345
NAME = "tune-whisper-0-guessed"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared temporary directory, and what a worker finds around it."""
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    for name, value in {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TMPDIR": str(folder)}.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    node = SimpleNamespace(get_node_id=lambda: "a0" * 28)
    monkeypatch.setattr("ray.get_runtime_context", lambda: node)
    monkeypatch.setattr("torch.distributed.barrier", lambda: None)
    return folder


def group_folder(shared: Path) -> Path:
    return shared / f"tune-whisper-{os.getuid()}-10.0.0.1-29500"


def of_a_process_group(shared: Path) -> None:
    with scratch_folder(TrainConfig(workers=2)) as folder:
        assert folder == group_folder(shared)
        (folder / "weights").touch()


def of_a_trial(shared: Path) -> None:
    path = shared / NAME
    Worker().run({"TMPDIR": str(path), "LOCAL_RANK": "0"}, lambda report: (path / "weights").touch())


USES: dict[str, tuple[Callable[[Path], None], Callable[[Path], Path]]] = {
    "process group": (of_a_process_group, group_folder),
    "trial": (of_a_trial, lambda shared: shared / NAME),
}


def link(path: Path, aside: Path) -> None:
    path.symlink_to(aside, target_is_directory=True)


def of_somebody(path: Path, aside: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, SOMEBODY, SOMEBODY)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("plant", [link, of_somebody])
def test_what_somebody_put_there_is_refused(
    use: str, plant: Callable[[Path, Path], None], shared: Path, tmp_path: Path
) -> None:
    if plant is of_somebody and os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    work, place = USES[use]
    aside = tmp_path / "aside"
    aside.mkdir(mode=0o700)
    path = place(shared)
    plant(path, aside)
    before = path.lstat()
    with pytest.raises(ConfigError, match=rf"^{path}: is there already, and not .* TMPDIR.*$") as caught:
        work(shared)
    assert "\n" not in str(caught.value)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert not [*aside.iterdir(), *(path.iterdir() if path.is_dir() else [])]


@pytest.mark.parametrize("use", USES)
def test_nobody_else_can_look_inside(use: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, _ = USES[use]
    modes: list[int] = []
    touch = Path.touch

    def watched(path: Path) -> None:
        modes.extend(above.stat().st_mode & 0o777 for above in path.parents if shared in above.parents)
        touch(path)

    monkeypatch.setattr(Path, "touch", watched)
    with contextlib.ExitStack() as stack:
        stack.callback(os.umask, os.umask(0))
        work(shared)
    assert modes and set(modes) == {0o700}
