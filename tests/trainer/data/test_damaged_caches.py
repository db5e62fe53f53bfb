"""The feature cache is rebuilt or never seen, but not half-read: damage, killed and parallel builds, full disks."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import soundfile
from make_data import caches, embedded, examples, records, snapshot, tone, write_clips, write_manifest
from small_disks import mounted

import trainer.data.feature_store
from trainer.config import TrainConfig
from trainer.data.audio import AudioSource
from trainer.data.prepared import PreparedData, is_prepared, prepare
from trainer.errors import DataError


@pytest.mark.parametrize("damage", ["train-00000.f16", "train-00000.parquet", "manifest.json", "gone"])
def test_damaged_caches_are_rebuilt(config: TrainConfig, damage: str) -> None:
    data = prepare(config, waveforms=True)
    before = content(data)
    if damage == "gone":
        (data.folder / "test-00000.f16").unlink()
    elif damage.endswith(".parquet"):
        damaged = bytearray((data.folder / damage).read_bytes())
        damaged[len(damaged) // 2] ^= 255
        (data.folder / damage).write_bytes(damaged)
    else:
        os.truncate(data.folder / damage, (data.folder / damage).stat().st_size - 2)
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
    assert caches(config) == [outer.folder.name]


def test_disk_full(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(
        DataError, match=r"no room for the features \(No space left on device\); free some space"
    ) as caught:
        prepare(config)
    assert "\n" not in str(caught.value)
    assert [name[-11:] for name in caches(config)] == [".unfinished"]


def test_cache_dir_that_is_a_file(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache_dir='.*file': cannot be written"):
        prepare(config.replace(cache_dir=str(tmp_path / "file")))


def test_a_cache_that_may_only_be_read(config: TrainConfig, tmp_path: Path) -> None:
    """It serves all that is in it; what is not is one line."""
    with mounted(tmp_path / "disk", "size=50m") as disk:
        config = config.replace(cache_dir=str(disk / "cache"))
        expected = snapshot(prepare(config))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert snapshot(prepare(config)) == expected
        assert prepare(config.replace(lowercase=True)).reused
        with pytest.raises(DataError, match=r"cache_dir='.*': cannot be written \(Read-only file system\)"):
            prepare(config, waveforms=True)


CLIPS, KILLED, SHARD = 40, 24, 8
_CODE = """
import json, os, signal, sys
import trainer.data.feature_store
from trainer.config import TrainConfig
from trainer.data.prepared import prepare

def at(done, total):
    if done == {killed}:
        os.kill(os.getpid(), signal.SIGKILL)

trainer.data.feature_store.SHARD_CLIPS = {shard}
prepare(TrainConfig(**json.loads(sys.argv[1])), at, workers=2, waveforms=True)
"""


@pytest.fixture
def many(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Clips in several shards."""
    monkeypatch.setattr(trainer.data.feature_store, "SHARD_CLIPS", SHARD)
    rows = examples(CLIPS)
    write_clips(tmp_path / "clips", rows)
    (tmp_path / "clips" / rows[8].file).write_bytes(b"no audio")
    write_manifest(Path(config.data), records(rows))
    return config


@pytest.fixture
def whole(many: TrainConfig, tmp_path: Path, heard: list[AudioSource]) -> PreparedData:
    """What comes of a run that nothing happens to."""
    data = prepare(many.replace(cache_dir=str(tmp_path / "other")), waveforms=True)
    heard.clear()
    return data


def interrupted(config: TrainConfig, *, waveforms: bool) -> Path:
    """What a run leaves that is interrupted among the training clips."""

    def at(done: int, total: int) -> None:
        if done == KILLED // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, at, waveforms=waveforms)
    [left] = Path(config.cache_dir).glob(".*.unfinished")
    return left


def test_killed_half_way_it_goes_on_where_it_was(
    many: TrainConfig, heard: list[AudioSource], whole: PreparedData
) -> None:
    settings = {name: getattr(many, name) for name in ("model", "data", "cache_dir", "row_filter")}
    code = _CODE.format(killed=KILLED, shard=SHARD)
    command = [sys.executable, "-c", code, json.dumps(settings)]
    # It ends once every process is gone that holds its output open.
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    [left] = Path(many.cache_dir).glob(".*.unfinished")
    kept = sum(pq.read_metadata(path).num_rows for path in left.glob("*.parquet"))
    assert KILLED - SHARD <= kept < KILLED
    data = prepare(many, waveforms=True)
    assert len(heard) == CLIPS - kept
    assert (content(data), data.drops) == (content(whole), whole.drops)
    assert not left.exists()


