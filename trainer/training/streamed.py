"""Training clips that are read, decoded and changed while the model trains.

A clip is known by its place in the stream of its worker. Clips that cannot be used keep theirs, so that a training
that goes on need not decode what it has seen: their places are empty, and their batches a little smaller.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.config import TrainConfig
from trainer.data.audio import SAMPLE_RATE, AudioError, read_audio
from trainer.data.drops import DROP_REASONS
from trainer.data.features import count_frames, extract_features
from trainer.data.labels import TOO_LONG_TEXT, make_labels
from trainer.data.streaming.stream import StreamedClip, TrainStream
from trainer.errors import DataError
from trainer.model.processor import Processor, window_seconds
from trainer.threads import one_torch_thread
from trainer.training.batches import PlannedClip
from trainer.training.collator import WhisperCollator
from trainer.training.window import FRAMES_PER_SECOND

if TYPE_CHECKING:
    from trainer.augmentation.augmenter import Augmenter

ERROR = "error"
"""In place of a batch: why there is none. What a loading process raises would come as its whole traceback."""
_ENOUGH = 500
"""Clips seen before their dropped share is judged."""


@dataclasses.dataclass(frozen=True)
class _Held:
    labels: list[int]
    features: np.ndarray
    fill: float


class StreamedSplit:
    """One worker's training clips by their places in its stream, which are asked for in rising order.

    It can be sent to a loading process as long as nothing was read.
    """

    def __init__(
        self,
        config: TrainConfig,
        stream: TrainStream,
        processor: Processor,
        *,
        window: int,
        longest: int,
        worker: int,
        threads: int,
    ) -> None:
        """Nothing is read yet.

        Clips of more than `window` feature frames cannot be used, nor texts of more than `longest` tokens.
        """
        self._config, self._stream, self._processor = config, stream, processor
        self._window, self._longest, self._worker, self._threads = window, longest, worker, threads
        self._clips: Iterator[StreamedClip] | None = None
        self._next = 0
        self._held: dict[int, _Held] = {}
        self._augmenter: Augmenter | None = None
        self._seen, self._dropped = 0, Counter[str]()

    def read(self, clips: Sequence[PlannedClip]) -> list[PlannedClip]:
        """Those of some clips that can be used; until the next call they are held.

        Raises:
            DataError: the stream cannot be read, or too many of its clips cannot be used.
        """
        positions = [clip.clip for clip in clips]
        taken = self._take(positions)
        labels, too_long = make_labels(
            self._config,
            self._processor,
            self._longest,
            split="train",
            index={"name": [clip.name for clip in taken], "text": [clip.text for clip in taken]},
        )
        rows = labels.rows.tolist()
        with one_torch_thread():
            given = [(positions[row], taken[row]) for row in rows]
            if self._threads > 1:
                with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
                    outcomes = list(pool.map(self._extract, given))
            else:
                outcomes = list(map(self._extract, given))
        self._held = {
            positions[row]: _Held(labels.of(number).tolist(), *outcome)
            for number, (row, outcome) in enumerate(zip(rows, outcomes, strict=True))
            if not isinstance(outcome, AudioError)
        }
        failed = [
            (clip, one) for (_, clip), one in zip(given, outcomes, strict=True) if isinstance(one, AudioError)
        ]
        first = f" (as {failed[0][0].name}: {failed[0][1]})" if failed else ""
        reasons = [TOO_LONG_TEXT] * len(too_long) + [error.reason for _, error in failed]
        self._judge(len(taken), reasons, first)
        return [clip for clip in clips if clip.clip in self._held]

    def labels(self, i: int) -> list[int]:
        """Token ids of a clip, with the prefix and the end token."""
        return self._get(i).labels

    def frames(self, i: int) -> int:
        return int(self._get(i).features.shape[1])

    def features(self, i: int) -> np.ndarray:
        """float16 (n_mels, frames) of a clip."""
        return self._get(i).features

    def fill(self, i: int) -> float:
        """The constant of all later frames of a clip."""
        return self._get(i).fill

    def _get(self, i: int) -> _Held:
        """A clip that is held; else silence without a text, for batches of which nothing can be used."""
        if i in self._held:
            return self._held[i]
        tokenizer, extractor = self._processor.tokenizer, self._processor.feature_extractor
        silence = np.full((extractor.feature_size, 2), -1.5, np.float16)
        return _Held([*tokenizer.prefix_tokens, tokenizer.eos_token_id], silence, -1.5)

    def _take(self, positions: Sequence[int]) -> list[StreamedClip]:
        """The clips at these places; those before them are read and left."""
        if self._clips is None or (positions and positions[0] < self._next):
            self._start()
        assert self._clips is not None
        clips = []
        for position in positions:
            clips.append(next(itertools.islice(self._clips, position - self._next, None)))
            self._next = position + 1
        return clips

    def _start(self) -> None:
        config = self._config
        self._clips = self._stream.clips(config.seed, config.shuffle_buffer, self._worker, config.workers)
        self._next = 0
        if config.augments and self._augmenter is None:
            from trainer.augmentation.augmenter import Augmenter
            from trainer.training.augmented import most_samples

            extractor = self._processor.feature_extractor
            most = most_samples(extractor, self._window, int(extractor.nb_max_frames))
            self._augmenter = Augmenter(config, most)

    def _extract(self, given: tuple[int, StreamedClip]) -> tuple[np.ndarray, float] | AudioError:
        """Features of a clip as it is to be heard, and the constant that follows."""
        position, clip = given
        extractor = self._processor.feature_extractor
        try:
            samples = read_audio(clip.audio, max_seconds=window_seconds(extractor))
            if count_frames(extractor, len(samples)) > self._window:
                raise AudioError(
                    "too_long_audio",
                    f"{len(samples) / SAMPLE_RATE:.2f} s, over audio_window of {self._window / FRAMES_PER_SECOND:g} s",
                )
            if self._augmenter is not None:
                changes = self._augmenter.changes(self._worker, position, len(samples))
                samples = samples if changes is None else self._augmenter.change(changes, samples)
            return extract_features(extractor, samples)
        except AudioError as error:
            return error

    def _judge(self, seen: int, reasons: Sequence[str], first: str) -> None:
        self._seen += seen
        self._dropped.update(reasons)
        share = self._dropped.total() / max(1, self._seen)
        if reasons and self._seen >= _ENOUGH and share > self._config.max_dropped_share:
            causes = ", ".join(
                f"{count} {DROP_REASONS[reason]}" for reason, count in self._dropped.most_common()
            )
            raise DataError(
                f"data={self._config.data!r}: {self._dropped.total():,} of {self._seen:,} training clips read so far "
                f"({share:.1%}) cannot be used: {causes}{first}; max_dropped_share={self._config.max_dropped_share:g} "
                "allows fewer"
            )


@dataclasses.dataclass(frozen=True)
class StreamedCollator(WhisperCollator):
    """The collator of a streamed split: in its process the clips are read."""

    split: StreamedSplit  # type: ignore[assignment]

    def __call__(self, clips: Sequence[int | PlannedClip]) -> dict[str, Any]:
        """The batch of those clips that can be used, or what is wrong with the stream."""
        try:
            return super().__call__(
                self.split.read([clip for clip in clips if isinstance(clip, PlannedClip)])
            )
        except DataError as error:
            return {ERROR: str(error)}


def check_batches(batches: Sequence[dict[str, Any]]) -> None:
    """Raise `DataError` where there is none."""
    for batch in batches:
        if ERROR in batch:
            raise DataError(batch[ERROR])
