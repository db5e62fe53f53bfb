"""What the pages of searches and of trainings have in common: state, data, the commands that come next."""

from __future__ import annotations

import datetime
import shlex
from html import escape

from trainer.config import ConfigError, TrainConfig
from trainer.scoring.normalizers import rates_note
from tune.display import clock
from tune.pages import page
from tune.pages.page import Cell, Column
from tune.report.known import Experiment, short_source

_STATES = {
    "finished": "finished",
    "failed": "failed",
    "running": "running",
    "interrupted": "interrupted",
    "unfinished": "not finished",
}
_MOST_DROPPED = 200
"""Dropped clips that are listed; the file has them all."""


def state_text(experiment: Experiment) -> str:
    """How far it is: `finished, 32 of 32 trials ended in 3:20:11`."""
    ended = sum(trial.status not in ("running", "interrupted") for trial in experiment.trials)
    trials = f"{ended} of {experiment.asked_trials} trials ended in {clock(experiment.seconds)}"
    text = f"{_STATES[experiment.state]}, {trials}"
    if experiment.end:
        text += f" ({experiment.end})"
    if experiment.state in ("running", "unfinished") and experiment.heard:
        heard = datetime.datetime.fromtimestamp(experiment.heard).astimezone()
        text += f", last heard of at {heard:%H:%M on %Y-%m-%d}"
    return text


def page_footer(experiment: Experiment) -> str:
    """Who wrote the page, and when."""
    version = experiment.settings.get("versions", {}).get("tune-whisper", "")
    now = datetime.datetime.now().astimezone()
    return f"Written by tune-whisper {version} on {now:%Y-%m-%d at %H:%M}; this file needs nothing else."


def data_parts(experiment: Experiment) -> list[str]:
    """What the trials learned from and were measured on, and which clips were left out."""
    settings = experiment.settings
    parts = [page.heading("Data")]
    clips = ", ".join(f"{count:,} {name}" for name, count in settings["clips"].items())
    data = short_source(str(settings["train_config"]["data"]))
    parts.append(page.paragraph(f"{data}: {clips} clips. {_rates_note(experiment)}"))
    parts.append(page.bullets([str(note).removeprefix("WARNING: ") for note in settings.get("notes") or []]))
    counts = settings.get("dropped") or {}
    if not counts:
        return [*parts, page.paragraph("No clip was left out.", "muted")]
    rows: list[list[Cell]] = [[_reason(reason), f"{count:,}"] for reason, count in counts.items()]
    parts += [page.heading("Clips left out", 3), page.table([Column("why"), Column("clips", True)], rows)]
    if experiment.dropped:
        parts.append(_dropped(experiment.dropped))
    return parts


def _rates_note(experiment: Experiment) -> str:
    config = experiment.settings["train_config"]
    try:
        return rates_note(TrainConfig.from_dict(config))
    except ConfigError:  # settings of another version
        return f"WER is counted with normaliser {config.get('normalizer')}."


def _dropped(dropped: list[dict[str, str]]) -> str:
    shown = dropped[:_MOST_DROPPED]
    rows: list[list[Cell]] = [
        [drop["name"], drop["split"], _reason(drop["reason"]), drop["detail"]] for drop in shown
    ]
    title = f"The {len(dropped):,} clips"
    if len(shown) < len(dropped):
        title = f"The first {len(shown)} of {len(dropped):,} clips; dropped_clips.jsonl has all"
    return page.folded(
        title, page.table([Column("clip"), Column("split"), Column("why"), Column("found")], rows)
    )


def _reason(reason: str) -> str:
    return reason.replace("_", " ")


def _can_go_on(experiment: Experiment) -> bool:
    """Whether `--resume` goes on with it as it is: where it was broken off, or a single training failed."""
    if not experiment.has_log:
        return False
    if experiment.state == "failed":
        return experiment.is_training and any(trial.status == "failed" for trial in experiment.trials)
    return experiment.state in ("interrupted", "unfinished")


def commands(experiment: Experiment) -> str:
    """The commands that come next."""
    name, option = shlex.quote(experiment.name), experiment.storage_option
    lines = []
    if experiment.has_ended and experiment.has_log and not experiment.is_training:
        more = len(experiment.trials) + max(8, len(experiment.trials) // 2)
        lines.append((f"tune-whisper --resume {name} --trials {more}{option}", "more trials"))
    elif _can_go_on(experiment):
        words = "tune-whisper train" if experiment.is_training else "tune-whisper"
        lines.append((f"{words} --resume {name}{option}", "go on with it"))
    if experiment.best_trial is not None and experiment.has_results and experiment.state != "running":
        lines.append((f"tune-whisper export {name} --output my-model{option}", "the best model as a folder"))
        if not experiment.is_training:
            lines.append((f"tune-whisper train --from {name}{option}", "train with the winner's settings"))
    if experiment.state == "running":
        lines.append((f"tune-whisper report {name}{option}", "this page anew"))
    lines.append((f"tune-whisper ui {name}{option}", "all runs in MLflow"))
    width = max(len(command) for command, _ in lines)
    text = "\n".join(f"{command:<{width}}  # {what}" for command, what in lines)
    return f"<pre>{escape(text)}</pre>"