@pytest.mark.parametrize("waveforms", [True, False])
def test_what_was_begun_with_or_without_waveforms(
    many: TrainConfig, heard: list[AudioSource], whole: PreparedData, waveforms: bool
) -> None:
    interrupted(many, waveforms=waveforms)
    assert snapshot(prepare(many)) == snapshot(whole)
    assert len(heard) < CLIPS + KILLED // 2, "what was computed is not computed again"
    assert not is_prepared(many, waveforms=True), "some have theirs"
    assert content(prepare(many, waveforms=True)) == content(whole)


def test_what_nobody_went_on_with_goes_after_a_week(many: TrainConfig) -> None:
    left = interrupted(many, waveforms=True)
    other = many.replace(row_filter="language=en")
    prepare(other)
    assert left.is_dir()
    for path in left.iterdir():
        os.utime(path, (0, time.time() - 8 * 86400))
    prepare(other.replace(max_train_clips=3))
    assert not left.exists()


def test_two_at_once(many: TrainConfig) -> None:
    begun = threading.Event()

    def slowly(done: int, total: int) -> None:
        begun.set()
        time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(prepare, many, slowly)
        assert begun.wait(60)
        assert prepare(many).reused  # waits for the other
        assert not first.result().reused


ROWS = examples(8)
CLIP = "clip_00.flac"
NO_FILE = {"audio": "", "text": "none", "split": "train", "language": "en"}


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """`clips`, a link to the folder `here`: every file is of the same size and age as its sister in `others`."""
    for folder, pitch in (("here", 200), ("others", 300)):
        (tmp_path / folder).mkdir()
        for row in ROWS:
            path = tmp_path / folder / row.file
            soundfile.write(path, tone(0.3, pitch=pitch), 16_000, format="WAV")
            os.utime(path, (1_000, 1_000))
    (tmp_path / "links").symlink_to(tmp_path / "here")
    return tmp_path / "links"


def write_csv(clips: Path) -> Path:
    rows = [{"audio": f"{clips}/{row.file}", "text": row.text, "split": row.split} for row in ROWS]
    return write_manifest(clips.parent / "rows.csv", rows)


def write_saved(clips: Path) -> Path:
    from datasets import Dataset, Features, Value

    rows = [
        {"audio": {"bytes": None, "path": f"{clips}/{row.file}"}, "text": row.text, "split": row.split}
        for row in ROWS
    ]
    audio = {"bytes": Value("binary"), "path": Value("string")}
    features = Features({"audio": audio, "text": Value("string"), "split": Value("string")})
    Dataset.from_list(rows, features=features).save_to_disk(clips.parent / "saved")
    return clips.parent / "saved"


def rename_over(clips: Path) -> None:
    (clips.parent / "others" / CLIP).replace(clips.parent / "here" / CLIP)


def write_in_place(clips: Path) -> None:
    path = clips.parent / "here" / CLIP
    path.write_bytes((clips.parent / "others" / CLIP).read_bytes())
    os.utime(path, (1_000, 1_000))


def swap_folder(clips: Path) -> None:
    clips.unlink()
    clips.symlink_to(clips.parent / "others")


@pytest.mark.parametrize(
    ("write", "replace"), [(write_csv, rename_over), (write_csv, write_in_place), (write_saved, swap_folder)]
)
def test_a_file_that_is_named(
    config: TrainConfig, clips: Path, write: Callable[[Path], Path], replace: Callable[[Path], None]
) -> None:
    config = config.replace(data=str(write(clips)), row_filter=None)
    before = prepare(config).splits["train"].features(0).copy()
    (clips / CLIP).read_bytes()
    os.utime(clips.parent / "others", (time.time() + 1_000,) * 2)
    assert is_prepared(config), "somebody read a file, or wrote others"
    replace(clips)
    assert not is_prepared(config)
    assert (prepare(config).splits["train"].features(0) != before).any()


def test_rows_that_name_no_file_and_content_beside_a_file(
    config: TrainConfig, tmp_path: Path, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the working directory nor what lies in it by chance is part of such data."""
    inside = write_manifest(tmp_path / "inside.parquet", embedded(ROWS, clips))
    without = write_manifest(tmp_path / "without.csv", [*records(ROWS, clips="here/"), NO_FILE])
    for data in (inside, without):
        found = set()
        for name in ("one", "two"):
            (tmp_path / name).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / name)
            found.add(prepare(config.replace(data=str(data), row_filter=None, max_dropped_share=0.5)).folder)
            (tmp_path / name / "something").touch()
        assert len(found) == 1
