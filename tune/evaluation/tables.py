"""An evaluation on the screen: rates, comparison, groups, signs of hallucination, the worst utterances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.scoring.alignment import Kind, Piece, pairs
from trainer.scoring.hallucinations import SIGNS
from tune.evaluation.words import between, difference_between, errors_in, p_value, percent, points, verdict
from tune.util.console import clock, say

if TYPE_CHECKING:
    from trainer.scoring.scores import Group, ModelScores, Rate, Scores
    from tune.evaluation.evaluation import EvaluationResult

_MOST_GROUPS = 12
_MOST_SIGNS = 6
_STYLES: dict[Kind, str] = {"equal": "", "substitute": "yellow", "delete": "red", "insert": "cyan"}


def print_evaluation(result: EvaluationResult, worst: int, console: Console) -> None:
    """Print everything; `worst` utterances aligned."""
    scores = result.scores
    _print_head(result, console)
    console.print()
    console.print(rates_table(scores))
    console.print(errors_table(scores))
    if scores.baseline is not None:
        console.print(Text(verdict(scores), style="bold"))
    console.print()
    for column, groups in scores.groups.items():
        console.print(groups_table(column, groups, scores))
    _print_signs(scores.model, scores, console)
    rows = scores.model.worst(worst)
    if rows:
        console.print()
        say(console, f"worst utterances, as counted ({scores.normalizer.name}):")
        for row in rows:
            _print_utterance(scores, row, console)


def _print_head(result: EvaluationResult, console: Console) -> None:
    scores, config = result.scores, result.plan.config
    model = scores.model
    against = f" against {scores.baseline.model}" if scores.baseline else ""
    say(console, f"{model.model}{against} on {config.data}, split {result.split}, language {config.language}")
    clips, seconds = len(scores.reference), sum(scores.reference.seconds)
    words = f"{int(model.counts['wer'].lengths.sum()):,} {scores.normalizer.unit}"
    say(console, f"data        {clips:,} clips, {clock(seconds)} of audio, {words}")
    say(console, f"normaliser  {scores.normalizer.name}: {scores.normalizer.description}")
    found = model.transcripts
    say(
        console,
        f"speed       real-time factor {found.real_time_factor:.3f}: decoded in {clock(found.seconds)} on "
        f"{found.device}, {found.precision}, {config.eval_batch_size} clips at a time",
    )


def rates_table(scores: Scores) -> Table:
    """The rates of one or two models, their difference and its p-value."""
    table = _table("", f"{scores.model.model} %", "95 % interval")
    other = scores.baseline
    if other is not None:
        for name in (f"{other.model} %", "95 % interval", "difference", "95 % interval", "p"):
            table.add_column(Text(name), justify="right")
    for rate, name in scores.shown_rates.items():
        cells = [*_rate_cells(scores.model.rates[rate])]
        if other is not None:
            found = scores.comparisons[rate]
            cells += [*_rate_cells(other.rates[rate]), points(found.difference)]
            cells += [difference_between(found), p_value(found.p_value)]
        table.add_row(name, *cells, style="bold" if rate == "wer" else None)
    return table


def errors_table(scores: Scores) -> Table:
    """Substitutions, deletions and insertions of what the main rate counts."""
    unit = scores.normalizer.unit
    table = _table(
        f"\n{unit}", "\nin all", "\nsubstituted", "\ndeleted", "\ninserted", "clips without\nan error"
    )
    for model in (scores.model, scores.baseline):
        if model is not None:
            counts = model.counts["wer"]
            totals = counts.totals()
            right = int(((counts.errors == 0) & (counts.lengths > 0)).sum())
            names = ("reference", "substitutions", "deletions", "insertions")
            table.add_row(Text(model.model), *(f"{totals[name]:,}" for name in names), f"{right:,}")
    return table


def groups_table(column: str, groups: Sequence[Group], scores: Scores) -> Table:
    """One row for each group, the largest ones where there are many."""
    rate = scores.main_rate
    table = _table(f"by {column}", "clips", scores.normalizer.unit, f"{rate} %", "95 % interval")
    if scores.baseline is not None:
        table.add_column(Text(f"{scores.baseline.model} {rate} %"), justify="right")
    for group in groups[:_MOST_GROUPS]:
        cells = [f"{len(group.rows):,}", f"{group.length:,}", *_rate_cells(group.rate)]
        cells += [percent(group.baseline.percent)] if group.baseline else []
        table.add_row(Text(group.value), *cells)
    if len(groups) > _MOST_GROUPS:
        table.add_row(f"... and {len(groups) - _MOST_GROUPS} more in --output and --json", style="dim")
    return table


def _print_signs(model: ModelScores, scores: Scores, console: Console) -> None:
    say(console, "signs of hallucination:")
    for kind, words in SIGNS.items():
        found = [sign for sign in model.signs if sign.kind == kind]
        of = scores.empty_references if kind == "empty reference" else len(scores.reference)
        if of:
            say(console, f"  {words}: {len(found):,} of {of:,} clips")
        for sign in found[:_MOST_SIGNS]:
            say(console, f"    {scores.reference.names[sign.row]}: {sign.detail}")
    for name, text in model.transcripts.probes.items():
        say(console, f"  {name}: {'nothing written, as it should be' if not text else f'wrote {text!r}'}")


def _print_utterance(scores: Scores, row: int, console: Console) -> None:
    counts, reference = scores.model.counts["wer"], scores.reference
    console.print()
    errors = errors_in(int(counts.errors[row]), int(counts.lengths[row]), scores.normalizer.unit)
    say(console, f"{reference.names[row]}  {reference.seconds[row]:.1f} s  {errors}")
    for line in aligned_lines(scores.model.alignments[row], console.width):
        console.print(line)


def aligned_lines(pieces: Sequence[Piece], width: int) -> Iterator[Text]:
    """Reference above hypothesis, word above word, broken into as many pairs of lines as the width needs.

    What stands in only one of them has a row of dots in the other, so that it reads without colours too.
    """
    said, heard = Text("  said   "), Text("  heard  ")
    begin = said.cell_len
    for kind, one, other in pairs(pieces):
        cells = max(cell_len(one), cell_len(other))
        if said.cell_len > begin and said.cell_len + cells + 1 > width:
            yield said
            yield heard
            said, heard = Text(" " * begin), Text(" " * begin)
        style = _STYLES[kind]
        said.append(_padded(one, cells), style=style if kind != "insert" else "dim").append(" ")
        heard.append(_padded(other, cells), style=style if kind != "delete" else "dim").append(" ")
    yield said
    yield heard


def _padded(word: str, cells: int) -> str:
    return "·" * cells if not word else word + " " * (cells - cell_len(word))


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    # As text: rich takes strings for markup, and names may hold what looks like it.
    table.add_column(Text(first))
    for name in numbers:
        table.add_column(Text(name), justify="right")
    return table


def _rate_cells(rate: Rate) -> tuple[str, str]:
    return percent(rate.percent), between(rate.interval)
