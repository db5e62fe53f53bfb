"""What MLflow's own pages say of an experiment: Markdown on its run, one line on every trial's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.scoring.normalizers import rates_note
from trainer.scoring.objectives import objective_value
from tune.search.budgets import describe_duration
from tune.search.finalists import Verdict, describe_lowest, describe_mean
from tune.search.records import listed
from tune.util.console import clock, key_settings, short_source
from tune.util.errors import error_line

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.experiments.saved import SavedExperiment
    from tune.search.records import TrialRecord


def search_begins(saved: SavedExperiment) -> str:
    """The description of a search that runs: what is searched."""
    asked = saved.state.session
    ends = []
    if asked is not None:
        budgets, seconds = asked.budgets, asked.budgets.seconds
        told = [
            ("{} trials", asked.trials),
            ("at most {}", None if seconds is None else describe_duration(seconds)),
            ("at most {:g} GPU-hours", budgets.gpu_hours),
            ("until {} in a row bring nothing better", budgets.plateau_trials),
            ("then the best {} again", asked.finalists or None),
        ]
        ends = [text.format(number) for text, number in told if number is not None]
        if asked.finalists:
            ends[-1] += f" with {asked.repeats} new seeds each"
    what = f"A search for the settings that fine-tune {_what(saved.base)} best by WER, still running."
    return "\n".join([what, "", f"{', '.join(ends)}.", "", *_space(saved)])


def search_ended(saved: SavedExperiment, option: str) -> str:
    """The description of a search that has ended, or was interrupted: what it came to.

    Args:
        saved: with the state at the end of the session.
        option: what a command that names the experiment ends with, as ` --storage DIR`.
    """
    best = saved.state.best()
    commands = [f"--resume {saved.name}"] if interrupted(saved) else []
    commands.append(f"report {saved.name}")
    lines = [*_headline(saved), ""]
    if best is not None:
        commands.append(f"export {saved.name} --output my-model")
        lines += [*_contenders(saved), ""]
    lines += [*_finalists(saved), _course(saved), "", rates_note(saved.base), "", *_space(saved), ""]
    return "\n".join([*lines, *_commands(commands, option)])


def training_begins(base: TrainConfig) -> str:
    """The description of a single training that runs."""
    return f"One training of {_what(base)}, outside a search, still running."


def training_ended(saved: SavedExperiment, option: str) -> str:
    """The description of a single training that has ended, or was interrupted; arguments as of `search_ended`."""
    base, baseline = saved.base, saved.state.base_rates.get(saved.state.objective)
    lines = [f"One training of {_what(base)}, outside a search.", ""]
    for record in saved.state.records.all():
        if record.best_value is not None:
            lines += ["| | WER % |", "| --- | --: |"]
            lines += [] if baseline is None else [f"| {_model(base)} untouched | {baseline:.2f} |"]
            lines += [f"| **after {record.best_samples_seen:,} samples** | **{record.best_value:.2f}** |", ""]
        status = "interrupted" if interrupted(saved) else record.status.replace("_", " ")
        seconds = clock(saved.state.seconds)
        lines += [f"{status.capitalize()} after {seconds}, {record.samples_seen:,} samples.", ""]
    return "\n".join(
        [*lines, rates_note(base), "", *_commands([f"export {saved.name} --output my-model"], option)]
    )


def _commands(words: Sequence[str], option: str) -> list[str]:
    return ["```", *(f"tune-whisper {each}{option}" for each in words), "```"]


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


def interrupted(saved: SavedExperiment) -> bool:
    """Whether the session was ended before it was over."""
    return saved.state.ended is not None and saved.state.ended.status == "interrupted"


def _headline(saved: SavedExperiment) -> list[str]:
    state, model = saved.state, _model(saved.base)
    baseline = state.comparable_base if state.base_rates else None
    best, wer = state.best(), state.value
    if best is None or wer is None:
        trials = state.records.all()
        diverged = trials and all(trial.status == "diverged" for trial in trials)
        return ["All trials diverged." if diverged else "No trial reached an evaluation."]
    verdict = state.verdict
    if baseline is None:
        lines = [f"**WER {wer:.2f} %** ({_which(saved, verdict)})."]
    elif wer >= baseline:
        which = "the best trial" if verdict is None else f"the winner, trial {verdict.winner},"
        none = "What is exported for the guards does not beat" if state.passed_over else "No trial beat"
        return [
            f"**{none} {model} untouched**: WER {baseline:.2f} %, {which} {wer:.2f} %. "
            "Keep that model, or widen the space or the budget.",
            *([f"Guards: {state.guards_text}."] if state.guards_text else []),
        ]
    else:
        gain = baseline - wer
        lines = [
            f"**WER {wer:.2f} %**, {baseline:.2f} % before: {gain:.2f} points, "
            f"{100 * gain / baseline:.0f} % fewer errors ({_which(saved, verdict)})."
        ]
    if held := state.tested:
        lines.append(
            f"On the test split, which chose nothing: {objective_value(held.rates):.2f} %, "
            f"{objective_value(held.baseline):.2f} % before."
        )
    if told := state.average_text:
        lines.append(f"Mean of the repeats: {told}.")
    if told := state.guards_text:
        lines.append(f"Guards: {told}.")
    if verdict is not None:
        lines.append(f"Run {best.trial_id} is the one to be exported, with {best.best_value:.2f} %.")
    return lines


def _which(saved: SavedExperiment, verdict: Verdict | None) -> str:
    """What a search's WER is that of."""
    if verdict is not None:
        return f"{verdict.standing.describe()}, trial {verdict.winner}"
    lowest = [] if saved.state.passed_over else saved.state.records.all()
    luck = describe_lowest(trial.best_value for trial in lowest)
    return ", ".join(filter(None, [f"trial {saved.state.winner}", luck]))


