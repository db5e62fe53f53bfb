"""Memory of weights, gradients, optimiser and activations by size and method, computed from shapes alone.

    python benchmarks/memory_table.py [--clips 8] [--tokens 100]

Weights are float32, as are gradients and the mean of the trained weights; the optimiser's share is that of
`trainer.optimizers`. Activations are all tensors that autograd keeps for the backward pass of clips of 30 s in bf16,
with the loss and the 16-bit copies of the weights: of a model without content (PyTorch's fake tensors), its layer norms
in float32 as a GPU has them. Buffers of CUDA and its libraries, and what the backward pass makes in between, are not in
it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import shapes
import torch
from tables import markdown
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.model.whisper import limit_training
from trainer.optimizers import optimizer_bytes
from trainer.training.loss import Projection, is_large, projected_cross_entropy, summed_cross_entropy

METHODS = ("full", "decoder", "lora")
OPTIMIZERS = ("adamw", "adamw_8bit", "adafactor")


def memory_of(size: str, method: str, clips: int, tokens: int) -> dict[str, int]:
    """Bytes of each part."""
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(shapes.config_of(size)).train()
        model.get_encoder().embed_positions.requires_grad_(False)
        limit_training(model, TrainConfig(method=method))
    weights = 4 * sum(weight.numel() for weight in model.parameters())
    trained = 4 * sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    kept = {name: optimizer_bytes(name, model) for name in OPTIMIZERS}
    with FakeTensorMode(allow_non_fake_inputs=True):
        # Of a CPU, whose operations take bfloat16; PEFT adds adapters to meta tensors, but to no fake ones.
        model.to_empty(device="cpu").tie_weights()
        activations = kept_for_backward(model, clips, tokens)
    return {"weights": weights, "mean": trained, "gradients": trained, **kept, "activations": activations}


def kept_for_backward(model: WhisperForConditionalGeneration, clips: int, tokens: int) -> int:
    """Bytes of what autograd keeps of a forward pass with its loss, the weights themselves not counted."""
    own = {weight.untyped_storage()._cdata for weight in model.parameters()}
    found: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            found[storage._cdata] = storage
        return tensor

    projection = Projection.put_into(model)
    features = torch.zeros(clips, model.config.num_mel_bins, 2 * model.config.max_source_positions)
    labels, positions = torch.zeros(clips, tokens, dtype=torch.long), torch.arange(clips * tokens)
    apart = is_large(labels, projection.out_features)
    with (
        norms_in_float32(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
        projection.leave_to_loss(apart),
    ):
        states = model(input_features=features, decoder_input_ids=labels, use_cache=False).logits
        if apart:
            loss = projected_cross_entropy(states, projection.weight, labels, positions)
        else:
            loss = summed_cross_entropy(states, labels)
    del loss
    return sum(storage.nbytes() for storage in found.values())


@contextlib.contextmanager
def norms_in_float32() -> Iterator[None]:
    """Layer norms as a GPU's autocast computes them; on the CPU it leaves them in bfloat16."""
    stock = torch.nn.functional.layer_norm

    def layer_norm(states: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return stock(states.float(), *rest, **named)

    with mock.patch("torch.nn.functional.layer_norm", layer_norm):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--clips", type=int, default=8, help="of 30 s, in a forward pass")
    parser.add_argument("--tokens", type=int, default=100, help="of each text")
    asked = parser.parse_args()
    print(f"GB; activations of {asked.clips} clips of 30 s and {asked.tokens} tokens in bf16\n")
    rows = []
    for size, method in itertools.product(shapes.SHAPES, METHODS):
        found = memory_of(size, method, asked.clips, asked.tokens)
        whole = sum(found[part] for part in ("weights", "mean", "gradients", "adamw", "activations"))
        gigabytes = {
            part: f"{taken / 1e9:.2f}" for part, taken in {**found, "in all with AdamW": whole}.items()
        }
        rows.append({"size": size, "method": method, **gigabytes})
    print(markdown(rows))


if __name__ == "__main__":
    main()
