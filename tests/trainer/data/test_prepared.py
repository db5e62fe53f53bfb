"""Prepared data: what training gets, and which settings share the same features."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from make_data import ROWS, SHARED_DATA, snapshot, tone, write_processor

import trainer.data.labels
import trainer.data.parallel
from trainer.config import TrainConfig
from trainer.data.audio import read_audio
from trainer.data.features import FEATURE_TOLERANCE, pad_features
from trainer.data.prepared import PreparedSplit, prepare
from trainer.model.processor import load_processor


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
        assert (split.name(i), split.text(i)) == (f"clips/{row.file}", row.text)
        target = " ".join(row.text.split())
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
        assert split.labels(i) == processor.tokenizer(f" {target}").input_ids
        assert split.labels(i)[-1] == processor.tokenizer.eos_token_id
        assert processor.tokenizer.decode(split.labels(i), skip_special_tokens=True) == f" {target}"


def test_a_second_time_nothing_is_computed(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(config)
    monkeypatch.setattr(trainer.data.parallel, "hear_each", None)
    second = prepare(config)
    assert second.reused
    assert second.folder == first.folder
    assert snapshot(second) == snapshot(first)
    assert second.notes == first.notes


def taught(split: PreparedSplit, config: TrainConfig) -> list[str]:
    """The texts that the model learns."""
    tokenizer = load_processor(config).tokenizer
    return [tokenizer.decode(split.labels(i), skip_special_tokens=True) for i in range(len(split))]


def test_text_settings_share_the_features(config: TrainConfig) -> None:
    first = prepare(config)
    other = prepare(
        config.replace(lowercase=True, remove_punctuation=True, language="de", learning_rate=1e-3, seed=5)
    )
    assert other.reused
    assert other.folder == first.folder
    assert taught(other.splits["test"], config) == [" null", " nan", " sentence number 11"]
    assert "<|de|>" in load_processor(config.replace(language="de")).tokenizer.decode(
        other.splits["test"].labels(0)
    )
    validation = other.splits["validation"]
    assert taught(validation, config) == [" 1.0", " quoted he said", " sentence number 10"]
    assert validation.text(1) == '"Quoted," he said'


@pytest.mark.parametrize(
    ("settings", "space"),
    [
        ({}, " "),
        ({"leading_space": False}, ""),
        ({"language": "ja"}, ""),
        ({"language": "ja", "task": "translate"}, " "),
    ],
)
def test_labels_begin_with_a_space_where_the_written_language_has_spaces(
    config: TrainConfig, settings: dict[str, Any], space: str
) -> None:
    """Whisper's own texts do, and runtimes join segments by what they begin with."""
    data = prepare(config).with_texts(config.replace(**settings))
    assert taught(data.splits["test"], config)[0] == f"{space}null"


def test_labels_of_other_texts_are_made_once(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = prepare(config), config.replace(lowercase=True)
    first = snapshot(data.with_texts(other))
    assert first == snapshot(prepare(other))
    with monkeypatch.context() as patch:
        patch.setattr(trainer.data.labels, "prepare_target", None)  # nothing is made again
        assert snapshot(data.with_texts(other)) == first
        assert snapshot(pickle.loads(pickle.dumps(data.with_texts(other)))) == first
    (made,) = Path(config.cache_dir).glob("labels-*")
    with next(made.glob("train.tokens*")).open("ab") as file:
        file.write(b"more")  # it is not what was written
    assert snapshot(data.with_texts(other)) == first
    data.with_texts(other.replace(language="de"))
    data.with_texts(other.replace(remove_punctuation=True))
    assert len(list(Path(config.cache_dir).glob("labels-*"))) == 3


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


def test_features_that_were_moved(config: TrainConfig, tmp_path: Path) -> None:
    data = prepare(config)
    before = snapshot(data)
    data.folder.rename(tmp_path / "elsewhere")
    moved = data.moved_to(tmp_path / "elsewhere")
    assert moved.folder == tmp_path / "elsewhere"
    assert snapshot(moved) == before
    assert snapshot(moved.with_texts(config)) == before


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


WITHOUT_GUARD = """
import trainer.data.features
from trainer.config import TrainConfig
from trainer.data.prepared import prepare

trainer.data.features._SMALL = 0
prepare(TrainConfig(cache_dir={cache!r}, max_train_clips=4, max_eval_clips=2))
"""


def test_a_script_without_a_main_guard_ends_with_what_it_needs(tmp_path: Path) -> None:
    """The processes that compute features import it: they waited for ever for what it was at."""
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_GUARD.format(cache=str(tmp_path / "cache")))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert 'a script needs `if __name__ == "__main__":` above what trains' in done.stderr
