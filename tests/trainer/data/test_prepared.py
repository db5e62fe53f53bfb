"""Prepared data: what training gets, which settings share the same features, and what takes no memory twice."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_data import ROWS, caches, snapshot, write_processor

from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.feature_store import encode_waveform
from trainer.data.features import FEATURE_TOLERANCE, extract_features, pad_features
from trainer.data.prepared import PreparedData, PreparedSplit, is_prepared, prepare
from trainer.model.processor import load_processor


def test_what_training_gets(config: TrainConfig, tmp_path: Path, heard: list[object]) -> None:
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
        assert (split.name(i), split.text(i)) == (f"clips/{row.file}", row.text)
        target = " ".join(row.text.split())
        assert split.seconds(i) == len(audio) / 16_000
        features = split.features(i)
        assert features.dtype == np.float16
        assert features.base is not None  # a view, not a copy
        assert not features.flags.writeable
        padded = pad_features([features], [split.fill(i)], 200)[0].numpy()
        full = processor.feature_extractor(audio, sampling_rate=16_000, return_tensors="np")[
            "input_features"
        ][0]
        assert np.abs(padded - full).max() <= FEATURE_TOLERANCE
        tokens = processor.tokenizer.convert_ids_to_tokens(split.labels(i))
        assert tokens[:4] == ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
        assert split.labels(i) == processor.tokenizer(f" {target}").input_ids
    second = prepare(config)
    assert (second.reused, second.folder, second.notes) == (True, data.folder, data.notes)
    assert snapshot(second) == snapshot(data)
    assert len(heard) == 12


def taught(split: PreparedSplit, config: TrainConfig) -> list[str]:
    """The texts that the model learns."""
    tokenizer = load_processor(config).tokenizer
    return [tokenizer.decode(split.labels(i), skip_special_tokens=True) for i in range(len(split))]


def test_text_settings_share_the_features(config: TrainConfig) -> None:
    first = prepare(config)
    bare = config.replace(lowercase=True, remove_punctuation=True, language="de", learning_rate=1e-3, seed=5)
    other = prepare(bare)
    assert (other.reused, other.folder) == (True, first.folder)
    assert taught(other.splits["test"], config) == [" null", " nan", " sentence number 11"]
    assert "<|de|>" in load_processor(bare).tokenizer.decode(other.splits["test"].labels(0))
    validation = other.splits["validation"]
    assert taught(validation, config) == [" 1.0", " quoted he said", " sentence number 10"]
    assert validation.text(1) == '"Quoted," he said'
    assert snapshot(first.with_texts(bare)) == snapshot(other)


def test_labels_begin_with_a_space_where_the_written_language_has_spaces(config: TrainConfig) -> None:
    """Whisper's own texts do, and runtimes join segments by what they begin with."""
    plain, data = config.replace(leading_space=False), prepare(config)
    japanese = config.replace(language="ja")
    english = japanese.replace(task="translate")
    texts = [data.with_texts(each) for each in (config, plain, japanese, english)]
    assert [taught(each.splits["test"], config)[0] for each in texts] == [" null", "null", "null", " null"]


def test_the_key_follows_what_shapes_features(config: TrainConfig, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"row_filter": "language=en"},
        {"max_train_clips": 3, "data_seed": 1},
        {"model": str(write_processor(tmp_path / "longer", window=3))},
    ]
    assert len({prepare(config.replace(**each)).folder for each in changes}) == len(changes)


def kept(data: PreparedData) -> list[np.ndarray]:
    split = data.splits["train"]
    return [split.waveform(i) for i in range(len(split))]


def test_files_are_mapped_never_pickled_and_may_be_moved(config: TrainConfig, tmp_path: Path) -> None:
    data = prepare(config, waveforms=True)
    before, waveforms = snapshot(data), kept(data)  # maps the files
    pickled = pickle.dumps(data)
    assert len(pickled) < 20_000
    again = pickle.loads(pickled)
    assert snapshot(again) == before
    data.folder.rename(tmp_path / "elsewhere")
    moved = data.moved_to(tmp_path / "elsewhere")
    for same in (moved, moved.with_texts(config)):
        assert (same.folder, snapshot(same)) == (tmp_path / "elsewhere", before)
        for one, other in zip(kept(same), waveforms, strict=True):
            np.testing.assert_array_equal(one, other)


def test_waveforms_of_the_clips_that_can_be_used(
    config: TrainConfig, tmp_path: Path, heard: list[object]
) -> None:
    """They come in one pass with the features, which are there without them until they are wanted."""
    config = config.replace(max_dropped_share=1.0)
    rows = [row for row in ROWS if row.split == "train"]
    (tmp_path / "clips" / rows.pop(0).file).write_bytes(b"no audio")
    plain = prepare(config)
    assert is_prepared(config) and not is_prepared(config, waveforms=True)
    with pytest.raises(FileNotFoundError):
        plain.splits["train"].waveform(0)
    data = prepare(config, waveforms=True)
    assert len(heard) == 2 * 12
    assert (data.folder, snapshot(data)) == (plain.folder, snapshot(plain))
    assert is_prepared(config, waveforms=True) and prepare(config).reused
    extractor = load_processor(config).feature_extractor
    split = data.with_texts(config.replace(lowercase=True)).splits["train"].only([3, 1, 3, 0, 2, 4])
    for i, position in enumerate([3, 1, 3, 0, 2, 4]):
        found, audio = split.waveform(i), read_audio(tmp_path / "clips" / rows[position].file)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, audio)  # of 16 bits
        assert split.samples(i) == len(audio)
        np.testing.assert_array_equal(extract_features(extractor, found)[0], split.features(i))
    assert caches(config) == [data.folder.name]


@given(st.floats(1e-20, 1e6), st.integers(1, 1000), st.integers(0, 9))
def test_other_audio_has_15_bits_at_least(peak: float, count: int, seed: int) -> None:
    audio = np.random.default_rng(seed).uniform(-1, 1, count).astype(np.float32)
    audio *= np.float32(peak) / np.abs(audio).max()
    stored, scale = encode_waveform(audio)
    assert stored.dtype == np.int16
    assert np.abs(stored * np.float32(scale) - audio).max() <= peak * 2**-15


WITHOUT_GUARD = """
from trainer.config import TrainConfig
from trainer.data.prepared import prepare

prepare(TrainConfig(cache_dir={cache!r}, max_train_clips=4, max_eval_clips=2), workers=2)
"""


def test_a_script_without_a_main_guard_ends_with_what_it_needs(tmp_path: Path) -> None:
    """The processes that compute features import it: they waited for ever for what it was at."""
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_GUARD.format(cache=str(tmp_path / "cache")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert 'a script needs `if __name__ == "__main__":` above what trains' in done.stderr
