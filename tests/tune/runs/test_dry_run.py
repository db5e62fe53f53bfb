"""What `--dry-run` says that a search costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
from plans import search_plan

from trainer.config import TrainConfig
from trainer.errors import UserError
from tune.experiments.storage import Storage
from tune.runs.data import look_at_clips, what_clips_show
from tune.runs.plan import Plan
from tune.workers.inputs import shared_folders


def test_batches_under_conditions_are_those_that_a_trial_can_have(tmp_path: Path) -> None:
    """The largest of each setting never come together; a budget in steps would be one that no trial has."""
    path = tmp_path / "space.yaml"
    path.write_text(
        "weight_decay: {type: float, low: 0, high: 0.1}\n"
        "group_by_length: {type: choice, values: [false, true]}\n"
        "train_batch_size: {type: choice, values: [16, 32], when: {group_by_length: true}}\n"
        "gradient_accumulation_steps: {type: int, low: 1, high: 4, when: {group_by_length: false}}\n"
        "max_steps: 10\n"
    )
    storage = Storage.parse(str(tmp_path / "experiments"))
    plan = search_plan(storage, space=str(path), trials=8)
    assert plan.batch_sizes == [8, 16, 24, 32]
    assert plan.budget(100) == 320


@pytest.mark.parametrize(
    ("clips", "words", "told"),
    [
        (4, 10, "4 validation clips: too few to show any difference"),
        (22, 5, "22 validation clips: differences under 6 points are noise; about 800 clips tell 1 point"),
        (500, 10, "500 validation clips: differences under 0.9 points are noise"),
    ],
)
def test_what_the_clips_can_show(clips: int, words: int, told: str) -> None:
    """Of models that differ in a tenth of the words, by chance, 95 of 100 pairs lie within what is called noise."""
    rows: Any = [SimpleNamespace(text=" ".join(["Door,"] * words))] * clips
    assert (
        what_clips_show(TrainConfig(language="en"), cast(Any, SimpleNamespace(splits={"validation": rows})))
        == told
    )
    if " under " in told:
        points = float(told.split(" under ")[1].split(maxsplit=1)[0])
        drawn = np.random.default_rng(0).choice([-1, 0, 1], (2000, clips * words), p=[0.05, 0.9, 0.05])
        assert 0.93 < (100 * abs(drawn.mean(axis=1)) <= points).mean() < 0.98


def test_what_changed_clips_need_is_known_before_anything_starts(tmp_path: Path) -> None:
    def plan(space: str, **settings: object) -> Plan:
        storage = Storage.parse(str(tmp_path / "experiments"))
        return search_plan(storage, space=space, trials=1, settings=settings)

    assert plan("robust").augments
    for settings in ({}, {"augment": 0.5, "augment_strength": 0}):
        assert not plan("large_model", **settings).augments
    folder = tmp_path / "noises"
    with pytest.raises(
        UserError, match=r"^noise_dir='.*/noises': is not a folder; give one with .wav, .flac, "
    ):
        look_at_clips(plan("robust", noise_dir=str(folder)).base, augments=True)
    folder.mkdir()
    (folder / "a.wav").touch()
    noisy = plan("robust", noise_dir=str(folder)).base
    with pytest.raises(
        UserError, match=r"noises': a.wav: Format not recognised.; remove or replace the file"
    ):
        look_at_clips(noisy, augments=True)
    soundfile.write(folder / "a.wav", [0.1] * 100, 16_000)
    assert len(look_at_clips(noisy, augments=True)[0].splits["train"]) == 800
    kept = cast(Any, SimpleNamespace(folder=tmp_path / "features"))
    assert shared_folders(noisy, kept, augments=True) == [kept.folder, folder]
    assert shared_folders(noisy, kept, augments=False) == [kept.folder]
