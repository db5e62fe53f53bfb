"""A training that goes on from a checkpoint is the unbroken one: every step, every evaluation, every weight."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import run_workers
from safetensors.torch import load_file
from training import train

from trainer.config import TrainConfig
from trainer.manifest import problem_of
from trainer.memory import halve_micro_batch
from trainer.training.checkpoints import UTTERANCES_FILE, estimated_checkpoint_bytes

FIGURES = (
    "learning_rate",
    "loss",
    "grad_norm",
    "wer",
    "cer",
    "eval_loss",
    "samples_seen",
    "epoch",
    "finished",
)


class Rows:
    """A report that keeps every row, and a copy of every checkpoint in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []

    def __call__(self, metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is not None:
            shutil.copytree(checkpoint_dir, self.folder / f"kept-{metrics['step']:.0f}")
        self.rows.append({**metrics, "evaluation": checkpoint_dir is not None})


def after(rows: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """What was reported after a step; each optimiser step is in it."""
    names = ("step", "evaluation", *FIGURES)
    return [{name: row[name] for name in names if name in row} for row in rows if row["step"] > step]


def assert_same_weights(folder: Path, reference: Path, atol: float) -> None:
    weights, expected = (load_file(path / "model.safetensors") for path in (folder, reference))
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], atol=atol, rtol=0, msg=name)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def config(small_config: TrainConfig) -> TrainConfig:
    """Everything that draws random numbers, 4 steps, evaluations after 2 and 4."""
    return small_config.replace(
        **{
            "max_train_clips": 32,
            "max_eval_clips": 8,
            "epochs": 1.0,
            "train_batch_size": 4,
            "evaluations": 2,
        },
        **{
            "dropout": 0.2,
            "spec_augment": True,
            "mask_time_prob": 0.2,
            "mask_feature_prob": 0.2,
            "augment": 0.8,
        },
        **{
            "gradient_accumulation_steps": 2,
            "max_grad_norm": 0.5,
            "weight_decay": 0.01,
            "log_every_seconds": 0.0,
        },
    )


def run(config: TrainConfig, folder: Path, resume_from: Path | None = None) -> Any:
    """The rows of a training in fresh processes, which keep every checkpoint in `folder`."""
    folder.mkdir(exist_ok=True)
    if resume_from is not None:
        (folder / "resume.json").write_text(json.dumps(str(resume_from)))
    run_workers("train", config, folder)
    return json.loads((folder / "rows-0.json").read_text())["rows"]


@pytest.mark.slow
def test_two_workers_resume(config: TrainConfig, tmp_path: Path) -> None:
    """From where they were asked to end, between evaluations; the loss and the weights are those of both."""
    config = config.replace(workers=2, train_batch_size=2)
    whole = run(config, tmp_path / "whole")
    middle = tmp_path / "whole" / "kept-2"
    assert problem_of(middle) is None
    size = sum(path.stat().st_size for path in middle.rglob("*") if path.is_file())
    assert size <= estimated_checkpoint_bytes(config)
    ended, again = tmp_path / "ended", tmp_path / "again"
    ended.mkdir()
    (ended / "ends-after").write_text("3")
    assert run(config, ended)[-1]["step"] == 3
    assert after(run(config, again, ended / "kept-3"), 0) == after(whole, 3)
    assert len({row["loss"] for row in whole}) > 2
    first, second = (folder / "kept-4" for folder in (tmp_path / "whole", again))
    assert_same_weights(second, first, atol=1e-5)
    assert (second / UTTERANCES_FILE).read_text() == (first / UTTERANCES_FILE).read_text()


def test_goes_on_with_half_the_micro_batch(config: TrainConfig, tmp_path: Path) -> None:
    """Without dropout the same weights come out, whatever the size of the pieces."""
    config = config.replace(dropout=0.0, spec_augment=False, max_eval_clips=1)
    whole, halved = Rows(tmp_path / "whole"), Rows(tmp_path / "halved")
    train(config, whole)
    smaller = halve_micro_batch(config)
    assert (smaller.train_batch_size, smaller.gradient_accumulation_steps) == (2, 4)
    train(smaller, halved, resume_from=whole.folder / "kept-2")
    assert_same_weights(halved.folder / "kept-4", whole.folder / "kept-4", atol=1e-5)
    assert [row["loss"] for row in halved.rows] == pytest.approx(
        [row["loss"] for row in whole.rows if row["step"] > 2], rel=1e-4
    )
