"""The feature cache is rebuilt or never seen, but not half-read: damage, killed and parallel builds, full disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from make_data import caches, examples, records, snapshot, write_clips, write_manifest

import trainer.data.cache
import trainer.data.parallel
from trainer.config import TrainConfig
from trainer.data.audio import AudioSource
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import DataError

ROOT = Path(__file__).resolve().parents[3]
BUILD = """
    import sys, time
    sys.path.insert(0, {root!r})
    import trainer.data.features
    from trainer.config import TrainConfig
    from trainer.data.prepared import prepare

    def on_progress(done, total):
        print(done, flush=True)
        time.sleep({pause})

    data = prepare(TrainConfig(**{settings!r}), on_progress=on_progress)
    print("reused" if data.reused else "built", flush=True)
"""


def test_a_lock_that_is_taken_away(tmp_path: Path) -> None:
    """Who waits for a lock whose holder fails and removes it must not share the work with a third."""
    folder = tmp_path / "made" / "key"
    held, go_on, order = threading.Event(), threading.Event(), []

    def fail(_: Path) -> dict[str, object]:
        held.set()
        go_on.wait(20)
        order.append("failed")
        raise DataError("no")

    def build(_: Path) -> dict[str, object]:
        order.append("built")
        return {}

    def ask(how: Callable[[Path], dict[str, object]]) -> None:
        with contextlib.suppress(DataError), trainer.data.cache.found_or_built(folder, how):
            assert (folder.parent / ".key.lock").is_file()

    first = threading.Thread(target=ask, args=(fail,))
    others = [threading.Thread(target=ask, args=(build,)) for _ in range(3)]
    first.start()
    assert held.wait(20)
    for thread in others:
        thread.start()
    time.sleep(0.2)
    go_on.set()
    for thread in (first, *others):
        thread.join(20)
    assert order == ["failed", "built"]
    assert sorted(path.name for path in folder.parent.iterdir()) == [".key.lock", "key"]


@pytest.mark.parametrize("damage", ["cut", "longer", "index", "manifest", "gone", "empty"])
def test_damaged_caches_are_rebuilt(config: TrainConfig, damage: str) -> None:
    data = prepare(config)
    before = snapshot(data)
    features, index, manifest = (
        data.folder / name for name in ("train.f16", "train.index.parquet", "manifest.json")
    )
    if damage == "cut":
        os.truncate(features, features.stat().st_size - 2)
    elif damage == "longer":
        features.write_bytes(features.read_bytes() + b"..")
    elif damage == "index":
        content = bytearray(index.read_bytes())
        content[len(content) // 2] ^= 255
        index.write_bytes(content)
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif damage == "gone":
        features.unlink()
    else:
        manifest.write_text("{}")
    again = prepare(config)
    assert not again.reused
    assert snapshot(again) == before
    assert caches(config) == [data.folder.name]
    assert prepare(config).reused


def start_build(config: TrainConfig, pause: float) -> subprocess.Popen[str]:
    code = textwrap.dedent(BUILD).format(root=str(ROOT), pause=pause, settings=config.to_dict())
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_killed_half_way(config: TrainConfig) -> None:
    process = start_build(config, pause=0.5)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "7":  # the training split is done, validation has begun
            break
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    [left] = caches(config)
    assert left.endswith(".unfinished")
    data = prepare(config)
    assert not data.reused
    assert caches(config) == [data.folder.name]  # what the killed process left is gone
    assert len(data.splits["train"]) == 6


def test_two_at_once(config: TrainConfig) -> None:
    process = start_build(config, pause=0.1)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "1"
    data = prepare(config)  # waits for the other
    output, _ = process.communicate(timeout=300)
    assert (process.returncode, output.split()[-1]) == (0, "built")
    assert data.reused
    assert caches(config) == [data.folder.name]


def test_two_at_once_without_locks(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network disks know no locks: both build, and the second to finish takes the first's."""
    import fcntl

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    inner: list[PreparedData] = []

    def build_the_same(done: int, _: int) -> None:
        if done == 5 and not inner:
            inner.append(prepare(config))

    outer = prepare(config, on_progress=build_the_same)
    assert snapshot(outer) == snapshot(inner[0])
    assert caches(config) == [outer.folder.name]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, r"do not fit \(No space left on device\); free some space"),
        (errno.EACCES, "cannot be written"),
    ],
)
def test_disk_full(config: TrainConfig, monkeypatch: pytest.MonkeyPatch, number: int, words: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DataError, match=words) as caught:
        prepare(config)
    assert "\n" not in str(caught.value)
    assert not Path(config.cache_dir).exists()


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full to fail like a full disk"
)
def test_a_really_full_disk(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, object]:
        (folder / "first").write_text("fits")
        with Path("/dev/full").open("wb") as file:
            file.write(bytes(100_000))
        return {}

    with (
        pytest.raises(DataError, match=r"do not fit \(No space left on device\)"),
        trainer.data.cache.found_or_built(tmp_path / "key", build),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_cache_dir_that_is_a_file(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache_dir='.*file': cannot be written"):
        prepare(config.replace(cache_dir=str(tmp_path / "file")))


def test_relative_cache_dir(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = prepare(config.replace(cache_dir="here/cache"))
    assert data.folder.parent == tmp_path / "here" / "cache"


def test_ctrl_c_leaves_nothing(config: TrainConfig) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, on_progress=interrupt)
    assert not Path(config.cache_dir).exists()


def test_nothing_is_left_behind_by_a_mistake(config: TrainConfig) -> None:
    with pytest.raises(DataError):
        prepare(config.replace(data="nowhere.csv"))
    assert not Path(config.cache_dir).exists()


CLIPS, KILLED = 60, 40
_KILLED_CODE = """
import os, signal, sys, json
import trainer.data.unfinished
from trainer.config import TrainConfig
from trainer.data.prepared import prepare

def kill(done, total):
    if done == {killed}:
        os.kill(os.getpid(), signal.{how})

trainer.data.unfinished.KEEP_SECONDS = 0
prepare(TrainConfig(**json.loads(sys.argv[1])), kill, workers={workers}, waveforms={waveforms})
"""


@pytest.fixture
def many(tmp_path: Path, processor_folder: Path) -> TrainConfig:
    rows = examples(CLIPS)
    write_clips(tmp_path / "clips", rows)
    (tmp_path / "clips" / rows[8].file).write_bytes(b"no audio")
    manifest = write_manifest(tmp_path / "all.csv", records(rows))
    return TrainConfig(
        model=str(processor_folder),
        data=str(manifest),
        cache_dir=str(tmp_path / "cache"),
        row_filter="language=en,language=de",
    )


def run_killed(
    config: TrainConfig, how: str = "SIGKILL", *, waveforms: bool = False, workers: int = 1
) -> None:
    """Compute features and be killed; returns once every process is gone that holds the output open."""
    settings = {name: getattr(config, name) for name in ("model", "data", "cache_dir", "row_filter")}
    code = _KILLED_CODE.format(killed=KILLED, how=how, waveforms=waveforms, workers=workers)
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(settings)], check=False, capture_output=True, timeout=120
    )
    assert done.returncode == -getattr(signal, how), done.stderr.decode()


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[AudioSource]:
    """Every clip that is read."""
    found: list[AudioSource] = []

    def hear_each(sources: Iterable[AudioSource], **values: float) -> Iterator[object]:
        def counted() -> Iterator[AudioSource]:
            for source in sources:
                found.append(source)
                yield source

        return original(counted(), **values)

    original = trainer.data.parallel.hear_each
    monkeypatch.setattr(trainer.data.parallel, "hear_each", hear_each)
    return found


