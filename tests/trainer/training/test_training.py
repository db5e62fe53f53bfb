"""The sharp edges of fine-tuning Whisper, each held by a test on the demo model."""

import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from processes import run_workers
from training import evaluate, train
from transformers import TrainerCallback, WhisperForConditionalGeneration, WhisperProcessor
from transformers.models.whisper.modeling_whisper import shift_tokens_right

from trainer.config import TrainConfig
from trainer.data.features import pad_features
from trainer.data.prepared import prepare
from trainer.errors import DivergedError
from trainer.model.pretrained import load_model_config
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model
from trainer.train import make_trainer
from trainer.training.batches import BatchPlan, PlannedClip
from trainer.training.collator import WhisperCollator
from trainer.training.loss import IGNORED


class Gradients(TrainerCallback):
    """Keeps the gradient of the first step, before clipping."""

    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        self.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def first_gradient(
    config: TrainConfig, batch: int, accumulation: int, folder: Path
) -> dict[str, torch.Tensor]:
    config = config.replace(train_batch_size=batch, gradient_accumulation_steps=accumulation)
    config = config.replace(max_grad_norm=0.0, max_samples=16, evaluations=1)
    data = prepare(config)
    trainer = make_trainer(config, data, data.splits["validation"], folder)
    assert trainer.plan.n_steps == 1
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    return gradients.kept


@pytest.mark.parametrize(
    "settings",
    [
        {"audio_window": None, "group_by_length": True},
        {"audio_window": None, "label_smoothing": 0.1},
        {"audio_window": "batch"},
    ],
    ids=["by length", "one window", "windows of batches"],
)
def test_accumulation_does_not_change_the_gradient(
    small_config: TrainConfig, tmp_path: Path, settings: dict[str, Any]
) -> None:
    config = small_config.replace(**settings)
    data = prepare(config)
    lengths = {len(data.splits["train"].labels(clip)) for clip in range(len(data.splits["train"]))}
    assert len(lengths) > 3, "the test needs labels of unequal length"
    reference = first_gradient(config, 16, 1, tmp_path)
    assert math.sqrt(sum(float(g.norm()) ** 2 for g in reference.values())) > 0.1
    gradient = first_gradient(config, 2, 16, tmp_path)  # half of the passes are empty
    assert gradient.keys() == reference.keys()
    for name, value in gradient.items():
        torch.testing.assert_close(value, reference[name], atol=1e-4, rtol=1e-4, msg=name)


def test_collator_leaves_one_start_token(small_config: TrainConfig) -> None:
    data = prepare(small_config)
    processor = load_processor(small_config)
    model = load_model(small_config, processor)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    collator = WhisperCollator(data.splits["train"], start, pad, 2 * model.config.max_source_positions)
    batch = collator([0, 1, 2, 3])
    assert batch["input_features"].shape == (4, 80, 400)
    assert (batch["decoder_input_ids"] == start).sum(1).tolist() == [1, 1, 1, 1]
    assert (batch["labels"] == start).sum() == 0
    # the decoder's inputs are the model's own shift of the labels, up to the padding
    shifted = shift_tokens_right(batch["labels"], pad, start)
    kept = batch["labels"] != IGNORED
    assert torch.equal(shifted[kept], batch["decoder_input_ids"][kept])
    ids = processor.tokenizer(f" {data.splits['train'].text(0)}").input_ids
    assert batch["labels"][0][kept[0]].tolist() == ids[1:]
    with pytest.raises(ValueError, match=f"labels start with token {start}, .* do not belong together"):
        WhisperCollator(data.splits["train"], 7, 8, 400)([0])


def test_some_clips_are_learned_with_times(small_config: TrainConfig) -> None:
    split, processor = prepare(small_config).splits["train"], load_processor(small_config)
    model = load_model_config(small_config.model)
    no_times = processor.tokenizer.prefix_tokens[-1]
    collators = [
        WhisperCollator(
            *(split, model.decoder_start_token_id, model.pad_token_id, 400),
            timestamp_share=share,
            no_timestamps_id=no_times,
        )
        for share in (0.0, 0.25)
    ]
    drawn = []
    for epoch in range(4):
        clips = [PlannedClip(clip, epoch=epoch) for clip in range(len(split))]
        plain, timed = (
            [[token for token in row if token >= 0] for row in collator(clips)["labels"].tolist()]
            for collator in collators
        )
        at = plain[0].index(no_times)
        drawn.append([clip for clip, row in enumerate(timed) if no_times not in row])
        for clip in drawn[-1]:
            end = no_times + 1 + split.frames(clip) // 2
            before, (*words, last) = plain[clip][:at], plain[clip][at + 1 :]
            assert timed[clip] == [*before, no_times + 1, *words, end, last]
            told = processor.tokenizer.decode([end], decode_with_timestamps=True)
            assert told == f"<|{split.frames(clip) // 2 / 50:.2f}|>"
        assert all(timed[clip] == plain[clip] for clip in range(len(split)) if clip not in drawn[-1])
    assert len(set(map(tuple, drawn))) == 4, "the same clips in each epoch"
    assert 0.15 < sum(map(len, drawn)) / (4 * len(split)) < 0.35


