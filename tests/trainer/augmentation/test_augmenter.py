"""What a clip gets depends on seed, epoch and clip alone, and is what the settings say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from trainer.augmentation.augmenter import Augmenter, draw_changes
from trainer.config import TrainConfig

RATE = 16_000
CONFIG = TrainConfig(augment=1.0, augment_noise=0.7, augment_telephone=0.3, seed=3)
SOUND = 0.1 * np.random.default_rng(5).standard_normal(RATE, dtype=np.float32)


def heard(augmenter: Augmenter, epoch: int, clip: int, sound: np.ndarray = SOUND) -> np.ndarray:
    changes = augmenter.changes(epoch, clip, len(sound))
    return sound if changes is None else augmenter.change(changes, sound)


def test_the_same_seed_epoch_and_clip_give_the_same_samples_in_any_order(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "room.wav", np.array([0, 1.0, 0.5, 0.25]), RATE)
    config = CONFIG.replace(impulse_dir=str(tmp_path), augment_reverb=0.5)
    first, again = Augmenter(config, 30 * RATE), Augmenter(config, 30 * RATE)
    places = [(epoch, clip) for epoch in range(3) for clip in range(12)]
    expected = {place: heard(first, *place) for place in places}
    np.random.seed(1)  # the global state has no part in it
    for place in sorted(places, key=hash):
        found = heard(again, *place)
        np.testing.assert_array_equal(found, expected[place])
        assert again.samples(*place, len(SOUND)) == len(found)
        assert np.abs(found).max() <= 1
    assert len({wave.tobytes() for wave in expected.values()}) == len(places)
    other = Augmenter(config.replace(seed=4), 30 * RATE)
    assert not any(np.array_equal(heard(other, *place), expected[place]) for place in places)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_shares_are_those_of_the_settings(share: float) -> None:
    drawn = [draw_changes(CONFIG.replace(augment=share), 0, clip) for clip in range(2000)]
    made = [changes for changes in drawn if changes]
    assert len(made) / 2000 == pytest.approx(share, abs=0.04)
    if made:
        assert np.mean([changes.noise for changes in made]) == pytest.approx(0.7, abs=0.06)
        assert np.mean([changes.band is not None for changes in made]) == pytest.approx(0.3, abs=0.06)
        assert not any(changes.room for changes in made), "no folder has rooms"


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_amounts_are_those_of_the_settings(strength: float) -> None:
    config = CONFIG.replace(augment_strength=strength)
    made = [changes for clip in range(1000) if (changes := draw_changes(config, 0, clip))]
    speeds = [changes.speed for changes in made]
    most = 1.3**strength
    assert 1 / most <= min(speeds) < 1.02 / most and 0.98 * most < max(speeds) <= most
    louder = 20 * np.log10(strength)
    ratios = [changes.snr + louder for changes in made]
    assert 8 <= min(ratios) < 9 and 34 < max(ratios) <= 35


@given(count=st.integers(1, 3 * RATE), clip=st.integers(0, 99), room=st.integers(0, RATE))
def test_no_clip_is_slowed_down_beyond_what_fits(count: int, clip: int, room: int) -> None:
    augmenter = Augmenter(CONFIG.replace(augment_speed=1.0, augment_strength=3.0), count + room)
    assert augmenter.samples(0, clip, count) <= count + room
