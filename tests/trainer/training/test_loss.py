"""The loss over large vocabularies: some tokens at a time, and the same as at once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training import first_gradient
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import TrainConfig
from trainer.training import loss
from trainer.training.loss import IGNORED

BYTES = 40_000
"""A few tokens' scores over the demo's vocabulary of 729."""


@contextlib.contextmanager
def at_most(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss, "MOST_BYTES", size)
        yield


class Largest(TorchDispatchMode):
    """The most bytes of scores in one tensor: the last dimension is the vocabulary's, and it is not the weights."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.width, self.vocabulary, self.bytes = width, vocabulary, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.shape[-1:] == (self.vocabulary,):
            is_weight = found.shape[:-1] == (self.width,)
            self.bytes = max(self.bytes, 0 if is_weight else found.nbytes)
        return found


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("low", [False, True])
def test_it_is_pytorchs_own(smoothing: float, low: bool) -> None:
    torch.manual_seed(1)
    states = torch.randn(5, 30, 16, requires_grad=True)
    projection = torch.nn.Linear(16, 1000, bias=False)
    labels = torch.randint(0, 1000, (5, 30))
    for clip in range(5):
        labels[clip, 30 - 4 * clip :] = IGNORED
    positions = labels.flatten().ne(IGNORED).nonzero()[:, 0]
    parameters = (states, projection.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        expected = loss.summed_cross_entropy(projection(states), labels, smoothing)
        clips = loss.clip_cross_entropy(projection, states, labels)
        slopes = torch.autograd.grad(expected / 7, parameters)
        with at_most(BYTES):
            found = loss.projected_cross_entropy(states, projection.weight, labels, positions, smoothing)
            cut = torch.autograd.grad(found / 7, parameters)
            torch.testing.assert_close(loss.clip_cross_entropy(projection, states, labels), clips)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    for one, other in zip(cut, slopes, strict=True):
        assert (one - other).norm() <= (1e-2 if low else 1e-5) * other.norm()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_checkpointing": True, "label_smoothing": 0.1},
        {"method": "decoder"},
        {"precision": "bf16"},
        pytest.param({"torch_compile": True}, marks=pytest.mark.occasional),
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
def test_a_step_has_the_same_gradient(
    small_config: TrainConfig, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = small_config.replace(max_train_clips=16, max_eval_clips=2, **changes)
    # Compiling takes a minute: what is not compiled is what it is compared with.
    whole = first_gradient(config.replace(torch_compile=False), 8, 2, tmp_path)
    with at_most(BYTES):
        cut = first_gradient(config, 8, 2, tmp_path)
    assert cut.keys() == whole.keys()
    for name, value in cut.items():
        if config.precision == "bf16":
            assert (value - whole[name]).norm() < 0.05 * whole[name].norm(), name
        else:
            torch.testing.assert_close(value, whole[name], atol=1e-5, rtol=1e-4, msg=name)


def test_a_step_never_has_all_scores(small_config: TrainConfig, tmp_path: Path) -> None:
    config = small_config.replace(max_train_clips=16, max_eval_clips=8)
    with Largest(128, 729) as whole:
        first_gradient(config, 8, 2, tmp_path)
    with at_most(BYTES), Largest(128, 729) as cut:
        first_gradient(config, 8, 2, tmp_path)
    assert whole.bytes > 4 * BYTES
    assert cut.bytes <= BYTES
