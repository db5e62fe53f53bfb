"""The page of a search: its result, advice, figures, finalists, trials and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.scoring.translation import TRANSLATE
from tune.experiments.results import average_line, guards_line
from tune.pages.page import Cell, render_page
from tune.report.advice.rules import advise
from tune.report.analysis import LEAST_TRIALS, Analysis, short_error
from tune.report.costs import Costs, find_costs, more_text
from tune.report.figures import draw_curves, draw_parallel, draw_slices
from tune.report.scales import tell
from tune.report.shared import shared_parts, state_text, tiles
from tune.search.finalists import describe_lowest
from tune.search.guards import guard_names
from tune.search.records import OUTCOMES, Trial, rank, trial_of
from tune.util.console import SHORT_NAMES, clock

_LEAST_TO_COMPARE = 3
"""Trials below which figures of the settings show nothing."""
_SHORT_CODE = 28
"""Characters of a command or setting that are never broken into two lines."""
_STATUS = {"completed": "nowrap good", "failed": "nowrap bad", "diverged": "nowrap bad"}


def search_page(analysis: Analysis) -> str:
    language = analysis.settings.base.language
    lead = (
        f"Search for fine-tuning {analysis.model} on {analysis.data}, {language} · {state_text(analysis)} · started "
        f"{analysis.created[:16].replace('T', ' ')}"
    )
    searched = (
        [[Cell(name, "code"), text] for name, text in analysis.space.describe()] if analysis.space else []
    )
    if analysis.importances:
        shares = [analysis.importances.get(name) for name in analysis.parameters]
        cells = ["" if share is None else f"{100 * share:.0f} %" for share in shares]
        searched = [[*row, share] for row, share in zip(searched, cells, strict=True)]
    shown = len(analysis.ranked) >= _LEAST_TO_COMPARE
    return render_page(
        "search.html",
        analysis.name,
        lead,
        task=analysis.state.task,
        tiles=tiles(analysis, _winner_words(analysis)),
        nothing=_why_nothing(analysis),
        settings=_winning_settings(analysis),
        best="winner" if analysis.has_ended else "best so far",
        usual_outcome=_usual_outcome(analysis),
        search_gain=analysis.search_text,
        finalists=_finalists(analysis),
        guards=_guards(analysis),
        advice=[(_pieces(found.seen), _pieces(found.follows)) for found in advise(analysis)],
        searched=searched,
        importance=_importance(analysis),
        about=_about(analysis),
        trials=_trials(analysis),
        costs=_cost_table(find_costs(analysis)),
        more=more_text(analysis),
        curves=draw_curves(analysis),
        parallel=draw_parallel(analysis) if shown else None,
        slices=draw_slices(analysis) if shown else [],
        **shared_parts(analysis),
    )


def _why_nothing(analysis: Analysis) -> str:
    if analysis.winner is not None:
        return ""
    if analysis.all_diverged:
        return f"{analysis.all_diverged_words} before there was a WER."
    return "No trial has reached an evaluation."


def _winner_words(analysis: Analysis) -> str:
    """What the validation WER is of."""
    winner = analysis.winner
    if winner is None:
        return ""
    if winner.unfinished:
        return f"lowest validation WER so far, trial {winner.trial_id} before its full budget"
    if analysis.state.verdict is not None:
        return f"validation WER of the winner, trial {winner.trial_id}, {winner.describe()}"
    if not analysis.has_ended:
        return f"lowest validation WER so far, trial {winner.trial_id}"
    luck = describe_lowest(winner.value, (trial.best_value for trial in analysis.trials))
    parts = ["validation WER of the best", f"trial {winner.trial_id}", winner.describe(), luck]
    return ", ".join(filter(None, parts))


def _importance(analysis: Analysis) -> str:
    """What importance is, or why there is none."""
    count = len(analysis.expected)
    if analysis.importances:
        return (
            f"Importance: the share of the differences between {count} trials that a setting explains, by a random "
            "forest; only for settings that all trials have."
        )
    if count < LEAST_TRIALS:
        return f"Importance needs at least {LEAST_TRIALS} comparable trials; there are {count}."
    return ""


def _winning_settings(analysis: Analysis) -> list[list[Cell | str]]:
    winner, recipe = analysis.winning_trial, analysis.recipe
    return [
        [Cell(name, "code"), _setting(analysis, winner, name) if winner else "", tell(recipe.get(name, ""))]
        for name in _settings(analysis)
    ]


def _settings(analysis: Analysis) -> list[str]:
    """What is searched, and what was while the search had another space."""
    return list(
        dict.fromkeys([*analysis.parameters, *(name for each in analysis.trials for name in each.config)])
    )


def _setting(analysis: Analysis, trial: Trial, name: str) -> str:
    """A trial's value, its own or that of all; empty where a condition leaves it out."""
    space = analysis.space
    if name in trial.config or not space:
        return tell(trial.config.get(name, ""))
    left_out = name in space.ranges and space.searched_in(trial.config, name) is None
    return "" if left_out else tell(analysis.shared.get(name, ""))


