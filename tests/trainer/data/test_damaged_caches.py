"""The feature cache is rebuilt or never seen, but not half-read: damage, killed and parallel builds, full disks."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from make_data import caches, examples, records, snapshot, write_clips, write_manifest

import trainer.data.cache
from trainer.config import TrainConfig
from trainer.data.audio import AudioSource
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import DataError


@pytest.mark.parametrize("damage", ["cut", "longer", "waveforms", "index", "manifest", "gone", "empty"])
def test_damaged_caches_are_rebuilt(config: TrainConfig, damage: str) -> None:
    data = prepare(config, waveforms=True)
    before = content(data)
    features, index, manifest = (
        data.folder / name for name in ("train.f16", "train.index.parquet", "manifest.json")
    )
    if damage == "cut":
        os.truncate(features, features.stat().st_size - 2)
    elif damage == "longer":
        features.write_bytes(features.read_bytes() + b"..")
    elif damage == "waveforms":
        (data.folder / "train.i16").write_bytes(b"")
    elif damage == "index":
        damaged = bytearray(index.read_bytes())
        damaged[len(damaged) // 2] ^= 255
        index.write_bytes(damaged)
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif damage == "gone":
        features.unlink()
    else:
        manifest.write_text("{}")
    again = prepare(config, waveforms=True)
    assert not again.reused
    assert content(again) == before
    assert prepare(config, waveforms=True).reused


def content(data: PreparedData) -> object:
    """All that training takes, and waveforms."""
    split = data.splits["train"]
    return snapshot(data), [split.waveform(i).tobytes() for i in range(len(split))]


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
    assert [name for name in caches(config) if "labels" not in name] == [outer.folder.name]


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
    assert caches(config) == []  # the room is given back


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full to fail like a full disk"
)
def test_a_really_full_disk(tmp_path: Path) -> None:
    def build(folder: Path) -> dict[str, object]:
        (folder / "first").write_text("fits")
        with Path("/dev/full").open("wb") as file:
            file.write(bytes(100_000))
        return {}

    with pytest.raises(DataError, match=r"do not fit \(No space left on device\)"):
        trainer.data.cache.found_or_built(tmp_path / "key", build)
    assert [path.name for path in tmp_path.iterdir()] == [".key.lock"]


def test_cache_dir_that_is_a_file(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache_dir='.*file': cannot be written"):
        prepare(config.replace(cache_dir=str(tmp_path / "file")))


def test_relative_cache_dir(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = prepare(config.replace(cache_dir="here/cache"))
    assert data.folder.parent == tmp_path / "here" / "cache"


CLIPS, KILLED = 60, 40
_CODE = """
import json, os, signal, sys, time
import trainer.data.feature_store
from trainer.config import TrainConfig
from trainer.data.prepared import prepare

def at(done, total):
    print(done, flush=True)
    time.sleep({pause})
    if done == {killed}:
        os.kill(os.getpid(), signal.{how})

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
trainer.data.feature_store._KEEP_SECONDS = 0
data = prepare(TrainConfig(**json.loads(sys.argv[1])), at, workers={workers}, waveforms=True)
print("reused" if data.reused else "built", flush=True)
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


def start(
    config: TrainConfig, *, how: str = "SIGKILL", killed: int = KILLED, workers: int = 1, pause: float = 0
) -> subprocess.Popen[str]:
    """A process that computes features and waveforms, and is killed after so many clips."""
    settings = {name: getattr(config, name) for name in ("model", "data", "cache_dir", "row_filter")}
    code = _CODE.format(killed=killed, how=how, workers=workers, pause=pause)
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def run_killed(config: TrainConfig, how: str = "SIGKILL", workers: int = 1) -> Path:
    """What it leaves, once every process is gone that holds its output open."""
    process = start(config, how=how, workers=workers)
    process.communicate(timeout=120)
    assert process.returncode == -getattr(signal, how)
    [left] = Path(config.cache_dir).glob(".*.unfinished")
    return left


@pytest.fixture
def whole(many: TrainConfig, tmp_path: Path, heard: list[AudioSource]) -> PreparedData:
    """What comes of a run that nothing happens to."""
    data = prepare(many.replace(cache_dir=str(tmp_path / "other")), waveforms=True)
    heard.clear()
    return data


@pytest.mark.parametrize(("how", "workers"), [("SIGKILL", 2), ("SIGINT", 1)])
def test_killed_half_way_it_goes_on_where_it_was(
    many: TrainConfig, heard: list[AudioSource], whole: PreparedData, how: str, workers: int
) -> None:
    left = run_killed(many, how, workers=workers)
    with (left / "journal.jsonl").open("a") as journal:
        journal.write('{"rows": [[')  # killed while it was writing
    data = prepare(many, waveforms=True)
    # What was computed between the last line and the kill is lost.
    assert CLIPS - KILLED <= len(heard) <= CLIPS - KILLED + 2
    assert (content(data), data.drops) == (content(whole), whole.drops)
    assert not left.exists()


@pytest.mark.parametrize("damage", ["train.f16", "journal.jsonl", "without waveforms"])
def test_what_is_damaged_is_made_anew(
    many: TrainConfig, heard: list[AudioSource], whole: PreparedData, damage: str
) -> None:
    left = run_killed(many)
    if damage == "without waveforms":
        assert snapshot(prepare(many)) == snapshot(whole)
    else:
        file = left / damage
        file.write_bytes(b"{\n" if damage == "journal.jsonl" else b"")
        assert content(prepare(many, waveforms=True)) == content(whole)
    assert len(heard) == CLIPS


def test_what_nobody_went_on_with_goes_after_a_week(many: TrainConfig) -> None:
    left = run_killed(many)
    other = many.replace(row_filter="language=en")
    prepare(other)
    assert left.is_dir()
    for path in left.iterdir():
        os.utime(path, (0, time.time() - 8 * 86400))
    prepare(other.replace(max_train_clips=3))
    assert not left.exists()


def test_two_at_once(many: TrainConfig) -> None:
    process = start(many, killed=-1, pause=0.05)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "1"
    data = prepare(many)  # waits for the other
    output, _ = process.communicate(timeout=300)
    assert (process.returncode, output.split()[-1]) == (0, "built")
    assert data.reused
