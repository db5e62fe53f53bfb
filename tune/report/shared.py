"""What the pages of searches and of trainings have in common: state, tiles, gain, data, the commands that come next."""

from __future__ import annotations

import datetime
import shlex
from typing import Any

from trainer.scoring.normalizers import rates_note, unit_note
from trainer.scoring.objectives import objective_value, objective_words
from tune.experiments.mlflow_store import is_server
from tune.experiments.options import resume_command
from tune.experiments.results import no_gain_line, source_table
from tune.report.analysis import Analysis
from tune.report.costs import find_costs
from tune.report.examples import find_examples
from tune.report.figures import draw_losses
from tune.search.more_trials import MORE
from tune.util.console import clock


def state_text(analysis: Analysis) -> str:
    """How far it is: `finished, 32 of 32 trials ended in 3:20:11`; of a training `finished, 3:20:11 in all`."""
    state, trials = analysis.state, analysis.trials
    ended = sum(trial.status not in ("running", "interrupted") for trial in trials)
    stage, spent = analysis.stage.replace("unfinished", "not finished"), clock(state.seconds)
    text = f"{stage}, {ended} of {state.options.trials} trials ended in {spent}"
    if analysis.is_training:
        text = f"{stage}, {spent} in all"
    if state.end:
        text += f" ({state.end.text})"
    if analysis.stage in ("running", "unfinished") and state.last_event_time:
        last = datetime.datetime.fromtimestamp(state.last_event_time).astimezone()
        text += f", last event at {last:%H:%M on %Y-%m-%d}"
    return text


def tiles(analysis: Analysis, validation: str) -> list[tuple[str, str]]:
    """Test WER where it was measured, validation WER and cost, each a figure and what it is.

    Args:
        validation: what the validation WER is of.
    """
    state, winner, costs = analysis.state, analysis.winner, find_costs(analysis)
    base = f"the base model, {analysis.model}, has {state.comparable_base:.2f} %"
    found = [("none", f"trained model yet; {base}")]
    if winner is not None:
        found = [(f"{winner.value:.2f} %", f"{validation}; {base}")]
    if held := state.tested:
        words = f"WER of run {held.run} on {held.rates['clips']:,.0f} held-out test clips"
        if held.baseline:
            words += f"; the base model has {objective_value(held.baseline):.2f} %"
        found.insert(0, (f"{objective_value(held.rates):.2f} %", words))
    spent, unit = costs.tell(costs.total).split(" ")
    length = _length(analysis, "train")
    audio = f"; {length} of training audio" if length else ""
    return [*found, (spent, f"{unit} in {clock(state.seconds)}{audio}")]


def gain_words(analysis: Analysis) -> str:
    """The gain over the base model or that there is none, as on the screen."""
    if analysis.gain_text:
        return f"Gain over the base model: {analysis.gain_text}."
    line = no_gain_line(analysis.state) or ""
    return f"{line[:1].upper()}{line[1:]}." if line and analysis.has_ended else ""


def _length(analysis: Analysis, split: str) -> str:
    """How much audio a split has: `3.2 hours`, `19 minutes`; empty where that is not known."""
    minutes = analysis.state.data.seconds.get(split, 0.0) / 60
    return f"{minutes / 60:,.1f} hours" if minutes >= 60 else f"{minutes:.0f} minutes" if minutes else ""


def shared_parts(analysis: Analysis) -> dict[str, Any]:
    """Footer, data and commands, as the templates name them."""
    settings = analysis.settings
    version = settings.versions.get("tune-whisper", "")
    now = datetime.datetime.now().astimezone()
    clips = ", ".join(
        f"{count:,} {name} clips{f' ({length})' if (length := _length(analysis, name)) else ''}"
        for name, count in settings.data.clips.items()
    )
    uri = analysis.state.options.tracking_uri or ""
    return {
        "footer": f"Written by tune-whisper {version} on {now:%Y-%m-%d at %H:%M}; one file that needs no other.",
        "data": f"{analysis.data}: {clips}. {_rates_note(analysis)}",
        "sources": source_table(analysis.state, str(analysis.settings.base.language)),
        "notes": [note.removeprefix("WARNING: ") for note in settings.notes],
        "left_out": [[key.replace("_", " "), f"{count:,}"] for key, count in settings.dropped.items()],
        "commands": _commands(analysis),
        "server": uri if is_server(uri) else "",
        "examples": find_examples(analysis),
        "gap": "" if unit_note(settings.base) else " ",
        "losses": draw_losses(analysis),
        "gain": gain_words(analysis),
    }


def _rates_note(analysis: Analysis) -> str:
    config, sources = analysis.settings.base, analysis.state.data.sources
    if not sources:
        return rates_note(config)
    codes = dict.fromkeys(code for facts in sources.values() for code in facts["language"])
    own = [rates_note(config.replace(language=code)) for code in codes] or [rates_note(config)]
    decides = objective_words(config.objective) or "all clips together"
    return " ".join((f"Models are compared by the WER of {decides}.", *own))


def _can_go_on(analysis: Analysis) -> bool:
    """Whether `--resume` goes on with it as it is: where it was broken off, or a single training failed."""
    if analysis.stage == "failed":
        return analysis.is_training and any(trial.status == "failed" for trial in analysis.trials)
    return analysis.stage in ("interrupted", "unfinished")


def _commands(analysis: Analysis) -> str:
    name, option = shlex.quote(analysis.name), analysis.storage_option
    resume = resume_command(analysis.name, analysis.state.options.kind, option)
    lines, cut = [], analysis.state.end
    # A budget, or a target that was reached, would end more of them at once.
    if (
        analysis.has_ended
        and not analysis.is_training
        and (cut is None or cut.reason in ("plateau", "failures"))
    ):
        lines.append((f"{resume} --trials {len(analysis.trials) + MORE}", f"{MORE} more trials"))
    elif _can_go_on(analysis):
        lines.append((resume, "resume it"))
    if analysis.state.records.best() is not None and analysis.stage != "running":
        lines.append((f"tune-whisper export {name} --output my-model{option}", "the best model as a folder"))
        if not analysis.is_training:
            lines.append((f"tune-whisper train --from {name}{option}", "train with the winner's settings"))
    if analysis.stage == "running":
        lines.append((f"tune-whisper report {name}{option}", "update this page"))
    lines.append((f"tune-whisper ui {name}{option}", "compare all runs in MLflow"))
    width = max(len(command) for command, _ in lines)
    return "\n".join(f"{command:<{width}}  # {what}" for command, what in lines)
