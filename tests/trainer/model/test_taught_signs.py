"""Signs that the base model never writes: a training allows those of its texts, in all that decodes afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from make_data import RATE, tone, write_manifest, write_processor
from training import evaluate, train
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer

from trainer.__main__ import main
from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.model.averaging import load_mean
from trainer.model.pretrained import load_generation_config
from trainer.model.processor import load_processor
from trainer.training.suppressed import allow_label_tokens
from tune.cli import main as tune_whisper

SIGNS = "([#"
"""The base model never writes these. The texts have the bracket; the last sign is in validation alone."""


def ids(folder: Path, text: str) -> list[int]:
    return WhisperTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of early 2023, without languages in its generation config. It would write brackets alone, if it might."""
    folder = write_processor(tmp_path_factory.mktemp("model"))
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder))
    norm, [bracket] = model.model.decoder.layer_norm, ids(folder, "(")
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.copy_(100 * model.model.decoder.embed_tokens.weight[bracket])
    end = model.config.eos_token_id
    model.generation_config = GenerationConfig(
        **{"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "max_length": 8},
        decoder_start_token_id=model.config.decoder_start_token_id,
        suppress_tokens=[*ids(folder, SIGNS), model.config.decoder_start_token_id],
        begin_suppress_tokens=[*ids(folder, "(a"), end],
    )
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def config(base: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("data")
    rows = []
    for number in range(12):
        soundfile.write(folder / f"{number}.wav", tone(0.3, pitch=200 + 10 * number), RATE)
        split = "train" if number < 8 else "validation"
        text = f"(a{number}) a" if split == "train" else f"((((b{number} #"
        rows.append({"audio": f"{number}.wav", "text": text, "split": split})
    return TrainConfig(
        model=str(base),
        data=str(write_manifest(folder / "all.csv", rows)),
        cache_dir=str(folder / "cache"),
        # The demo's tokens have no word with the space in front of it: all texts would begin with one and the same.
        leading_space=False,
        **{"max_steps": 1, "evaluations": 1, "learning_rate": 1e-9, "normalizer": "none"},
    )


def trained(config: TrainConfig, folder: Path) -> tuple[Path, dict[str, float]]:
    """The checkpoint and its rates."""
    result = train(config, output_dir=folder)
    assert result.checkpoint is not None and result.best is not None
    return result.checkpoint, dict(result.best)


def generation(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "generation_config.json").read_text())


def test_silence_that_is_taught_may_be_written(config: TrainConfig, base: Path) -> None:
    """The end token leaves `begin_suppress_tokens` where a text is empty on purpose."""
    data = Path(config.data).with_name("silence.csv")
    data.write_text(Path(config.data).read_text().replace("(a0) a", ""))
    silent = config.replace(data=str(data), empty_text="keep")
    processor = load_processor(config)
    end, prefix = processor.tokenizer.eos_token_id, processor.tokenizer.prefix_tokens
    assert list(prepare(silent).splits["train"].labels(0)) == [*prefix, end]
    listed = load_generation_config(silent.model)
    listed.eos_token_id = [end]
    assert end not in allow_label_tokens(
        load_generation_config(config.model), config, prepare(config), processor
    )
    assert end in allow_label_tokens(listed, silent, prepare(silent), processor)
    assert end not in (listed.begin_suppress_tokens or [])


def test_signs_of_the_training_texts_may_be_written(config: TrainConfig, base: Path, tmp_path: Path) -> None:
    before = evaluate(config)
    assert not any("(" in text for text in before.predictions)
    checkpoint, rates = trained(config, tmp_path / "run")
    found = generation(checkpoint)
    assert found["suppress_tokens"] == [*ids(base, "[#"), generation(base)["decoder_start_token_id"]]
    assert found["begin_suppress_tokens"] == [*ids(base, "a"), generation(base)["eos_token_id"]]
    after = evaluate(config.replace(model=str(checkpoint)))
    assert after.predictions == ["(" * 8] * 4
    assert rates["cer"] == after.rates["cer"] != before.rates["cer"]
    assert evaluate(config).predictions == before.predictions  # the base model as it is
    mean, _ = load_mean(config, [(str(base), 0.5), (str(checkpoint), 0.5)])
    assert mean.generation_config.suppress_tokens == found["suppress_tokens"]


def test_the_list_can_be_kept(config: TrainConfig, base: Path, tmp_path: Path) -> None:
    checkpoint, rates = trained(config.replace(keep_suppress_tokens=True), tmp_path / "run")
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        assert generation(checkpoint)[name] == generation(base)[name]
    assert rates["cer"] == evaluate(config).rates["cer"]


def test_what_is_taken_off_is_told_and_exported(
    config: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line from the trainer; no settings of the training, and what the pipeline needs, in the export."""
    monkeypatch.chdir(tmp_path)
    names = ("model", "data", "cache_dir", "max_steps", "evaluations", "learning_rate", "leading_space")
    settings = {name: getattr(config, name) for name in names} | {"dropout": 0.1, "output_dir": "run"}
    Path("config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    assert main(["config.yaml"]) == 0
    [told] = [line for line in capsys.readouterr().out.splitlines() if "keep_suppress_tokens" in line]
    assert "never writes (" in told
    assert "#" not in told
    [checkpoint] = Path("run").glob("checkpoint-*")
    assert tune_whisper(["export", "--from-model", str(checkpoint), "--output", "model"]) == 0
    for found in (generation(checkpoint), generation(Path("model"))):
        assert found["suppress_tokens"] == generation(checkpoint)["suppress_tokens"]
        assert not any("dropout" in name or name.startswith(("mask_", "apply_")) for name in found)
    vocabulary = WhisperTokenizer.from_pretrained(config.model).get_vocab()
    assert found["is_multilingual"] is True
    assert found["no_timestamps_token_id"] == vocabulary["<|notimestamps|>"]
    assert found["task_to_id"] == {task: vocabulary[f"<|{task}|>"] for task in ("transcribe", "translate")}
    assert found["lang_to_id"]["<|haw|>"] == vocabulary["<|haw|>"]
    assert len(found["lang_to_id"]) == 100
