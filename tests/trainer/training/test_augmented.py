"""Trainings on changed waveforms: the same samples however they are trained on, and windows that hold them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import DataError
from trainer.model.processor import load_processor
from trainer.probe import _window
from trainer.train import make_trainer
from trainer.training.augmented import AugmentedSplit, augmented_frames
from trainer.training.window import window_frames

FULL = 400
"""Feature frames that the demo's model hears."""


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def config(small_config: TrainConfig) -> TrainConfig:
    return small_config.replace(
        **{"max_train_clips": 20, "max_eval_clips": 8, "augment": 0.8, "augment_reverb": 0.5, "epochs": 2.0},
        **{"audio_window": "batch", "train_batch_size": 8, "evaluations": 2, "log_every_seconds": 0.0},
    )


@pytest.fixture(scope="module")
def data(config: TrainConfig) -> PreparedData:
    return prepare(config, waveforms=True)


def samples(config: TrainConfig, data: PreparedData, folder: Path) -> dict[tuple[int, int], bytes]:
    """All training samples, as long as their windows, by epoch and clip."""
    trainer = make_trainer(config, data, data.splits["validation"], folder)
    batches = zip(trainer.get_train_dataloader(), trainer.plan.passes(0), strict=True)
    found = {
        (clip.epoch, clip.clip): features.numpy().tobytes()
        for batch, clips in batches
        for clip, features in zip(clips, batch["input_features"], strict=False)
    }
    assert len(found) == 40
    return found


def test_samples_are_the_same_for_all_splits_of_a_batch_and_loading_processes(
    config: TrainConfig, data: PreparedData, tmp_path: Path
) -> None:
    """That they are for several workers shows in the losses of a training (test_distributed)."""
    whole = samples(config, data, tmp_path)
    assert len(set(whole.values())) > 35, "each epoch has others"
    changes = {"train_batch_size": 2, "gradient_accumulation_steps": 4, "dataloader_workers": 2}
    assert samples(config.replace(**changes), data, tmp_path) == whole


def augmented_split(config: TrainConfig, data: PreparedData) -> AugmentedSplit:
    extractor, window = load_processor(config).feature_extractor, window_frames(config, data, FULL)
    return AugmentedSplit(config, data.splits["train"], extractor, window, FULL)


def test_unchanged_clips_have_their_stored_features(config: TrainConfig, data: PreparedData) -> None:
    augmented, split = augmented_split(config.replace(augment=0.5), data), data.splits["train"]
    same = 0
    for epoch in range(3):
        for clip in range(len(split)):
            features, fill = augmented.features(epoch, clip)
            frames = augmented.frames(np.array([epoch]), np.array([clip]))
            assert features.shape == (80, frames[0])
            assert np.isfinite(features).all()
            if features.shape == split.features(clip).shape and (features == split.features(clip)).all():
                assert fill == split.fill(clip)
                same += 1
    assert same / (3 * len(split)) == pytest.approx(0.5, abs=0.2)
    shares = ("noise", "reverb", "telephone", "speed")
    unchanged = {f"augment_{name}": 0.0 for name in shares}
    nothing = augmented_split(config.replace(augment=1.0, **unchanged), data)
    for clip in range(len(split)):
        np.testing.assert_array_equal(nothing.features(0, clip)[0], split.features(clip))
        assert nothing.features(0, clip)[1] == split.fill(clip)


@pytest.mark.parametrize("window", [None, 30.0, 3.0])
def test_every_clip_fits_in_the_window(config: TrainConfig, data: PreparedData, window: Any) -> None:
    config = config.replace(audio_window=window, augment=1.0, augment_strength=3.0, augment_speed=1.0)
    augmented = augmented_split(config, data)
    own = window_frames(config, data, FULL)
    assert own <= augmented.window <= FULL
    if isinstance(window, float):
        assert augmented.window == own
    else:
        assert augmented.window == FULL
    assert _window(config, data) >= augmented.window
    lengths = np.concatenate([augmented.frames(np.full(20, epoch), np.arange(20)) for epoch in range(20)])
    assert lengths.max() <= augmented.window
    assert lengths.max() >= augmented.window - 3, "what can be slowed down is"


def test_a_mild_change_needs_little_more_window(config: TrainConfig, data: PreparedData) -> None:
    plain = window_frames(config, data, FULL)
    mild = config.replace(augment_strength=0.2)
    assert plain < augmented_frames(mild, data.splits["train"], plain, FULL) < 1.15 * plain + 16


def test_evaluations_hear_the_clips_as_they_are(
    config: TrainConfig, data: PreparedData, tmp_path: Path
) -> None:
    trainer = make_trainer(config, data, data.splits["validation"], tmp_path, training=False)
    (batch,) = trainer.get_eval_dataloader()
    for clip, features in zip(batch["clips"].tolist(), batch["input_features"], strict=True):
        stored = data.splits["validation"].features(clip)
        np.testing.assert_array_equal(features[:, : stored.shape[1]], stored.astype(np.float32))


def test_noises_and_rooms_of_folders(config: TrainConfig, data: PreparedData, tmp_path: Path) -> None:
    noises, rooms = tmp_path / "noises" / "more", tmp_path / "rooms"
    noises.mkdir(parents=True)
    rooms.mkdir()
    generator = np.random.default_rng(0)
    for name, count, rate in (("long.flac", 31 * 16_000, 16_000), ("low.wav", 800, 8_000)):
        soundfile.write(noises / name, generator.uniform(-0.1, 0.1, count), rate)
    soundfile.write(noises / "sound.ogg", generator.uniform(-0.1, 0.1, 44_100), 44_100)
    (noises / "readme.txt").write_text("no noise")
    soundfile.write(rooms / "room.wav", np.array([0, 0, 1.0, 0.5, 0.25]), 16_000)
    files = config.replace(noise_dir=str(tmp_path / "noises"), augment=1.0, augment_noise=1.0)
    with_files = files.replace(impulse_dir=str(rooms), augment_reverb=1.0)
    first, made, dry = (
        augmented_split(each, data) for each in (with_files, with_files.replace(noise_dir=None), files)
    )
    for clip in range(20):
        found = first.features(0, clip)[0]
        assert not any(np.array_equal(found, other.features(0, clip)[0]) for other in (made, dry))
    (noises / "broken.wav").write_bytes(b"RIFF")
    with pytest.raises(DataError, match=r"noise_dir='.*noises': broken.wav: .*; remove or replace the file"):
        augmented_split(with_files, data)
    soundfile.write(rooms / "room.wav", np.zeros(0), 16_000)
    for folder, told in (
        (data.folder, "has no .wav, .flac, .ogg files"),
        (rooms, "room.wav: is empty"),
        ("nowhere", "is not a folder"),
    ):
        with pytest.raises(DataError, match=rf"impulse_dir='.*{folder}': {told}"):
            augmented_split(config.replace(impulse_dir=str(folder)), data)
