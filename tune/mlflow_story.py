"""What MLflow's own pages say of an experiment: Markdown on its run, one line on every trial's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from trainer.scoring.normalizers import rates_note
from tune.display import clock, key_settings
from tune.limits import describe_duration

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from tune.comparison import Verdict
    from tune.plan import SearchPlan
    from tune.records import TrialRecord
    from tune.results import SearchOutcome

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""


def search_begins(plan: SearchPlan) -> str:
    """The description of a search that runs: what is searched."""
    request = plan.request
    ends = [f"{request.trials} trials"]
    if request.budgets.seconds is not None:
        ends.append(f"at most {describe_duration(request.budgets.seconds)}")
    if request.budgets.gpu_hours is not None:
        ends.append(f"at most {request.budgets.gpu_hours:g} GPU-hours")
    if request.budgets.plateau_trials is not None:
        ends.append(f"until {request.budgets.plateau_trials} in a row bring nothing better")
    if request.n_finalists:
        ends.append(f"then the best {request.n_finalists} again with {request.repeats} new seeds each")
    return "\n".join(
        [
            f"A search for the settings that fine-tune {_what(plan.base)} best by WER, still running.",
            "",
            f"{', '.join(ends)}.",
            "",
            *_space(plan),
        ]
    )


def search_ended(outcome: SearchOutcome) -> str:
    """The description of a search that has ended, or was interrupted: what it came to."""
    plan, storage = outcome.plan, outcome.plan.request.storage.option
    lines = [*_headline(outcome), ""]
    if outcome.best is not None:
        lines += [*_contenders(outcome), ""]
    if outcome.verdict is not None and len(outcome.verdict.standings) > 1:
        lines += [*_finalists(outcome.verdict), ""]
    lines += [_course(outcome), "", rates_note(plan.base), "", *_space(plan), "", "```"]
    if outcome.interrupted:
        lines.append(plan.resume_command)
    lines.append(f"tune-whisper report {plan.name}{storage}")
    if outcome.best is not None:
        lines.append(f"tune-whisper export {plan.name} --output my-model{storage}")
    return "\n".join([*lines, "```"])


def training_begins(base: TrainConfig) -> str:
    """The description of a single training that runs."""
    return f"One training of {_what(base)}, outside a search, still running."


def training_ended(outcome: SearchOutcome) -> str:
    """The description of a single training that has ended, or was interrupted."""
    (record,) = outcome.trials
    plan, storage = outcome.plan, outcome.plan.request.storage.option
    lines = [f"One training of {_what(plan.base)}, outside a search.", ""]
    if record.best_wer is not None:
        lines += [
            *("| | WER % |", "| --- | --: |"),
            f"| {_model(plan.base)} untouched | {outcome.baseline.wer:.2f} |",
            f"| **after {record.best_samples_seen:,} samples** | **{record.best_wer:.2f}** |",
            "",
        ]
    state = "interrupted" if outcome.interrupted else record.status.replace("_", " ")
    lines += [f"{state.capitalize()} after {clock(outcome.seconds)}, {record.samples_seen:,} samples.", ""]
    lines += [rates_note(plan.base), ""]
    return "\n".join([*lines, "```", f"tune-whisper export {plan.name} --output my-model{storage}", "```"])


def trial_ended(record: TrialRecord, error: str | None = None) -> dict[str, Any]:
    """Metrics and tags of an ended trial.

    Args:
        record: the trial, or the repeat of one.
        error: in one line what it failed with.

    Returns:
        `metrics` and `tags`, as `MlflowRecorder.trial_ended` takes them.
    """
    metrics = {"samples_seen": float(record.samples_seen), "seconds": round(record.seconds, 1)}
    if record.best_wer is not None:
        metrics["best_wer"] = round(record.best_wer, 4)
    stop = record.stop
    tags = {"stop_reason": stop.reason, "stop": stop.describe()} if stop else {}
    return {"metrics": metrics, "tags": {**tags, NOTE: _trial_note(record, error)}}


def _trial_note(record: TrialRecord, error: str | None) -> str:
    """One line: how the trial ended, and why."""
    if record.status == "failed":
        return f"Failed: {error or 'no reason is known'}"
    if record.stop is not None:
        word = "Diverged" if record.status == "diverged" else "Stopped early"
        return f"{word}: {record.stop.describe()}."
    word = "Completed" if record.status == "completed" else "Interrupted"
    if record.wer is None or record.best_wer is None:
        return f"{word} after {record.samples_seen:,} samples, before any evaluation."
    best = ""
    if record.best_wer < record.wer:
        best = f"; the best was {record.best_wer:.2f} % at {record.best_samples_seen:,}"
    return f"{word}: WER {record.wer:.2f} % at {record.samples_seen:,} samples{best}."


def _headline(outcome: SearchOutcome) -> list[str]:
    best, baseline, model = outcome.best, outcome.baseline.wer, _model(outcome.plan.base)
    if best is None or best.best_wer is None:
        diverged = outcome.trials and all(trial.status == "diverged" for trial in outcome.trials)
        return ["All trials diverged." if diverged else "No trial reached an evaluation."]
    wer = best.best_wer
    if not outcome.gained:
        return [
            f"**No trial beat {model} untouched**: WER {baseline:.2f} %, the best trial {wer:.2f} %. "
            "Keep that model, or widen the space or the budget."
        ]
    return [
        f"**WER {wer:.2f} %**, {baseline:.2f} % before: {baseline - wer:.2f} points, "
        f"{100 * (baseline - wer) / baseline:.0f} % fewer errors (run {best.trial_id})."
    ]


def _contenders(outcome: SearchOutcome) -> list[str]:
    """The base model, the usual settings and the winner, one below the other."""
    rows = ["| | WER % | settings |", "| --- | --: | --- |"]
    rows.append(f"| {_model(outcome.plan.base)} untouched | {outcome.baseline.wer:.2f} | |")
    trials = {trial.trial_id: trial for trial in outcome.trials}
    winner = outcome.winner
    usual = _usual(outcome)
    if usual is not None and usual.best_wer is not None and usual.trial_id != winner:
        rows.append(
            f"| the usual settings: trial {usual.trial_id} | {usual.best_wer:.2f} | {_settings(usual)} |"
        )
    if winner in trials:
        trial = trials[winner]
        told, mean = "best trial", f"{trial.best_wer:.2f}"
        for found in outcome.verdict.standings if outcome.verdict else []:
            if found.trial_id == winner:
                told = f"winner, {_seeds(len(found.wers))}"
                mean = f"{found.mean:.2f}" + ("" if found.sd is None else f" ± {found.sd:.2f}")
        also = " with the usual settings" if usual is trial else ""
        rows.append(f"| **{told}: trial {winner}{also}** | **{mean}** | {_settings(trial)} |")
    return rows


def _usual(outcome: SearchOutcome) -> TrialRecord | None:
    """The trial with the usual settings of the model's size, one of the first of every search."""
    plan = outcome.plan
    if plan.base.learning_rate is None:
        return None
    space = dataclasses.replace(plan.space, try_first=[]).with_recipe(plan.base.learning_rate)
    recipe = space.try_first[0]
    return next((trial for trial in outcome.trials if trial.config == recipe), None)


