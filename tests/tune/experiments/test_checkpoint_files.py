"""Checkpoints in a folder and on a server that speaks S3: of several nodes, made again, half, and what is left here."""

import tempfile
from pathlib import Path

import pytest
from s3_server import S3Server, give_keys

from trainer.manifest import problem_of
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.storage import Storage

NAME = "trials/001/checkpoint_000000400"


@pytest.fixture(params=["folder", "s3"])
def files(
    request: pytest.FixtureRequest, server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CheckpointFiles:
    give_keys(monkeypatch, tmp_path / "cache")
    move_to_node("first", tmp_path, monkeypatch)
    place = tmp_path if request.param == "folder" else server.uri(tmp_path.name)
    return CheckpointFiles(Storage.parse(place).experiment("x"))


def move_to_node(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node, whose disk for temporary files is its own."""
    (tmp_path / name).mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))


def write(files: CheckpointFiles, **content: str) -> Path:
    written = files.place(NAME)
    for name, text in content.items():
        written.mkdir(parents=True, exist_ok=True)
        (written / name).write_text(text)
    return written


def left(tmp_path: Path) -> list[str]:
    """Files for which nobody has any more use, on both nodes."""
    return [
        path.name for node in ("first", "second") for path in (tmp_path / node).rglob("*") if path.is_file()
    ]


@pytest.mark.parametrize("second", [{}, {"rng_state_1.pth": "1"}], ids=["nothing", "its part"])
def test_what_two_nodes_wrote_is_one_checkpoint(
    second: dict[str, str], files: CheckpointFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the weights alone, and of errors alone, only the first node writes."""
    first = write(files, model="weights")
    taken = dict(files.upload(first, NAME))
    move_to_node("second", tmp_path, monkeypatch)
    taken |= files.upload(write(files, **second), NAME)
    files.complete(first, NAME, taken)
    move_to_node("first", tmp_path, monkeypatch)
    with files.fetched(NAME) as folder:
        assert problem_of(folder) is None
        assert {path.name for path in folder.iterdir()} == {"model", "manifest.json", *second}
    assert left(tmp_path) == []


def test_one_that_is_made_again_is_whole_only_at_its_end(files: CheckpointFiles) -> None:
    written = write(files, model="damaged", more="x")
    files.complete(written, NAME, files.upload(written, NAME))
    written = write(files, model="weights")
    taken = files.upload(written, NAME)
    with files.fetched(NAME) as folder:
        told = problem_of(folder)
        assert (
            (folder / "model").read_text() == "damaged"
            if told is None
            else told == "manifest.json is missing"
        )
    files.complete(written, NAME, taken)
    with files.fetched(NAME) as folder:
        assert problem_of(folder) is None
        assert (folder / "model").read_text() == "weights"


def test_the_workers_of_a_node_fetch_a_checkpoint_once(
    files: CheckpointFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a copy of its own they would fill the disk."""
    written = write(files, model="weights")
    files.complete(written, NAME, files.upload(written, NAME))
    monkeypatch.setenv("LOCAL_RANK", "0")
    with files.fetched(NAME) as first:
        monkeypatch.setenv("LOCAL_RANK", "1")
        with files.fetched(NAME) as second:
            assert first == second
            assert problem_of(second) is None
        assert problem_of(first) is None, "others still read there"
    with files.fetched("trials/001/missing") as missing:
        assert problem_of(missing) is not None
