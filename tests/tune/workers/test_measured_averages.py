"""An average's checkpoint: written whole, and measured on the same clips in the same way as the runs it is of."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from training import evaluate, train

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.errors import ModelError
from trainer.manifest import problem_of
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.folder import ExperimentFolder
from tune.workers.averages import measure_mean

RUNS = ("trials/001-r1/checkpoint_000000096", "trials/001-r2/checkpoint_000000096")
AVERAGE = "trials/001-a1/checkpoint_000000096"


@pytest.fixture(scope="module")
def data(small_config: TrainConfig) -> PreparedData:
    return prepare(small_config)


Runs = tuple[Path, TrainConfig]


def train_two(folder: Path, data: PreparedData, config: TrainConfig) -> Runs:
    """An experiment's folder with two runs of other seeds."""
    for seed, run in enumerate(RUNS):
        result = train(config.replace(seed=seed), data=data, output_dir=folder / "scratch")
        shutil.move(result.checkpoint, folder / run)
    return folder, config


@pytest.fixture(scope="module")
def trained(small_config: TrainConfig, data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Of all weights, measured in the window of trainings."""
    config = small_config.replace(max_steps=4, evaluate_at=(96,), full_window_evaluation=False)
    return train_two(tmp_path_factory.mktemp("runs"), data, config.replace(train_batch_size=24))


@pytest.fixture(scope="module")
def adapters(small_config: TrainConfig, data: PreparedData, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The same with LoRA."""
    config = small_config.replace(max_steps=2, evaluate_at=(48,), train_batch_size=24, method="lora")
    return train_two(tmp_path_factory.mktemp("adapters"), data, config)


def measured(trained: Runs, data: PreparedData, *runs: str, most: float = 1e3) -> Any:
    folder, config = trained
    inputs: Any = SimpleNamespace(open=lambda: (config, data))
    files = CheckpointFiles(ExperimentFolder("x", folder))
    return measure_mean(inputs, files, runs, AVERAGE, most)


@pytest.mark.parametrize("kind", ["trained", "adapters"])
def test_an_average_is_a_whole_checkpoint_of_the_mean_of_whole_models(
    kind: str, request: pytest.FixtureRequest, data: PreparedData
) -> None:
    folder, config = request.getfixturevalue(kind)
    found = measured((folder, config), data, *RUNS)
    assert found.kept
    assert problem_of(folder / AVERAGE) is None
    assert not (folder / AVERAGE / "adapter_config.json").exists()
    processor = load_processor(config)
    first, second, mean = (
        load_model(config.replace(model=str(folder / path)), processor).state_dict()
        for path in (*RUNS, AVERAGE)
    )
    assert any(not first[name].equal(second[name]) for name in first)
    for name, weight in mean.items():
        assert weight.dtype == first[name].dtype
        assert weight.sub((first[name] + second[name]) / 2).abs().max() < 1e-6
    again = config.replace(model=str(folder / AVERAGE), method="full")
    assert evaluate(again, data=data, as_in_training=True).rates["wer"] == found.rates["wer"]


def test_of_a_mean_that_is_worse_nothing_is_kept(trained: Runs, data: PreparedData) -> None:
    folder, _ = trained
    shutil.rmtree(folder / AVERAGE, ignore_errors=True)
    assert not measured(trained, data, *RUNS, most=0.0).kept
    assert not (folder / AVERAGE).exists()


def test_weights_that_are_no_numbers_leave_nothing_behind(
    trained: Runs, data: PreparedData, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained[0], folder, ignore=shutil.ignore_patterns("001-a1", "scratch"))
    weights = load_file(folder / RUNS[1] / "model.safetensors")
    weights["model.encoder.conv1.bias"][0] = float("nan")
    save_file(weights, folder / RUNS[1] / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="not finite"):
        measured((folder, trained[1]), data, *RUNS)
    assert sorted(path.name for path in (folder / "trials").iterdir()) == ["001-r1", "001-r2"]
