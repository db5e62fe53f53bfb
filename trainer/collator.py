"""From clips to batches: padded features, decoder inputs and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from trainer.features import pad_features

if TYPE_CHECKING:
    from trainer.prepared import PreparedSplit

IGNORED = -100
"""Label that the loss leaves out (PyTorch's `ignore_index`)."""


class SplitDataset(torch.utils.data.Dataset[int]):
    """The clips of a split by number; the collator fetches what belongs to them."""

    def __init__(self, split: PreparedSplit) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> int:
        return index


@dataclasses.dataclass(frozen=True)
class WhisperCollator:
    """Makes a batch of clip numbers into what Whisper takes.

    The labels of a clip are its token ids with the start token cut off, since the model puts it in front
    itself when it shifts the labels right. The cut compares with `decoder_start_token_id`: comparing with
    `bos_token_id`, as widely copied code does, leaves a second start token (transformers#29973).
    """

    split: PreparedSplit
    decoder_start_token_id: int
    pad_token_id: int
    n_frames: int
    """Frames of the model's window (3000 for 30 s)."""
    for_evaluation: bool = False
    """Add the clips' numbers, so that predictions find their references."""

    def __call__(self, clips: Sequence[int]) -> dict[str, Any]:
        """A batch of B clips, padded to the longest labels T.

        Returns:
            `input_features` (B, mel bands, n_frames) float32, `decoder_input_ids` (B, T), `labels` (B, T) with
            padding -100; for evaluation also `clips` (B,). An empty list gives a batch of one without labels.
        """
        rows = list(clips) or [0]
        labels = [self._labels(clip) for clip in rows]
        longest = max(len(row) for row in labels)
        label_ids = torch.full((len(rows), longest), IGNORED, dtype=torch.long)
        decoder_ids = torch.full((len(rows), longest), self.pad_token_id, dtype=torch.long)
        for number, row in enumerate(labels):
            label_ids[number, : len(row)] = torch.tensor(row)
            decoder_ids[number, : len(row)] = torch.tensor([self.decoder_start_token_id, *row[:-1]])
        if not clips:
            label_ids.fill_(IGNORED)
        features = pad_features(
            [self.split.features(clip) for clip in rows],
            [self.split.fill(clip) for clip in rows],
            self.n_frames,
        )
        batch: dict[str, Any] = {
            "input_features": features,
            "decoder_input_ids": decoder_ids,
            "labels": label_ids,
        }
        if self.for_evaluation:
            batch["clips"] = torch.tensor(rows)
        return batch

    def _labels(self, clip: int) -> list[int]:
        ids = self.split.labels(clip)
        if ids[0] != self.decoder_start_token_id:
            raise ValueError(
                f"labels start with token {ids[0]}, the model with {self.decoder_start_token_id}: "
                "tokenizer and model do not belong together"
            )
        return ids[1:]