def _finalists(verdict: Verdict) -> list[str]:
    rows = ["| finalist | seeds | mean WER % | sd | behind | 95 % interval |"]
    rows.append("| --- | --: | --: | --: | --: | --: |")
    for place, found in enumerate(verdict.standings):
        low, high = found.interval
        name = f"**{found.trial_id}**" if found.trial_id == verdict.winner else found.trial_id
        sd = "" if found.sd is None else f"{found.sd:.2f}"
        behind = f"{found.difference:.2f} | {low:.2f} to {high:.2f}" if place else "|"
        rows.append(f"| {name} | {len(found.wers)} | {found.mean:.2f} | {sd} | {behind} |")
    told = "They differ by no more than noise: the cheapest of the best wins." if verdict.tie else ""
    return [*rows, "", told] if told else rows


def _course(outcome: SearchOutcome) -> str:
    """How many trials ended in which way, and what ended the search."""
    statuses = [trial.status for trial in outcome.trials]
    counts = [f"{statuses.count(status)} {status.replace('_', ' ')}" for status in dict.fromkeys(statuses)]
    asked = outcome.plan.request.trials
    number = f"{len(statuses)}" if len(statuses) == asked else f"{len(statuses)} of {asked}"
    line = f"{number} trials in {clock(outcome.seconds)}: {', '.join(counts) or 'none began'}."
    if outcome.repeats:
        line += f" {len(outcome.repeats)} repeats of the best."
    if outcome.end is not None:
        line += f" It ended because {outcome.end.text}."
    elif outcome.interrupted:
        line += " **It was interrupted**; `--resume` goes on with it."
    return line


def _space(plan: SearchPlan) -> list[str]:
    rows = [f"| setting | searched (`{plan.space.path.name}`) |", "| --- | --- |"]
    return rows + [f"| `{name}` | {text} |" for name, text in plan.space.describe()]


def _what(base: TrainConfig) -> str:
    language = f", language `{base.language}`" if base.language else ""
    task = "" if base.task == "transcribe" else f", task {base.task}"
    return f"{_model(base)} on `{_short(base.data)}`{language}{task}"


def _model(base: TrainConfig) -> str:
    return f"`{_short(base.model)}`"


def _short(source: str) -> str:
    """A folder or file by its name only, all else as it is."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith("/") else source


def _settings(record: TrialRecord) -> str:
    return f"`{key_settings(record.config)}`"


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"mean of {count} seeds"
