"""An evaluation in figures and words, the same on the screen and on the page; and how it is printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from trainer.scoring.alignment import Kind, Piece, pairs
from trainer.scoring.hallucinations import SIGNS
from trainer.scoring.intervals import LEAST, Comparison, Interval
from trainer.scoring.normalizers import rates_note
from trainer.scoring.translation import ChrfCounts
from tune.util.console import clock, make_table, say

if TYPE_CHECKING:
    from trainer.scoring.scores import Group, ModelScores, Scores
    from tune.evaluation.evaluation import EvaluationResult

_TOO_FEW = "too few clips"
_MOST_GROUPS = 12
_MOST_SIGNS = 6
_STYLES: dict[Kind, str] = {"equal": "", "substitute": "yellow", "delete": "red", "insert": "cyan"}


def percent(number: float) -> str:
    """A rate without its sign: `9.19`."""
    return f"{number:.2f}"


def points(number: float) -> str:
    """A difference with its sign: `-59.33`, `+0.27`, `0.00`."""
    text = f"{number:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "\u2212")


def between(interval: Interval | None, *, signed: bool = False) -> str:
    """An interval: `8.02 to 10.51`; `too few clips` where there is none."""
    if interval is None:
        return _TOO_FEW
    written = points if signed else percent
    return f"{written(interval[0])} to {written(interval[1])}"


def difference_between(found: Comparison) -> str:
    """The interval of a difference, or why there is none, in as few words as a table has room for."""
    return "same errors" if _all_alike(found) else between(found.interval, signed=True)


def p_value(p: float) -> str:
    """`0.013`, or `< 0.001` where it is smaller; `0.050` only where no difference is shown."""
    return "< 0.001" if p < 0.001 else f"{min(p, 0.049) if p < 0.05 else p:.3f}"


def p_sentence(p: float) -> str:
    """`p = 0.013`, or `p < 0.001` where it is smaller."""
    return f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"


def verdict(scores: Scores) -> str:
    """The comparison in a sentence, by the main rate."""
    assert scores.baseline is not None
    found, rate = scores.comparisons[scores.objective], scores.main_rate
    model, other = scores.model.model, scores.baseline.model
    if not found.shown:
        return (
            f"no difference shown: {rate} of {model} minus that of {other} is {points(found.difference)} points, "
            f"{_interval_sentence(found)}, {p_sentence(found.p_value)}"
        )
    below, fewer = ("below", "fewer") if found.difference < 0 else ("above", "more")
    before = scores.baseline.rates[scores.objective].percent
    share = f" ({100.0 * abs(found.difference) / before:.0f} % {fewer} errors)" if before else ""
    return (
        f"{rate} of {model} is {abs(found.difference):.2f} points {below} that of {other}{share}: "
        f"{_interval_sentence(found, ' of the difference')}, {p_sentence(found.p_value)}; fewer errors in "
        f"{found.better:,} clips, more in {found.worse:,}"
    )


def _interval_sentence(found: Comparison, of: str = "") -> str:
    if _all_alike(found):
        return "the same errors on every clip"
    if found.interval is None:
        return f"{_TOO_FEW} for a 95 % interval"
    return f"95 % interval{of} {between(found.interval, signed=True)}"


def _all_alike(found: Comparison) -> bool:
    """Whether two models made as many errors on each of enough clips to say so."""
    return found.same_errors and found.utterances >= LEAST


def errors_in(scores: Scores, row: int) -> str:
    """Of an utterance: `3 errors in 4 words`, `1 error in 1 word`."""
    counts, unit = scores.model.decides, scores.normalizer.unit
    if isinstance(counts, ChrfCounts):
        return f"chrF error {counts.of([row]).percent:.1f} %"
    errors, length = int(counts.errors[row]), int(counts.lengths[row])
    return f"{errors:,} error{'s' * (errors != 1)} in {length:,} {unit if length != 1 else unit.removesuffix('s')}"


def without_error(model: ModelScores) -> int:
    """Clips of which every word was heard."""
    counts = model.decides
    return int(((counts.errors == 0) & (counts.lengths > 0)).sum())


def share_without_error(model: ModelScores) -> str:
    """The same in whole percent of the clips in which something is said, rounded down."""
    return f"{100 * without_error(model) // max(1, int((model.decides.lengths > 0).sum()))} %"


def rate_rows(scores: Scores) -> list[list[str]]:
    """Of each rate: name, percent, interval; with a baseline also its own, the difference, its interval and p."""
    rows = []
    for rate, name in scores.shown_rates.items():
        cells = [name]
        for model in scores.models:
            cells += [percent(model.rates[rate].percent), between(model.rates[rate].interval)]
        if scores.baseline is not None:
            found = scores.comparisons[rate]
            cells += [points(found.difference), difference_between(found), p_value(found.p_value)]
        rows.append(cells)
    if scores.translates:
        for name, figures in (
            ("chrF", [100.0 - model.rates[scores.objective].percent for model in scores.models]),
            ("BLEU", [model.bleu or 0.0 for model in scores.models]),
        ):
            cells = [cell for figure in figures for cell in (percent(figure), "")]
            change = [points(figures[0] - figures[1]), "", ""] if scores.baseline is not None else []
            rows.append([name, *cells, *change])
    return rows


def error_rows(scores: Scores) -> list[list[str]]:
    """Of each model: what was said, substitutions, deletions and insertions of what the main rate counts; none of
    translations.
    """
    if scores.translates:
        return []
    kinds = ("reference", "substitutions", "deletions", "insertions")
    totals = [(model.model, model.decides.totals()) for model in scores.models]
    return [[model, *(f"{found[kind]:,}" for kind in kinds)] for model, found in totals]


def group_rows(groups: Iterable[Group]) -> list[list[str]]:
    """Of each group: value, clips, words; percent and interval of the model, and of the baseline."""
    rows = []
    for group in groups:
        cells = [group.value, f"{len(group.rows):,}", f"{group.length:,}"]
        for rate in (group.rate, group.baseline):
            if rate is not None:
                cells += [percent(rate.percent), between(rate.interval)]
        rows.append(cells)
    return rows


def sign_counts(scores: Scores) -> dict[str, list[str]]:
    """By sign of hallucination, in how many clips each model shows it; those that no clip can show are left out."""
    found = {}
    for kind in SIGNS:
        of = scores.empty_references if kind == "empty reference" else len(scores.reference)
        if of:
            counts = [sum(sign.kind == kind for sign in model.signs) for model in scores.models]
            found[kind] = [f"{count:,} of {of:,}" for count in counts]
    return found


def print_evaluation(result: EvaluationResult, worst: int, console: Console) -> None:
    """Print everything; `worst` utterances aligned."""
    scores, unit = result.scores, result.scores.unit
    model, other = scores.model, scores.baseline
    _print_head(result, console)
    console.print()
    names = ["", f"{model.model} %", "95 % interval"]
    names += [f"{other.model} %", "95 % interval", "difference", "95 % interval", "p"] if other else []
    console.print(make_table(names, rate_rows(scores), bold=True))
    names = [f"\n{unit}", "\nin all", "\nsubstituted", "\ndeleted", "\ninserted", "clips without\nan error"]
    if errors := error_rows(scores):
        right = [f"{without_error(one):,}" for one in scores.models]
        console.print(make_table(names, [[*row, count] for row, count in zip(errors, right, strict=True)]))
    if other is not None:
        console.print(Text(verdict(scores), style="bold"))
    console.print()
    for column, groups in scores.groups.items():
        names = [f"by {column}", "clips", unit, f"{scores.main_rate} %", "95 % interval"]
        names += [f"{other.model} {scores.main_rate} %"] if other else []
        table = make_table(names, [row[: len(names)] for row in group_rows(groups[:_MOST_GROUPS])])
        if len(groups) > _MOST_GROUPS:
            table.add_row(f"... and {len(groups) - _MOST_GROUPS} more in --output and --json", style="dim")
        console.print(table)
    if not scores.translates:
        _print_signs(scores, console)
    rows = model.decides.worst_first()[:worst]
    if rows:
        console.print()
        how = "by chrF, word by word" if scores.translates else f"as counted ({scores.normalizer.name})"
        say(console, f"worst utterances, {how}:")
    for row in rows:
        console.print()
        say(
            console,
            f"{scores.reference.names[row]}  {scores.reference.seconds[row]:.1f} s  {errors_in(scores, row)}",
        )
        for line in aligned_lines(model.alignments[row], console.width):
            console.print(line)


def _print_head(result: EvaluationResult, console: Console) -> None:
    scores, config = result.scores, result.plan.config
    model = scores.model
    against = f" against {scores.baseline.model}" if scores.baseline else ""
    say(console, f"{model.model}{against} on {config.data}, split {result.split}, language {config.language}")
    clips, seconds = len(scores.reference), sum(scores.reference.seconds)
    words = f"{int(model.decides.lengths.sum()):,} {scores.unit}"
    say(console, f"data        {clips:,} clips, {clock(seconds)} of audio, {words}")
    if scores.translates:
        say(console, f"judged by   {rates_note(config)}")
    else:
        say(console, f"normaliser  {scores.normalizer.name}: {scores.normalizer.description}")
    found = model.transcripts
    say(
        console,
        f"speed       real-time factor {found.real_time_factor:.3f}: decoded in {clock(found.seconds)} on "
        f"{found.device}, {found.precision}, {found.batch_size} clips at a time",
    )


def _print_signs(scores: Scores, console: Console) -> None:
    say(console, "signs of hallucination:")
    for kind, counts in sign_counts(scores).items():
        say(console, f"  {SIGNS[kind]}: {counts[0]} clips")
        for sign in [sign for sign in scores.model.signs if sign.kind == kind][:_MOST_SIGNS]:
            say(console, f"    {scores.reference.names[sign.row]}: {sign.detail}")


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
