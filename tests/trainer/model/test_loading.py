"""Models that cannot be used are one line: not there, damaged, pickled, of another kind or language."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from make_data import demo_copy, write_processor
from safetensors.torch import load_file, save_file
from transformers import WhisperConfig, WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.errors import ModelError
from trainer.model.averaging import load_mean
from trainer.model.processor import load_processor
from trainer.model.rates import STEPS, default_learning_rate, learning_rates, published_rates
from trainer.model.whisper import load_model


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = demo_copy(tmp_path / "model", "config.json")
    found = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    config = TrainConfig(model=str(folder))
    with pytest.raises(ModelError, match="no tokenizer that knows words"):
        load_processor(config)
    (folder / "vocab.json").write_text(json.dumps(found["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, found["merges"])]))
    tokenizer = load_processor(config).tokenizer
    assert tokenizer.decode(tokenizer("so").input_ids[4:-1]) == "so"


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def renamed(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({f"module.{name}": weights[name] for name in weights}, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "settings", "told"),
    [
        (truncated, {}, "not fully covered; the file is damaged"),
        (pickled, {}, r"pytorch_model\.bin is a pickle, .* convert it: python -c"),
        (lambda folder: (folder / "model.safetensors").unlink(), {}, "no file named model.safetensors"),
        (None, {"d_model": 64}, r"has the shape \(\d+, .*\) and needs \(.*\) \(75 more do not fit\)"),
        (renamed, {}, r"is missing \(\d+ more do not fit\)"),
        (None, {"d_model": "wide"}, "expected int, got str"),
    ],
)
def test_weights_that_are_damaged_or_of_another_model_are_one_line(
    tmp_path: Path, damage: Callable[[Path], None] | None, settings: dict[str, Any], told: str
) -> None:
    folder = demo_copy(tmp_path / "model", "config.json", **settings)
    if damage:
        damage(folder)
    with pytest.raises(ModelError, match=told) as caught:
        load_model(TrainConfig(model=str(folder)), load_processor(TrainConfig()))
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_pickle_beside_safetensors_is_left_alone(tmp_path: Path) -> None:
    folder = demo_copy(tmp_path / "model", "config.json")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    load_model(TrainConfig(model=str(folder)), load_processor(TrainConfig()))


def test_a_pickle_is_converted_as_the_error_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = demo_copy(tmp_path / "my model", "config.json")
    expected = load_file(folder / "model.safetensors")
    pickled(folder)
    config = TrainConfig(model=str(folder))
    with pytest.raises(ModelError) as caught:
        load_processor(config)  # before anything is computed
    *_, command = str(caught.value).partition("convert it: ")
    python, option, code, *words = shlex.split(command)
    assert (python, option) == ("python", "-c")
    monkeypatch.setattr(sys, "argv", ["-c", *words])
    exec(code, {})
    found = load_model(config, load_processor(config)).state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_weights_that_find_no_memory_are_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    processor = load_processor(TrainConfig())
    monkeypatch.setattr(WhisperForConditionalGeneration, "from_pretrained", full)
    with pytest.raises(RuntimeError, match="can't allocate"):
        load_model(TrainConfig(), processor)


def test_a_language_that_the_model_has_or_not(shared_data: Path) -> None:
    model = str(shared_data / "whisper_tiny_processor")
    for language in ("yue", None):
        with pytest.raises(ModelError, match="language="):
            load_processor(TrainConfig(model=model, language=language))
    processor = load_processor(TrainConfig(model=model, language="be", task="translate"))
    assert processor.tokenizer.prefix_tokens == [50258, 50330, 50358, 50363]


def test_english_models_transcribe_english(monkeypatch: pytest.MonkeyPatch) -> None:
    # the demo's vocabulary stands for an English one, which is told by the number of its end token
    end = load_processor(TrainConfig()).tokenizer.eos_token_id
    monkeypatch.setattr("trainer.model.processor._ENGLISH_END", end)
    load_processor(TrainConfig())
    for settings in ({"language": "de"}, {"task": "translate"}):
        with pytest.raises(ModelError, match="only transcribes English"):
            load_processor(TrainConfig(**settings))


def saved(folder: Path, seed: int, **sizes: int) -> dict[str, torch.Tensor]:
    """The weights of a random model, which is written to the folder."""
    values = WhisperConfig.from_pretrained(write_processor(folder)).to_dict()
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(WhisperConfig.from_dict(values | sizes))
    model.save_pretrained(folder)
    return dict(model.state_dict())


def test_every_weight_is_the_mean_by_shares_and_tied_weights_stay_tied(tmp_path: Path) -> None:
    first, second = (saved(tmp_path / str(seed), seed) for seed in (1, 2))
    mean, _ = load_mean(TrainConfig(), [(str(tmp_path / "1"), 1.0), (str(tmp_path / "2"), 3.0)])
    for name, weight in mean.state_dict().items():
        torch.testing.assert_close(weight, 0.25 * first[name] + 0.75 * second[name])
    assert mean.proj_out.weight is mean.get_decoder().embed_tokens.weight


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"d_model": 32}, r"is \(.*\) in one and \(.*\) in another"),
        ({"decoder_layers": 2}, "not all of them"),
    ],
)
def test_models_of_other_shapes_are_refused(tmp_path: Path, sizes: dict[str, int], told: str) -> None:
    saved(tmp_path / "1", 1)
    saved(tmp_path / "2", 2, **sizes)
    with pytest.raises(ModelError, match=told):
        load_mean(TrainConfig(), [(str(tmp_path / name), 1.0) for name in "12"])


def model(folder: Path, width: int, layers: int, decoder_layers: int | None = None) -> TrainConfig:
    transformers.WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=decoder_layers or layers
    ).save_pretrained(folder)
    return TrainConfig(model=str(folder))


@pytest.mark.parametrize(
    ("size", "method", "usual", "lowest", "highest"),
    [
        ((384, 4), "full", 3.75e-5, 1e-5, 1e-5),
        ((768, 12), "full", 1.25e-5, 5e-6, 2e-4),
        ((1280, 32), "full", 4.375e-6, 1e-5, 3e-5),
        ((1280, 32, 4), "full", 5e-5, 6.25e-6, 1e-4),  # large-v3-turbo
        ((1280, 32), "lora", 8.75e-5, 1e-5, 1e-5),
    ],
)
def test_usual_and_published_rates_are_those_of_the_size_and_method(
    tmp_path: Path, size: tuple[int, ...], method: str, usual: float, lowest: float, highest: float
) -> None:
    config = model(tmp_path, *size).replace(method=method)
    rates = published_rates(config)
    assert (default_learning_rate(config), rates[0], rates[-1]) == (usual, lowest, highest)


def test_a_model_that_knows_less_takes_more(tmp_path: Path) -> None:
    config = model(tmp_path, 512, 6)
    rates = [default_learning_rate(config, wer) for wer in (22.6, 60.0, 327.0)]
    assert rates == [pytest.approx(2.5e-5 * factor) for _, factor in STEPS]
    assert rates == sorted(set(rates))
    lora = config.replace(method="lora")
    assert default_learning_rate(lora, 22.6) == default_learning_rate(lora, 327.0) == 5e-4
    assert learning_rates(config) == rates
    assert default_learning_rate(TrainConfig(), 68.5) == 1e-4, "the demo"
    # The error of a translation is no share of words.
    assert learning_rates(config.replace(task="translate")) == [2.5e-5]
