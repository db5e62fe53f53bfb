"""What MLflow's own pages say of an experiment: the description of its run, and one line on every trial's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.scoring.normalizers import rates_note
from trainer.scoring.objectives import objective_value
from tune.experiments.options import TRIAL, resume_command
from tune.experiments.results import guards_line
from tune.search.records import Trial, listed
from tune.util.console import clock, key_settings, short_source
from tune.util.errors import error_line

if TYPE_CHECKING:
    from tune.experiments.experiment import Experiment


def experiment_note(saved: Experiment, option: str) -> str:
    """What an experiment is, as Markdown; once a session has ended, what came of it. Its report has the rest.

    Args:
        option: what a command that names the experiment ends with, as ` --storage DIR`.
    """
    state, base, alone = saved.state, saved.base, saved.is_training
    language = f", language `{base.language}`" if base.language else ""
    task = "" if base.task == "transcribe" else f", task {base.task}"
    what = f"`{short_source(base.model)}` on `{short_source(base.data)}`{language}{task}"
    what = (
        f"One training of {what}, outside a search"
        if alone
        else f"A search for the settings that fine-tune {what} best by WER"
    )
    if state.ended is None:
        return f"{what}, still running."
    lines = [f"{what}.", _result(saved)]
    if held := state.tested:
        rates = (
            f"{objective_value(held.rates):.2f} %, {objective_value(held.baseline):.2f} % before fine-tuning"
        )
        lines.append(f"On the held-out test split: {rates}.")
    if guards := guards_line(state):
        lines.append(f"Guards: {guards}.")
    course = f"{len(state.records)} trials and {len(state.repeats)} repeats in {clock(state.seconds)}."
    commands = [f"tune-whisper report {saved.name}{option}"]
    if alone:
        course = trial_note(state.records[TRIAL])
    elif state.end is not None:
        course += f" It ended because {state.end.text}."
    if state.end is None and state.ended.status == "interrupted":
        course += " **It was interrupted**; `--resume` goes on with it."
        commands.insert(0, resume_command(saved.name, state.options.kind, option))
    if state.best() is not None:
        commands.append(f"tune-whisper export {saved.name} --output my-model{option}")
    shown = "\n".join(commands)
    return "\n\n".join([*lines, course, rates_note(base), f"```\n{shown}\n```"])


def _result(saved: Experiment) -> str:
    """What it came to; how sure that is, the report says."""
    state, best, wer = saved.state, saved.state.best(), saved.state.value
    if best is None or wer is None:
        return "No trial reached an evaluation."
    settings = key_settings(state.run(state.winner or best.trial_id).config)
    which = f"settings of trial {state.winner}: `{settings}`, weights of {best.trial_id}"
    if not state.base_rates:
        return f"**WER {wer:.2f} %** ({which})."
    baseline = state.comparable_base
    if wer >= baseline:
        return f"**No gain**: WER {baseline:.2f} % before fine-tuning, {wer:.2f} % here ({which})."
    gain = f"{baseline - wer:.2f} points, {100 * (baseline - wer) / baseline:.0f} % fewer errors"
    return f"**WER {wer:.2f} %**, {baseline:.2f} % before fine-tuning: {gain} ({which})."


def trial_note(record: Trial) -> str:
    """One line: how a trial, or the repeat of one, ended, and why."""
    if record.status == "failed":
        return f"Failed: {error_line(record.error) if record.error else 'no reason is known'}"
    if record.stop is not None:
        word = "Diverged" if record.status == "diverged" else "Stopped early"
        return f"{word}: {record.stop.describe()}."
    word = "Completed" if record.status == "completed" else "Interrupted"
    if record.members and record.best_value is not None:
        return f"The mean of {listed(record.members)}: WER {record.best_value:.2f} %."
    if record.value is None or record.best_value is None:
        return f"{word} after {record.samples_seen:,} samples, before any evaluation."
    best = ""
    if record.best_value < record.value:
        best = f"; the best was {record.best_value:.2f} % at {record.best_samples_seen:,}"
    return f"{word}: WER {record.value:.2f} % at {record.samples_seen:,} samples{best}."