def _contenders(saved: SavedExperiment) -> list[str]:
    """The base model, the usual settings and the winner, one below the other."""
    rows = ["| | WER % | settings |", "| --- | --: | --- |"]
    if saved.state.base_rates:
        rows.append(f"| {_model(saved.base)} untouched | {objective_value(saved.state.base_rates):.2f} | |")
    winner, usual = saved.state.winner, _usual(saved)
    if usual is not None and usual.best_value is not None and usual.trial_id != winner:
        rows.append(
            f"| the usual settings: trial {usual.trial_id} | {usual.best_value:.2f} | {_settings(usual)} |"
        )
    if winner is not None and winner in saved.state.records:
        trial = saved.state.records[winner]
        told, mean = "best trial", f"{trial.best_value:.2f}"
        if saved.state.verdict is not None:
            standing = saved.state.verdict.standing
            told = f"winner, {describe_mean(len(standing.values), None)}"
            mean = f"{standing.mean:.2f}" + ("" if standing.sd is None else f" ± {standing.sd:.2f}")
        also = " with the usual settings" if usual is trial else ""
        rows.append(f"| **{told}: trial {winner}{also}** | **{mean}** | {_settings(trial)} |")
    return rows


def _usual(saved: SavedExperiment) -> TrialRecord | None:
    """The trial with the usual settings of the model's size, one of the first of every search."""
    space, rate = saved.space, saved.base.learning_rate
    if space is None or rate is None:
        return None
    recipe = dataclasses.replace(space, try_first=[]).with_recipe(rate).try_first[0]
    return next((trial for trial in saved.state.records.all() if trial.config == recipe), None)


def _finalists(saved: SavedExperiment) -> list[str]:
    """How the finalists compare; empty where there were none, or one alone."""
    verdict, why_none = saved.state.verdict, saved.state.not_compared
    if why_none:
        return [f"The finalists are not compared: {why_none}.", ""]
    if verdict is None or len(verdict.standings) < 2:
        return []
    rows = ["| finalist | seeds | mean WER % | sd | behind | 95 % interval |"]
    rows.append("| --- | --: | --: | --: | --: | --: |")
    for place, found in enumerate(verdict.standings):
        low, high = found.interval
        name = f"**{found.trial_id}**" if found.trial_id == verdict.winner else found.trial_id
        sd = "" if found.sd is None else f"{found.sd:.2f}"
        behind = f"{found.difference:.2f} | {low:.2f} to {high:.2f}" if place else "|"
        rows.append(f"| {name} | {len(found.values)} | {found.mean:.2f} | {sd} | {behind} |")
    return [*rows, "", f"Trial {verdict.describe()}.", ""]


def _course(saved: SavedExperiment) -> str:
    """How many trials ended in which way, and what ended the search."""
    state = saved.state
    open_word = "interrupted" if interrupted(saved) else "running"
    words = [open_word if run.status == "running" else run.status for run in state.records.all()]
    counts = [f"{words.count(word)} {word.replace('_', ' ')}" for word in dict.fromkeys(words)]
    asked = state.session.trials if state.session else len(words)
    number = f"{len(words)}" if len(words) == asked else f"{len(words)} of {asked}"
    line = f"{number} trials in {clock(state.seconds)}: {', '.join(counts) or 'none began'}."
    if len(state.repeats):
        line += f" {len(state.repeats)} repeats of the best."
    if state.end is not None:
        line += f" It ended because {state.end.text}."
    elif interrupted(saved):
        line += " **It was interrupted**; `--resume` goes on with it."
    return line


def _space(saved: SavedExperiment) -> list[str]:
    space = saved.space
    if space is None:
        return []
    rows = [f"| setting | searched (`{space.path.name}`) |", "| --- | --- |"]
    return rows + [f"| `{name}` | {text} |" for name, text in space.describe()]


def _what(base: TrainConfig) -> str:
    language = f", language `{base.language}`" if base.language else ""
    task = "" if base.task == "transcribe" else f", task {base.task}"
    return f"{_model(base)} on `{short_source(base.data)}`{language}{task}"


def _model(base: TrainConfig) -> str:
    return f"`{short_source(base.model)}`"


def _settings(record: TrialRecord) -> str:
    return f"`{key_settings(record.config)}`"