def test_loss_is_the_models_own_mean_over_tokens(small_config: TrainConfig, tmp_path: Path) -> None:
    """One step with batch 16 starts at the loss that plain transformers computes for the same clips."""
    config = small_config.replace(train_batch_size=16, max_steps=1, evaluations=1, audio_window=30)
    rows: list[Mapping[str, float]] = []
    train(config, lambda metrics, folder: rows.append(metrics))
    data = prepare(config)
    plan = BatchPlan(n_clips=48, batch_size=16, accumulation=1, points=(16,), seed=0)
    processor = load_processor(config)
    model = load_model(config, processor).eval()
    ids = model.config.decoder_start_token_id, model.config.pad_token_id
    collator = WhisperCollator(data.splits["train"], *ids, 400)
    batch = collator(next(plan.passes()))
    with torch.no_grad():
        expected = model(input_features=batch["input_features"], labels=batch["labels"]).loss.item()
    assert rows[0]["loss"] == pytest.approx(expected, rel=1e-4)


def test_run_reports_on_its_points_and_says_nothing_deprecated(
    small_config: TrainConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    batches = {"train_batch_size": 4, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}
    config = small_config.replace(epochs=2 / 3, evaluate_at=(10, 20), **batches)  # 32 of 48 clips
    evaluations: list[int] = []
    progress: list[Mapping[str, float]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        if checkpoint_dir is None:
            progress.append(metrics)
            return
        names = {path.name for path in checkpoint_dir.iterdir()}
        assert {"model.safetensors", "scheduler.pt", "generation_config.json", "train_config.json"} <= names
        evaluations.append(int(metrics["samples_seen"]))
        rates = {"wer", "cer", "wer_orthographic", "cer_orthographic", "eval_loss", "learning_rate"}
        assert rates <= metrics.keys()
        assert metrics["finished"] == (metrics["samples_seen"] == 32)

    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        warnings.simplefilter("error", DeprecationWarning)
        transformers.logging.set_verbosity_warning()
        result = train(config, report)
    assert evaluations == [10, 20, 32]
    assert result.samples_seen == 32
    assert not result.diverged
    assert result.best is not None
    assert {"samples_seen", "step", "epoch", "loss", "learning_rate"} <= set(progress[0])
    printed = capfd.readouterr()
    assert "deprecat" not in (printed.out + printed.err).lower()
    assert "attention mask" not in printed.err


def test_language_and_task_survive_save_and_load(small_config: TrainConfig, tmp_path: Path) -> None:
    config = small_config.replace(language="be", max_steps=1, train_batch_size=2, evaluations=1)
    result = train(config, output_dir=tmp_path)
    model = WhisperForConditionalGeneration.from_pretrained(result.checkpoint)
    processor = WhisperProcessor.from_pretrained(result.checkpoint)
    assert model.generation_config.language == "be"
    assert model.generation_config.task == "transcribe"
    assert getattr(model.generation_config, "forced_decoder_ids", None) is None
    assert model.generation_config.use_cache is True
    features = torch.zeros(1, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    tokenizer = processor.tokenizer
    prefix = ["<|startoftranscript|>", "<|be|>", "<|transcribe|>", "<|notimestamps|>"]
    expected = tokenizer.convert_tokens_to_ids(prefix)
    forced = model._retrieve_init_tokens(features, 1, model.generation_config, model.config, 400, {})
    assert forced[0].tolist() == expected
    assert json.loads((result.checkpoint / "train_config.json").read_text())["language"] == "be"


@pytest.mark.parametrize("longest", [6, 40])  # with 6 every transcript is cut
def test_evaluation_decodes_as_whispers_own_generate(small_config: TrainConfig, longest: int) -> None:
    small_config = small_config.replace(generation_max_length=longest)
    found = evaluate(small_config)
    processor = load_processor(small_config)
    model = load_model(small_config, processor).eval()
    split = prepare(small_config).splits["validation"]
    clips = range(len(split))
    features = pad_features([split.features(i) for i in clips], [split.fill(i) for i in clips], 400)
    tokens = model.generate(input_features=features)
    texts = processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert found.predictions == [text.strip() for text in texts]
    assert found.rates["clips"] == len(split) == 16


@pytest.fixture
def a_gpu_with_tf32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch's flags are there without a GPU too."""
    monkeypatch.setattr("trainer.training.arguments._has_tf32", lambda: True)
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    yield
    torch.backends.fp32_precision = "none"


def test_tf32_is_what_each_trial_says(
    small_config: TrainConfig, tmp_path: Path, a_gpu_with_tf32: None
) -> None:
    """Processes are kept for the next trial."""
    data, backends = prepare(small_config), torch.backends
    found = []
    for wanted in (True, False, True, False):
        config = small_config.replace(tf32=wanted)
        make_trainer(config, data, data.splits["validation"], tmp_path, training=False)
        found.append((backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision))
    assert found == [("tf32", "tf32"), ("ieee", "ieee")] * 2
    # Asked in the old way, PyTorch raises where the two ways of setting it contradict each other.
    assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == (False, False)


def test_spec_augment_masks_the_share_that_is_asked_for_also_in_short_windows(
    small_config: TrainConfig,
) -> None:
    config = small_config.replace(spec_augment=True, mask_time_prob=0.01, mask_feature_prob=0.0)
    model = load_model(config, load_processor(config)).train()
    masked: list[float] = []
    encoder = model.get_encoder()
    encoder.conv1.register_forward_pre_hook(
        lambda _, inputs: masked.append((inputs[0] == 0).float().mean().item())
    )
    features = torch.ones(1, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    start = torch.full((1, 1), model.config.decoder_start_token_id)
    np.random.seed(0)
    with torch.no_grad():
        for _ in range(200):  # transformers draws for each batch whether the part of a stretch is one
            model.model(features.clone(), decoder_input_ids=start)
    assert statistics.fmean(masked) == pytest.approx(0.01, rel=0.2)


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
