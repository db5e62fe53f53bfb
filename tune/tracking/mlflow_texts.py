"""What MLflow's own pages say of an experiment: the description of its run, and one line on every trial's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.scoring.normalizers import rates_note
from trainer.scoring.objectives import objective_value
from tune.search.records import listed
from tune.util.console import clock, key_settings, short_source
from tune.util.errors import error_line

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.experiments.experiment import Experiment
    from tune.search.records import TrialRecord


def search_note(saved: Experiment, option: str) -> str:
    """What is searched, as Markdown; once a session has ended, what came of it.

    Args:
        saved: with the state at that moment.
        option: what a command that names the experiment ends with, as ` --storage DIR`.
    """
    state = saved.state
    if state.ended is None:
        return f"A search for the settings that fine-tune {_what(saved.base)} best by WER, still running."
    interrupted = state.ended.status == "interrupted"
    commands = [f"--resume {saved.name}"] * interrupted + [f"report {saved.name}"]
    if state.best() is not None:
        commands.append(f"export {saved.name} --output my-model")
    course = f"{len(state.records)} trials and {len(state.repeats)} repeats in {clock(state.seconds)}."
    if state.end is not None:
        course += f" It ended because {state.end.text}."
    elif interrupted:
        course += " **It was interrupted**; `--resume` goes on with it."
    return _note([*_headline(saved), course], saved.base, commands, option)


def training_note(saved: Experiment, option: str) -> str:
    """The same of a single training."""
    state, what = saved.state, f"One training of {_what(saved.base)}, outside a search"
    if state.ended is None:
        return f"{what}, still running."
    lines = [f"{what}."]
    if state.base_rates:
        lines.append(f"Before: WER {objective_value(state.base_rates):.2f} %.")
    lines += [trial_note(record) for record in state.records.all()]
    return _note(lines, saved.base, [f"export {saved.name} --output my-model"], option)


def trial_note(record: TrialRecord) -> str:
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


def _headline(saved: Experiment) -> list[str]:
    """What a search came to; how sure that is, its report says."""
    state, best, wer = saved.state, saved.state.best(), saved.state.value
    if best is None or wer is None:
        return ["No trial reached an evaluation."]
    which = f"settings of trial {state.winner}, weights of {best.trial_id}"
    if not state.base_rates:
        lines = [f"**WER {wer:.2f} %** ({which})."]
    elif wer >= (baseline := state.comparable_base):
        lines = [f"**No gain**: WER {baseline:.2f} % untouched, {wer:.2f} % here ({which})."]
    else:
        gain = f"{baseline - wer:.2f} points, {100 * (baseline - wer) / baseline:.0f} % fewer errors"
        lines = [f"**WER {wer:.2f} %**, {baseline:.2f} % before: {gain} ({which})."]
    if state.winner is not None and state.winner in state.records:
        lines.append(f"Settings: `{key_settings(state.records[state.winner].config)}`.")
    if held := state.tested:
        rates = f"{objective_value(held.rates):.2f} %, {objective_value(held.baseline):.2f} % before"
        lines.append(f"On the test split, which chose nothing: {rates}.")
    if told := state.guards_text:
        lines.append(f"Guards: {told}.")
    return lines


def _note(lines: list[str], base: TrainConfig, commands: list[str], option: str) -> str:
    """Paragraphs, how texts are compared, and what may be run next."""
    shown = "\n".join(f"tune-whisper {command}{option}" for command in commands)
    return "\n\n".join([*lines, rates_note(base), f"```\n{shown}\n```"])


def _what(base: TrainConfig) -> str:
    language = f", language `{base.language}`" if base.language else ""
    task = "" if base.task == "transcribe" else f", task {base.task}"
    return f"`{short_source(base.model)}` on `{short_source(base.data)}`{language}{task}"
