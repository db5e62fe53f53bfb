"""Prepared data: what training gets, which settings share the same features, and what takes no memory twice."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_data import ROWS, caches, sizes, snapshot, tone, write_processor

from trainer.config import TrainConfig
from trainer.data.audio import AudioError, read_audio
from trainer.data.feature_store import encode_waveform
from trainer.data.features import extract_features, extractor_settings, pad_features
from trainer.data.prepared import PreparedData, PreparedSplit, is_prepared, prepare
from trainer.data.text import prepare_target
from trainer.model.processor import load_processor

TOLERANCE = 1e-3
"""Largest difference of padded-back features from the extractor's float32: float16's rounding up to 4."""


def test_what_training_gets(config: TrainConfig, tmp_path: Path, heard: list[object]) -> None:
    seen: list[tuple[int, int]] = []
    data = prepare(config, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 12) for done in range(1, 13)]
    assert sizes(data) == {"train": 6, "validation": 3, "test": 3}
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
        full = processor.feature_extractor(audio, sampling_rate=16_000, return_tensors="np")
        assert np.abs(padded - full["input_features"][0]).max() <= TOLERANCE
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop, mother-in-law!", "Don't stop mother-in-law"),
        ("don\u2019t \u2018quote\u2019 -- it", "don\u2019t quote it"),
        ("costs $3.50, i.e. 1,000 at 10:30", "costs $3.50 i e 1,000 at 10:30"),
        ("50% of R&D @ home", "50% of R&D @ home"),
        ("Es sind -5 °C, \u22125 % und E-Mail - 3!", "Es sind -5 °C \u22125 % und E-Mail 3"),
        ("कि हिन्दी, में।", "कि हिन्दी में"),
        ("שָׁלוֹם, עולם", "שָׁלוֹם עולם"),
        ("ก็ได้ ไหม?", "ก็ได้ ไหม"),
        ("\u00bfQu\u00e9? \u00abs\u00ed\u00bb", "Qué sí"),
        ("paral\u00b7lel \u00b7 punt", "paral\u00b7lel punt"),
        ("a_b [noise] (aside)\u2026", "a b noise aside"),
        ("...", ""),
    ],
)
def test_punctuation_goes_and_words_stay_whole(text: str, expected: str) -> None:
    assert prepare_target(text, lowercase=False, remove_punctuation=True) == expected


def test_text_is_kept_but_for_white_space() -> None:
    text = " \u201cDon't\u201d,\n he\t said \u2014 PAUSE. "
    expected = "\u201cDon't\u201d, he said \u2014 PAUSE."
    assert prepare_target(text, lowercase=False, remove_punctuation=False) == expected


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("\u00c9COLE Stra\u00dfe", None, "\u00e9cole stra\u00dfe"),
        ("\u0130stanbul ILIK", "tr", "istanbul \u0131l\u0131k"),
        ("\u0130stanbul IS", "en", "istanbul is"),
        ("\u039f\u0394\u039f\u03a3", "el", "\u03bf\u03b4\u03bf\u03c2"),
    ],
)
def test_lower_case_knows_the_alphabet(text: str, language: str | None, expected: str) -> None:
    assert prepare_target(text, lowercase=True, remove_punctuation=False, language=language) == expected


WINDOW = 480_000


@pytest.fixture(scope="module")
def extractor():
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor()


def difference(extractor, audio: np.ndarray) -> float:
    """Largest difference from the extractor's own padded features."""
    full = extractor(audio, sampling_rate=16_000, return_tensors="np")["input_features"][0]
    features, fill = extract_features(extractor, audio)
    frames = features.shape[1]
    assert features.dtype == np.float16
    assert frames <= len(audio) // 160 + 3
    # In a batch with one that is shorter.
    short, short_fill = extract_features(extractor, tone(0.2))
    padded = pad_features([short, features], [short_fill, fill], extractor.nb_max_frames)[1].numpy()
    assert padded.shape == full.shape == (extractor.feature_size, extractor.nb_max_frames)
    assert padded.dtype == np.float32
    # What was left out is no rounding matter: it is the constant itself.
    assert np.abs(padded[:, frames:] - full[:, frames:]).max(initial=0) < 1e-6
    return float(np.abs(padded - full).max())


@pytest.mark.parametrize(
    "samples",
    [*(1, 159, 160, 161, 399, 400, 16_001), *(WINDOW - less for less in (401, 400, 201, 200, 1, 0))],
)
def test_padded_back_equals_the_extractor(extractor, samples: int) -> None:
    audio = np.random.default_rng(samples).normal(0, 0.1, samples).astype(np.float32)
    # Below 2 in size float16 rounds to half of the bound.
    assert difference(extractor, audio) <= TOLERANCE / 2


@pytest.mark.parametrize(
    "audio",
    [
        np.zeros(8_000, np.float32),
        np.ones(8_000, np.float32),
        np.full(8_000, 1e-7, np.float32),
        np.concatenate([np.zeros(8_000), np.sin(np.arange(8_000))]).astype(np.float32),
        np.sign(np.sin(np.arange(16_000) / 5)).astype(np.float32),
    ],
    ids=["silence", "constant", "almost-silence", "starts-late", "clipped"],
)
def test_extremes(extractor, audio: np.ndarray) -> None:
    assert difference(extractor, audio) <= TOLERANCE


@pytest.mark.parametrize(("mels", "seconds"), [(128, 30), (80, 3)])
def test_other_extractors(extractor, mels: int, seconds: int) -> None:
    from transformers import WhisperFeatureExtractor

    other = WhisperFeatureExtractor(feature_size=mels, chunk_length=seconds)
    for samples in (5_000, seconds * 16_000 - 100, seconds * 16_000):
        assert difference(other, tone(samples / 16_000)) <= TOLERANCE / 2
    with pytest.raises(AudioError, match="over the model's window") as caught:
        extract_features(other, np.zeros(seconds * 16_000 + 1, np.float32))
    assert caught.value.reason == "too_long_audio"
    assert extractor_settings(other) != extractor_settings(extractor)
