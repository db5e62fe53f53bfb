"""What trials read on a node that does not see the driver's folders."""

import concurrent.futures
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import soundfile
from make_data import tone
from processes import tune_whisper
from ray_nodes import Nodes, need_namespaces
from s3_server import S3Server, give_keys

from trainer.model.pretrained import DEMO_MODEL
from tune.cluster import session
from tune.cluster.session import check_shared
from tune.experiments.storage import Storage
from tune.util.errors import ResourceError
from tune.workers.node_copies import CACHE, NodeCopies

Enter = Callable[[str], Path]


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Enter:
    """Lets this process be on a node of this name, with a home of its own, which is returned."""

    def enter(name: str) -> Path:
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: name))
        give_keys(monkeypatch, tmp_path / name / "cache")
        return tmp_path / name

    return enter


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def make_folder(place: Path, name: str) -> Path:
    folder = place / name
    (folder / "deep").mkdir(parents=True)
    (folder / "large.bin").write_bytes(os.urandom(1000) * 3000)
    (folder / "deep" / "small.txt").write_text(name)
    (folder / "empty").touch()
    return folder


def test_two_processes_of_a_node_have_one_copy_from_a_bucket(
    enter: Enter, server: S3Server, tmp_path: Path
) -> None:
    driver = enter("driver")
    folder, storage = make_folder(driver, "features"), Storage.parse(server.uri("once"))
    copies = NodeCopies.make(storage, [folder])
    assert copies.local(folder) == folder, "the driver needs no copy"
    kept = storage.experiment(CACHE).store
    before, content = kept.files(CACHE), contents(folder)
    assert NodeCopies.make(storage, [folder]).paths == copies.paths
    assert kept.files(CACHE) == before, "it is not uploaded again"
    other = enter("other")
    driver.rename(tmp_path / "not seen here")
    sent = pickle.dumps(copies)
    with concurrent.futures.ThreadPoolExecutor(2) as tasks:
        local = tasks.map(
            lambda _: (found := pickle.loads(sent).local(folder), found.stat().st_ino), range(2)
        )
        (first, inode), second = local
    assert (first, inode) == second, "one of them is used"
    assert first.parent == other / "cache" / "tune-whisper" / "shared"
    assert contents(first) == content


def test_what_is_not_whole_is_never_taken(enter: Enter, server: S3Server) -> None:
    """Neither an upload that was killed nor what a killed process has fetched."""
    folder, storage = make_folder(enter("driver"), "model"), Storage.parse(server.uri("killed"))
    copies = NodeCopies.make(storage, [folder])
    (path,) = copies.paths.values()
    for name in ("large.bin", "../" + Path(path).name + ".complete"):
        copies.filesystem.delete_file(os.path.normpath(f"{path}/{name}"))
    again = NodeCopies.make(storage, [folder])
    partial = enter("other") / "cache" / "tune-whisper" / "shared" / f".{Path(path).name}.partial"
    partial.mkdir(parents=True)
    (partial / "large.bin").write_bytes(b"half")
    (partial / "left").touch()
    assert contents(again.local(folder)) == contents(folder)


def test_a_shared_folder_is_read_in_place(enter: Enter, tmp_path: Path) -> None:
    """What lies elsewhere is copied into it once."""
    storage = Storage(str(tmp_path / "visible"))
    inside, outside = make_folder(tmp_path / "visible", ".features"), make_folder(enter("driver"), "noises")
    copies = NodeCopies.make(storage, [inside, outside])
    (outside / "deep" / "small.txt").write_text("another")
    changed = NodeCopies.make(storage, [outside])
    enter("other")
    assert copies.local(inside) == inside
    assert str(copies.local(outside)).startswith(f"{storage.folder}/{CACHE}/noises-")
    assert (copies.local(outside) / "deep" / "small.txt").read_text() == "noises"
    assert contents(changed.local(outside)) == contents(outside)


def test_a_folder_that_a_node_does_not_see(
    enter: Enter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter("driver")
    nodes = [{"Alive": True, "NodeID": name} for name in ("driver", "other", "third")]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    seen = {"10.0.0.2": False, "10.0.0.3": True}
    monkeypatch.setattr(session, "_on_nodes", lambda others, exists, token: seen if exists(token) else {})
    with pytest.raises(ResourceError, match=r"--storage x: is not seen by the node 10\.0\.0\.2; give a"):
        check_shared(tmp_path / "made", "x")
    assert not list((tmp_path / "made").iterdir())


@pytest.mark.slow
@pytest.mark.occasional
def test_a_search_on_nodes_that_share_nothing_but_a_bucket(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features, a model and a folder of noises are on the driver's node alone; all trainings run on the other."""
    need_namespaces()
    with tempfile.TemporaryDirectory(dir="/tmp") as text:
        home, hidden = Path(text), Path(text) / "hidden"
        model, noises = hidden / "base", hidden / "sounds"
        shutil.copytree(DEMO_MODEL, model)
        noises.mkdir()
        (home / ".cache").mkdir()
        soundfile.write(noises / "hum.wav", tone(1.0), 16_000)
        give_keys(monkeypatch)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(home))
        few = ("max_train_clips=24", "max_eval_clips=8", "generation_max_length=24", f"noise_dir={noises}")
        with Nodes() as nodes:
            nodes.add(cpus=2, hidden=[hidden, home / ".cache"])
            words = f"--space robust --trials 1 --experiment apart --address {nodes.address}".split()
            refused = tune_whisper(*words, "--storage", str(hidden), cwd=home)
            assert refused.returncode == 2
            assert f"error: --storage {hidden}: is not seen by the node " in refused.stderr
            assert not list(hidden.glob(".seen-*"))
            words += ["--finalists", "1", "--repeats", "1", "--epochs", "1", "--language", "en"]
            words += [word for setting in few for word in ("--set", setting)]
            words += ["--data", "demo", "--model", str(model), "--storage", server.uri("search")]
            done = tune_whisper(*words, cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not measured" not in done.stdout
    kept = Storage.parse(server.uri("search")).experiment("apart").store
    results = json.loads(kept.read("apart/results.json"))
    assert [trial["status"] for trial in results["trials"]] == ["completed"]
    names = {name.split("/")[0].rpartition("-")[0] for name in kept.files(CACHE)}
    assert {"base", "sounds"} < names and len(names) == 3, "features, with waveforms, too"
