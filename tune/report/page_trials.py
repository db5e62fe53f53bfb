"""The tables of a search's page: trials, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tune.display import SHORT_NAMES, best_rate, clock
from tune.pages import page
from tune.pages.page import Cell, Column, Html
from tune.pages.pictures import Picture
from tune.report.costs import OUTCOMES, Costs
from tune.report.known import Experiment
from tune.report.scales import tell
from tune.report.words import last_line
from tune.search.names import trial_order
from tune.search.records import TrialRecord

_MOST_ROWS = 20
"""Trials that are shown at once; of more, the best, and all of them on a click."""
_BEST_ROWS = 10


def trial_parts(experiment: Experiment) -> list[str]:
    """All trials; of many the best ones first."""
    trials = experiment.trials
    if not trials:
        return []
    if len(trials) <= _MOST_ROWS:
        return [page.heading("Trials"), _trial_table(experiment, trials)]
    parts = [page.heading("Trials")]
    measured = [trial for trial in trials if trial.best_wer is not None]
    best = sorted(
        measured, key=lambda trial: (trial.best_is_partial, trial.best_wer, trial_order(trial.trial_id))
    )[:_BEST_ROWS]
    if best:
        parts.append(page.paragraph(f"The best {len(best)} of {len(trials)}, by their lowest WER:"))
        parts.append(_trial_table(experiment, best))
    return [*parts, page.folded(f"All {len(trials)} trials", _trial_table(experiment, trials))]


def _trial_table(experiment: Experiment, trials: Sequence[TrialRecord]) -> str:
    names, winner = list(experiment.parameters), experiment.winner
    columns = [
        Column("trial"),
        Column("status"),
        *(Column(SHORT_NAMES.get(name, name), True) for name in names),
    ]
    columns += [Column(name, True) for name in ("effective", "WER %", "CER %", "epochs", "time")]
    rows = [_trial_row(trial, names) for trial in trials]
    reasons = [_why(trial) for trial in trials]
    if any(reasons):
        columns.append(Column("why it ended"))
        rows = [[*row, reason] for row, reason in zip(rows, reasons, strict=True)]
    strong = frozenset(i for i, t in enumerate(trials) if winner and t.trial_id == winner.trial_id)
    return page.table(columns, rows, strong)


def _trial_row(trial: TrialRecord, names: Sequence[str]) -> list[Cell]:
    kinds = {"completed": " good", "failed": " bad", "diverged": " bad"}
    return [
        trial.trial_id,
        Html(f'<span class="nowrap{kinds.get(trial.status, "")}">{OUTCOMES[trial.status]}</span>'),
        *(tell(trial.config.get(name, "")) for name in names),
        str(trial.effective_batch or ""),
        "" if trial.best_wer is None else best_rate(trial),
        "" if trial.best_cer is None else f"{trial.best_cer:.2f}",
        f"{trial.epoch:.2f}",
        clock(trial.elapsed),
    ]


def _why(trial: TrialRecord) -> Cell:
    """Why a trial ended before its budget."""
    stop = trial.stop
    if trial.status == "failed":
        return Html(f'<span class="words">{escape(last_line(trial.error))}</span>')
    if stop is None:
        return ""
    where = f"at {stop.samples_seen:,} samples"
    if stop.reason == "diverged":
        text = f"loss or WER no finite number {where}"
    elif stop.reason == "rising_wer":
        text = f"WER rises while the loss falls, {where}"
    else:
        limit = "cutoff" if stop.reason == "asha" else "limit"
        text = f"{limit} {stop.cutoff:.2f} % at {stop.samples_seen:,}"
    return Html(f'<span class="nowrap">{escape(text)}</span>')


def cost_parts(costs: Costs, shown: Picture | None) -> list[str]:
    """What the runs held, by outcome, and what early stopping saved."""
    if not costs.total or shown is None:
        return []
    rows: list[list[Cell]] = [
        [
            share.name,
            str(share.runs),
            f"{costs.amount(share.hours):.1f}",
            f"{100 * share.hours / costs.total:.0f} %",
        ]
        for share in costs.shares
    ]
    runs = sum(share.runs for share in costs.shares)
    rows.append(["in all", str(runs), f"{costs.amount(costs.total):.1f}", "100 %"])
    text = (
        f"A run holds {costs.each:g} {costs.device}{'s' if costs.each > 1 else ''} from its start to its end."
    )
    if costs.saved and costs.full:
        text += (
            f" Had no trial been stopped early, the trials would have taken about {costs.tell(costs.full)} instead of "
            f"{costs.tell(costs.trials)}: {100 * costs.saved / costs.full:.0f} % were saved."
        )
    columns = [Column("outcome"), Column("runs", True), Column(costs.unit, True), Column("share", True)]
    table = page.table(columns, rows, frozenset({len(rows) - 1}))
    return [page.heading("What it cost"), page.paragraph(text), page.gallery([page.picture(shown), table])]
