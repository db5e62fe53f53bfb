"""Each change of a waveform does what it says, measured on the samples."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import example, given
from hypothesis import strategies as st
from make_data import pitch_of

from trainer.augmentation.augmenter import Augmenter, draw_changes
from trainer.augmentation.effects import (
    add_noise,
    change_speed,
    level,
    limit_band,
    made_noise,
    reverberate,
    stretched,
)
from trainer.config import TrainConfig

RATE = 16_000
Effect = Callable[[np.ndarray, float], np.ndarray]


def tone(hertz: float, seconds: float = 1.0, amplitude: float = 0.3) -> np.ndarray:
    times = np.arange(round(seconds * RATE)) / RATE
    return (amplitude * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def white(count: int = 4 * RATE, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def room(seconds: float) -> np.ndarray:
    """The direct sound, and noise that fades."""
    times = np.arange(round(seconds * RATE)) / RATE
    answer = 0.02 * white(len(times)) / 0.1 * np.exp(-7 * times / seconds)
    return np.concatenate([np.ones(1), np.zeros(100), answer]).astype(np.float32)


def power_between(samples: np.ndarray, low: float, high: float) -> float:
    """Mean power density of a band in decibels."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    frequencies = np.fft.rfftfreq(len(samples), 1 / RATE)
    return float(10 * np.log10(power[(frequencies >= low) & (frequencies < high)].mean()))


def decibels(samples: np.ndarray, reference: np.ndarray) -> float:
    return 20 * float(np.log10(level(samples) / level(reference)))


@pytest.mark.parametrize("factor", [0.7, 1.11])
def test_speed_moves_the_pitch(factor: float) -> None:
    clip = tone(440, seconds=2)
    faster = change_speed(clip, factor)
    assert len(faster) == stretched(len(clip), factor) == round(2 * RATE / factor)
    assert pitch_of(faster) == pytest.approx(440 * factor, rel=0.003)
    assert decibels(faster[800:-800], clip) == pytest.approx(0, abs=0.3)


def test_a_telephone_has_its_band_only() -> None:
    clip = white()
    heard = limit_band(clip, 300, 3400)
    inside = power_between(heard, 400, 3000)
    assert power_between(heard, 0, 150) < inside - 30
    assert power_between(heard, 5000, 8000) < inside - 30
    assert inside == pytest.approx(power_between(heard, 1000, 2000), abs=1)
    assert decibels(heard, clip) == pytest.approx(0, abs=0.01)


@given(snr=st.floats(-10, 40), exponent=st.sampled_from([0.0, 1.0, 2.0]))
def test_noise_has_the_power_that_is_asked_for(snr: float, exponent: float) -> None:
    clip = tone(440)
    mixed = add_noise(clip, made_noise(np.random.default_rng(1), len(clip), exponent), snr)
    assert decibels(clip, mixed - clip) == pytest.approx(snr, abs=0.1)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_coloured_noise_falls_with_the_frequency(exponent: float) -> None:
    noise = made_noise(np.random.default_rng(0), 20 * RATE, exponent)
    octaves = [power_between(noise, low, 2 * low) for low in (250, 500, 1000, 2000)]
    assert np.diff(octaves) == pytest.approx([-3.01 * exponent] * 3, abs=0.5)


def test_a_room_answers_in_place_and_as_loud() -> None:
    click = np.zeros(RATE, np.float32)
    click[4000] = 0.5
    measured = np.concatenate([np.zeros(300, np.float32), room(0.3)])
    for impulse in (measured, measured[300:]):
        heard = reverberate(click, impulse)
        assert np.argmax(np.abs(heard)) == 4000
        assert np.abs(heard[:3990]).max() < 1e-6
        assert level(heard[4100:6000]) > 1e-3
        assert decibels(heard, click) == pytest.approx(0, abs=0.01)
        softer = reverberate(click, impulse, 0.5)
        ratio = level(softer[4100:6000]) / softer[4000] / (level(heard[4100:6000]) / heard[4000])
        assert ratio == pytest.approx(0.5, rel=0.01)


EFFECTS: dict[str, tuple[Effect, float, float]] = {
    "speed": (change_speed, 0.5, 2.0),
    "band": (lambda clip, low: limit_band(clip, low, 2000.0), 20.0, 600.0),
    "noise": (lambda clip, snr: add_noise(clip, white(len(clip)), snr), -20.0, 40.0),
    "room": (lambda clip, time: reverberate(clip, room(time)), 0.05, 2.0),
}


@given(
    name=st.sampled_from(sorted(EFFECTS)),
    at=st.floats(0, 1),
    count=st.integers(1, 2000),
    seed=st.integers(0, 99),
)
@example(name="speed", at=1.0, count=1, seed=0)
def test_any_clip_gives_finite_float32_and_stays_as_it_is(
    name: str, at: float, count: int, seed: int
) -> None:
    change, low, high = EFFECTS[name]
    for clip in (white(count, seed), np.zeros(count, np.float32), np.full(count, 1e6, np.float32)):
        before = clip.copy()
        changed = change(clip, low + at * (high - low))
        assert changed.dtype == np.float32
        assert len(changed) > 0
        assert np.isfinite(changed).all()
        np.testing.assert_array_equal(clip, before)


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
