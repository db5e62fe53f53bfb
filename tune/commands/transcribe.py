"""`tune-whisper transcribe`: what a model hears in recordings of any length, also beside what another one hears."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainer.config import TrainConfig
from trainer.transcription.recordings import find_recordings
from trainer.transcription.transcripts import FORMATS
from tune.commands.options import Parser, add_storage
from tune.transcription.comparison import compare_all
from tune.transcription.output import Progress, find_targets, write_all
from tune.util.console import make_console
from tune.util.errors import ConfigError, check_least
from tune.util.files import check_file

if TYPE_CHECKING:
    from trainer.transcription.recogniser import Recogniser
    from trainer.transcription.transcribe import Transcriber

_EXAMPLES = """\
examples:
  tune-whisper transcribe my-model lecture.mp3 > lecture.txt
  tune-whisper transcribe my-model recordings/ --format srt --output subtitles
  tune-whisper transcribe my-model lecture.mp3 --compare small --html differences.html
"""


def transcribe_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper transcribe`."""
    parser = Parser(
        prog="tune-whisper transcribe",
        description="Write down what is said in recordings of any length.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="exported folder, hub id, short name (demo, tiny ... large-v3-turbo), or experiment: its best trial",
    )
    parser.add_argument(
        "audio",
        nargs="+",
        type=Path,
        metavar="AUDIO",
        help="WAV, FLAC, OGG, MP3, MP4, WebM ... files, or folders",
    )
    parser.add_argument(
        "--channel", type=int, metavar="N", help="hear this channel, from 1 (default: the mean of all)"
    )
    parser.add_argument(
        "--compare", metavar="BASE", help="transcribe with this model too and show where the two differ"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="with --compare: the differences as a page")
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="default: text")
    parser.add_argument("--output", type=Path, metavar="DIR", help="one file a recording instead of printing")
    parser.add_argument("--force", action="store_true", help="with --output: replace files that are there")
    parser.add_argument(
        "--language",
        metavar="L",
        help="spoken language (default: the model's own, else heard from the audio)",
    )
    parser.add_argument("--task", choices=("transcribe", "translate"), help="default: the model's own")
    parser.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="windows at once (default: 16)"
    )
    parser.add_argument("--num-beams", type=int, default=1, metavar="N", help="1 is greedy (default: 1)")
    parser.add_argument(
        "--pause",
        type=float,
        metavar="SECONDS",
        help="silence that parts two segments (default: 0.5, and what fits the model's window stays whole)",
    )
    parser.add_argument(
        "--times",
        choices=("auto", "pauses", "model"),
        default="auto",
        help="where long recordings are cut: at pauses, or by the model's own timestamps, which most fine-tuned "
        "models have lost (default: auto, by timestamps that prove right)",
    )
    add_storage(parser)
    return parser


def transcribe(words: list[str]) -> int:
    """Run `tune-whisper transcribe`; 1 where a recording could not be read to its end."""
    arguments = transcribe_parser().parse_args(words)
    _check(arguments)
    recordings = find_recordings(arguments.audio, arguments.channel)
    targets = find_targets(recordings, arguments)
    console = make_console(error=True)
    with contextlib.ExitStack() as stack:
        # What libraries print while they are imported is no transcript.
        with console.status("loading the model ..."), contextlib.redirect_stdout(sys.stderr):
            transcribers = _load(arguments, stack)
        progress = stack.enter_context(Progress(console, recordings, transcribers))
        if arguments.compare:
            return compare_all(progress, arguments)
        return write_all(progress, targets, arguments)


def _check(arguments: argparse.Namespace) -> None:
    """What needs neither audio nor model; raises `ConfigError`."""
    check_least(arguments, batch_size=1, num_beams=1, channel=1)
    if arguments.pause is not None and not 0.05 <= arguments.pause <= 60:
        raise ConfigError(f"--pause {arguments.pause:g}: must be from 0.05 to 60 seconds")
    if arguments.language is not None:
        TrainConfig(language=arguments.language)
    if arguments.force and not (arguments.output or arguments.html):
        raise ConfigError("--force: replaces files of --output or --html; give one of them or remove it")
    if arguments.compare:
        if arguments.output or arguments.format not in ("text", "json"):
            raise ConfigError(
                "--compare: prints a table, or JSON with --format json; it goes with neither --output nor subtitles"
            )
        if arguments.times == "model":
            raise ConfigError(
                "--times model: with --compare both models hear the same segments, cut at pauses"
            )
        if arguments.html and arguments.html.is_file() and not arguments.force:
            raise ConfigError(f"--html {arguments.html}: exists already; choose another name or give --force")
        if arguments.html and not arguments.html.absolute().parent.is_dir():
            raise ConfigError(f"--html {arguments.html}: no folder {arguments.html.parent}")
        if arguments.html:
            check_file(f"--html {arguments.html}", arguments.html, "differences.html")
    elif arguments.html:
        raise ConfigError("--html: shows differences; give --compare BASE too")


def _load(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> list[Transcriber]:
    """The model, and the one it is compared with, which hears the same segments in the same language."""
    from trainer.transcription.recogniser import Recogniser
    from trainer.transcription.transcribe import Transcriber
    from tune.experiments.models import open_model
    from tune.runs.finish import find_finished

    loaded: list[Recogniser] = []
    language, task = arguments.language, arguments.task
    names = [arguments.model, *([arguments.compare] if arguments.compare else [])]
    folders = [
        stack.enter_context(open_model(name, arguments.storage, find_finished)).source for name in names
    ]
    for folder in folders:
        found = Recogniser(
            folder,
            language=language,
            task=task,
            batch_size=arguments.batch_size,
            num_beams=arguments.num_beams,
        )
        language, task = found.language, found.task
        loaded.append(found)
    window = min(recogniser.window for recogniser in loaded)
    times: Literal["auto", "pauses", "model"] = "pauses" if arguments.compare else arguments.times
    return [Transcriber(found, pause=arguments.pause, window=window, times=times) for found in loaded]
