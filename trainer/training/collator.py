"""From clips to batches: padded features, decoder inputs and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from trainer.data.features import pad_features
from trainer.training.window import group_frames

if TYPE_CHECKING:
    from trainer.data.prepared import PreparedSplit
    from trainer.training.encoder_store import EncoderStore

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
    own_window: bool = False
    """Pad a batch to its own longest clip, at most `n_frames`."""
    for_evaluation: bool = False
    """Add the clips' numbers, so that predictions find their references."""
    store: EncoderStore | None = None
    """Has the encoder's output of clips that it was computed for."""

    def __call__(self, clips: Sequence[int | tuple[int, int]]) -> dict[str, Any]:
        """A batch of B clips, padded to the longest labels T.

        Args:
            clips: numbers, alone or with the frames of the longest clip of their optimiser step.

        Returns:
            `input_features` (B, mel bands, n_frames) float32, `decoder_input_ids` (B, T), `labels` (B, T) with
            padding -100; for evaluation also `clips` (B,). An empty list gives a batch of one without labels.

            With a store: `encoder_outputs` (B, positions, width), and `input_features` of those M clips only that it
            has not, if any, with their places in the batch (`missing`) and their numbers (`missing_clips`), (M,).
        """
        rows = [clip[0] if isinstance(clip, tuple) else clip for clip in clips] or [0]
        labels = [self._labels(clip) for clip in rows]
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
        longest = max((clip[1] for clip in clips if isinstance(clip, tuple)), default=0)
        return batch | self._audio(rows, max(longest, *map(self.split.frames, rows)))

    def _audio(self, rows: list[int], longest: int) -> dict[str, torch.Tensor]:
        """What the batch has for the encoder, or from it."""
        frames = self._padded(longest)
        if self.store is None:
            return {"input_features": self._features(rows, frames)}
        states, missing = self.store.read(rows, frames)
        if not missing:
            return {"encoder_outputs": states}
        clips = [rows[place] for place in missing]
        return {
            "encoder_outputs": states,
            "input_features": self._features(clips, frames),
            "missing": torch.tensor(missing),
            "missing_clips": torch.tensor(clips),
        }

    def _features(self, rows: list[int], frames: int) -> torch.Tensor:
        return pad_features(
            [self.split.features(clip) for clip in rows],
            [self.split.fill(clip) for clip in rows],
            frames,
        )

    def window(self, clip: int) -> int:
        """Frames that a clip by itself is padded to."""
        return self._padded(self.split.frames(clip))

    def _padded(self, frames: int) -> int:
        return group_frames(frames, self.n_frames) if self.own_window else self.n_frames

    def _labels(self, clip: int) -> list[int]:
        ids = self.split.labels(clip)
        if ids[0] != self.decoder_start_token_id:
            raise ValueError(
                f"labels start with token {ids[0]}, the model with {self.decoder_start_token_id}: "
                "tokenizer and model do not belong together"
            )
        return ids[1:]
