"""Our greedy decoding: token for token what transformers' `generate` gives, on a CPU and in the way of a GPU."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig, GenerationMixin, WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.data.features import pad_features
from trainer.data.prepared import prepare
from trainer.model.greedy import GreedyDecoder, is_plain_greedy
from trainer.model.processor import load_processor
from trainer.model.whisper import load_model


@pytest.fixture(scope="module")
def heard(small_config: TrainConfig) -> tuple[WhisperForConditionalGeneration, torch.Tensor, list[int]]:
    """The demo's model with what it hears of real clips: transcripts of many lengths, some that never end."""
    processor = load_processor(small_config)
    model = load_model(small_config, processor).eval()
    split = prepare(small_config).splits["validation"]
    clips = range(16)
    features = pad_features([split.features(i) for i in clips], [split.fill(i) for i in clips], 400)
    with torch.no_grad():
        encoded = model.get_encoder()(features).last_hidden_state
    return model, encoded, processor.tokenizer.prefix_tokens


def generated(model: Any, encoded: torch.Tensor, prefix: list[int], max_length: int) -> torch.Tensor:
    tokens: torch.Tensor = GenerationMixin.generate(
        model,
        encoder_outputs=(encoded,),
        decoder_input_ids=torch.tensor([prefix]).expand(len(encoded), -1),
        attention_mask=torch.ones(encoded.shape[:2], dtype=torch.long),
        max_length=max_length,
    )
    return tokens


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("max_length", [5, 44])
@pytest.mark.parametrize("suppressed", [None, [5, 17, 60]])
def test_same_tokens_as_generate(
    heard: Any, max_length: int, suppressed: list[int] | None, on_gpu: bool
) -> None:
    model, encoded, prefix = heard
    model.generation_config.suppress_tokens = suppressed
    model.generation_config.begin_suppress_tokens = None if suppressed is None else [420, 12]
    expected = generated(model, encoded, prefix, max_length)
    found = GreedyDecoder(model, on_gpu=on_gpu).decode(encoded, prefix, max_length)
    assert torch.equal(found, expected)
    ends = (found == model.generation_config.eos_token_id).float().argmax(1)
    if max_length > 12:
        assert len(set(ends.tolist())) > 3, "the clips must end at different places"


def test_several_end_tokens(heard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, encoded, prefix = heard
    settings = {"suppress_tokens": None, "begin_suppress_tokens": None, "eos_token_id": [420, 9]}
    for name, value in settings.items():
        monkeypatch.setattr(model.generation_config, name, value)
    found = GreedyDecoder(model).decode(encoded[:4], prefix, 30)
    assert torch.equal(found, generated(model, encoded[:4], prefix, 30))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_batches_of_all_sizes_one_after_another(heard: Any, on_gpu: bool) -> None:
    model, encoded, prefix = heard
    decoder = GreedyDecoder(model, on_gpu=on_gpu)
    for batch in (encoded, encoded[:7], encoded[:1], encoded[:, :150], encoded[3:]):
        assert torch.equal(decoder.decode(batch, prefix, 44), generated(model, batch, prefix, 44))


class Waits(TorchDispatchMode):
    """Counts operations with which the host would wait for a GPU."""

    number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func._schema.name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::lift_fresh")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("autocast", [False, True])
def test_the_host_seldom_waits_for_a_gpu(heard: Any, monkeypatch: pytest.MonkeyPatch, autocast: bool) -> None:
    model, encoded, prefix = heard
    monkeypatch.setattr(model.generation_config, "suppress_tokens", [420])  # so that none ends
    waits = Waits()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), waits:
        found = GreedyDecoder(model, on_gpu=True).decode(encoded, prefix, 60)
    assert found.shape[1] == 60
    assert waits.number <= 5  # before the first token and after the last one


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and TEST_GPU=1")
def test_same_tokens_on_a_gpu(heard: Any) -> None:
    model, encoded, prefix = heard
    expected = generated(model, encoded, prefix, 44)
    try:
        decoder = GreedyDecoder(model.to("cuda"))
        for _ in range(2):
            assert torch.equal(decoder.decode(encoded.to("cuda"), prefix, 44).cpu(), expected)
    finally:
        model.to("cpu")


def test_which_settings_are_plain() -> None:
    assert is_plain_greedy(GenerationConfig())
    others = {"num_beams": 4, "do_sample": True, "no_repeat_ngram_size": 3, "repetition_penalty": 1.2}
    for name, value in others.items():
        assert not is_plain_greedy(GenerationConfig(**{name: value}))
