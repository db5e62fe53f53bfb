"""Recordings to transcripts: cut at pauses, decoded in batches across files, and put together again."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from trainer.data.audio import SAMPLE_RATE, AudioError
from trainer.errors import ModelError
from trainer.transcription.loudness import detection_gains, hearing_gains, lift, measure_levels
from trainer.transcription.pauses import FRAME, MARGIN, find_spans, measure_speech
from trainer.transcription.recogniser import Decoded, Recogniser
from trainer.transcription.recordings import Recording, read_spans
from trainer.transcription.transcripts import Empty, Failure, Segment, Transcript

if TYPE_CHECKING:
    import numpy as np

PAUSE = 0.5
"""Seconds without speech that part two segments, where nothing else is asked for."""
_LONG_PAUSE = 2.0
"""Seconds without speech that part two windows in which the model finds the segments itself."""
_SHORTEST_HALF = 0.6
"""Seconds that halves of a clip whose text came out broken must have."""
_PROBES = 6
"""Clips on which the model's timestamps are checked."""
_TIME_TOLERANCE = 0.6
"""Seconds by which a timestamp may differ from where speech ends; Whisper likes whole seconds."""


@dataclasses.dataclass(frozen=True)
class _Clip:
    """A part of a recording that waits for its batch."""

    samples: np.ndarray
    start: int
    """Its first sample in the recording."""
    sound: tuple[int, int]
    """From where to where somebody speaks, in samples of the recording."""

    def halves(self, speech: np.ndarray) -> list[_Clip]:
        """The clip cut in its middle half where speech is least likely, by the recording's probabilities."""
        first, frames = self.start // FRAME, len(self.samples) // FRAME
        near = speech[first + frames // 4 : first + 3 * frames // 4]
        place = (frames // 4 + int(near.argmin())) * FRAME
        cut, (start, end) = self.start + place, self.sound
        both = [
            _Clip(self.samples[:place], self.start, (start, min(end, cut))),
            _Clip(self.samples[place:], cut, (max(start, cut), end)),
        ]
        return [half for half in both if half.sound[0] < half.sound[1]]


@dataclasses.dataclass
class _Open:
    """A recording that is not finished."""

    recording: Recording
    seconds: float = 0.0
    language: str | None = None
    timed: bool = False
    """Whether the model finds the segments inside the clips."""
    gains: np.ndarray | None = None
    speech: np.ndarray | None = None
    empty: Empty = "silence"
    """Why there is no text, should there be none."""
    segments: list[Segment] = dataclasses.field(default_factory=list)
    incomplete: str | None = None
    cancelled: bool = False
    failure: str | None = None

    def close(self) -> Transcript | Failure:
        if self.failure is not None:
            return Failure(self.recording, self.failure)
        said = tuple(segment for segment in self.segments if segment.text)
        return Transcript(
            self.recording,
            self.seconds,
            self.language,
            said,
            None if said else self.empty,
            self.incomplete,
            self.cancelled,
        )

    def blocks(self) -> Iterator[np.ndarray]:
        """The recording as the model hears it: with quiet speech lifted. `speech` must be known."""
        assert self.gains is not None
        return lift(self.recording.open().stream(), self.gains)

    def listen(self) -> tuple[np.ndarray, int]:
        """Find out where speech is, as `measure_speech` returns it, and how much it is to be lifted.

        Raises:
            AudioError: the recording cannot be read.
        """
        file = self.recording.open()
        levels, sounds = measure_levels(file.stream())
        self.incomplete, self.cancelled = file.incomplete, file.cancelled
        self.speech, samples = measure_speech(lift(self.recording.open().stream(), detection_gains(levels)))
        self.gains, self.seconds = hearing_gains(levels, self.speech), samples / SAMPLE_RATE
        self.empty = "no speech" if sounds else "silence"
        return self.speech, samples


class Transcriber:
    """Transcribes recordings, several at once where they are short."""

    def __init__(
        self,
        recogniser: Recogniser,
        *,
        pause: float | None = None,
        window: float | None = None,
        times: Literal["auto", "pauses", "model"] = "auto",
    ) -> None:
        """Say where recordings are cut.

        Args:
            recogniser: the model.
            pause: seconds without speech that part two segments; `None` is `PAUSE`, and what fits the window stays
                whole.
            window: longest segment in seconds; `None` is the model's window.
            times: whose times segments have: the pauses', the model's own timestamps', or the model's where they
                prove right.

        Raises:
            ModelError: timestamps are asked of a model that has none.
        """
        if times == "model" and not recogniser.has_timestamps:
            raise ModelError(
                "--times model: the model has no timestamps in its vocabulary; use --times pauses"
            )
        self._recogniser, self._pause = recogniser, pause
        self._window = min(recogniser.window, window or recogniser.window)
        self.trusts_times: bool | None = {"auto": None, "pauses": False, "model": True}[times]
        """Whether the model's own timestamps are used; `None` until a long recording has shown what they are."""
        if times == "auto" and not recogniser.may_know_times:
            self.trusts_times = False

    def transcribe(
        self, recordings: Sequence[Recording], on_progress: Callable[[float], None] = lambda seconds: None
    ) -> Iterator[Transcript | Failure]:
        """Every recording's transcript, in the order given.

        Args:
            recordings: as `find_recordings` gives them.
            on_progress: told how many seconds of all recordings together are dealt with.
        """
        batch: list[tuple[_Open, _Clip]] = []
        read: list[_Open] = []
        past = 0.0

        def finish() -> Iterator[Transcript | Failure]:
            """Decode the batch; with it all recordings are finished that were read to their ends."""
            nonlocal past
            self._decode(batch)
            while read:
                past += read[0].recording.seconds
                on_progress(past)
                yield read.pop(0).close()

        for recording in recordings:
            entry = _Open(recording)
            try:
                for clip in self._clips(entry):
                    if len(batch) == self._recogniser.batch_size or (
                        batch and batch[0][0].timed != entry.timed
                    ):
                        yield from finish()
                        on_progress(past + clip.start / SAMPLE_RATE)
                    batch.append((entry, clip))
            except AudioError as error:
                entry.failure = str(error)
                batch[:] = [pair for pair in batch if pair[0] is not entry]
            read.append(entry)
            if not batch:
                yield from finish()
        yield from finish()

    def _clips(self, entry: _Open) -> Iterator[_Clip]:
        """The parts of a recording in which somebody speaks, none longer than the window; sets what it learns.

        Raises:
            AudioError: the recording cannot be read.
        """
        entry.language = self._recogniser.language
        speech, samples = entry.listen()
        cut = functools.partial(find_spans, speech, samples, longest=self._window)
        spans = sounds = cut(pause=self._pause or PAUSE)
        if not spans:
            return
        entry.empty = "no text"
        if entry.language is None:
            entry.language = self._hear_language(entry, spans)
        if samples <= self._window * SAMPLE_RATE:
            if self._pause is None:
                spans, sounds = [(0, samples)], [(spans[0][0], spans[-1][1])]
        elif self._right_times(entry, spans):
            entry.timed = True
            spans = sounds = cut(pause=_LONG_PAUSE)
        for clip, span, sound in zip(read_spans(entry.blocks(), spans), spans, sounds, strict=True):
            yield _Clip(clip, span[0], sound)

    def _hear_language(self, entry: _Open, spans: list[tuple[int, int]]) -> str | None:
        """The language of the first window of speech."""
        import numpy as np

        wanted = int(self._window * SAMPLE_RATE)
        lengths = itertools.accumulate(end - start for start, end in spans)
        head = [span for span, length in zip(spans, lengths, strict=True) if length < wanted]
        parts = list(read_spans(entry.blocks(), spans[: len(head) + 1]))
        return self._recogniser.hear_language(np.concatenate(parts)[:wanted])

    def _right_times(self, entry: _Open, spans: list[tuple[int, int]]) -> bool:
        """Whether the model's timestamps can be relied on: it is asked where speech ends that ends in a pause."""
        if self.trusts_times is not None:
            return self.trusts_times
        most = int((self._window - 1.0) * SAMPLE_RATE)
        # One that ends where the next begins was cut in the middle of speech.
        ends = [
            span
            for span, after in itertools.pairwise(spans)
            if SAMPLE_RATE <= span[1] - span[0] <= most and span[1] < after[0]
        ]
        if len(ends) < 2:
            return False  # this recording cannot show it; another may
        clips = list(read_spans(entry.blocks(), ends[:_PROBES]))
        found = self._recogniser.decode(clips, [entry.language] * len(clips), timed=True)
        right = 0
        for clip, decoded in zip(clips, found, strict=True):
            told = decoded.parts[-1].end if decoded.parts else None
            spoken = len(clip) / SAMPLE_RATE - MARGIN
            right += told is not None and abs(told - spoken) <= _TIME_TOLERANCE
        self.trusts_times = right > len(clips) / 2
        return self.trusts_times

    def _decode(self, batch: list[tuple[_Open, _Clip]]) -> None:
        """Transcribe what waits, give every recording its segments, and empty the batch."""
        clips, languages = [clip.samples for _, clip in batch], [entry.language for entry, _ in batch]
        found = self._recogniser.decode(clips, languages, timed=any(entry.timed for entry, _ in batch))
        for (entry, clip), decoded in zip(batch, found, strict=True):
            entry.segments += self._settle(entry, clip, decoded)
        batch.clear()

    def _settle(self, entry: _Open, clip: _Clip, decoded: Decoded) -> list[Segment]:
        """A clip's segments; where its text breaks off or repeats itself, the clip's halves are decoded instead."""
        doubt = decoded.doubt
        if doubt and entry.speech is not None and len(clip.samples) >= 2 * _SHORTEST_HALF * SAMPLE_RATE:
            halves = clip.halves(entry.speech)
            again = self._recogniser.decode(
                [half.samples for half in halves], [entry.language] * len(halves), timed=entry.timed
            )
            pairs = zip(halves, again, strict=True)
            return [segment for half, heard in pairs for segment in self._settle(entry, half, heard)]
        start, end = (sample / SAMPLE_RATE for sample in clip.sound)
        if not entry.timed:
            return [Segment(start, end, decoded.text, doubt)]
        begin, segments = clip.start / SAMPLE_RATE, []
        for part in decoded.parts:
            first = min(begin + part.start, end)
            last = end if part.end is None else max(first, min(begin + part.end, end))
            segments.append(Segment(first, last, part.text, doubt))
        return segments