def _usual_outcome(analysis: Analysis) -> str:
    recipe = analysis.recipe_trial
    if recipe is None:
        return "No trial used them."
    wer = "" if recipe.best_value is None else f", WER {recipe.best_value:.2f} % in one training"
    return f"Trial {recipe.trial_id} used them: {OUTCOMES[recipe.status]}{wer}."


def _finalists(analysis: Analysis) -> dict[str, Any] | None:
    """What the trials that were trained again came to, or that they are not compared yet."""
    verdict = analysis.state.verdict
    if verdict is None:
        if not analysis.state.repeats.all():
            return None
        names = dict.fromkeys(trial_of(run.trial_id) for run in analysis.state.repeats.all())
        ended = sum(run.status == "completed" for run in analysis.state.repeats.all())
        text = (
            f"Trials {', '.join(names)} are trained again with other seeds; {ended} of these trainings have ended. "
            "They are compared when all have."
        )
        return {"text": text, "rows": [], "strong": ()}
    rows: list[list[Cell | str]] = []
    for score in verdict.scores:
        leads, interval = score is verdict.scores[0], score.mean_interval
        won, alike = score.trial_id == verdict.winner, score.trial_id in verdict.undecided
        rows.append(
            [
                score.trial_id,
                str(len(score.values)),
                f"{score.mean:.2f}",
                "" if score.sd is None else f"{score.sd:.2f}",
                f"{interval[0]:.2f} to {interval[1]:.2f}",
                "" if leads else f"{score.difference:.2f}",
                "" if leads else f"{score.interval[0]:.2f} to {score.interval[1]:.2f}",
                clock(score.seconds),
                Cell("winner" if won else "no difference shown" if alike else "", "nowrap"),
            ]
        )
    text = "The best trials were trained again with other seeds, because a single training is partly luck."
    if len(verdict.scores) > 1:
        text += f" Trial {verdict.describe()}."
    if average := average_line(analysis.state):
        text += f" {average}."
    strong = [i for i, score in enumerate(verdict.scores) if score.trial_id == verdict.winner]
    return {"text": text, "rows": rows, "strong": strong}


def _guards(analysis: Analysis) -> dict[str, Any] | None:
    state, judged = analysis.state, analysis.state.guards_judged
    if judged is None:
        return None
    names, strong = guard_names(state.options.guard), []
    rows: list[list[Cell | str]] = []
    for run, guard_losses in judged.models.items():
        wer = state.run(run).best_value
        strong += [len(rows)] if run == judged.run else []
        for each in guard_losses:
            kept = "kept" if each.kept else "lost"
            figures = [each.base, each.rate, each.loss]
            cells = ["" if figure is None else f"{figure:.2f}" for figure in figures]
            interval = f"{each.interval[0]:.2f} to {each.interval[1]:.2f}" if each.interval else ""
            shown = [run, "" if wer is None else f"{wer:.2f}", *cells, interval, f"{each.max_loss:g}"]
            rows.append([*shown, Cell(names.get(each.guard, each.guard), "nowrap"), Cell(kept, "nowrap")])
    text = (
        "Guards are data sets that were not trained on. The base model and the models that could be exported were "
        f"measured on them; one that clearly loses more than is allowed is not exported. {guards_line(state)}."
    )
    return {"text": text, "rows": rows, "strong": strong}


