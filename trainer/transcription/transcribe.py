"""Recordings to transcripts: cut, decoded in batches across files, and put together again."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from trainer.audio import SAMPLE_RATE, AudioError
from trainer.transcription.pauses import MARGIN, find_spans, measure_levels, quietest_place
from trainer.transcription.recogniser import Decoded, Recogniser
from trainer.transcription.recordings import Recording, read_blocks, read_spans
from trainer.transcription.timestamps import decode_with_times, spoken_until
from trainer.transcription.transcripts import Failure, Segment, Transcript

if TYPE_CHECKING:
    import numpy as np

PAUSE = 0.5
"""Seconds of silence that part two segments, where nothing else is asked for."""
_LONG_PAUSE = 5.0
"""Seconds of silence that part two stretches in which the model finds the segments itself."""
_STRETCH_WINDOWS = 4
"""Windows that a stretch may last. transformers (5.23) keeps every token's scores over the whole vocabulary until the
last window is done, some 20 MB a window."""
_STRETCHES_TO_WINDOWS = 4
"""How many times fewer stretches than windows are in a batch, for the same reason."""
_SHORTEST_HALF = 0.6
"""Seconds that halves of a segment that came out broken must have."""
_PROBES = 6
"""Clips on which the model's timestamps are checked."""
_TIME_TOLERANCE = 0.6
"""Seconds by which a timestamp may differ from where the sound ends; Whisper likes whole seconds."""


@dataclasses.dataclass(frozen=True)
class Cutting:
    """Where recordings are cut."""

    pause: float | None = None
    """Seconds of silence that part two segments; `None` is `PAUSE`, and what fits the window stays whole."""
    window: float | None = None
    """Longest segment in seconds; `None` is the model's window."""
    times: Literal["auto", "pauses", "model"] = "auto"
    """Whose times segments have: the pauses', the model's own timestamps', or the model's where they prove right."""


@dataclasses.dataclass(frozen=True)
class _Clip:
    """A part of a recording that waits for its batch."""

    samples: np.ndarray
    start: int
    """Its first sample in the recording."""
    sound: tuple[int, int]
    """From where to where there is sound, in samples of the recording."""


@dataclasses.dataclass
class _Open:
    """A recording that is not finished."""

    recording: Recording
    seconds: float = 0.0
    language: str | None = None
    by_model: bool = False
    """Whether the model finds the segments inside the clips."""
    waiting: int = 0
    read: bool = False
    segments: list[Segment] = dataclasses.field(default_factory=list)
    failure: str | None = None

    def close(self) -> Transcript | Failure:
        if self.failure is not None:
            return Failure(self.recording, self.failure)
        said = tuple(segment for segment in self.segments if segment.text)
        return Transcript(self.recording, self.seconds, self.language, said)


