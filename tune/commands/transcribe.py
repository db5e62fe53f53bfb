"""`tune-whisper transcribe`: what a model hears in recordings of any length, also beside what another one hears."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trainer.command import EXIT_FAILED
from trainer.config import TrainConfig, written_language
from trainer.errors import ConfigError
from trainer.files import write_whole
from trainer.transcription.transcripts import SUFFIXES, Transcript, mark_differences, write
from tune.commands.options import Parser, add_storage
from tune.experiments.models import open_model
from tune.runs.finish import find_finished
from tune.util.console import ProgressBar, clock, make_console, say
from tune.util.errors import check_least
from tune.util.files import check_folder, writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from trainer.transcription.transcribe import Transcriber

    Show = Callable[[list[Transcript], argparse.Namespace, bool], None]

_EXAMPLES = """\
examples:
  tune-whisper transcribe my-model lecture.mp3 > lecture.txt
  tune-whisper transcribe my-model recordings/ --format srt --output subtitles
  tune-whisper transcribe my-model lecture.mp3 --compare small
"""


def transcribe_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tune-whisper transcribe",
        description="Transcribe recordings of any length.",
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="exported folder, hub id, short name (demo, tiny ... large-v3-turbo), or experiment (its best model)",
    )
    add("audio", nargs="+", type=Path, metavar="AUDIO", help="WAV, FLAC, OGG, MP3, MP4 ... files, or folders")
    add("--channel", type=int, metavar="N", help="channel to use, from 1 on (default: the mean of all)")
    add("--compare", metavar="BASE", help="transcribe with this model too and show where the two differ")
    add("--format", choices=tuple(SUFFIXES), default="text", help="default: text")
    add("--output", type=Path, metavar="DIR", help="folder for one file per recording, instead of printing")
    add("--language", metavar="L", help="spoken language (default: the model's own, else detected)")
    add("--task", choices=("transcribe", "translate"), help="default: the model's own")
    add("--batch-size", type=int, default=16, metavar="N", help="segments decoded at once (default: 16)")
    add_storage(parser)
    return parser


def transcribe(words: list[str]) -> int:
    """Run `tune-whisper transcribe`; 1 where a recording could not be read to its end."""
    found = run(words, functools.partial(_print, make_console()))
    return EXIT_FAILED if any(transcript.incomplete for transcript in found) else 0


def run(words: list[str], show: Show = lambda *shown: None) -> list[Transcript]:
    """The transcript of each recording that the words name; without segments where it cannot be read at all.

    Args:
        show: called with each recording's transcripts where they are not written to files, the words as they were
            parsed, and whether there are several recordings.
    """
    arguments = transcribe_parser().parse_args(words)
    # --help does without what takes a while.
    from trainer.data.audio import AudioError
    from trainer.transcription.transcribe import find_recordings

    check_least(arguments, batch_size=1, channel=1)
    if arguments.language is not None:
        TrainConfig(language=arguments.language)
    if arguments.compare and (arguments.output or arguments.format not in ("text", "json")):
        raise ConfigError(
            "--compare: prints a table or JSON; it cannot be combined with --output or subtitles"
        )
    recordings = find_recordings(arguments.audio)
    targets = _targets(recordings, arguments)
    console, found = make_console(error=True), list[Transcript]()
    with contextlib.ExitStack() as stack:
        # What libraries print while they are imported is no transcript.
        with console.status("loading the model ..."), contextlib.redirect_stdout(sys.stderr):
            models = _load(arguments, stack)
        bar = stack.enter_context(ProgressBar(console, "transcribing", number=clock))
        for path in recordings:
            try:
                transcripts = _transcribe(path, models, arguments.channel, bar)
            except AudioError as error:
                say(console, f"error: {path}: {error}")
                found.append(Transcript(path, 0.0, None, [], str(error)))
                continue
            found.append(transcripts[0])
            _warn(transcripts[0], console)
            if targets:
                with writing(f"--output {arguments.output}"):
                    write_whole(targets[path], write(transcripts[0], arguments.format, arguments.model))
                say(console, f"wrote {targets[path]}")
                continue
            with bar.hidden():
                show(transcripts, arguments, len(recordings) > 1)
    return found


def _targets(recordings: dict[Path, Path], arguments: argparse.Namespace) -> dict[Path, Path]:
    """The file of every recording's transcript; none where they are printed."""
    option = f"--output {arguments.output}"
    if arguments.output is None:
        if arguments.format in ("srt", "vtt") and len(recordings) > 1:
            raise ConfigError(
                f"--format {arguments.format}: subtitles of {len(recordings)} recordings need one file each; "
                "give --output DIR"
            )
        return {}
    output = arguments.output.expanduser()
    targets = {
        path: output / name.with_suffix(SUFFIXES[arguments.format]) for path, name in recordings.items()
    }
    sources: dict[Path, Path] = {}
    for path, target in targets.items():
        if target in sources:
            raise ConfigError(f"{option}: {sources[target]} and {path} would both become {target.name}")
        if target.exists():
            raise ConfigError(f"{option}: {target} exists already; choose another folder or remove it")
        sources[target] = path
    for folder in sorted({target.parent for target in targets.values()}):
        check_folder(option, folder)
        with writing(option):
            folder.mkdir(parents=True, exist_ok=True)
    return targets


