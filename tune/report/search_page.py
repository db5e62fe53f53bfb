"""The page of a search: what came out of it, what to do with that, and how it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainer.scoring.translation import TRANSLATE
from tune.experiments.results import average_line, guards_line
from tune.pages.page import Cell, render_page
from tune.report.advice.rules import advise
from tune.report.analysis import Analysis, Winner, last_line
from tune.report.costs import OUTCOMES, Costs, find_costs
from tune.report.figures import draw_curves, draw_slices
from tune.report.scales import tell
from tune.report.shared import gain_tile, shared_parts, state_text, test_tiles
from tune.search.finalists import describe_lowest
from tune.search.guards import guard_names
from tune.search.records import Trial, listed, trial_of, trial_order
from tune.util.console import SHORT_NAMES, clock

_LEAST_TO_COMPARE = 3
"""Trials below which figures of the settings show nothing."""
_MOST_ROWS = 20
"""Trials that are shown at once; of more, the best, and all of them on a click."""
_BEST_ROWS = 10
_SHORT_CODE = 28
"""Characters of a command or setting that are never broken into two lines."""
_STATUS = {"completed": "nowrap good", "failed": "nowrap bad", "diverged": "nowrap bad"}


def search_page(analysis: Analysis) -> str:
    costs, language = find_costs(analysis), analysis.settings.base.language
    lead = (
        f"Search for fine-tuning {analysis.model} on {analysis.data}, {language} · {state_text(analysis)} · begun "
        f"{analysis.created[:16].replace('T', ' ')}"
    )
    searched = (
        [[Cell(name, "code"), text] for name, text in analysis.space.describe()] if analysis.space else []
    )
    if analysis.importances:
        shares = [analysis.importances.get(name) for name in analysis.parameters]
        cells = ["" if share is None else f"{100 * share:.0f} %" for share in shares]
        searched = [[*row, share] for row, share in zip(searched, cells, strict=True)]
    return render_page(
        "search.html",
        analysis.name,
        lead,
        task=analysis.state.task,
        tiles=_tiles(analysis, costs),
        nothing=_why_nothing(analysis),
        settings=_winning_settings(analysis),
        best="winner" if analysis.has_ended else "best so far",
        usual_outcome=_usual_outcome(analysis),
        gain=analysis.gain,
        finalists=_finalists(analysis),
        guards=_guards(analysis),
        advice=[(_pieces(found.seen), _pieces(found.follows)) for found in advise(analysis)],
        searched=searched,
        compared=len(analysis.expected) if analysis.importances else 0,
        about=_about(analysis),
        trials=_trials(analysis),
        costs=_cost_table(costs),
        curves=draw_curves(analysis),
        slices=draw_slices(analysis) if len(analysis.ranked) >= _LEAST_TO_COMPARE else [],
        **shared_parts(analysis),
    )


def _tiles(analysis: Analysis, costs: Costs) -> list[tuple[str, str]]:
    winner = analysis.winner
    base = (f"{analysis.state.comparable_base:.2f} %", f"WER of the base model, {analysis.model}")
    if winner is None:
        return [("none", "trained model yet"), base]
    spent, unit = costs.tell(costs.total).split(" ")
    found = [(f"{winner.value:.2f} %", _winner_words(analysis, winner)), base]
    found.append(gain_tile(analysis.state.comparable_base, winner.value))
    best = analysis.state.best()
    if best is not None and best.members:
        what = f"WER of {best.trial_id}, the mean of {listed(best.members)}, which is exported"
        found.append((f"{best.best_value:.2f} %", what))
    found += test_tiles(analysis)
    recipe = analysis.recipe_trial
    if recipe is not None and recipe.status == "completed" and recipe.trial_id != winner.trial_id:
        # As the winner is: of the same seeds and the same window, where the usual settings were a finalist.
        scores = analysis.state.verdict.scores if analysis.state.verdict else ()
        of_seeds = next((one for one in scores if one.trial_id == recipe.trial_id), None)
        how = ", one seed, as trials are measured" if analysis.state.verdict else ""
        value = recipe.best_value
        if of_seeds is not None:
            value, how = of_seeds.mean, f", mean of {len(of_seeds.runs)} seeds"
        found.append((f"{value:.2f} %", f"WER of the usual settings, trial {recipe.trial_id}{how}"))
    return [*found, (spent, f"{unit} spent, in {clock(analysis.state.seconds)}")]


def _why_nothing(analysis: Analysis) -> str:
    if analysis.winner is not None:
        return ""
    if analysis.all_diverged:
        return f"{analysis.all_diverged_words} before there was a WER."
    return "No trial has reached an evaluation."


def _winner_words(analysis: Analysis, winner: Winner) -> str:
    if winner.unfinished:
        return f"lowest WER so far, trial {winner.trial_id} before its full budget"
    if analysis.state.verdict is not None:
        return f"WER of the winner, trial {winner.trial_id}, {winner.describe()}"
    if not analysis.has_ended:
        return f"lowest WER so far, trial {winner.trial_id}"
    luck = describe_lowest(trial.best_value for trial in analysis.trials if not analysis.state.passed_over)
    return ", ".join(filter(None, ["WER of the best", f"trial {winner.trial_id}", luck]))


def _winning_settings(analysis: Analysis) -> list[list[Cell | str]]:
    winner = analysis.winning_trial.config if analysis.winning_trial else {}
    return [
        [Cell(name, "code"), tell(winner.get(name, "")), tell(analysis.recipe.get(name, ""))]
        for name in analysis.parameters
    ]


def _usual_outcome(analysis: Analysis) -> str:
    recipe = analysis.recipe_trial
    if recipe is None:
        return "They were not tried."
    wer = "" if recipe.best_value is None else f", {recipe.best_value:.2f} %"
    return f"Trial {recipe.trial_id} had them: {OUTCOMES[recipe.status]}{wer}."


def _finalists(analysis: Analysis) -> dict[str, Any] | None:
    """What the trials that were trained again came to, or that they are not compared yet."""
    verdict = analysis.state.verdict
    if verdict is None:
        if not analysis.state.repeats.all():
            return None
        names = dict.fromkeys(trial_of(run.trial_id) for run in analysis.state.repeats.all())
        ended = sum(run.status == "completed" for run in analysis.state.repeats.all())
        text = (
            f"Trials {', '.join(names)} are trained again with other seeds; {ended} of these trainings "
            "have ended, and they are not compared yet."
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
    text = "The best trials once more with other seeds, since a single training is partly luck."
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
        "What could be exported was measured on data that nothing was trained on, beside the base model. What is shown "
        f"to lose more than is allowed is passed over. {guards_line(state)}."
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
    held = f"{gpus}{resources.cpus:g} CPU a trial{workers}, {resources.concurrent} at a time"
    rungs = ", ".join(f"{rung:,}" for rung in settings.rungs)
    return [
        ["budget of a trial", f"{analysis.budget:,} samples seen ({budget})"],
        ["rungs", f"{rungs} samples seen: where trials are measured, and the worse ones stopped"],
        ["hardware", f"{held}; {platform}".rstrip("; ")],
    ]


def _trials(analysis: Analysis) -> dict[str, Any]:
    """All trials; of many the best ones too, which come first."""
    trials = analysis.trials
    many = len(trials) > _MOST_ROWS
    measured = [trial for trial in trials if many and trial.best_value is not None]
    measured.sort(key=lambda trial: (trial.best_value, trial_order(trial.trial_id)))
    tables = {"best": measured[:_BEST_ROWS], "all": trials}
    return {"count": len(trials), "many": many} | {
        name: _trial_table(analysis, shown) for name, shown in tables.items()
    }


def _trial_table(analysis: Analysis, trials: Sequence[Trial]) -> dict[str, Any]:
    settings, winner = list(analysis.parameters), analysis.winning_trial
    names = ["trial", "status", *(SHORT_NAMES.get(name, name) for name in settings)]
    second = [] if analysis.state.task == TRANSLATE else ["CER %"]
    names += ["effective", "WER %", *second, "epochs", "time"]
    rows, reasons = [_trial_row(trial, settings, bool(second)) for trial in trials], list(map(_why, trials))
    explained = any(reasons)
    if explained:
        names.append("why it ended")
        rows = [[*row, Cell(reason, "words")] for row, reason in zip(rows, reasons, strict=True)]
    strong = [i for i, trial in enumerate(trials) if trial is winner]
    return {"names": names, "rows": rows, "numbers": 2, "after": int(explained), "strong": strong}


def _trial_row(trial: Trial, names: Sequence[str], with_cer: bool) -> list[Cell | str]:
    cer = "" if trial.best_cer is None else f"{trial.best_cer:.2f}"
    return [
        trial.trial_id,
        Cell(OUTCOMES[trial.status], _STATUS.get(trial.status, "nowrap")),
        *(tell(trial.config.get(name, "")) for name in names),
        str(trial.effective_batch or ""),
        "" if trial.best_value is None else f"{trial.best_value:.2f}",
        *([cer] if with_cer else []),
        f"{trial.epoch:.2f}",
        clock(trial.elapsed),
    ]


def _why(trial: Trial) -> str:
    if trial.status == "failed":
        return last_line(trial.error)
    return trial.stop.describe() if trial.stop else ""


def _cost_table(costs: Costs) -> dict[str, Any] | None:
    if not costs.total:
        return None
    found = [(share.name, share.runs, share.hours) for share in costs.shares]
    found.append(("in all", sum(share.runs for share in costs.shares), costs.total))
    rows = [
        [name, str(runs), costs.tell(hours).split()[0], f"{100 * hours / costs.total:.0f} %"]
        for name, runs, hours in found
    ]
    text = (
        f"A run holds {costs.each:g} {costs.device}{'s' if costs.each > 1 else ''} from its start to its end."
    )
    if costs.saved and costs.full:
        text += (
            f" Had no trial been stopped early, the trials would have taken about {costs.tell(costs.full)} instead of "
            f"{costs.tell(costs.trials)}: {100 * costs.saved / costs.full:.0f} % were saved."
        )
    return {"text": text, "unit": costs.unit, "rows": rows}
