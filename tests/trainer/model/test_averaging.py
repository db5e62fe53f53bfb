"""Averages of models: a mean of weights is what comes out, and nothing that has none."""

from __future__ import annotations

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from trainer.errors import ModelError
from trainer.model.averaging import average_models

SIZES = {
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50},
    **{"max_source_positions": 20, "max_target_positions": 12, "num_mel_bins": 8},
    **{"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2},
}


def model(seed: int = 0, **sizes: int) -> WhisperForConditionalGeneration:
    torch.manual_seed(seed)
    return WhisperForConditionalGeneration(WhisperConfig(**{**SIZES, **sizes})).eval()


def test_every_weight_is_the_mean_by_shares_and_tied_weights_stay_tied() -> None:
    first, second = (model(seed).state_dict() for seed in (1, 2))
    expected = {name: 0.25 * first[name] + 0.75 * second[name] for name in first}
    mean = average_models([(model(1), 1.0), (model(2), 3.0)])
    for name, weight in mean.state_dict().items():
        torch.testing.assert_close(weight, expected[name])
    assert mean.proj_out.weight is mean.get_decoder().embed_tokens.weight


def test_half_precision_is_summed_in_float32_and_stored_as_it_was() -> None:
    models = [model(seed).to(torch.float16) for seed in range(5)]
    name = "model.decoder.embed_tokens.weight"
    exact = sum(each.state_dict()[name].double() for each in models) / 5
    mean = average_models((each, 1.0) for each in models).state_dict()[name]
    assert mean.dtype == torch.float16
    assert torch.equal(mean, exact.to(torch.float16))


@pytest.mark.parametrize(("value", "place"), [(float("nan"), 0), (float("inf"), 1)])
def test_weights_that_are_not_finite_are_refused(value: float, place: int) -> None:
    models = [model(1), model(2)]
    with torch.no_grad():
        models[place].get_encoder().conv1.bias[3] = value
    with pytest.raises(ModelError, match=r"conv1\.bias has values that are not finite"):
        average_models((each, 1.0) for each in models)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"d_model": 32}, r"is \(.*\) in one and \(.*\) in another"),
        ({"decoder_layers": 2}, "not all of them"),
    ],
)
def test_models_of_other_shapes_are_refused(sizes: dict[str, int], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        average_models([(model(), 1.0), (model(**sizes), 1.0)])
