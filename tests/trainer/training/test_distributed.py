"""Several workers in one training: the same gradient, the same WER, DeepSpeed, and going on from a checkpoint."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import run_workers
from training import evaluate

from trainer.config import TrainConfig
from trainer.conversion.hugging_face import write_model
from trainer.data.prepared import prepare
from trainer.deepspeed import PACKAGED
from trainer.model.pretrained import DEMO_MODEL


def evaluations(folder: Path) -> list[dict[str, Any]]:
    rows = json.loads((folder / "rows-0.json").read_text())["rows"]
    return [row for row in rows if row["evaluation"]]


def test_each_worker_draws_random_numbers_of_its_own(small_config: TrainConfig, tmp_path: Path) -> None:
    """The first those of one worker alone, and none those of the next seed: a finalist's repeats have that."""
    config = small_config.replace(
        max_train_clips=16, train_batch_size=4, epochs=1.0, dropout=0.1, spec_augment=True, workers=2
    )
    run_workers("draw", config, tmp_path)
    first, second = (json.loads((tmp_path / f"draws-{rank}.json").read_text()) for rank in (0, 1))
    assert len(first["numbers"]) == len(second["numbers"]) == 2
    assert first["weights"] == second["weights"]
    for step, other in zip(first["numbers"], second["numbers"], strict=True):
        assert {name for name in step if step[name] == other[name]} == set()
    assert first["numbers"][0]["python"] == random.Random(0).random()
    assert first["numbers"][0]["numpy"] == np.random.RandomState(0).rand()
    assert second["numbers"][0]["python"] != random.Random(1).random()


@pytest.fixture(scope="module")
def one_worker(
    small_config: TrainConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TrainConfig, Path]:
    """A training in one process: 17 validation clips, which no number of workers divides."""
    config = small_config.replace(
        **{
            "max_train_clips": 32,
            "max_eval_clips": 17,
            "epochs": 1.0,
            "evaluations": 3,
            "train_batch_size": 8,
        },
        # The loss that comes with an evaluation is the mean since the last log.
        **{"max_grad_norm": 0.5, "augment": 0.5, "log_every_seconds": 3600.0},
    )
    folder = tmp_path_factory.mktemp("one")
    run_workers("train", config, folder)
    return config, folder


def assert_same_training(folder: Path, reference: Path, averaged: bool = True) -> None:
    """Every clipped gradient and loss as in the reference, and every evaluation: of averaged weights, or the last."""
    rows, expected = evaluations(folder), evaluations(reference)
    assert len(rows) == len(expected) == 3
    for row, other in zip(rows, expected, strict=True):
        assert row["samples_seen"] == other["samples_seen"]
        assert row["learning_rate"] == pytest.approx(other["learning_rate"])
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-3)
        # DeepSpeed tells no norm at stage 0, though it clips.
        assert row.get("grad_norm", other["grad_norm"]) == pytest.approx(other["grad_norm"], rel=2e-3)
        if averaged or row["finished"]:
            assert row["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-3)


def test_two_workers_train_and_evaluate_as_one(one_worker: tuple[TrainConfig, Path], tmp_path: Path) -> None:
    """Also where one of them has memory for fewer clips of an evaluation."""
    config, reference = one_worker
    (tmp_path / "most-clips-1").write_text("5")
    run_workers("train", config.replace(workers=2, train_batch_size=4), tmp_path)
    assert_same_training(tmp_path, reference)
    rows = evaluations(tmp_path)
    first, second = (json.loads((tmp_path / f"rows-{rank}.json").read_text()) for rank in (0, 1))
    assert (second["rows"], second["wer"]) == ([], first["wer"]), "the first tells, both know"
    # The WER that two workers found is exactly what one finds for the same weights.
    exact = evaluate(config.replace(model=rows[-1]["checkpoint"]), data=prepare(config))
    assert exact.rates["wer"] == rows[-1]["wer"]
    assert exact.rates["cer"] == rows[-1]["cer"]
    assert exact.rates["loss"] == pytest.approx(rows[-1]["eval_loss"], rel=1e-5)


def assert_resumes(config: TrainConfig, folder: Path, again: Path) -> None:
    """From the first checkpoint on, another process trains what the unbroken one did."""
    again.mkdir()
    whole = evaluations(folder)
    (again / "resume.json").write_text(json.dumps(whole[0]["checkpoint"]))
    run_workers("train", config, again)
    rows = evaluations(again)
    assert [row["samples_seen"] for row in rows] == [row["samples_seen"] for row in whole[1:]]
    for row, other in zip(rows, whole[1:], strict=True):
        for name in {"learning_rate", "loss", "grad_norm", "eval_loss", "wer"} & row.keys():
            assert row[name] == pytest.approx(other[name], rel=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "adapters"), [pytest.param(2, True, marks=pytest.mark.occasional), (3, False)]
)
def test_deepspeed_trains_as_one_worker_resumes_and_exports(
    one_worker: tuple[TrainConfig, Path], tmp_path: Path, stage: int, adapters: bool
) -> None:
    base, reference = one_worker
    if adapters:
        base, reference = base.replace(method="lora", lora_rank=8, learning_rate=1e-2), tmp_path / "lora"
        run_workers("train", base, reference)
    config = base.replace(workers=2, train_batch_size=4, deepspeed=PACKAGED[stage - 2])
    folder = tmp_path / "whole"
    run_workers("train", config, folder)
    assert_same_training(folder, reference, averaged=stage == 2)
    last = evaluations(folder)[-1]
    files = {path.name for path in Path(last["checkpoint"]).rglob("*")}
    assert "latest" in files, "no checkpoint of the engine"
    assert any("optim_states" in name for name in files)
    if adapters:
        whole = (DEMO_MODEL / "model.safetensors").stat().st_size
        assert sum(path.stat().st_size for path in Path(last["checkpoint"]).rglob("*.pt")) < whole / 3
    assert_resumes(config, folder, tmp_path / "again")
    write_model(config, Path(last["checkpoint"]), tmp_path / "exported")
    found = evaluate(base.replace(model=str(tmp_path / "exported")), data=prepare(base))
    assert found.rates["wer"] == pytest.approx(last["wer"], abs=0.1 if adapters else 0)
