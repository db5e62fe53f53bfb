"""An evaluation as a page: the figures and how sure they are, where the errors are, and what they look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from trainer.scoring.hallucinations import SIGNS
from tune.display import clock
from tune.evaluation_words import between, difference_between, p_value, percent, points, verdict
from tune.pages.evaluation_pictures import groups_picture, spread_picture
from tune.pages.evaluation_utterances import frequent_errors, worst_utterances
from tune.pages.page import (
    Cell,
    Column,
    Html,
    box,
    bullets,
    folded,
    gallery,
    heading,
    paragraph,
    picture,
    render_page,
    table,
    tiles,
)

if TYPE_CHECKING:
    from trainer.scoring.scores import Group, Scores
    from tune.evaluation import EvaluationResult

_MOST_SIGNS = 12


def evaluation_page(result: EvaluationResult) -> str:
    """The page, whole."""
    scores = result.scores
    against = f" against {scores.baseline.model}" if scores.baseline else ""
    config = result.plan.config
    lead = (
        f"on {config.data}, split {result.split}, language {config.language}: {len(scores.reference):,} clips, "
        f"{clock(sum(scores.reference.seconds))} of audio · normaliser {scores.normalizer.name}, counted in "
        f"{scores.normalizer.unit}"
    )
    parts = [
        tiles(_tiles(scores)),
        box(paragraph(Html(f"<b>{escape(_sentence(verdict(scores)))}</b>"))) if scores.baseline else "",
        *_warnings(result),
        rates_table(scores),
        errors_table(scores),
        *_where(scores),
        *frequent_errors(scores),
        *_hallucination(scores),
        *worst_utterances(scores),
        *_method(result),
    ]
    return render_page(
        f"{scores.model.model}{against}",
        lead,
        parts,
        footer=f"tune-whisper evaluate, {result.created[:16].replace('T', ' ')}",
    )


def _tiles(scores: Scores) -> list[tuple[str, str]]:
    model = scores.model
    rates = [
        (f"{percent(model.rates[rate].percent)} %", f"{name}; 95 %: {between(model.rates[rate].interval)}")
        for rate, name in scores.shown_rates.items()
        if "orthographic" not in rate
    ]
    if scores.baseline is not None:
        found = scores.comparisons["wer"]
        shown = "" if found.shown else ": no difference shown"
        told = f"points to {scores.baseline.model}, p {_p(found.p_value)}{shown}"
        rates.append((points(found.difference), told))
    counts = model.counts["wer"]
    right = int(((counts.errors == 0) & (counts.lengths > 0)).sum())
    speed = model.transcripts
    return [
        *rates,
        (f"{100.0 * right / len(scores.reference):.0f} %", "of the clips without an error"),
        (f"{speed.real_time_factor:.3f}", f"real-time factor on {speed.device}, {speed.precision}"),
    ]


def _sentence(text: str) -> str:
    return text.replace("no difference", "No difference", 1) if text.startswith("no difference") else text


def _p(value: float) -> str:
    return p_value(value) if value < 0.001 else f"= {p_value(value)}"


def _warnings(result: EvaluationResult) -> Iterator[str]:
    warnings = [note.removeprefix("WARNING: ") for note in result.notes if note.startswith("WARNING: ")]
    if warnings:
        yield box(bullets(warnings), warn=True)


def rates_table(scores: Scores) -> str:
    """Rates with their intervals, and the comparison where there is one."""
    columns = [Column(""), Column(scores.model.model, number=True), Column("95 % interval", number=True)]
    other = scores.baseline
    if other is not None:
        names = (other.model, "95 % interval", "difference", "95 % interval", "p")
        columns += [Column(name, number=True) for name in names]
    rows: list[list[Cell]] = []
    for rate, name in scores.shown_rates.items():
        mine = scores.model.rates[rate]
        whole = name.replace(" ", "\u00a0")  # on a phone it would be broken into three lines
        cells: list[Cell] = [whole, f"{percent(mine.percent)} %", between(mine.interval)]
        if other is not None:
            theirs, found = other.rates[rate], scores.comparisons[rate]
            cells += [f"{percent(theirs.percent)} %", between(theirs.interval), points(found.difference)]
            cells += [difference_between(found), p_value(found.p_value)]
        rows.append(cells)
    return table(columns, rows, strong=frozenset({0}))


def errors_table(scores: Scores) -> str:
    """Substitutions, deletions and insertions of what the main rate counts."""
    unit = scores.normalizer.unit
    names = (f"{unit} said", "substituted", "deleted", "inserted")
    columns = [Column("model"), *(Column(name, number=True) for name in names)]
    rows: list[list[Cell]] = []
    for model in scores.models:
        totals = model.counts["wer"].totals()
        kinds = ("reference", "substitutions", "deletions", "insertions")
        rows.append([model.model, *(f"{totals[kind]:,}" for kind in kinds)])
    return table(columns, rows)


def _where(scores: Scores) -> Iterator[str]:
    yield heading("Where the errors are")
    pictures = [picture(spread_picture(scores))]
    for column, groups in scores.groups.items():
        figures = folded(f"the figures by {column}", groups_table(column, groups, scores))
        pictures.append(picture(groups_picture(column, groups, scores)) + figures)
    yield gallery(pictures)


def groups_table(column: str, groups: Sequence[Group], scores: Scores) -> str:
    """All groups of a column."""
    names = ["clips", scores.normalizer.unit, f"{scores.main_rate} %", "95 % interval"]
    names += [f"{scores.baseline.model} %", "95 % interval"] if scores.baseline else []
    rows: list[list[Cell]] = []
    for group in groups:
        cells: list[Cell] = [group.value, f"{len(group.rows):,}", f"{group.length:,}"]
        for rate in (group.rate, group.baseline):
            if rate is not None:
                cells += [percent(rate.percent), between(rate.interval)]
        rows.append(cells)
    return table([Column(column), *(Column(name, number=True) for name in names)], rows)


def _hallucination(scores: Scores) -> Iterator[str]:
    yield heading("Signs of hallucination")
    models = scores.models
    rows: list[list[Cell]] = []
    for kind, words in SIGNS.items():
        of = scores.empty_references if kind == "empty reference" else len(scores.reference)
        if of:
            numbers = [sum(sign.kind == kind for sign in model.signs) for model in models]
            rows.append([f"clips with {words}", *(f"{number:,} of {of:,}" for number in numbers)])
    yield table([Column("sign"), *(Column(model.model, number=True) for model in models)], rows)
    signs = [
        f"{scores.reference.names[sign.row]}: {SIGNS[sign.kind]}: {sign.detail}"
        for sign in scores.model.signs
    ]
    yield bullets(signs[:_MOST_SIGNS])
    if len(signs) > _MOST_SIGNS:
        yield paragraph(f"... and {len(signs) - _MOST_SIGNS} more in evaluation.json", "muted")
    yield paragraph("What the models write where nobody speaks; it should be nothing:")
    rows = []
    for name in scores.model.transcripts.probes:
        texts = [model.transcripts.probes.get(name, "") for model in models]
        rows.append(
            [name, *(Html(f'<span class="bad">{escape(text)}</span>' if text else "–") for text in texts)]
        )
    yield table([Column("clip"), *(Column(model.model) for model in models)], rows)


def _method(result: EvaluationResult) -> Iterator[str]:
    scores, config = result.scores, result.plan.config
    yield heading("How it was measured")
    found = scores.model.transcripts
    beams = "greedy" if config.generation_num_beams == 1 else f"{config.generation_num_beams} beams"
    dropped = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in result.dropped.items())
    items: list[Cell] = [
        f"Normaliser {scores.normalizer.name}: {scores.normalizer.description}.",
        "Rates are corpus-level: all errors over all that was said. Intervals resample whole utterances "
        "(bootstrap, BCa).",
        f"Decoding: {beams}, {found.precision}, {config.eval_batch_size} clips at a time on {found.device}: "
        f"{found.audio_seconds:.1f} s of audio in {found.seconds:.1f} s, without reading audio and computing features.",
    ]
    if scores.baseline is not None:
        items.append(
            f"p: approximate randomisation over {len(scores.reference):,} utterances; from 0.05 on no difference "
            "is shown."
        )
    if scores.empty_references:
        items.append(f"{scores.empty_references:,} clips in which nothing is said count in no rate.")
    if dropped:
        items.append(f"Left out: {dropped}.")
    items += [note for note in result.notes if not note.startswith("WARNING: ")]
    yield bullets(items)
