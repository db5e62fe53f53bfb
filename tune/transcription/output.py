"""Where transcripts go: to standard output, to a file for each recording, or side by side with another model's."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.transcription.differences import Comparison, compare
from trainer.transcription.recordings import Recording
from trainer.transcription.transcripts import FORMATS, SUFFIX, Failure, Transcript, as_dict
from tune.transcription.display import Progress, comparison_table, say_doubts
from tune.util.console import make_console, say
from tune.util.errors import EXIT_FAILED, ConfigError
from tune.util.files import write_whole

if TYPE_CHECKING:
    from rich.console import Console

    from trainer.transcription.transcribe import Transcriber


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
    with _told(f"--output {arguments.output}"):
        for folder in {target.parent for target in targets}:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return targets


def write_all(
    transcriber: Transcriber,
    recordings: Sequence[Recording],
    targets: Sequence[Path] | None,
    arguments: argparse.Namespace,
    progress: Progress,
) -> int:
    """Transcribe and print or write every recording; the exit code.

    Raises:
        ConfigError: a transcript cannot be written; those before it are whole.
    """
    failed = 0
    for index, found in enumerate(transcriber.transcribe(recordings, progress.advance)):
        progress.finish(found.recording)
        if isinstance(found, Failure):
            progress.say(f"error: {found.recording.path}: {found.reason}")
            failed += 1
            continue
        say_doubts(progress, found)
        if targets is None:
            with progress.aside():
                _print(found, arguments, heading=len(recordings) > 1)
        else:
            with _told(f"--output {arguments.output}"):
                write_whole(targets[index], FORMATS[arguments.format](found, arguments.model))
            progress.say(f"wrote {targets[index]}")
    progress.summarise(failed, transcriber.trusts_times)
    return EXIT_FAILED if failed else 0


def _print(found: Transcript, arguments: argparse.Namespace, *, heading: bool) -> None:
    """One transcript to standard output: JSON is a line a recording, so that it can be read as it comes."""
    if arguments.format == "json":
        text = json.dumps(as_dict(found, arguments.model), ensure_ascii=False) + "\n"
    else:
        text = (f"== {found.recording.path} ==\n" if heading else "") + FORMATS[arguments.format](
            found, arguments.model
        )
    _put_out(text)


def _put_out(text: str) -> None:
    """Write to standard output at once; where nobody reads it any more, end the command quietly."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output (head, less) has seen enough. Exit code 1, as `logs` and rich's consoles end then;
        # Python would complain once more when it exits.
        sys.stdout = None  # type: ignore[assignment]
        raise SystemExit(EXIT_FAILED) from None


@contextlib.contextmanager
def _told(option: str) -> Iterator[None]:
    """A file that cannot be written, a full disk among the reasons, as a mistake of the option that named it."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise ConfigError(f"{option}: cannot be written: {error.strerror}{where}") from error


def compare_all(
    transcribers: Sequence[Transcriber],
    recordings: Sequence[Recording],
    arguments: argparse.Namespace,
    progress: Progress,
) -> int:
    """Transcribe every recording with both models and show where they differ; the exit code.

    Raises:
        ConfigError: the page cannot be written; what differs was printed.
    """
    model, base = (each.transcribe(recordings, progress.advance_half) for each in transcribers)
    found: list[Comparison] = []
    failed = 0
    console = make_console()
    for ours, theirs in zip(model, base, strict=True):
        progress.finish(ours.recording)
        if isinstance(ours, Failure) or isinstance(theirs, Failure):
            reason = ours.reason if isinstance(ours, Failure) else getattr(theirs, "reason", "")
            progress.say(f"error: {ours.recording.path}: {reason}")
            failed += 1
            continue
        say_doubts(progress, ours)
        found.append(compare(theirs, ours))
        with progress.aside():
            _print_comparison(found[-1], arguments, console)
    if arguments.html:
        from tune.pages.page import write_page
        from tune.transcription.page import comparison_page

        with _told(f"--html {arguments.html}"):
            write_page(arguments.html, comparison_page(found, arguments.compare, arguments.model))
        progress.say(f"wrote {arguments.html}")
    progress.summarise(failed, trusts_times=False)
    return EXIT_FAILED if failed else 0


def _print_comparison(comparison: Comparison, arguments: argparse.Namespace, console: Console) -> None:
    if arguments.format == "json":
        _put_out(
            json.dumps(comparison.to_dict(arguments.compare, arguments.model), ensure_ascii=False) + "\n"
        )
        return
    say(console, f"== {comparison.model.recording.path} ==")
    console.print(
        comparison_table(comparison, arguments.compare, arguments.model, coloured=console.is_terminal)
    )
    share = 100 * comparison.changed / comparison.count if comparison.count else 0.0
    say(
        console,
        f"{comparison.changed:,} of {comparison.count:,} {comparison.unit} differ ({share:.2f} %), "
        "capitals and punctuation aside",
    )
