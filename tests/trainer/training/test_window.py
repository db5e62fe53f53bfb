"""The audio window: a Whisper that works on less than 30 seconds, and is a whole one again in the end."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training import evaluate, train
from transformers import WhisperConfig, WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from trainer.training.window import (
    Written,
    clip_frames,
    in_window,
    least_frames,
    mean_evaluated_frames,
    window_frames,
    window_problem,
)


@pytest.fixture
def clips(small_config: TrainConfig) -> PreparedData:
    return prepare(small_config)


def test_a_short_window_is_a_plain_whisper_with_fewer_positions(small_config: TrainConfig) -> None:
    """The same numbers as a model that was built with a shorter table, filled with the first rows."""
    model = load_model(small_config, load_processor(small_config)).eval()
    table = model.get_encoder().embed_positions.weight.detach().clone()
    values = model.config.to_dict() | {"max_source_positions": 120}
    short = WhisperForConditionalGeneration(WhisperConfig.from_dict(values)).eval()
    weights = model.state_dict()
    weights["model.encoder.embed_positions.weight"] = table[:120]
    short.load_state_dict(weights)
    features, tokens = torch.randn(3, 80, 240), torch.tensor([[421, 5, 7]] * 3)
    with torch.no_grad(), in_window(model, 240):
        ours = model(input_features=features, decoder_input_ids=tokens).logits
        torch.testing.assert_close(
            ours, short(input_features=features, decoder_input_ids=tokens).logits, atol=0, rtol=0
        )
    assert torch.equal(model.get_encoder().embed_positions.weight, table)
    with torch.no_grad():
        model(input_features=torch.randn(1, 80, 400), decoder_input_ids=tokens[:1])  # whole again
    assert model.config.max_source_positions == 200


def test_auto_is_the_longest_clip_and_no_clip_is_cut(small_config: TrainConfig, clips: PreparedData) -> None:
    longest = max(
        split.features(clip).shape[1] for split in clips.splits.values() for clip in range(len(split))
    )
    auto = window_frames(small_config.replace(audio_window=None), clips, 400)
    assert longest <= auto < longest + 16
    assert auto % 16 == 0
    assert window_frames(small_config.replace(audio_window=1), clips, 3000) == auto
    assert window_frames(small_config.replace(audio_window=8), clips, 3000) == 800
    assert window_frames(small_config.replace(audio_window=30), clips, 3000) == 3000
    assert window_frames(small_config.replace(audio_window=30), clips, 400) == 400


@pytest.mark.parametrize("asked", [None, "batch"])
def test_a_window_that_is_chosen_is_a_third_of_the_models_own_at_least(
    small_config: TrainConfig, clips: PreparedData, asked: Any
) -> None:
    """In less Whisper before fine-tuning does not find the end of a clip."""
    chosen = small_config.replace(audio_window=asked)
    assert window_frames(chosen, clips, 3000) == least_frames(3000) == 1008
    stream = TrainConfig(data="shards", streaming=True, audio_window=3, max_samples=8)
    assert window_frames(stream, clips, 3000) == 1008
    # A clip of 20 s has two frames more.
    assert window_frames(stream.replace(audio_window=20), clips, 3000) == 2016


def written(*tokens: int, wer: float) -> Written:
    return Written(tokens, 20, wer)


@pytest.mark.parametrize(
    ("whole", "short", "told"),
    [
        (written(10, 10, wer=50), written(12, 12, wer=50), None),
        (written(10, 10, wer=50), written(12, 13, wer=50), "it writes 25 tokens instead of 20"),
        (
            written(1, 19, wer=50),
            written(1, 20, wer=50),
            "it leaves 1 of 2 transcripts without an end instead of 0",
        ),
        (written(10, 10, wer=50), written(10, 10, wer=52.5), None),
        (written(10, 10, wer=5), written(10, 10, wer=6), None),
        (written(10, 10, wer=50), written(10, 10, wer=52.6), "its WER is 52.60 % instead of 50.00 %"),
        (written(10, 10, wer=5), written(10, 10, wer=6.1), "its WER is 6.10 % instead of 5.00 %"),
        (written(10, 10, wer=90), written(10, 10, wer=140), None),
    ],
)
def test_what_speaks_against_a_window(whole: Written, short: Written, told: str | None) -> None:
    assert window_problem(whole, short) == told


def windows(work: Callable[[], Any]) -> set[int]:
    """Lengths of all features that an encoder was given in the meantime."""
    seen: set[int] = set()

    def watch(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Conv1d) and module.in_channels == 80:
            seen.add(inputs[0].shape[-1])

    handle = torch.nn.modules.module.register_module_forward_pre_hook(watch)
    try:
        work()
    finally:
        handle.remove()
    return seen


def test_what_works_with_which_window(small_config: TrainConfig, clips: PreparedData) -> None:
    config = small_config.replace(max_steps=1, evaluations=1, max_eval_clips=1, audio_window=None)
    short = window_frames(config, clips, 400)
    assert short < 400
    assert windows(lambda: train(config)) == {short, 400}
    assert windows(lambda: train(config.replace(full_window_evaluation=False))) == {short}
    assert windows(lambda: train(config.replace(audio_window=30))) == {400}
    assert windows(lambda: evaluate(config)) == {400}


@pytest.mark.parametrize("settings", [{"audio_window": "batch"}, {"group_by_length": True}])
def test_batches_have_windows_of_their_own(
    small_config: TrainConfig, clips: PreparedData, settings: dict[str, Any]
) -> None:
    """Between the shortest and the longest clip; evaluated as they will be used, or as they are trained."""
    config = small_config.replace(
        max_steps=8, evaluations=1, train_batch_size=2, max_eval_clips=2, **settings
    )
    longest = window_frames(config, clips, 400)
    grouped = windows(lambda: train(config))
    assert 400 in grouped
    trained = grouped - {400}
    assert len(trained) > 1
    assert least_frames(400) <= min(trained) and max(trained) <= longest
    assert all(frames % 16 == 0 for frames in trained)
    assert 400 not in windows(lambda: train(config.replace(full_window_evaluation=False)))


def test_few_windows_for_evaluations(small_config: TrainConfig, clips: PreparedData) -> None:
    """So that batches are full: what decoding costs goes by their number."""
    lengths = clips.splits["validation"].values("frames")
    assert lengths.max() > 2 * lengths.min()
    for most in (400, 3000):
        heard = [clip_frames(frames, most, 0) for frames in range(1, most + 1)]
        assert len(set(heard)) <= 4
        assert heard == sorted(heard)
        assert all(frames <= window <= most for frames, window in enumerate(heard, 1))
        assert all(window % 2 == 0 for window in heard)
    varying = small_config.replace(audio_window="batch")
    longest = window_frames(varying, clips, 400)
    assert lengths.mean() < mean_evaluated_frames(varying, clips, 400) < longest
    assert mean_evaluated_frames(varying.replace(audio_window=3), clips, 400) == 304


def test_a_clip_is_transcribed_alike_in_any_company(small_config: TrainConfig) -> None:
    config = small_config.replace(
        **{"max_steps": 1, "evaluations": 1, "train_batch_size": 2, "max_eval_clips": 8},
        **{"audio_window": "batch", "full_window_evaluation": False},
    )
    rows: list[Mapping[str, float]] = []
    for size in (8, 3):
        train(config.replace(eval_batch_size=size), lambda row, folder: rows.append(row) if folder else None)
    assert rows[0]["wer"] == rows[1]["wer"]
    assert rows[0]["eval_loss"] == pytest.approx(rows[1]["eval_loss"], rel=1e-5)


def test_the_checkpoint_is_a_whole_whisper(small_config: TrainConfig, tmp_path: Path) -> None:
    config = small_config.replace(max_steps=1, evaluations=1, max_eval_clips=1)
    base = load_model(config, load_processor(config)).state_dict()
    result = train(config, output_dir=tmp_path)
    saved = json.loads((result.checkpoint / "config.json").read_text())
    assert saved["max_source_positions"] == 200
    weights = load_file(result.checkpoint / "model.safetensors")
    table, other = "model.encoder.embed_positions.weight", "model.encoder.conv1.weight"
    assert torch.equal(weights[table], base[table])
    assert not torch.equal(weights[other], base[other])
