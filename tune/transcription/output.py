"""Where transcripts go: to standard output or to a file for each recording, with what is told meanwhile."""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.transcription.recordings import Recording
from trainer.transcription.transcripts import FORMATS, SUFFIX, Empty, Failure, Transcript, as_dict, as_json
from tune.util.console import ProgressBar, clock, say
from tune.util.errors import EXIT_FAILED, ConfigError
from tune.util.files import check_folder, write_whole, writing

if TYPE_CHECKING:
    from rich.console import Console
    from typing_extensions import Self

    from trainer.transcription.transcribe import Transcriber


_EMPTY: dict[Empty, str] = {
    "silence": "the recording is silent, every sample is the same",
    "no speech": "there is sound, but no speech was found in it",
    "no text": "speech was found, but the model wrote nothing",
}


def find_targets(recordings: Sequence[Recording], arguments: argparse.Namespace) -> list[Path] | None:
    """The file of every recording's transcript; none where they are printed.

    Raises:
        ConfigError: two would have the same name, one is there already, or the folder cannot be made or written.
    """
    if arguments.output is None:
        if arguments.format in ("srt", "vtt") and len(recordings) > 1:
            raise ConfigError(
                f"--format {arguments.format}: subtitles of {len(recordings)} recordings are as many files; "
                "give --output DIR"
            )
        return None
    output = arguments.output.expanduser()
    targets = [output / recording.name.with_suffix(SUFFIX[arguments.format]) for recording in recordings]
    first: dict[Path, Recording] = {}
    for target, recording in zip(targets, recordings, strict=True):
        if target in first:
            raise ConfigError(
                f"--output {arguments.output}: {first[target].path} and {recording.path} would both become "
                f"{target.name}; transcribe them to different folders"
            )
        first[target] = recording
    taken = [target for target in targets if target.exists()]
    if taken and not arguments.force:
        others = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise ConfigError(
            f"--output {arguments.output}: {taken[0]}{others} exists already; --force replaces it"
        )
    if folders := [target for target in taken if target.is_dir()]:
        raise ConfigError(f"--output {arguments.output}: {folders[0]} is a folder; choose another --output")
    for folder in sorted({target.parent for target in targets}):
        check_folder(f"--output {arguments.output}", folder)
    with writing(f"--output {arguments.output}"):
        for folder in {target.parent for target in targets}:
            folder.mkdir(parents=True, exist_ok=True)
    return targets


class Progress:
    """All recordings on their way through one model, or through two; what is told of it goes to `console`."""

    def __init__(
        self, console: Console, recordings: Sequence[Recording], transcribers: Sequence[Transcriber]
    ) -> None:
        self._console, self.recordings, self._transcribers = console, recordings, transcribers
        self._bar = ProgressBar(console, "transcribing", number=clock)
        self.aside = self._bar.hidden
        self._started = time.monotonic()
        self._failed = self._cut = 0
        self._seconds = 0.0

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self._console, text)

    def results(self) -> Iterator[tuple[int, list[Transcript] | Failure]]:
        """Place and transcripts, one of each model, of every recording; of one that cannot be read, why."""
        total = sum(recording.seconds for recording in self.recordings)
        done = [0.0] * len(self._transcribers)

        def tell(model: int, seconds: float) -> None:
            done[model] = seconds
            self._bar.update(min(total, sum(done) / len(done)), total)

        streams = [
            transcriber.transcribe(self.recordings, functools.partial(tell, model))
            for model, transcriber in enumerate(self._transcribers)
        ]
        for place, results in enumerate(zip(*streams, strict=True)):
            found = [one for one in results if isinstance(one, Transcript)]
            failure = next((one for one in results if isinstance(one, Failure)), None)
            if failure is not None:
                self.say(f"error: {failure.recording.path}: {failure.reason}")
                self._failed += 1
                yield place, failure
                continue
            self._seconds += found[0].seconds
            self._warn(found[0])
            yield place, found

    def _warn(self, found: Transcript) -> None:
        """Tell what may be missing or wrong in a transcript."""
        path = found.recording.path
        if found.incomplete:
            self._cut += 1
            self.say(f"warning: {path}: {found.incomplete}; transcribed as far as it goes")
        if found.cancelled:
            self.say(
                f"warning: {path}: its channels cancel each other (opposite phase): one of them was taken"
            )
        if found.empty:
            self.say(f"warning: {path}: the transcript is empty: {_EMPTY[found.empty]}")
        for doubt, words in (("repeats", "says the same over and over"), ("breaks off", "breaks off")):
            places = [clock(segment.start) for segment in found.segments if segment.doubt == doubt]
            if places:
                more = f" and {len(places) - 5} more places" if len(places) > 5 else ""
                self.say(f"warning: {path}: the text {words} at {', '.join(places[:5])}{more}")

    def finish(self) -> int:
        """Say how much it was, how fast, and whose times the segments have; the exit code."""
        elapsed = time.monotonic() - self._started
        done = len(self.recordings) - self._failed
        parts = [
            f"{done} recording{'' if done == 1 else 's'}, {clock(self._seconds)} of audio in {clock(elapsed)}"
        ]
        if self._seconds:
            parts.append(f"real-time factor {elapsed / self._seconds:.3f}")
        trusted = self._transcribers[0].trusts_times
        parts.append("times by the model's timestamps" if trusted else "times by the pauses")
        if self._failed:
            parts.append(f"{self._failed} could not be read")
        if self._cut:
            parts.append(f"{self._cut} could not be read to {'its end' if self._cut == 1 else 'their ends'}")
        self.say(" · ".join(parts))
        return EXIT_FAILED if self._failed or self._cut else 0


def write_all(progress: Progress, targets: Sequence[Path] | None, arguments: argparse.Namespace) -> int:
    """Transcribe and print or write every recording; the exit code.

    Of one that cannot be read only JSON is printed or written: with the reason instead of a text.

    Raises:
        ConfigError: a transcript cannot be written; those before it are whole.
    """
    heading = len(progress.recordings) > 1
    for place, results in progress.results():
        if targets is None:
            with progress.aside():
                put_out(_printed(results, arguments, heading=heading))
        elif isinstance(results, Failure) and arguments.format != "json":
            continue
        else:
            with writing(f"--output {arguments.output}"):
                write_whole(targets[place], _content(results, arguments))
            progress.say(f"wrote {targets[place]}")
    return progress.finish()


def _content(results: list[Transcript] | Failure, arguments: argparse.Namespace) -> str:
    """Of one file; the reason of a failure as JSON."""
    if isinstance(results, Failure):
        return as_json(as_dict(results, model=arguments.model))
    return FORMATS[arguments.format](results[0], arguments.model)


def _printed(results: list[Transcript] | Failure, arguments: argparse.Namespace, *, heading: bool) -> str:
    """One transcript for standard output: JSON is a line a recording, so that it can be read as it comes."""
    if arguments.format == "json":
        found = results if isinstance(results, Failure) else results[0]
        return json.dumps(as_dict(found, model=arguments.model), ensure_ascii=False) + "\n"
    if isinstance(results, Failure):
        return ""  # told on standard error
    text = _content(results, arguments)
    return f"== {results[0].recording.path} ==\n{text}" if heading else text


def put_out(text: str) -> None:
    """Write to standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
