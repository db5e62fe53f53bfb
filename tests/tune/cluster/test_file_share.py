"""Features and folders on a node that does not see the driver's, on a real cluster of two nodes."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from make_data import examples, records, write_clips, write_hub_parquet, write_manifest, write_processor
from rich.console import Console
from two_nodes import two_nodes

from trainer.config import TrainConfig
from trainer.data.audio import AudioSource
from trainer.data.parallel import Processes
from trainer.data.prepared import PreparedData, prepare
from tune.cluster.file_share import ShareError, list_folder, localize, start_share
from tune.cluster.session import check_shared
from tune.runs.data import prepare_features
from tune.util.errors import ResourceError

SMALL = {"max_train_clips": 24, "max_eval_clips": 8}


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Path]]:
    """`hidden` and the home's cache are empty on the second node, `visible` is the same on both.

    The first node has no CPUs, so every task runs on the second one.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as text, pytest.MonkeyPatch.context() as patch:
        root = Path(text)
        found = {name: root / name for name in ("hidden", "visible", "home")}
        for folder in (*found.values(), found["home"] / ".cache"):
            folder.mkdir()
        patch.setenv("HOME", str(found["home"]))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        hidden = [found["hidden"], found["home"] / ".cache"]
        with two_nodes(hidden, found["home"], head_cpus=0, second_cpus=2):
            yield found


def on_second(function: Any, *arguments: Any) -> Any:
    return ray.get(ray.remote(function).remote(*arguments))


def content(data: PreparedData) -> str:
    """A digest of all features, so that nothing large travels."""
    digest = hashlib.sha256()
    for role, split in data.splits.items():
        for i in range(len(split)):
            digest.update(f"{role} {split.name(i)} {split.labels(i)}".encode() + split.features(i).tobytes())
    return digest.hexdigest()


def fetch_and_read(share: Any, data: PreparedData) -> tuple[bool, str, int, str]:
    seen = data.folder.exists()
    folder = localize(share, data.folder)
    return seen, str(folder), folder.stat().st_ino, content(data.moved_to(folder))


def test_two_tasks_get_the_features_by_one_fetch(places: dict[str, Path]) -> None:
    data = prepare(TrainConfig(cache_dir=str(places["hidden"] / "features"), **SMALL))
    share = start_share([data.folder])
    task = ray.remote(fetch_and_read)
    first, second = ray.get([task.remote(share, data) for _ in range(2)])
    assert first == second
    seen, folder, _, read = first
    assert not seen
    assert folder.startswith(f"{places['home']}/.cache/tune-whisper/shared/{data.folder.name}-")
    assert read == content(data)
    assert localize(share, data.folder) == data.folder
    assert not (places["home"] / ".cache" / "tune-whisper" / "shared").exists(), "the driver needs no copy"


def make_folder(place: Path, name: str) -> Path:
    folder = place / name
    (folder / "deep").mkdir(parents=True)
    (folder / "large.bin").write_bytes(os.urandom(1000) * 40_000)  # three chunks
    (folder / "deep" / "small.txt").write_text("small")
    (folder / "empty").touch()
    (place / "secret").write_text("not shared")
    return folder


def test_a_folder_that_is_the_same_there_is_used_as_it_is(places: dict[str, Path]) -> None:
    folder = make_folder(places["visible"], "same")
    assert on_second(localize, start_share([folder]), folder) == folder


def spoiled(share: Any, folder: Path, how: str) -> tuple[bool, list[str]]:
    """Fetch, spoil what is there, fetch again; whether it is whole again, and what is beside it."""
    if how == "another at its place":
        folder.mkdir()
        (folder / "large.bin").write_text("other")
    copy = localize(share, folder)
    if how == "copy cut off":
        os.truncate(copy / "large.bin", 5)
    elif how == "killed while fetching":
        copy.rename(copy.with_name(f".{copy.name}.12345678.partial"))
    again = localize(share, folder)
    whole = list_folder(again) == ray.get(share.listing.remote(str(folder)))
    return whole and again == copy != folder, [
        path.name for path in copy.parent.glob(f".{copy.name}.*.partial")
    ]


