"""What the pages of searches and of trainings have in common: state, test split, data, the commands that come next."""

from __future__ import annotations

import datetime
import shlex
from typing import Any

from trainer.scoring.normalizers import rates_note
from trainer.scoring.objectives import objective_value, objective_words
from tune.experiments.results import source_table
from tune.report.analysis import Analysis
from tune.util.console import clock


def state_text(analysis: Analysis) -> str:
    """How far it is: `finished, 32 of 32 trials ended in 3:20:11`."""
    state, trials = analysis.state, analysis.trials
    ended = sum(trial.status not in ("running", "interrupted") for trial in trials)
    asked = state.options.trials
    stage = analysis.stage.replace("unfinished", "not finished")
    text = f"{stage}, {ended} of {asked} trials ended in {clock(state.seconds)}"
    if state.end:
        text += f" ({state.end.text})"
    if analysis.stage in ("running", "unfinished") and state.last_event_time:
        last = datetime.datetime.fromtimestamp(state.last_event_time).astimezone()
        text += f", last event at {last:%H:%M on %Y-%m-%d}"
    return text


def gain_tile(base: float, value: float) -> tuple[str, str]:
    gain = base - value
    if gain <= 0:
        return f"{gain:.2f}", "points of WER: no gain over the base model"
    return f"{gain:.2f}", f"points of WER gained: {100 * gain / base:.0f} % fewer errors"


def test_tiles(analysis: Analysis) -> list[tuple[str, str]]:
    """The model to be exported on the test split, which chose nothing, where it was measured."""
    held = analysis.state.tested
    if held is None:
        return []
    before = f", {objective_value(held.baseline):.2f} % before" if held.baseline else ""
    return [
        (
            f"{objective_value(held.rates):.2f} %",
            f"WER of run {held.run} on the test split, which chose nothing{before}",
        )
    ]


def shared_parts(analysis: Analysis) -> dict[str, Any]:
    """Footer, data and commands, as the templates name them."""
    settings = analysis.settings
    version = settings.versions.get("tune-whisper", "")
    now = datetime.datetime.now().astimezone()
    clips = ", ".join(f"{count:,} {name}" for name, count in settings.data.clips.items())
    return {
        "footer": f"Written by tune-whisper {version} on {now:%Y-%m-%d at %H:%M}; this file needs nothing else.",
        "data": f"{analysis.data}: {clips} clips. {_rates_note(analysis)}",
        "sources": source_table(analysis.state, str(analysis.settings.base.language)),
        "notes": [note.removeprefix("WARNING: ") for note in settings.notes],
        "left_out": [[key.replace("_", " "), f"{count:,}"] for key, count in settings.dropped.items()],
        "commands": _commands(analysis),
    }


def _rates_note(analysis: Analysis) -> str:
    config, sources = analysis.settings.base, analysis.state.data.sources
    if not sources:
        return rates_note(config)
    codes = dict.fromkeys(code for facts in sources.values() for code in facts["language"])
    own = [rates_note(config.replace(language=code)) for code in codes] or [rates_note(config)]
    decides = objective_words(config.objective) or "all clips together"
    return " ".join((f"The WER that decides is that of {decides}.", *own))


def _can_go_on(analysis: Analysis) -> bool:
    """Whether `--resume` goes on with it as it is: where it was broken off, or a single training failed."""
    if analysis.stage == "failed":
        return analysis.is_training and any(trial.status == "failed" for trial in analysis.trials)
    return analysis.stage in ("interrupted", "unfinished")


def _commands(analysis: Analysis) -> str:
    name, option = shlex.quote(analysis.name), analysis.storage_option
    lines = []
    if analysis.has_ended and not analysis.is_training:
        more = len(analysis.trials) + max(8, len(analysis.trials) // 2)
        lines.append((f"tune-whisper --resume {name} --trials {more}{option}", "more trials"))
    elif _can_go_on(analysis):
        words = "tune-whisper train" if analysis.is_training else "tune-whisper"
        lines.append((f"{words} --resume {name}{option}", "go on with it"))
    if analysis.state.records.best() is not None and analysis.stage != "running":
        lines.append((f"tune-whisper export {name} --output my-model{option}", "the best model as a folder"))
        if not analysis.is_training:
            lines.append((f"tune-whisper train --from {name}{option}", "train with the winner's settings"))
    if analysis.stage == "running":
        lines.append((f"tune-whisper report {name}{option}", "this page anew"))
    lines.append((f"tune-whisper ui {name}{option}", "all runs in MLflow"))
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"{command:<{width}}  # {what}" for command, what in lines)
