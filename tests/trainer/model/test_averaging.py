"""Averages of models: a mean of weights is what comes out, and nothing that has none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.errors import ModelError
from trainer.model import averaging

Mean = Callable[..., WhisperForConditionalGeneration]

SIZES = {
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    **{"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50},
    **{"max_source_positions": 20, "max_target_positions": 12, "num_mel_bins": 8},
    **{"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2},
}


def model(seed: int = 0, **sizes: int) -> WhisperForConditionalGeneration:
    torch.manual_seed(seed)
    return WhisperForConditionalGeneration(WhisperConfig(**{**SIZES, **sizes})).eval()


@pytest.fixture
def mean(monkeypatch: pytest.MonkeyPatch) -> Mean:
    """The mean of models that are loaded already, each with its share."""

    def of(*models: tuple[WhisperForConditionalGeneration, float]) -> WhisperForConditionalGeneration:
        monkeypatch.setattr(averaging, "load_processor", lambda config: object())
        monkeypatch.setattr(averaging, "load_model", lambda config, _: models[int(config.model)][0])
        shares = [(str(number), share) for number, (_, share) in enumerate(models)]
        return averaging.load_mean(TrainConfig(), shares)[0]

    return of


def test_every_weight_is_the_mean_by_shares_and_tied_weights_stay_tied(mean: Mean) -> None:
    first, second = (model(seed).state_dict() for seed in (1, 2))
    expected = {name: 0.25 * first[name] + 0.75 * second[name] for name in first}
    found = mean((model(1), 1.0), (model(2), 3.0))
    for name, weight in found.state_dict().items():
        torch.testing.assert_close(weight, expected[name])
    assert found.proj_out.weight is found.get_decoder().embed_tokens.weight


@pytest.mark.parametrize(("value", "place"), [(float("nan"), 0), (float("inf"), 1)])
def test_weights_that_are_not_finite_are_refused(mean: Mean, value: float, place: int) -> None:
    models = [model(1), model(2)]
    with torch.no_grad():
        models[place].get_encoder().conv1.bias[3] = value
    with pytest.raises(ModelError, match=r"conv1\.bias has values that are not finite"):
        mean(*((each, 1.0) for each in models))


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"d_model": 32}, r"is \(.*\) in one and \(.*\) in another"),
        ({"decoder_layers": 2}, "not all of them"),
    ],
)
def test_models_of_other_shapes_are_refused(mean: Mean, sizes: dict[str, int], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        mean((model(), 1.0), (model(**sizes), 1.0))
