"""Memory of weights, gradients, optimiser and activations by size and method, computed from shapes alone.

    python benchmarks/memory_table.py [--clips 8] [--tokens 100]

Weights are float32, as are gradients; the optimiser's share is that of `trainer.optimizers`.
Activations are all tensors that autograd keeps for the backward pass of clips of 30 s in bf16, with the loss and the
16-bit copies of the weights: of a model without content (PyTorch's fake tensors), its layer norms in float32 as a GPU
has them. Buffers of CUDA and its libraries, and what the backward pass makes in between, are not in it.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import shapes
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import WhisperForConditionalGeneration

from trainer.config import TrainConfig
from trainer.model.whisper import limit_training
from trainer.optimizers import optimizer_bytes
from trainer.training.loss import Projection, is_large, projected_cross_entropy, summed_cross_entropy

METHODS = ("full", "decoder", "lora")
OPTIMIZERS = ("adamw", "adamw_8bit", "adafactor")
PARTS = ("weights", "gradients", *OPTIMIZERS, "activations")


def memory_of(size: str, method: str, clips: int, tokens: int) -> dict[str, int]:
    """Bytes of each part."""
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(shapes.config_of(size)).train()
        model.get_encoder().embed_positions.requires_grad_(False)
        limit_training(model, TrainConfig(method=method))
    weights = 4 * sum(weight.numel() for weight in model.parameters())
    trained = 4 * sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    kept = {name: optimizer_bytes(name, model) for name in OPTIMIZERS}
    with FakeTensorMode():
        put_fake_weights(model)
        activations = kept_for_backward(model, clips, tokens)
    return {"weights": weights, "gradients": trained, **kept, "activations": activations}


def put_fake_weights(model: WhisperForConditionalGeneration) -> None:
    """Give each weight the place of one on a CPU, whose operations take bfloat16; PEFT cannot add adapters to those."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            fake = torch.nn.Parameter(torch.empty(weight.shape, device="cpu"), weight.requires_grad)
            setattr(module, name, made.setdefault(id(weight), fake))


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
    """Print the table."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--clips", type=int, default=8, help="of 30 s, in a forward pass")
    parser.add_argument("--tokens", type=int, default=100, help="of each text")
    asked = parser.parse_args()
    print(f"GB; activations of {asked.clips} clips of 30 s and {asked.tokens} tokens in bf16\n")
    print("| size | method | " + " | ".join((*PARTS, "in all with AdamW")) + " |")
    print("| --- | --- |" + " ---: |" * (len(PARTS) + 1))
    for size in shapes.SHAPES:
        for method in METHODS:
            found = memory_of(size, method, asked.clips, asked.tokens)
            whole = sum(found[part] for part in ("weights", "gradients", "adamw", "activations"))
            cells = [f"{value / 1e9:.2f}" for value in (*found.values(), whole)]
            print(f"| {size} | {method} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