def _pieces(text: str) -> list[Cell | str]:
    """Advice in pieces: what is between backticks is code."""
    return [
        piece if index % 2 == 0 else Cell(piece, "code nowrap" if len(piece) <= _SHORT_CODE else "code")
        for index, piece in enumerate(text.split("`"))
    ]


def _about(analysis: Analysis) -> list[list[str]]:
    settings, steps = analysis.settings, analysis.settings.base.max_steps
    resources, platform = settings.resources, settings.versions.get("platform", "")
    budget = f"{steps} steps" if steps else f"{analysis.budget / max(1, analysis.epoch_samples):.3g} epochs"
    gpus = f"{resources.gpus:g} GPU and " if resources.gpus else ""
    workers = f" for {resources.workers} workers" if resources.workers > 1 else ""
    held = f"{gpus}{resources.cpus:g} CPU per trial{workers}, {resources.concurrent} trials at a time"
    rungs = ", ".join(f"{rung:,}" for rung in settings.rungs)
    return [
        ["full budget", f"{analysis.budget:,} samples seen ({budget})"],
        ["rungs", f"{rungs} samples seen: the points at which trials are evaluated and poor ones stopped"],
        ["hardware", f"{held}; {platform}".rstrip("; ")],
    ]


def _trials(analysis: Analysis) -> dict[str, Any]:
    """All trials, from the lowest WER on."""
    settings, winner = _settings(analysis), analysis.winning_trial
    trials = sorted(analysis.trials, key=rank)
    second = [] if analysis.state.task == TRANSLATE else ["CER %"]
    names = ["trial", "WER %", *second, *(SHORT_NAMES.get(name, name) for name in settings)]
    names += ["epochs", "time", "status", "why it ended"]
    rows = [_trial_row(analysis, trial, settings, with_cer=bool(second)) for trial in trials]
    return {"names": names, "rows": rows, "strong": [i for i, trial in enumerate(trials) if trial is winner]}


def _trial_row(analysis: Analysis, trial: Trial, names: Sequence[str], *, with_cer: bool) -> list[Cell | str]:
    rates = [trial.best_value, *([trial.best_cer] if with_cer else [])]
    return [
        trial.trial_id,
        *("" if rate is None else f"{rate:.2f}" for rate in rates),
        *(_setting(analysis, trial, name) for name in names),
        f"{trial.epoch:.2f}",
        clock(trial.elapsed),
        Cell(OUTCOMES[trial.status], _STATUS.get(trial.status, "nowrap")),
        Cell(_why(trial), "words"),
    ]


def _why(trial: Trial) -> str:
    if trial.status == "failed":
        return short_error(trial.error)
    return trial.stop.describe() if trial.stop else ""


def _cost_table(costs: Costs) -> dict[str, Any] | None:
    if not costs.total:
        return None
    found = [(share.name, share.runs, share.hours) for share in costs.shares]
    found.append(("total", sum(share.runs for share in costs.shares), costs.total))
    rows = [
        [name, str(runs), costs.tell(hours).split()[0], f"{100 * hours / costs.total:.0f} %"]
        for name, runs, hours in found
    ]
    text = f"Each run uses {costs.each:g} {costs.device}{'s' if costs.each > 1 else ''} from its start to its end."
    if costs.saved and costs.full:
        text += (
            f" Without early stopping the trials would have taken about {costs.tell(costs.full)} instead of "
            f"{costs.tell(costs.trials)}: it saved {100 * costs.saved / costs.full:.0f} %."
        )
    return {"text": text, "unit": costs.unit, "rows": rows}
