"""From clips to batches: padded features, decoder inputs and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainer.data.features import pad_features
from trainer.training.batches import PlannedClip
from trainer.training.loss import IGNORED
from trainer.training.window import batch_frames, clip_frames

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedSplit
    from trainer.training.augmented import AugmentedSplit


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
    own_window: bool = False
    """Pad a batch to its own longest clip, with at most `n_frames` and at least `least_frames`."""
    least_frames: int = 0
    for_evaluation: bool = False
    """Add the clips' numbers, so that predictions find their references."""
    half: bool = dataclasses.field(default_factory=torch.cuda.is_available)
    """Give features as float16, for a GPU. Found out once: processes that load batches cannot ask for GPUs."""
    augmented: AugmentedSplit | None = None
    """Has the clips as they sound in each epoch."""
    timestamp_share: float = 0.0
    """Of the clips, others in each epoch, whose labels have the times at which they begin and end."""
    no_timestamps_id: int = 0
    """Token `<|notimestamps|>`, which `<|0.00|>` follows in all of Whisper's vocabularies."""
    seed: int = 0

    def __call__(self, clips: Sequence[int | PlannedClip]) -> dict[str, Any]:
        """A batch of B clips, padded to the longest labels T.

        Returns:
            `input_features` (B, mel bands, n_frames), `decoder_input_ids` (B, T), `labels` (B, T) with
            padding -100; for training also `label_positions` (N,), of those that are no padding among the flattened
            ones; for evaluation `clips` (B,). An empty list gives a batch of one without labels.
        """
        planned = [clip if isinstance(clip, PlannedClip) else PlannedClip(clip) for clip in clips or [0]]
        rows = [each.clip for each in planned]
        features, fills = self._features(planned)
        labels = [self._labels(each, array.shape[1]) for each, array in zip(planned, features, strict=True)]
        most_labels = max(len(row) for row in labels)
        label_ids = torch.full((len(rows), most_labels), IGNORED, dtype=torch.long)
        decoder_ids = torch.full((len(rows), most_labels), self.pad_token_id, dtype=torch.long)
        for number, row in enumerate(labels):
            label_ids[number, : len(row)] = torch.tensor(row)
            decoder_ids[number, : len(row)] = torch.tensor([self.decoder_start_token_id, *row[:-1]])
        if not clips:
            label_ids.fill_(IGNORED)
        batch: dict[str, Any] = {"decoder_input_ids": decoder_ids, "labels": label_ids}
        if self.for_evaluation:
            batch["clips"] = torch.tensor(rows)
        else:
            batch["label_positions"] = label_ids.flatten().ne(IGNORED).nonzero()[:, 0]
        longest = max(*(each.longest for each in planned), *(array.shape[1] for array in features))
        padded = pad_features(features, fills, self._padded(longest), half=self.half)
        return batch | {"input_features": padded}

    def _features(self, planned: list[PlannedClip]) -> tuple[Sequence[np.ndarray], Sequence[float]]:
        if self.augmented is not None:
            pairs = [self.augmented.features(each.epoch, each.clip) for each in planned]
        else:
            pairs = [(self.split.features(each.clip), self.split.fill(each.clip)) for each in planned]
        features, fills = zip(*pairs, strict=True)
        return features, fills

    def window(self, clip: int) -> int:
        """Frames that a clip by itself is padded to."""
        return self._padded(self.split.frames(clip))

    def _padded(self, frames: int) -> int:
        if not self.own_window:
            return self.n_frames
        choose = clip_frames if self.for_evaluation else batch_frames
        return choose(frames, self.n_frames, self.least_frames)

    def _labels(self, planned: PlannedClip, frames: int) -> list[int]:
        ids = self.split.labels(planned.clip)
        if ids[0] != self.decoder_start_token_id:
            raise ValueError(
                f"labels start with token {ids[0]}, the model with {self.decoder_start_token_id}: "
                "tokenizer and model do not belong together"
            )
        # The last number: draws of augmentation begin with the others.
        draw = [self.seed, planned.epoch, planned.clip, 1]
        if self.timestamp_share and np.random.default_rng(draw).random() < self.timestamp_share:
            at, zero = ids.index(self.no_timestamps_id), self.no_timestamps_id + 1
            if len(ids) > at + 2:  # a text, and the end token
                # A time is 20 ms, a frame 10.
                ids = [*ids[:at], zero, *ids[at + 1 : -1], zero + frames // 2, ids[-1]]
        return ids[1:]