def waves(data: PreparedData) -> list[bytes]:
    split = data.splits["train"]
    return [split.waveform(i).tobytes() for i in range(len(split))]


@pytest.mark.parametrize(
    ("how", "workers", "waveforms"), [("SIGKILL", 2, False), ("SIGKILL", 1, True), ("SIGINT", 1, True)]
)
def test_killed_half_way_it_goes_on_where_it_was(
    many: TrainConfig, heard: list[AudioSource], tmp_path: Path, how: str, workers: int, waveforms: bool
) -> None:
    whole = prepare(many.replace(cache_dir=str(tmp_path / "other")), waveforms=waveforms)
    heard.clear()
    run_killed(many, how, waveforms=waveforms, workers=workers)
    data = prepare(many, waveforms=waveforms)
    # What was computed between the piece and the kill is lost.
    assert CLIPS - KILLED <= len(heard) <= CLIPS - KILLED + 2
    assert snapshot(data) == snapshot(whole)
    assert data.drops == whole.drops
    if waveforms:
        assert waves(data) == waves(whole)
    assert len(caches(many)) == 1 + waveforms
    assert not list(Path(many.cache_dir).glob(".*unfinished"))


def test_what_nobody_went_on_with_goes_after_a_week(many: TrainConfig) -> None:
    run_killed(many)
    [left] = Path(many.cache_dir).glob(".*.unfinished")
    other = many.replace(row_filter="language=en")
    prepare(other)
    assert left.is_dir()
    for path in left.iterdir():
        os.utime(path, (0, time.time() - 8 * 86400))
    prepare(other.replace(max_train_clips=3))
    assert not left.exists()


@pytest.mark.parametrize("damage", ["file", "piece", "waveforms"])
def test_what_is_damaged_is_made_anew(
    many: TrainConfig, heard: list[AudioSource], tmp_path: Path, damage: str
) -> None:
    whole = prepare(many.replace(cache_dir=str(tmp_path / "other")), waveforms=True)
    heard.clear()
    run_killed(many, waveforms=True)
    [features] = [path for path in Path(many.cache_dir).glob(".*.unfinished") if "waveforms" not in path.name]
    if damage == "file":
        (features / "train.f16").write_bytes(b"")
    elif damage == "piece":
        next(features.glob("*.json")).write_text("{")
    else:
        [place] = Path(many.cache_dir).glob(".waveforms*.unfinished")
        shutil.rmtree(place)
    data = prepare(many, waveforms=True)
    assert len(heard) == CLIPS
    assert snapshot(data) == snapshot(whole)
    assert waves(data) == waves(whole)
