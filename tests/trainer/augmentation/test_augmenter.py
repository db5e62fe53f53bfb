"""What a clip gets depends on seed, epoch and clip alone, and is what the amounts say."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.augmentation.augmenter import Amounts, Augmenter, draw_changes
from trainer.augmentation.effects import level

RATE = 16_000
EVERYTHING = Amounts(
    share=1.0,
    speed=0.3,
    tempo=0.15,
    shift=0.3,
    reverb=0.5,
    noise=0.7,
    tilt=3.0,
    telephone=0.3,
    clipping=0.3,
    gain=12.0,
)


class Listed(list[np.ndarray]):
    """Sounds in memory."""

    def samples(self, i: int) -> int:
        return len(self[i])

    def waveform(self, i: int) -> np.ndarray:
        return self[i]


def made(count: int, seconds: float = 1.0) -> Listed:
    generator = np.random.default_rng(5)
    lengths = generator.uniform(0.2, seconds, count)
    return Listed(0.1 * generator.standard_normal(round(n * RATE), dtype=np.float32) for n in lengths)


CLIPS = made(12)


def augmenter(amounts: Amounts = EVERYTHING, clips: Listed = CLIPS, **values: Any) -> Augmenter:
    return Augmenter(amounts, **{"seed": 3, "clips": clips, "most_samples": 30 * RATE, **values})


def test_the_same_seed_epoch_and_clip_give_the_same_samples_in_any_order() -> None:
    first, again = augmenter(), augmenter()
    places = [(epoch, clip) for epoch in range(3) for clip in range(len(CLIPS))]
    expected = {place: first.waveform(*place) for place in places}
    np.random.seed(1)  # the global state has no part in it
    for place in sorted(places, key=hash):
        found, wanted = again.waveform(*place), expected[place]
        assert found is not None and wanted is not None
        np.testing.assert_array_equal(found, wanted)
        assert again.samples(*place) == len(found)
    assert len({wave.tobytes() for wave in expected.values() if wave is not None}) == len(places)
    other = augmenter(seed=4).waveform(0, 0)
    assert other is not None and not np.array_equal(other, expected[0, 0])


@given(
    share=st.floats(0, 1),
    strength=st.floats(0, 3),
    speed=st.floats(0, 1),
    tempo=st.floats(0, 0.5),
    shift=st.floats(0, 2),
    snr=st.floats(-10, 35),
    kind=st.sampled_from(["any", "white", "coloured", "babble", "files"]),
    gain=st.floats(0, 40),
    most=st.integers(0, 3 * RATE),
    epoch=st.integers(0, 1000),
    clip=st.integers(0, len(CLIPS) - 1),
)
def test_any_amounts_give_sound_clips_of_the_length_that_was_told(
    most: int, epoch: int, clip: int, kind: Any, **values: float
) -> None:
    amounts = dataclasses.replace(EVERYTHING, noise_kind=kind, **values)
    most = max(most, *map(len, CLIPS))
    maker = augmenter(amounts, most_samples=most, noises=made(3), impulses=made(2))
    wave = maker.waveform(epoch, clip)
    if wave is None:
        assert values["share"] < 1 or values["strength"] == 0
        assert maker.samples(epoch, clip) == len(CLIPS[clip])
        return
    assert wave.dtype == np.float32
    assert 0 < len(wave) == maker.samples(epoch, clip) <= most
    assert np.isfinite(wave).all()
    assert np.abs(wave).max() <= 1
    times, more = amounts.longest
    assert len(wave) <= len(CLIPS[clip]) * times + more * RATE + 2


@pytest.mark.parametrize("off", [{"strength": 0.0}, {"share": 0.0}])
def test_nothing_is_changed_at_strength_0_and_share_0(off: dict[str, float]) -> None:
    maker = augmenter(dataclasses.replace(EVERYTHING, **off))
    assert all(maker.waveform(epoch, clip) is None for epoch in range(5) for clip in range(len(CLIPS)))


def test_amounts_of_0_change_nothing() -> None:
    maker = augmenter(Amounts(share=1.0, noise=0.5))
    found = [maker.waveform(0, clip) is None for clip in range(len(CLIPS))]
    assert 0 < sum(found) < len(CLIPS), "those without noise"
    maker = augmenter(Amounts(share=1.0))
    assert all(maker.waveform(0, clip) is None for clip in range(len(CLIPS)))


def test_as_many_clips_are_changed_as_the_share_says() -> None:
    amounts = dataclasses.replace(EVERYTHING, share=0.3, noise=0.6)
    drawn = [draw_changes(amounts, 0, epoch, clip) for epoch in range(20) for clip in range(100)]
    changed = [changes for changes in drawn if changes is not None]
    assert len(changed) / len(drawn) == pytest.approx(0.3, abs=0.04)
    assert sum(changes.noise is not None for changes in changed) / len(changed) == pytest.approx(
        0.6, abs=0.07
    )


def test_strength_scales_every_amount_and_not_the_shares() -> None:
    single, double = (
        draw_changes(dataclasses.replace(EVERYTHING, strength=strength), 0, 0, 7) for strength in (0.5, 1.0)
    )
    assert single is not None and double is not None
    for name in ("tilt", "shift", "gain", "clipping"):
        assert getattr(double, name) == pytest.approx(2 * getattr(single, name)), name
    for name in ("speed", "tempo"):
        assert getattr(double, name) == pytest.approx(getattr(single, name) ** 2), name
    assert single.snr - double.snr == pytest.approx(20 * np.log10(2))
    assert (single.noise, single.room, single.band is None) == (
        double.noise,
        double.room,
        double.band is None,
    )


def test_one_setting_does_not_change_what_others_do() -> None:
    plain = draw_changes(EVERYTHING, 0, 0, 0)
    other = draw_changes(dataclasses.replace(EVERYTHING, tempo=0.0, telephone=0.0, clipping=1.0), 0, 0, 0)
    assert plain is not None and other is not None
    for name in ("speed", "shift", "tilt", "noise", "snr", "gain"):
        assert getattr(plain, name) == getattr(other, name), name


def test_speeds_lie_around_one_as_far_as_the_amount_says() -> None:
    drawn = [draw_changes(Amounts(share=1.0, speed=0.3), 0, 0, clip) for clip in range(500)]
    speeds = [changes.speed for changes in drawn if changes is not None]
    assert 1 / 1.3 <= min(speeds) < 0.8 and 1.25 < max(speeds) <= 1.3
    assert np.mean(np.log(speeds)) == pytest.approx(0, abs=0.02)


def test_no_clip_is_slowed_down_beyond_the_window() -> None:
    most = max(map(len, CLIPS))
    maker = augmenter(dataclasses.replace(EVERYTHING, speed=1.0, tempo=0.5, shift=2.0), most_samples=most)
    lengths = [maker.samples(epoch, clip) for epoch in range(20) for clip in range(len(CLIPS))]
    assert max(lengths) in range(most - 2, most + 1)


def test_noise_in_the_whole_has_its_ratio() -> None:
    amounts = Amounts(share=1.0, noise=1.0, snr=20.0, noise_kind="white")
    for clip, samples in enumerate(CLIPS):
        found, changes = augmenter(amounts).waveform(0, clip), draw_changes(amounts, 3, 0, clip)
        assert found is not None and changes is not None
        ratio = 20 * np.log10(level(samples) / level(found - samples))
        assert ratio == pytest.approx(changes.snr, abs=0.1)
        assert 20 <= changes.snr <= 35


@pytest.mark.parametrize(("kind", "seconds"), [("files", 0.1), ("files", 5.0), ("babble", 0.0)])
def test_noise_of_files_and_voices(kind: Any, seconds: float) -> None:
    amounts = Amounts(share=1.0, noise=1.0, snr=10.0, noise_kind=kind)
    noises = Listed([np.full(round(seconds * RATE), 0.3, np.float32)])
    found = augmenter(amounts, noises=noises).waveform(0, 0)
    assert found is not None
    beside = found - CLIPS[0]
    assert level(beside) > 0
    if kind == "files":
        assert beside.std() < 1e-3


def test_impulse_responses_are_taken_in_place_of_simulated_rooms() -> None:
    amounts = Amounts(share=1.0, reverb=1.0)
    single = np.zeros(100, np.float32)
    single[40] = 1.0
    found = augmenter(amounts, impulses=Listed([single])).waveform(0, 0)
    np.testing.assert_allclose(found, CLIPS[0], atol=1e-6)
    simulated = augmenter(amounts).waveform(0, 0)
    assert simulated is not None and level(simulated - CLIPS[0]) > 0.01


def test_one_clip_has_no_other_voices() -> None:
    lone = Listed(CLIPS[:1])
    found = augmenter(Amounts(share=1.0, noise=1.0, noise_kind="babble"), lone).waveform(0, 0)
    np.testing.assert_array_equal(found, lone[0])
