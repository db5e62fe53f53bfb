"""What trials read on a node that does not see the driver's folders, on a real cluster of two nodes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import soundfile
from make_data import tone
from processes import tune_whisper
from ray_nodes import Nodes, need_namespaces
from s3_server import S3Server, give_keys, s3_server

from trainer.model.pretrained import DEMO_MODEL
from tune.cluster.session import check_shared
from tune.experiments.storage import Storage
from tune.util.environment import use_ray_token
from tune.util.errors import ResourceError
from tune.workers.node_copies import CACHE, NodeCopies

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def places(store: S3Server) -> Iterator[dict[str, Path]]:
    """`hidden` and the home's cache are empty on the second node, `visible` is the same on both.

    The first node, which this process is on, has no CPUs, so every task runs on the second one.
    """
    need_namespaces()
    with tempfile.TemporaryDirectory(dir="/tmp") as text, pytest.MonkeyPatch.context() as patch:
        root = Path(text)
        found = {name: root / name for name in ("hidden", "visible", "home")}
        for folder in (*found.values(), found["home"] / ".cache"):
            folder.mkdir()
        # Tasks find the functions of the tests that send them.
        paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if f"{ROOT}/tests" in path)])
        give_keys(patch)
        patch.setenv("HOME", str(found["home"]))
        patch.setenv("PYTHONPATH", paths)
        patch.delenv("XDG_CACHE_HOME", raising=False)
        ray.shutdown()  # whatever an earlier test left in this process
        with Nodes() as nodes:
            nodes.add(cpus=2, hidden=[found["hidden"], found["home"] / ".cache"])
            use_ray_token()
            ray.init(nodes.address, logging_level="ERROR", log_to_driver=False)
            yield {**found, "address": Path(nodes.address)}
            ray.shutdown()


def on_second(function: Any, *arguments: Any) -> Any:
    return ray.get(ray.remote(function).remote(*arguments))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_folder(place: Path, name: str) -> Path:
    folder = place / name
    (folder / "deep").mkdir(parents=True)
    (folder / "large.bin").write_bytes(os.urandom(1000) * 3000)
    (folder / "deep" / "small.txt").write_text(name)
    (folder / "empty").touch()
    return folder


def fetch(copies: NodeCopies, folder: Path) -> tuple[bool, str, int, dict[str, bytes]]:
    found = copies.local(folder)
    return folder.exists(), str(found), found.stat().st_ino, contents(found)


def test_two_processes_of_a_node_have_one_copy_from_a_bucket(
    places: dict[str, Path], store: S3Server
) -> None:
    folder, storage = make_folder(places["hidden"], "features"), Storage.parse(store.uri("once"))
    copies = NodeCopies.make(storage, [folder])
    task = ray.remote(fetch)
    first, second = ray.get([task.remote(copies, folder) for _ in range(2)])
    assert first == second
    seen, place, _, read = first
    assert not seen and place.startswith(f"{places['home']}/.cache/tune-whisper/shared/features-")
    assert read == contents(folder)
    assert copies.local(folder) == folder, "the driver needs no copy"
    kept = storage.experiment(CACHE).store
    assert kept is not None
    before = kept.files(CACHE)
    assert NodeCopies.make(storage, [folder]).paths == copies.paths
    assert kept.files(CACHE) == before, "it is not uploaded again"


def test_what_is_not_whole_is_never_taken(places: dict[str, Path], store: S3Server) -> None:
    """Neither an upload that was killed nor what a killed process has fetched."""
    folder, storage = make_folder(places["hidden"], "model"), Storage.parse(store.uri("killed"))
    copies = NodeCopies.make(storage, [folder])
    (path,) = copies.paths.values()
    for name in ("large.bin", "../" + Path(path).name + ".complete"):
        copies.filesystem.delete_file(os.path.normpath(f"{path}/{name}"))

    def after_a_kill(copies: NodeCopies, folder: Path) -> dict[str, bytes]:
        target = places["home"] / ".cache" / "tune-whisper" / "shared" / Path(path).name
        partial = target.with_name(f".{target.name}.partial")
        partial.mkdir(parents=True)
        (partial / "large.bin").write_bytes(b"half")
        (partial / "left").touch()
        return contents(copies.local(folder))

    again = NodeCopies.make(storage, [folder])
    assert on_second(after_a_kill, again, folder) == contents(folder)


def test_a_shared_folder_is_read_in_place(places: dict[str, Path]) -> None:
    """What lies elsewhere is copied into it once."""
    storage = Storage(str(places["visible"] / "experiments"))
    inside = make_folder(places["visible"] / "experiments", ".feature-cache")
    outside = make_folder(places["hidden"], "noises")
    copies = NodeCopies.make(storage, [inside, outside])
    assert on_second(fetch, copies, inside)[1] == str(inside)
    seen, place, _, read = on_second(fetch, copies, outside)
    assert not seen and place.startswith(f"{storage.folder}/{CACHE}/noises-") and read == contents(outside)
    (outside / "deep" / "small.txt").write_text("another")
    changed = NodeCopies.make(storage, [outside])
    assert changed.paths[outside] != copies.paths[outside]
    assert on_second(fetch, changed, outside)[3] == contents(outside)


def test_a_storage_that_a_node_does_not_see_is_refused(places: dict[str, Path]) -> None:
    check_shared(places["visible"], "seen")
    with pytest.raises(ResourceError, match=r"--storage hidden: is not seen by the node .*; give a folder"):
        check_shared(places["hidden"], "hidden")
    assert not list(places["hidden"].glob(".seen-*")) + list(places["visible"].glob(".seen-*"))


@pytest.mark.slow
def test_a_search_on_nodes_that_share_nothing_but_a_bucket(places: dict[str, Path], store: S3Server) -> None:
    """Features, a model and a folder of noises are on the driver's node alone; all trainings run on the other."""
    model, noises = places["hidden"] / "base", places["hidden"] / "sounds"
    shutil.copytree(DEMO_MODEL, model)
    noises.mkdir()
    soundfile.write(noises / "hum.wav", tone(1.0), 16_000)
    few = ("max_train_clips=24", "max_eval_clips=8", "generation_max_length=24", f"noise_dir={noises}")
    done = tune_whisper(
        *("--space", "robust", "--trials", "1", "--finalists", "1", "--repeats", "1", "--epochs", "1"),
        *("--model", str(model), "--language", "en", "--address", str(places["address"])),
        *("--storage", store.uri("search"), "--experiment", "apart"),
        *(word for setting in few for word in ("--set", setting)),
        cwd=places["home"],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not measured" not in done.stdout
    kept = Storage.parse(store.uri("search")).experiment("apart").store
    assert kept is not None
    results = json.loads(kept.read("apart/results.json"))
    assert [trial["status"] for trial in results["trials"]] == ["completed"]
    names = {name.split("/")[0].rpartition("-")[0] for name in kept.files(CACHE)}
    assert {"base", "sounds"} < names and len(names) == 3, "features, with waveforms, too"
