"""Each change of a waveform does what it says, measured on the samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.augmentation.effects import (
    change_gain,
    change_speed,
    change_tempo,
    clip_peaks,
    delay,
    level,
    limit_band,
    limit_peak,
    stretched,
    tilt,
)
from trainer.augmentation.surroundings import (
    add_noise,
    babble,
    coloured_noise,
    excerpt,
    reverberate,
    simulated_room,
)

RATE = 16_000
Effect = Callable[[np.ndarray, float], np.ndarray]


def tone(hertz: float, seconds: float = 1.0, amplitude: float = 0.3) -> np.ndarray:
    times = np.arange(round(seconds * RATE)) / RATE
    return (amplitude * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def white(count: int = 4 * RATE, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def pitch(samples: np.ndarray) -> float:
    """The loudest frequency in hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), 8 * len(samples)))
    return float(np.argmax(spectrum)) * RATE / (8 * len(samples))


def power_between(samples: np.ndarray, low: float, high: float) -> float:
    """Mean power density of a band in decibels."""
    power = np.abs(np.fft.rfft(samples)) ** 2
    frequencies = np.fft.rfftfreq(len(samples), 1 / RATE)
    return float(10 * np.log10(power[(frequencies >= low) & (frequencies < high)].mean()))


def decibels(samples: np.ndarray, reference: np.ndarray) -> float:
    return 20 * float(np.log10(level(samples) / level(reference)))


@pytest.mark.parametrize("factor", [0.7, 0.93, 1.11, 1.4])
def test_speed_moves_the_pitch_and_tempo_does_not(factor: float) -> None:
    clip = tone(440, seconds=2)
    faster, shorter = change_speed(clip, factor), change_tempo(clip, factor)
    assert len(faster) == len(shorter) == stretched(len(clip), factor) == round(2 * RATE / factor)
    assert pitch(faster) == pytest.approx(440 * factor, rel=0.003)
    assert pitch(shorter) == pytest.approx(440, rel=0.003)
    for changed in (faster, shorter):
        assert decibels(changed[800:-800], clip) == pytest.approx(0, abs=0.3)


