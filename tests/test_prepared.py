"""Prepared data: labels, drops, and a cache that is reused, rebuilt or never seen, but not half-read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from make_data import SHARED_DATA, examples, records, tone, write_clips, write_manifest, write_processor

import trainer.build
import trainer.cache
from trainer.audio import read_audio
from trainer.config import TrainConfig
from trainer.errors import DataError
from trainer.features import FEATURE_TOLERANCE, pad_features
from trainer.model import load_processor
from trainer.prepared import PreparedData, prepare

ROWS = examples(12)
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def processor_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_processor(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(tmp_path: Path, processor_folder: Path) -> TrainConfig:
    write_clips(tmp_path / "clips", ROWS)
    manifest = write_manifest(tmp_path / "all.csv", records(ROWS))
    return TrainConfig(
        model=str(processor_folder),
        data=str(manifest),
        cache_dir=str(tmp_path / "cache"),
        row_filter="language=en,language=de",
    )


def caches(config: TrainConfig) -> list[str]:
    """Finished and unfinished folders in the cache; not the locks, which stay."""
    return sorted(path.name for path in Path(config.cache_dir).glob("*") if path.is_dir())


def snapshot(data: PreparedData) -> dict[str, list[object]]:
    """All that training takes from the data."""
    return {
        role: [
            (split.name(i), split.text(i), split.labels(i), split.fill(i), split.features(i).tobytes())
            for i in range(len(split))
        ]
        for role, split in data.splits.items()
    }


def test_what_training_gets(config: TrainConfig, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    data = prepare(config, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 12) for done in range(1, 13)]
    assert {role: len(split) for role, split in data.splits.items()} == {
        "train": 6,
        "validation": 3,
        "test": 3,
    }
    assert (data.reused, data.drops, data.total) == (False, [], 12)
    processor = load_processor(config)
    split = data.splits["train"]
    for i, row in enumerate(row for row in ROWS if row.split == "train"):
        audio = read_audio(tmp_path / "clips" / row.file)
        assert (split.name(i), split.text(i), split.target(i)) == (
            f"clips/{row.file}",
            row.text,
            " ".join(row.text.split()),
        )
        assert split.seconds(i) == pytest.approx(len(audio) / 16_000)
        features = split.features(i)
        assert features.dtype == np.float16
        assert features.base is not None  # a view, not a copy
        assert not features.flags.writeable
        padded = pad_features([features], [split.fill(i)], 200)[0].numpy()
        full = processor.feature_extractor(audio, sampling_rate=16_000, return_tensors="np")[
            "input_features"
        ][0]
        assert np.abs(padded - full).max() <= FEATURE_TOLERANCE
        prefix = processor.tokenizer.convert_ids_to_tokens(split.labels(i))
        assert prefix[:4] == ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
        assert split.labels(i) == processor.tokenizer(split.target(i)).input_ids
        assert split.labels(i)[-1] == processor.tokenizer.eos_token_id
        assert processor.tokenizer.decode(split.labels(i), skip_special_tokens=True) == split.target(i)


def test_a_second_time_nothing_is_computed(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(config)
    monkeypatch.setattr(trainer.build, "read_audio", None)
    started = time.monotonic()
    second = prepare(config)
    assert time.monotonic() - started < 3  # well under a second when nothing else runs
    assert second.reused
    assert second.folder == first.folder
    assert snapshot(second) == snapshot(first)
    assert second.notes == first.notes


def test_text_settings_share_the_features(config: TrainConfig) -> None:
    first = prepare(config)
    other = prepare(
        config.replace(lowercase=True, remove_punctuation=True, language="de", learning_rate=1e-3, seed=5)
    )
    assert other.reused
    assert other.folder == first.folder
    targets = [other.splits["test"].target(i) for i in range(3)]
    assert targets == ["null", "nan", "sentence number 11"]
    assert "<|de|>" in load_processor(config.replace(language="de")).tokenizer.decode(
        other.splits["test"].labels(0)
    )
    validation = other.splits["validation"]
    assert [validation.target(i) for i in range(3)] == ["1.0", "quoted he said", "sentence number 10"]
    assert validation.text(1) == '"Quoted," he said'


def test_the_key_follows_what_shapes_features(config: TrainConfig, tmp_path: Path) -> None:
    folders = {prepare(config).folder}
    folders.add(prepare(config.replace(row_filter="language=en")).folder)
    folders.add(prepare(config.replace(max_train_clips=3)).folder)
    folders.add(prepare(config.replace(max_train_clips=3, data_seed=1)).folder)
    folders.add(prepare(config.replace(model=str(write_processor(tmp_path / "longer", window=3)))).folder)
    clip = tmp_path / "clips" / ROWS[0].file
    soundfile.write(clip, tone(0.4, pitch=300), 16_000)
    folders.add(prepare(config).folder)
    assert len(folders) == 6


def test_several_processes_give_the_same(config: TrainConfig) -> None:
    """The spawned workers import torch: some seconds."""
    seen: list[int] = []
    alone = prepare(config)
    many = prepare(
        config.replace(cache_dir=config.cache_dir + "2"),
        on_progress=lambda done, _: seen.append(done),
        workers=2,
    )
    assert seen == list(range(1, 13))
    assert snapshot(many) == snapshot(alone)


def test_pickled_without_the_features(config: TrainConfig) -> None:
    data = prepare(config)
    before = snapshot(data)  # maps the files
    pickled = pickle.dumps(data)
    assert len(pickled) < 20_000
    assert snapshot(pickle.loads(pickled)) == before


def bad_data(tmp_path: Path) -> Path:
    """One clip for each reason to drop it, and 15 good ones."""
    rows = [{"path": str(tmp_path / "clips" / row.file), "text": row.text} for row in examples(15)]
    write_clips(tmp_path / "clips", examples(15))
    clips = tmp_path / "clips"
    soundfile.write(clips / "long.wav", tone(2.5), 16_000)
    soundfile.write(clips / "empty.wav", np.zeros(0, np.float32), 16_000)
    (clips / "broken.wav").write_bytes(b"RIFF but no more")
    good = str(clips / ROWS[0].file)
    rows += [
        {"path": str(clips / "long.wav"), "text": "long"},
        {"path": str(clips / "empty.wav"), "text": "nothing"},
        {"path": str(clips / "broken.wav"), "text": "broken"},
        {"path": str(clips / "missing.wav"), "text": "missing"},
        {"path": good, "text": "  "},
        {"path": good, "text": "?!"},
        {"path": good, "text": "x" * 60},
    ]
    for number, row in enumerate(rows):
        row["split"] = "dev" if number in (3, 4) else "train"
    return write_manifest(tmp_path / "bad.csv", rows)


def test_drops_are_counted_and_listed(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(data=str(bad_data(tmp_path)), row_filter=None, max_dropped_share=0.5)
    data = prepare(config.replace(remove_punctuation=True))
    assert data.drop_counts() == {
        "unreadable_audio": 2,
        "empty_text": 2,
        "too_long_audio": 1,
        "empty_audio": 1,
        "too_long_text": 1,
    }
    assert data.total == 22
    assert {role: len(split) for role, split in data.splits.items()} == {"train": 13, "validation": 2}
    data.write_dropped(tmp_path / "dropped.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
    assert all(
        set(line) == {"split", "name", "reason", "detail"} and line["split"] == "train" for line in lines
    )
    details = {(line["reason"], line["detail"]) for line in lines}
    assert ("too_long_audio", "2.50 s, over the model's window of 2 s") in details
    assert ("unreadable_audio", "file not found") in details
    assert ("empty_text", "no letter or digit in '?!'") in details
    assert ("empty_text", "no text") in details
    assert ("too_long_text", "65 tokens; the model writes at most 64") in details
    assert any(note.startswith("dropped 7 of 22 clips: 2 unreadable audio") for note in data.notes)
    # The same features, whatever the text settings: a text without words is none even where marks are kept.
    again = prepare(config)
    assert again.reused
    assert again.drops == data.drops
    assert snapshot(again).keys() == snapshot(data).keys()


def test_too_many_drops_stop(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(data=str(bad_data(tmp_path)), row_filter=None, remove_punctuation=True)
    with pytest.raises(DataError) as caught:
        prepare(config)
    message = str(caught.value)
    assert "\n" not in message
    assert "7 of 22 clips (31.8%) cannot be used: 2 unreadable audio, 2 no text" in message
    assert "1 audio longer than the model's window of 2 s" in message
    assert "max_dropped_share=0.25 allows fewer" in message
    share = re.search(r"--set max_dropped_share=([\d.]+)", message)
    assert share is not None
    # The features stay, for this very next run.
    data = prepare(config.replace(max_dropped_share=float(share[1])))
    assert len(data.drops) == 7
    assert data.reused


def test_a_split_with_nothing_left(config: TrainConfig, tmp_path: Path) -> None:
    rows = [row | {"text": "" if row["split"] == "validation" else row["text"]} for row in records(ROWS)]
    path = write_manifest(tmp_path / "silent.csv", rows)
    with pytest.raises(DataError, match="no clip of the validation split can be used: 3 no text"):
        prepare(config.replace(data=str(path)))
    assert not Path(config.cache_dir).exists()


NOTHING_LEFT = {
    "missing": "3 unreadable audio (the first is clips/none_02.flac: file not found)",
    "texts": "3 text longer than the model writes (the first is clips/clip_02.flac: 65 tokens",
    "window": "3 audio longer than the model's window of 2 s (the first is clips/long.wav: 2.50 s, over",
}


@pytest.mark.parametrize("mistake", NOTHING_LEFT)
@pytest.mark.parametrize("there", [False, True])
def test_features_that_no_one_can_use_are_not_left_behind(
    config: TrainConfig, tmp_path: Path, mistake: str, there: bool
) -> None:
    soundfile.write(tmp_path / "clips" / "long.wav", tone(2.5), 16_000)
    rows = records(ROWS)
    for row in rows:
        if row["split"] == "validation":
            if mistake == "texts":
                row["text"] = "x" * 60
            else:
                file = "clips/long.wav" if mistake == "window" else row["audio"].replace("clip_", "none_")
                row["audio"] = file
    cache = tmp_path / "some" / "where" / "cache"
    if there:
        cache.mkdir(parents=True)
        (cache / "of_another").touch()
    path = write_manifest(tmp_path / "useless.csv", rows)
    # No share that may be dropped would help, so none is advised.
    with pytest.raises(DataError) as caught:
        prepare(config.replace(data=str(path), cache_dir=str(cache), max_dropped_share=0.1))
    message = str(caught.value)
    assert f"no clip of the validation split can be used: {NOTHING_LEFT[mistake]}" in message
    assert "name another split with validation_split" in message
    assert "max_dropped_share" not in message
    if there:
        assert [path.name for path in cache.iterdir()] == ["of_another"]
    else:
        assert not (tmp_path / "some").exists()


def test_features_of_others_stay(config: TrainConfig, processor_folder: Path, tmp_path: Path) -> None:
    """They were there before: a model that writes shorter texts cannot use them, others can."""
    first = prepare(config)
    short = write_processor(tmp_path / "short", max_tokens=5)
    with pytest.raises(DataError, match="no clip of the train split can be used: 6 text longer than"):
        prepare(config.replace(model=str(short)))
    assert prepare(config).reused
    assert caches(config) == [first.folder.name]


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
        with contextlib.suppress(DataError), trainer.cache.found_or_built(folder, how):
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


BUILD = """
    import sys, time
    sys.path.insert(0, {root!r})
    import trainer.build
    from trainer.config import TrainConfig
    from trainer.prepared import prepare

    def on_progress(done, total):
        print(done, flush=True)
        time.sleep({pause})

    data = prepare(TrainConfig(**{settings!r}), on_progress=on_progress)
    print("reused" if data.reused else "built", flush=True)
"""


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
    assert left.endswith(".partial")
    data = prepare(config)
    assert not data.reused
    assert caches(config) == [data.folder.name]  # what the killed process left is gone
    assert len(data.splits["train"]) == 6


def test_two_at_once(config: TrainConfig) -> None:
    process = start_build(config, pause=0.1)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "1"
    data = prepare(config)  # waits for the other
    output, _ = process.communicate(timeout=60)
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
        trainer.cache.found_or_built(tmp_path / "key", build),
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


def test_real_speech_with_whispers_own_vocabulary(tmp_path: Path) -> None:
    data, model = SHARED_DATA / "speech_en_de", SHARED_DATA / "whisper_tiny_processor"
    if not data.is_dir() or not model.is_dir():
        pytest.skip(f"{data} or {model} is not here: the project's shared test data is absent")
    config = TrainConfig(
        data=str(data), model=str(model), cache_dir=str(tmp_path), language="de", max_train_clips=10
    )
    prepared = prepare(config.replace(max_eval_clips=3))
    assert prepared.total == 16
    assert not prepared.drops
    ids = prepared.splits["train"].labels(0)
    assert ids[:4] == [50258, 50261, 50359, 50363]
    assert ids[-1] == 50257
