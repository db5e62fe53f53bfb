"""`python -m trainer config.yaml`: reading the file, and its mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.__main__ import main
from trainer.config import TrainConfig
from trainer.config_file import read_config_file


def config_file(folder: Path, text: str) -> Path:
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return folder / "config.yaml"


def test_values_are_taken_as_written(tmp_path: Path) -> None:
    path = config_file(
        tmp_path, "language: no\nlearning_rate: 1e-5\nwarmup_steps: null\nspec_augment: true\n"
    )
    config = TrainConfig.from_dict(read_config_file(path))
    assert (config.language, config.learning_rate, config.warmup_steps) == ("no", 1e-5, None)
    assert config.spec_augment is True


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("lr: 1\ntrain_batch_size: 0\n", ["unknown setting 'lr'", "train_batch_size='0'"]),
        ("seed: 1\nseed: 2\n", ["line 2: seed: given twice, first in line 1; remove one"]),
        ("- seed\n", ["KEY: VALUE"]),
        ("seed: [1\n", ["not valid YAML"]),
        ("output_dir: out\n", ["output_dir='out': is there already"]),
        (
            "freeze_encoder_layers: 9\nmax_train_clips: 4\nmax_eval_clips: 1\ngeneration_max_length: 5\n",
            ["freeze_encoder_layers=9: the encoder of demo has 3"],
        ),
    ],
)
def test_mistakes_are_a_line_each(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    lines: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert main([str(config_file(tmp_path, text))]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == len(lines)
    for line, expected in zip(printed, lines, strict=True):
        assert line.startswith("error: ")
        assert expected in line


def test_a_missing_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing.yaml")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "nothing.yaml: cannot be read" in line
