"""Cross entropy over Whisper's vocabulary without the scores of a whole batch at once.

64 clips of 100 tokens have 1.3 GB of scores in float32 over 51,866 tokens, and the stock loss holds three to four
tensors of that size. Here the last projection belongs to the loss and is made for some tokens at a time; its gradient
is made along with it, while the scores are there, as Liger Kernel does (arXiv:2410.10989). Where the scores are few, as
with small vocabularies and batches, they are made at once, by the stock operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

IGNORED = -100
"""Label that the loss leaves out (PyTorch's `ignore_index`)."""
MOST_BYTES = 64 * 2**20
"""Of float32 scores that are made at once. Less would leave a GPU idle between small products."""


def is_large(labels: torch.Tensor, vocabulary: int) -> bool:
    """Whether the scores of so many labels, padding counted, are more than `MOST_BYTES`."""
    return labels.numel() * vocabulary * 4 > MOST_BYTES


class Projection(torch.nn.Linear):
    """Whisper's `proj_out`, which hands the decoder's states on as they are where the loss projects them itself.

    The model is still called as a whole, so that whatever wraps it (DDP, DeepSpeed, a compiler) has its say.
    """

    left_to_loss = False

    @classmethod
    def put_into(cls, model: Any) -> Projection:
        """Replace the model's own, with the same (tied) weights."""
        own = model.proj_out
        model.proj_out = cls(own.in_features, own.out_features, bias=False, device="meta")
        model.proj_out.weight = own.weight
        return model.proj_out  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def leave_to_loss(self, left: bool) -> Iterator[None]:
        """Within the block, if `left`, the model's `logits` are the decoder's states (B, T, width)."""
        self.left_to_loss = left
        try:
            yield
        finally:
            self.left_to_loss = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (its name in PyTorch)
        """Scores (..., vocabulary) of states (..., width), or the states."""
        return input if self.left_to_loss else super().forward(input)


def summed_cross_entropy(
    scores: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Cross entropy of scores (B, T, vocabulary), summed over the labels (B, T) that are not `IGNORED`."""
    return functional.cross_entropy(
        scores.float().flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def projected_cross_entropy(
    states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    positions: torch.Tensor,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The same of what `weight` makes of `states`, without ever holding more than `MOST_BYTES` of scores.

    Under autocast the products are made in its precision. Gradients can be taken once, and not of gradients.

    Args:
        states: of the decoder, (B, T, width).
        weight: of the projection, (vocabulary, width).
        labels: (B, T).
        positions: (N,) of the labels that count in the flattened ones; padding is not projected. They come with the
            batch, since to find them on a GPU would have the host wait for it.
        label_smoothing: probability mass spread over all tokens.
    """
    states = states.flatten(0, 1).index_select(0, positions)
    labels = labels.flatten().index_select(0, positions)
    total: torch.Tensor = _ProjectedCrossEntropy.apply(  # type: ignore[no-untyped-call]
        states, weight, labels, label_smoothing
    )
    return total


def clip_cross_entropy(
    projection: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Cross entropy of each clip, (B,), summed over its labels; no gradient is kept of it.

    Args:
        projection: makes scores (..., vocabulary) of states (..., width).
        states: of the decoder, (B, T, width).
        labels: (B, T), `IGNORED` where there is none.
    """
    if not is_large(labels, projection.out_features):
        scores = projection(states).float().transpose(1, 2)
        return functional.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="none").sum(-1)
    losses = [
        functional.cross_entropy(projection(some).float(), targets, ignore_index=IGNORED, reduction="none")
        for some, targets in _cut(projection.out_features, states.flatten(0, 1), labels.flatten())
    ]
    return torch.cat(losses).view(labels.shape).sum(-1)


class _ProjectedCrossEntropy(torch.autograd.Function):
    """Its gradients are made in the forward pass: there every score is made once and not kept."""

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, label_smoothing: float
    ) -> torch.Tensor:
        kind = states.device.type
        low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        table = weight.detach().to(low)
        total = states.new_zeros((), dtype=torch.float32)
        states_slope = torch.empty_like(states)
        # None where the weight is not trained, as with adapters elsewhere.
        weight_slope = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for some, slope, targets in _cut(len(weight), states.detach().to(low), states_slope, labels):
            shares = functional.log_softmax(functional.linear(some, table).float(), dim=-1)
            total -= (1 - label_smoothing) * shares.gather(1, targets[:, None]).sum()
            if label_smoothing:
                total -= label_smoothing * shares.mean(dim=-1).sum()
            # In their place the slope, of the sum and not yet divided by the tokens of the batch: float16 would lose
            # what is that small.
            shares.exp_()
            if label_smoothing:
                shares -= label_smoothing / len(weight)
            shares.scatter_add_(1, targets[:, None], shares.new_full((len(some), 1), label_smoothing - 1))
            score_slope = shares.to(low)
            slope.copy_(score_slope @ table)
            if weight_slope is None:
                continue
            if low is torch.float32:
                weight_slope.addmm_(score_slope.T, some)
            else:
                weight_slope += score_slope.T @ some
        ctx.save_for_backward(states_slope, weight_slope)
        ctx.kinds = states.dtype, weight.dtype
        return total

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, slope: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        states_slope, weight_slope = ctx.saved_tensors
        states_kind, weight_kind = ctx.kinds
        # In place: a second copy of the weights' gradient would be the largest tensor of all.
        if weight_slope is not None:
            weight_slope = weight_slope.mul_(slope).to(weight_kind)
        return states_slope.mul_(slope.to(states_kind)), weight_slope, None, None


def _cut(vocabulary: int, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views of all tensors, some rows at a time: as many as `MOST_BYTES` allow scores of."""
    rows = max(1, MOST_BYTES // (4 * vocabulary))
    return zip(*(torch.split(tensor, rows) for tensor in tensors), strict=True)  # type: ignore[no-untyped-call]
