"""`eval_batch_size: auto`: as many clips at once as there is memory for, and the same transcripts whatever that is."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from distributed_run import little_memory
from processes import run_workers

from trainer.config import ConfigError, TrainConfig
from trainer.data.prepared import prepare
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from trainer.scoring import batch_size
from trainer.scoring.batch_size import CPU_CLIPS, GPU_CLIPS, BatchSize, clip_bytes
from trainer.scoring.decoding import Decoder
from trainer.train import Evaluation, evaluate

CLIP = 1000
"""Bytes of a clip in the made-up measures."""


def with_room(monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
    """A GPU with so many bytes left, as far as the size of a batch is concerned."""
    monkeypatch.setattr(batch_size, "room_on_gpu", lambda: room)


@pytest.mark.parametrize(
    ("asked", "room", "loaded", "at_once"),
    [
        (None, None, CPU_CLIPS, CPU_CLIPS),
        (5, None, 5, 5),
        (None, 40 * CLIP, GPU_CLIPS, 40),
        (None, 0, GPU_CLIPS, 1),
        (300, 40 * CLIP, 300, 300),  # asked for is asked for
    ],
)
def test_clips_at_once(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, room: int | None, loaded: int, at_once: int
) -> None:
    with_room(monkeypatch, room)
    size = BatchSize(asked, CLIP)
    size.start()
    assert (size.loaded, size.at_once) == (loaded, at_once)


def test_parts_are_halved_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch, 100 * CLIP)
    size, freed, most = BatchSize(None, CLIP), [], 40
    tried: list[int] = []

    def work(part: slice) -> range:
        tried.append(part.stop - part.start)
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return range(part.start, part.stop)

    size.start()
    found = size.in_parts(GPU_CLIPS, work, lambda: freed.append(size.at_once))
    assert list(itertools.chain(*found)) == list(range(GPU_CLIPS))
    assert tried == [64, 32, 32, 32, 32]  # two parts of a hundred at most are of 64 each
    assert freed == [32]
    tried.clear()
    size.start()  # the next evaluation
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        size.in_parts(40, work)
    assert tried == [20, 10, 5, 2, 1]


@pytest.mark.parametrize(
    ("error", "same"), [(RuntimeError("shapes differ"), False), (torch.OutOfMemoryError("of CUDA"), True)]
)
def test_other_errors_and_processes_in_step_are_not_halved(error: RuntimeError, same: bool) -> None:
    tried: list[slice] = []

    def fail(part: slice) -> None:
        tried.append(part)
        raise error

    with pytest.raises(RuntimeError, match=str(error)):
        BatchSize(8, CLIP, same_everywhere=same).in_parts(8, fail)
    assert tried == [slice(0, 8)]


@pytest.fixture(scope="module")
def config(small_config: TrainConfig) -> TrainConfig:
    return small_config.replace(max_eval_clips=48)


@pytest.fixture(scope="module")
def whole(config: TrainConfig) -> Evaluation:
    return evaluate(config.replace(eval_batch_size=48))


@pytest.fixture
def card(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A GPU with room for 20 clips, by what each is taken to need."""
    model = load_model(config, load_processor(config))
    with_room(monkeypatch, 20 * clip_bytes(model, 2 * model.config.max_source_positions, "fp32"))
    yield 20


def test_the_same_transcripts_in_little_memory(config: TrainConfig, whole: Evaluation, card: int) -> None:
    with little_memory(9) as seen:
        found = evaluate(config)
    assert seen == [16, 8, 8, 8, 8, 8, 8]
    assert found.predictions == whole.predictions
    assert (found.rates["wer"], found.rates["cer"]) == (whole.rates["wer"], whole.rates["cer"])
    assert found.rates["loss"] == pytest.approx(whole.rates["loss"], rel=1e-4)


def test_evaluate_and_transcripts_in_little_memory(config: TrainConfig, whole: Evaluation, card: int) -> None:
    split = prepare(config).splits["validation"]
    told: list[int] = []
    with little_memory(9) as seen:
        found = Decoder(config).transcribe(split, lambda done, total: told.append(done))
    assert found.texts == whole.predictions
    assert found.batch_size == 8
    assert seen[4:] == [16, 8, 8, 8, 8, 8, 8]  # behind the clips without speech
    assert told == [8, 16, 24, 32, 40, 48]
    with little_memory(0), pytest.raises(ConfigError, match="a single clip does not fit in the memory of"):
        Decoder(config).transcribe(split)


def test_workers_with_different_memory_measure_the_same(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(
        max_eval_clips=17, max_train_clips=16, train_batch_size=4, epochs=1.0, evaluations=1
    )
    run_workers("train", config, tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "most-clips-1").write_text("5")
    run_workers("train", config.replace(train_batch_size=2, workers=2), tmp_path / "two")
    one, two = (
        json.loads((tmp_path / name / "rows-0.json").read_text())["rows"][-1] for name in ("one", "two")
    )
    assert two["wer"] == one["wer"]
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-3)