def test_tempo_moves_events_and_keeps_how_they_sound() -> None:
    """Two words with a pause between them: the pause is as much shorter as all else, the words are no echo."""
    clip = np.concatenate([tone(200, 0.5), np.zeros(RATE // 2, np.float32), tone(300, 0.5)])
    changed = change_tempo(clip, 1.25)
    heard = np.convolve(np.abs(changed), np.ones(200) / 200, "same") > 0.05
    starts = np.flatnonzero(np.diff(heard.astype(int))) / RATE
    assert starts == pytest.approx([0.4, 0.8], abs=0.03)
    assert pitch(changed[:6000]) == pytest.approx(200, rel=0.01)
    assert pitch(changed[-6000:]) == pytest.approx(300, rel=0.01)


@given(slope=st.floats(-6, 6))
def test_tilt_changes_the_spectrum_by_its_slope_and_not_the_level(slope: float) -> None:
    clip = white()
    tilted = tilt(clip, slope)
    octaves = [power_between(tilted, low, 2 * low) for low in (250, 500, 1000, 2000)]
    assert np.diff(octaves) == pytest.approx([slope] * 3, abs=0.5)
    assert decibels(tilted, clip) == pytest.approx(0, abs=0.01)


def test_a_telephone_has_its_band_only() -> None:
    clip = white()
    heard = limit_band(clip, 300, 3400)
    inside = power_between(heard, 400, 3000)
    assert power_between(heard, 0, 150) < inside - 30
    assert power_between(heard, 5000, 8000) < inside - 30
    assert inside == pytest.approx(power_between(heard, 1000, 2000), abs=1)
    assert decibels(heard, clip) == pytest.approx(0, abs=0.01)


@given(st.floats(-30, 30))
def test_gain_is_the_level(gain: float) -> None:
    assert decibels(change_gain(white(RATE), gain), white(RATE)) == pytest.approx(gain, abs=0.01)


@given(st.floats(0, 20))
def test_clipping_cuts_off_peaks_and_nothing_else(below: float) -> None:
    clip = white(RATE)
    most = np.abs(clip).max() * 10 ** (-below / 20)
    clipped = clip_peaks(clip, below)
    assert np.abs(clipped).max() <= most * (1 + 1e-6)
    soft = np.abs(clip) < most * (1 - 1e-6)
    np.testing.assert_array_equal(clipped[soft], clip[soft])


def test_peaks_stay_within_full_scale() -> None:
    assert np.abs(limit_peak(20 * white(RATE))).max() == 1
    np.testing.assert_array_equal(limit_peak(white(RATE)), white(RATE))


def test_delay_is_silence_in_front() -> None:
    np.testing.assert_array_equal(delay(tone(100), 5), np.concatenate([np.zeros(5), tone(100)]))


@given(snr=st.floats(-10, 40), exponent=st.sampled_from([0.0, 1.0, 2.0]))
def test_noise_has_the_power_that_is_asked_for(snr: float, exponent: float) -> None:
    clip = tone(440)
    mixed = add_noise(clip, coloured_noise(np.random.default_rng(1), len(clip), exponent), snr)
    assert decibels(clip, mixed - clip) == pytest.approx(snr, abs=0.1)


def test_noise_is_measured_by_the_speech_and_not_by_silence_around_it() -> None:
    clip = tone(440)
    late = delay(clip, 3 * RATE)
    mixed = add_noise(late, white(len(late)), 10, of=clip)
    assert decibels(clip, mixed - late) == pytest.approx(10, abs=0.1)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_coloured_noise_falls_with_the_frequency(exponent: float) -> None:
    noise = coloured_noise(np.random.default_rng(0), 20 * RATE, exponent)
    octaves = [power_between(noise, low, 2 * low) for low in (250, 500, 1000, 2000)]
    assert np.diff(octaves) == pytest.approx([-3.01 * exponent] * 3, abs=0.5)


def test_babble_is_every_voice_equally_loud() -> None:
    voices = [tone(200, 0.3, 0.01), tone(700, 2.0, 0.9), np.zeros(100, np.float32)]
    noise = babble(np.random.default_rng(0), voices, RATE)
    assert len(noise) == RATE
    assert power_between(noise, 190, 210) == pytest.approx(power_between(noise, 690, 710), abs=1.5)


@given(length=st.integers(0, 50), count=st.integers(1, 60), seed=st.integers(0, 9))
def test_an_excerpt_is_a_stretch_of_the_sound(length: int, count: int, seed: int) -> None:
    found = excerpt(np.random.default_rng(seed), np.arange(length, dtype=np.float32), count)
    assert len(found) == count
    if length:
        np.testing.assert_array_equal(found, (found[0] + np.arange(count)) % length)


@pytest.mark.parametrize("seconds", [0.2, 0.8])
def test_a_simulated_room_decays_by_60_db_in_its_time(seconds: float) -> None:
    impulse = simulated_room(np.random.default_rng(0), seconds)
    assert np.argmax(np.abs(impulse)) == 0
    answer = impulse[RATE // 50 :]  # behind the gap
    left = 10 * np.log10(np.cumsum(answer[::-1] ** 2)[::-1])  # Schroeder's integral
    times = np.arange(len(answer)) / RATE
    slope = np.polyfit(times[: len(answer) // 2], left[: len(answer) // 2], 1)[0]
    assert -60 / slope == pytest.approx(seconds, rel=0.15)


def test_a_room_answers_in_place_and_as_loud() -> None:
    click = np.zeros(RATE, np.float32)
    click[4000] = 0.5
    measured = np.concatenate([np.zeros(300, np.float32), simulated_room(np.random.default_rng(0), 0.3)])
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
    "tempo": (change_tempo, 0.5, 2.0),
    "gain": (change_gain, -40.0, 40.0),
    "tilt": (tilt, -12.0, 12.0),
    "band": (lambda clip, low: limit_band(clip, low, 2000.0), 20.0, 600.0),
    "clipping": (clip_peaks, 0.0, 30.0),
    "noise": (lambda clip, snr: add_noise(clip, white(len(clip)), snr), -20.0, 40.0),
    "room": (lambda clip, time: reverberate(clip, simulated_room(np.random.default_rng(0), time)), 0.05, 2.0),
}


@given(
    name=st.sampled_from(sorted(EFFECTS)),
    at=st.floats(0, 1),
    count=st.integers(1, 2000),
    seed=st.integers(0, 99),
)
@example(name="tempo", at=0.0, count=1, seed=0)
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


@pytest.mark.parametrize("change", [change_speed, change_tempo])
def test_a_factor_of_one_changes_nothing(change: Effect) -> None:
    np.testing.assert_array_equal(change(white(3000), 1.0), white(3000))
