"""A loss that stops being a number ends the training, at the latest at the next evaluation, and is told."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from processes import run_workers
from training import evaluate, train

from trainer.config import TrainConfig
from trainer.errors import DivergedError
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model


@pytest.fixture
def diverging(small_config: TrainConfig) -> TrainConfig:
    """The first step's loss is a number, and its update ruins the weights."""
    return small_config.replace(
        **{"learning_rate": 1e30, "warmup_ratio": 0.0, "max_grad_norm": 0.0, "max_steps": 8},
        **{"train_batch_size": 4, "max_eval_clips": 4, "log_every_seconds": 3600.0},
    )


@pytest.mark.parametrize(
    ("first_point", "steps"),
    [
        (16, 4),  # between two logs
        (4, 1),  # by the last step before the evaluation: its own loss is still a number
    ],
)
def test_told_at_the_next_evaluation(diverging: TrainConfig, first_point: int, steps: int) -> None:
    rows: list[dict[str, float]] = []
    folders: list[Path] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        rows.append(dict(metrics))
        folders.extend([checkpoint_dir] if checkpoint_dir else [])

    result = train(diverging.replace(evaluate_at=(first_point,)), report)
    assert result.diverged
    assert (result.steps, result.samples_seen, result.best) == (steps, first_point, None)
    last = {"samples_seen": first_point, "step": steps, "epoch": first_point / 48, "diverged": 1.0}
    assert rows[-1] == last
    assert all("diverged" not in row for row in rows[:-1])
    assert not folders, "an evaluation of ruined weights was reported"


def test_a_model_that_is_ruined_before_is_named(small_config: TrainConfig, tmp_path: Path) -> None:
    processor = load_processor(small_config)
    model = load_model(small_config, processor)
    torch.nn.init.constant_(model.model.decoder.layer_norm.weight, float("nan"))
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    with pytest.raises(DivergedError, match=f"model='{tmp_path}': its loss .* not a finite number"):
        evaluate(small_config.replace(model=str(tmp_path)))


def test_two_workers_end_together(diverging: TrainConfig, tmp_path: Path) -> None:
    config = diverging.replace(workers=2, evaluate_at=(8,))
    run_workers("train", config, tmp_path)
    rows = [json.loads((tmp_path / f"rows-{rank}.json").read_text())["rows"] for rank in (0, 1)]
    assert rows[0][-1]["diverged"] == 1.0
    assert rows[0][-1]["samples_seen"] == 8
    assert not any(row["evaluation"] for row in rows[0])
    assert rows[1] == []