@pytest.mark.parametrize("how", ["another at its place", "copy cut off", "killed while fetching"])
def test_what_is_not_whole_is_never_taken(how: str, places: dict[str, Path]) -> None:
    folder = make_folder(places["hidden"], how.replace(" ", "-"))
    assert on_second(spoiled, start_share([folder]), folder, how) == (True, [])


def test_only_the_files_of_the_folders_are_served(places: dict[str, Path]) -> None:
    folder = make_folder(places["hidden"], "alone")
    share = start_share([folder])
    for name in ("../secret", str(places["hidden"] / "secret"), "deep/../../secret"):
        with pytest.raises(ShareError, match="shares no file"):
            ray.get(share.read.remote(str(folder), name, 0))
    with pytest.raises(ShareError, match="shares no file"):
        ray.get(share.read.remote(str(places["hidden"]), "secret", 0))
    with pytest.raises(ShareError, match="is not shared by the driver"):
        localize(share, places["hidden"])


def fetch_to_a_small_disk(share: Any, folder: Path, disk: Path) -> str:
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    os.environ["XDG_CACHE_HOME"] = str(disk)
    try:
        localize(share, folder)
    except ShareError as error:
        return f"{error} {sorted(path.name[:1] for path in (disk / 'tune-whisper/shared').iterdir())}"
    finally:
        del os.environ["XDG_CACHE_HOME"]
    return ""


def test_a_full_disk_is_one_clear_line(places: dict[str, Path]) -> None:
    folder = make_folder(places["hidden"], "too-large")
    told = on_second(fetch_to_a_small_disk, start_share([folder]), folder, places["home"] / ".cache" / "disk")
    assert "does not fit" in told
    assert "XDG_CACHE_HOME" in told
    assert told.endswith("['.']"), "only the lock is left"


@pytest.mark.parametrize(("place", "embeds"), [("visible", False), ("hidden", False), ("hidden", True)])
def test_a_node_computes_features_of_audio_that_it_sees(
    place: str, embeds: bool, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's node has no CPUs: it computes what the other cannot. Audio inside of tables is sent there."""
    rows, folder = examples(24), places[place] / f"data-{embeds}"
    write_clips(folder / "clips", rows)
    data = write_manifest(folder / "all.csv", records(rows))
    if embeds:
        data = write_hub_parquet(folder / "inside", rows, folder / "clips")
    config = TrainConfig(
        model=str(write_processor(folder / "model")),
        data=str(data),
        cache_dir=str(places["hidden"] / f"computed-{place}-{embeds}"),
        row_filter=None if embeds else "language=en,language=de",
    )
    here: list[int] = []

    def submit(self: Processes, sources: list[AudioSource]) -> Any:
        here.append(len(sources))
        return original(self, sources)

    original = Processes.submit
    monkeypatch.setattr(Processes, "submit", submit)
    monkeypatch.setattr("trainer.data.features._SMALL", 0)
    shown = io.StringIO()
    data = prepare_features(config, Console(file=shown, width=400))
    assert "features are computed on 1 other node of the cluster\n" in shown.getvalue()
    sees = embeds or place == "visible"
    assert sum(here) == (0 if sees else 24)
    note = f"does not see {folder}/clips/"
    assert (note in shown.getvalue()) == (not sees), shown.getvalue()
    assert "(features computed in" in shown.getvalue()
    again = prepare(config.replace(cache_dir=str(places["hidden"] / f"alone-{place}-{embeds}")))
    assert content(data) == content(again)


def test_a_storage_that_a_node_does_not_see_is_refused(places: dict[str, Path]) -> None:
    check_shared(places["visible"], "seen")
    with pytest.raises(ResourceError, match=r"--storage hidden: is not seen by the node .*; give a folder"):
        check_shared(places["hidden"], "hidden")
    assert not list(places["hidden"].glob(".seen-*")) + list(places["visible"].glob(".seen-*"))


def test_where_nothing_is_shared_there_is_no_other_node(tmp_path: Path) -> None:
    assert localize(None, tmp_path / "features") == tmp_path / "features"
