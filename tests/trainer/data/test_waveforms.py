"""Waveforms kept beside the features: the audio itself, in 16 bit, whenever they are asked for."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_data import ROWS, SHARED_DATA, snapshot

import trainer.data.features
import trainer.data.parallel
from trainer.config import TrainConfig
from trainer.data.audio import AudioError, AudioSource, read_audio
from trainer.data.features import (
    FEATURE_TOLERANCE,
    Waveforms,
    WaveformWriter,
    encode_waveform,
    extract_features,
)
from trainer.data.prepared import PreparedData, is_prepared, prepare
from trainer.model.processor import load_processor


def kept(data: PreparedData) -> list[np.ndarray]:
    split = data.splits["train"]
    assert [split.samples(i) for i in range(len(split))] == [
        len(split.waveform(i)) for i in range(len(split))
    ]
    return [split.waveform(i) for i in range(len(split))]


def test_waveforms_are_the_audio_whether_made_with_the_features_or_after_them(
    config: TrainConfig, tmp_path: Path
) -> None:
    plain = prepare(config)
    with pytest.raises(ValueError, match="without waveforms"):
        plain.splits["train"].waveform(0)
    assert is_prepared(config) and not is_prepared(config, waveforms=True)
    after = prepare(config, waveforms=True)
    assert is_prepared(config, waveforms=True)
    assert after.reused
    for found, row in zip(kept(after), [row for row in ROWS if row.split == "train"], strict=True):
        audio = read_audio(tmp_path / "clips" / row.file)
        assert found.dtype == np.float32
        assert np.abs(found - audio).max() <= np.abs(audio).max() / 2**15
    assert after.waveforms is not None
    shutil.rmtree(config.cache_dir)
    together = prepare(config, waveforms=True)
    assert not together.reused
    assert snapshot(together) == snapshot(plain)
    for one, other in zip(kept(together), kept(after), strict=True):
        np.testing.assert_array_equal(one, other)
    assert together.splits["validation"].waveforms is None


def test_with_the_features_audio_is_read_once(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []

    def hear_each(sources: Iterable[AudioSource], **values: float) -> object:
        every = list(sources)
        heard.extend(every)
        return original(every, **values)

    original = trainer.data.parallel.hear_each
    monkeypatch.setattr(trainer.data.parallel, "hear_each", hear_each)
    prepare(config, waveforms=True)
    assert len(heard) == 12
    prepare(config, waveforms=True)
    assert len(heard) == 12


def test_waveforms_belong_to_the_clips_that_can_be_used(config: TrainConfig, tmp_path: Path) -> None:
    first = next(row for row in ROWS if row.split == "train")
    (tmp_path / "clips" / first.file).write_bytes(b"no audio")
    whole = kept(prepare(config.replace(max_dropped_share=1.0), waveforms=True))
    assert len(whole) == 5
    fewer = prepare(config.replace(max_dropped_share=1.0)).with_texts(config.replace(max_dropped_share=1.0))
    assert fewer.splits["train"].waveforms is None
    data = prepare(config.replace(max_dropped_share=1.0), waveforms=True)
    chosen = data.splits["train"].only([3, 1, 3])
    for found, row in zip([chosen.waveform(i) for i in range(3)], (3, 1, 3), strict=True):
        np.testing.assert_array_equal(found, whole[row])
    relabelled = data.with_texts(config.replace(max_dropped_share=1.0, lowercase=True))
    np.testing.assert_array_equal(relabelled.splits["train"].waveform(2), whole[2])


def test_several_processes_and_a_copy_give_the_same(config: TrainConfig, tmp_path: Path) -> None:
    alone = prepare(config, waveforms=True)
    many = prepare(config.replace(cache_dir=str(tmp_path / "other")), workers=2, waveforms=True)
    assert alone.waveforms is not None
    place = Path(shutil.copytree(alone.waveforms, tmp_path / "copy" / "w"))
    moved = alone.moved_to(alone.folder, place)
    assert moved.waveforms == place
    copied = pickle.dumps(moved)
    assert len(copied) < 40_000
    for other in (many, pickle.loads(copied)):
        for one, found in zip(kept(alone), kept(other), strict=True):
            np.testing.assert_array_equal(one, found)


@pytest.mark.parametrize("name", ["train.i16", "train.lengths.i32", "manifest.json"])
def test_damaged_waveforms_are_made_again(config: TrainConfig, name: str) -> None:
    data = prepare(config, waveforms=True)
    before = kept(data)
    assert data.waveforms is not None
    file = data.waveforms / name
    os.truncate(file, file.stat().st_size - 2)
    again = prepare(config, waveforms=True)
    assert again.reused  # the features were whole
    for one, other in zip(before, kept(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_nothing_is_left_where_no_clip_can_be_used(config: TrainConfig, tmp_path: Path) -> None:
    for row in ROWS:
        (tmp_path / "clips" / row.file).write_bytes(b"no audio")
    with pytest.raises(trainer.data.features.DataError):
        prepare(config, waveforms=True)
    assert [path.name for path in Path(config.cache_dir).iterdir() if not path.name.startswith(".")] == []


@given(
    st.lists(st.integers(-32768, 32767), min_size=1),
    st.sampled_from([1.0, 2.0**-9, 2.0**6]),
)
def test_16_bit_audio_is_kept_as_it_is(values: list[int], scale: float) -> None:
    audio = np.array(values, np.float32) / 32768 * np.float32(scale)
    stored, exponent = encode_waveform(audio)
    np.testing.assert_array_equal(np.ldexp(stored.astype(np.float32), -exponent), audio)


@given(st.floats(1e-20, 1e6), st.integers(1, 1000), st.integers(0, 9))
def test_other_audio_has_15_bits_at_least(
    tmp_path_factory: pytest.TempPathFactory, peak: float, count: int, seed: int
) -> None:
    audio = np.random.default_rng(seed).uniform(-1, 1, count).astype(np.float32)
    audio *= np.float32(peak) / np.abs(audio).max()
    folder = tmp_path_factory.mktemp("made")
    with WaveformWriter(folder, "x") as writer:
        writer.add(*encode_waveform(audio))
        writer.add(*encode_waveform(np.zeros(3, np.float32)))
    read = Waveforms.open(folder, "x")
    assert [read.samples(0), read.samples(1)] == [count, 3]
    assert np.abs(read.waveform(0) - audio).max() <= peak * 2**-15
    np.testing.assert_array_equal(read.waveform(1), np.zeros(3))


def test_features_of_kept_waveforms_are_the_stored_ones(tmp_path: Path) -> None:
    """Of 16-bit audio at 16 kHz to the last bit; else only next to the floor, 80 dB below the loudest, by 16 bits."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs the real speech of ../shared/data")
    config = TrainConfig(
        data=str(SHARED_DATA / "speech_en_de"),
        row_filter="language=en",
        max_train_clips=20,
        max_eval_clips=2,
        cache_dir=str(tmp_path / "cache"),
    )
    split = prepare(config, waveforms=True).splits["train"]
    extractor = load_processor(config).feature_extractor
    for i in range(len(split)):
        features, fill = extract_features(extractor, split.waveform(i))
        np.testing.assert_array_equal(features, split.features(i))
        assert fill == pytest.approx(split.fill(i))
    audio = read_audio(SHARED_DATA / "jfk" / "jfk.flac")[:60_000]  # 44.1 kHz, 24 bit
    stored, exponent = encode_waveform(audio)
    rounded = np.ldexp(stored.astype(np.float32), -exponent)
    one, other = (extract_features(extractor, each)[0].astype(np.float32) for each in (audio, rounded))
    off = np.abs(one - other)
    assert off.max() < 0.01
    assert (off > FEATURE_TOLERANCE).mean() < 0.05


def test_audio_that_is_gone_is_told(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(config)

    def hear_each(sources: Iterable[AudioSource], **_: float) -> Iterator[object]:
        yield from ((source, AudioError("unreadable_audio", "file not found")) for source in sources)

    monkeypatch.setattr(trainer.data.parallel, "hear_each", hear_each)
    with pytest.raises(trainer.data.features.DataError, match="file not found; it was changed since"):
        prepare(config, waveforms=True)