class Transcriber:
    """Transcribes recordings, several at once where they are short."""

    def __init__(self, recogniser: Recogniser, cutting: Cutting, batch_size: int) -> None:
        self._recogniser = recogniser
        self._pause = cutting.pause
        self._batch_size = batch_size
        self._window = min(recogniser.window, cutting.window or recogniser.window)
        self.trusts_times: bool | None = {"auto": None, "pauses": False, "model": True}[cutting.times]
        """Whether the model's own timestamps are used; `None` until a long recording has shown what they are."""
        if cutting.times == "auto" and not recogniser.may_know_times:
            self.trusts_times = False

    def transcribe(
        self, recordings: Sequence[Recording], on_progress: Callable[[float], None] | None = None
    ) -> Iterator[Transcript | Failure]:
        """Every recording's transcript, in the order given.

        Args:
            recordings: as `find_recordings` gives them.
            on_progress: told the seconds of audio that were dealt with since it was last called.
        """
        tell = on_progress or (lambda seconds: None)
        queue: list[_Open] = []
        batch: list[tuple[_Open, _Clip]] = []
        for recording in recordings:
            entry = _Open(recording)
            queue.append(entry)
            try:
                for clip in self._clips(entry):
                    if batch and batch[0][0].by_model != entry.by_model:
                        self._decode(batch, tell)
                    entry.waiting += 1
                    batch.append((entry, clip))
                    if len(batch) >= self._size(entry.by_model):
                        self._decode(batch, tell)
                        yield from _finished(queue)
            except AudioError as error:
                entry.failure, entry.waiting = str(error), 0
                batch = [pair for pair in batch if pair[0] is not entry]
            entry.read = True
            yield from _finished(queue)
        self._decode(batch, tell)
        yield from _finished(queue)

    def _size(self, by_model: bool) -> int:
        return max(1, self._batch_size // _STRETCHES_TO_WINDOWS) if by_model else self._batch_size

    def _clips(self, entry: _Open) -> Iterator[_Clip]:
        """The parts of a recording with sound in them, as long as the model can take them; sets what it learns.

        Raises:
            AudioError: the recording cannot be read to its end.
        """
        path, entry.language = entry.recording.path, self._recogniser.language
        powers, samples = measure_levels(read_blocks(path))
        entry.seconds = samples / SAMPLE_RATE
        sounds = find_spans(powers, samples, pause=self._pause or PAUSE, longest=self._window)
        if not sounds:
            return
        spans = sounds
        if samples <= self._window * SAMPLE_RATE:
            if self._pause is None:
                spans, sounds = [(0, samples)], [(sounds[0][0], sounds[-1][1])]
        elif self._right_times(entry, sounds):
            entry.by_model = True
            longest = _STRETCH_WINDOWS * self._window
            spans = sounds = find_spans(powers, samples, pause=_LONG_PAUSE, longest=longest)
        parts = read_spans(path, spans)
        if entry.language is None:
            entry.language, parts = self._hear_language(parts)
        for clip, span, sound in zip(parts, spans, sounds, strict=True):
            yield _Clip(clip, span[0], sound)

    def _hear_language(self, parts: Iterator[np.ndarray]) -> tuple[str | None, Iterator[np.ndarray]]:
        """The language of the first clips, a window of them, and all clips again."""
        import numpy as np

        if self._recogniser.language is not None:
            return self._recogniser.language, parts
        head, wanted = [], int(self._window * SAMPLE_RATE)
        for part in parts:
            head.append(part)
            if sum(len(clip) for clip in head) >= wanted:
                break
        language = self._recogniser.hear_language(np.concatenate(head)[:wanted])
        return language, itertools.chain(head, parts)

    def _right_times(self, entry: _Open, sounds: list[tuple[int, int]]) -> bool:
        """Whether the model's timestamps can be relied on: it is asked where speech ends that ends in a pause."""
        if self.trusts_times is not None:
            return self.trusts_times
        most = int((self._window - 1.0) * SAMPLE_RATE)
        # One that ends where the next begins was cut in the middle of sound.
        ends = [
            span
            for span, after in itertools.pairwise(sounds)
            if SAMPLE_RATE <= span[1] - span[0] <= most and span[1] < after[0]
        ]
        if len(ends) < 2:
            return False  # this recording cannot show it; another may
        parts = read_spans(entry.recording.path, ends[:_PROBES])
        entry.language, parts = self._hear_language(parts)
        clips = list(parts)
        told = spoken_until(self._recogniser, clips, [entry.language] * len(clips))
        right = [
            time is not None and abs(time - (len(clip) / SAMPLE_RATE - MARGIN)) <= _TIME_TOLERANCE
            for time, clip in zip(told, clips, strict=True)
        ]
        self.trusts_times = sum(right) > len(right) / 2
        return self.trusts_times

    def _decode(self, batch: list[tuple[_Open, _Clip]], tell: Callable[[float], None]) -> None:
        """Transcribe what waits, give every recording its segments, and empty the batch."""
        if not batch:
            return
        clips = [clip.samples for _, clip in batch]
        languages = [entry.language for entry, _ in batch]
        if batch[0][0].by_model:
            self._decode_stretches(batch, tell)
        else:
            found = self._recogniser.decode(clips, languages)
            for (entry, clip), decoded in zip(batch, found, strict=True):
                entry.segments += self._settle(clip, decoded, entry.language)
                tell(len(clip.samples) / SAMPLE_RATE)
        for entry, _ in batch:
            entry.waiting -= 1
        batch.clear()

    def _decode_stretches(self, batch: list[tuple[_Open, _Clip]], tell: Callable[[float], None]) -> None:
        told = 0.0

        def advance(seconds: float) -> None:
            nonlocal told
            tell(max(0.0, seconds - told))
            told = max(told, seconds)

        found = decode_with_times(
            self._recogniser,
            [clip.samples for _, clip in batch],
            [entry.language for entry, _ in batch],
            advance,
        )
        for (entry, clip), heard in zip(batch, found, strict=True):
            begin = clip.start / SAMPLE_RATE
            for each in heard:
                doubt = Decoded(each.text, ended=True).doubt
                entry.segments.append(Segment(begin + each.start, begin + each.end, each.text, doubt))
        advance(sum(len(clip.samples) for _, clip in batch) / SAMPLE_RATE)

    def _settle(self, clip: _Clip, decoded: Decoded, language: str | None) -> list[Segment]:
        """A clip's segment; where its text breaks off or repeats itself, the clip's halves are decoded instead."""
        start, end = clip.sound
        doubt = decoded.doubt
        if doubt is None or len(clip.samples) < 2 * _SHORTEST_HALF * SAMPLE_RATE:
            return [Segment(start / SAMPLE_RATE, end / SAMPLE_RATE, decoded.text, doubt)]
        place = quietest_place(clip.samples)
        cut = clip.start + place
        halves = [
            _Clip(clip.samples[:place], clip.start, (start, min(end, cut))),
            _Clip(clip.samples[place:], cut, (max(start, cut), end)),
        ]
        halves = [half for half in halves if half.sound[0] < half.sound[1]]
        found = self._recogniser.decode([half.samples for half in halves], [language] * len(halves))
        pairs = zip(halves, found, strict=True)
        return [segment for half, again in pairs for segment in self._settle(half, again, language)]


def _finished(queue: list[_Open]) -> Iterator[Transcript | Failure]:
    """Those at the head of the queue of which everything is decoded, taken out of it."""
    while queue and queue[0].read and not queue[0].waiting:
        yield queue.pop(0).close()