def _load(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> list[Transcriber]:
    """The model, and the one it is compared with, in the same language."""
    from trainer.transcription.transcribe import Transcriber

    models: list[Transcriber] = []
    for name in (arguments.model, arguments.compare):
        if name is not None:
            source = stack.enter_context(open_model(name, arguments.storage, find_finished)).source
            language = models[0].language if models else arguments.language
            task = models[0].task if models else arguments.task
            models.append(Transcriber(source, language=language, task=task, batch_size=arguments.batch_size))
    return models


def _transcribe(
    path: Path, models: list[Transcriber], channel: int | None, bar: ProgressBar
) -> list[Transcript]:
    """Of each model, of the same segments."""
    from trainer.data.audio import SAMPLE_RATE
    from trainer.transcription.transcribe import find_speech, read_recording

    samples, file = read_recording(path, channel)
    spans = find_speech(samples, min(model.window for model in models))
    seconds, transcripts = len(samples) / SAMPLE_RATE, []
    for model in models:
        language, segments = model.transcribe(
            samples, spans, lambda done: bar.update(done / SAMPLE_RATE, seconds)
        )
        transcripts.append(Transcript(path, seconds, language, segments, file.incomplete, model.task))
    return transcripts


def _warn(transcript: Transcript, console: Console) -> None:
    """Tell what may be missing or wrong in a transcript."""
    path = transcript.path
    if transcript.incomplete:
        say(console, f"warning: {path}: {transcript.incomplete}; transcribed as far as it could be read")
    if not transcript.text:
        why = "the model wrote nothing" if transcript.segments else "no speech was found in it"
        say(console, f"warning: {path}: the transcript is empty: {why}")
    for doubt, words in (("repeats", "repeats itself"), ("breaks off", "is cut off")):
        if times := [clock(each.start) for each in transcript.segments if each.doubt == doubt]:
            more = f" and {len(times) - 5} more places" if len(times) > 5 else ""
            say(console, f"warning: {path}: the text {words} at {', '.join(times[:5])}{more}")


def _print(out: Console, transcripts: list[Transcript], arguments: argparse.Namespace, heading: bool) -> None:
    """One recording on standard output: JSON is a line, so that it can be read as it comes."""
    model = transcripts[0]
    if arguments.format == "json":
        content = model.to_dict(arguments.model)
        if arguments.compare:
            content["base"] = transcripts[1].to_dict(arguments.compare)
        text = json.dumps(content, ensure_ascii=False) + "\n"
    else:
        text = f"== {model.path} ==\n" if heading or arguments.compare else ""
        text += "" if arguments.compare else write(model, arguments.format, arguments.model)
    sys.stdout.write(text)
    sys.stdout.flush()
    if arguments.compare and arguments.format == "text":
        out.print(comparison_table(transcripts[1], model, arguments.compare, arguments.model))


def comparison_table(base: Transcript, model: Transcript, base_name: str, model_name: str) -> Table:
    """Both transcripts, a row a segment, with what differs between asterisks."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True, padding=(0, 2, 0, 0))
    table.add_column("time", justify="right", no_wrap=True, style="dim")
    table.add_column(Text(base_name), ratio=1)
    table.add_column(Text(model_name), ratio=1)
    changed = count = 0
    written = written_language(model.language, model.task)
    for before, after in zip(base.segments, model.segments, strict=True):
        left, right, different, units = mark_differences(before.text, after.text, written)
        table.add_row(clock(before.start), Text(left), Text(right))
        changed, count = changed + different, count + units
    share = 100 * changed / max(1, count)
    table.caption = f"{changed:,} of {count:,} differ ({share:.2f} %), ignoring case and punctuation"
    return table
