"""An evaluation as a page: the figures and how sure they are, where the errors are, and what they look like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer.scoring.hallucinations import SIGNS
from tune.evaluation.words import between, difference_between, errors_in, p_value, percent, points, verdict
from tune.pages.figures import BLUE, MUTED, ORANGE, Picture, label, new_figure, pointed, rows_axis, whiskers
from tune.pages.page import Cell, render_page
from tune.util.console import clock

if TYPE_CHECKING:
    from trainer.scoring.scores import Group, ModelScores, Rate, Scores
    from tune.evaluation.evaluation import EvaluationResult

_MOST_SIGNS = 12
_WORST = 30
_MOST_ERRORS = 8
_MOST_GROUPS = 20
_LABEL_LETTERS = 24
_KINDS = {"substitute": "written for another", "delete": "left out", "insert": "added"}


def evaluation_page(result: EvaluationResult) -> str:
    """The page, whole."""
    scores, config = result.scores, result.plan.config
    against = f" against {scores.baseline.model}" if scores.baseline else ""
    lead = (
        f"on {config.data}, split {result.split}, language {config.language}: {len(scores.reference):,} clips, "
        f"{clock(sum(scores.reference.seconds))} of audio · normaliser {scores.normalizer.name}, counted in "
        f"{scores.normalizer.unit}"
    )
    told = verdict(scores) if scores.baseline else ""
    return render_page(
        "evaluation.html",
        f"{scores.model.model}{against}",
        lead,
        footer=f"tune-whisper evaluate, {result.created[:16].replace('T', ' ')}",
        tiles=_tiles(scores),
        verdict=told.replace("no difference", "No difference", 1)
        if told.startswith("no difference")
        else told,
        warnings=[note.removeprefix("WARNING: ") for note in result.notes if note.startswith("WARNING: ")],
        scores=scores,
        models=[model.model for model in scores.models],
        baseline=scores.baseline.model if scores.baseline else "",
        rates=_rates(scores),
        errors=_errors(scores),
        spread=draw_spread(scores),
        groups=[
            (column, draw_groups(column, groups, scores), _group_rows(groups))
            for column, groups in scores.groups.items()
        ],
        frequent=[
            [said or "–", written or "–", _KINDS[kind], str(times)]
            for kind, said, written, times in scores.model.frequent()
        ],
        sign_counts=_sign_counts(scores),
        signs=[
            f"{scores.reference.names[one.row]}: {SIGNS[one.kind]}: {one.detail}"
            for one in scores.model.signs
        ],
        most_signs=_MOST_SIGNS,
        silence=_silence(scores),
        worst=[_utterance(scores, row) for row in scores.model.worst(_WORST)],
        gap=" " if scores.normalizer.unit == "words" else "",
        method=_method(result),
    )


def _tiles(scores: Scores) -> list[tuple[str, str]]:
    model = scores.model
    tiles = [
        (f"{percent(model.rates[rate].percent)} %", f"{name}; 95 %: {between(model.rates[rate].interval)}")
        for rate, name in scores.shown_rates.items()
        if "orthographic" not in rate
    ]
    if scores.baseline is not None:
        found = scores.comparisons["wer"]
        p = p_value(found.p_value) if found.p_value < 0.001 else f"= {p_value(found.p_value)}"
        shown = "" if found.shown else ": no difference shown"
        tiles.append((points(found.difference), f"points to {scores.baseline.model}, p {p}{shown}"))
    counts, speed = model.counts["wer"], model.transcripts
    right = int(((counts.errors == 0) & (counts.lengths > 0)).sum())
    return [
        *tiles,
        (f"{100.0 * right / len(scores.reference):.0f} %", "of the clips without an error"),
        (f"{speed.real_time_factor:.3f}", f"real-time factor on {speed.device}, {speed.precision}"),
    ]


def _rates(scores: Scores) -> list[list[str]]:
    """Rates with their intervals, and the comparison where there is one."""
    rows = []
    for rate, name in scores.shown_rates.items():
        mine = scores.model.rates[rate]
        whole = name.replace(" ", "\u00a0")  # on a phone it would be broken into three lines
        cells = [whole, f"{percent(mine.percent)} %", between(mine.interval)]
        if scores.baseline is not None:
            theirs, found = scores.baseline.rates[rate], scores.comparisons[rate]
            cells += [f"{percent(theirs.percent)} %", between(theirs.interval), points(found.difference)]
            cells += [difference_between(found), p_value(found.p_value)]
        rows.append(cells)
    return rows


def _errors(scores: Scores) -> list[list[str]]:
    """Substitutions, deletions and insertions of what the main rate counts."""
    kinds = ("reference", "substitutions", "deletions", "insertions")
    totals = [(model.model, model.counts["wer"].totals()) for model in scores.models]
    return [[model, *(f"{found[kind]:,}" for kind in kinds)] for model, found in totals]


def _group_rows(groups: Sequence[Group]) -> list[list[str]]:
    rows = []
    for group in groups:
        cells = [group.value, f"{len(group.rows):,}", f"{group.length:,}"]
        for rate in (group.rate, group.baseline):
            if rate is not None:
                cells += [percent(rate.percent), between(rate.interval)]
        rows.append(cells)
    return rows


def _sign_counts(scores: Scores) -> list[list[str]]:
    rows = []
    for kind, words in SIGNS.items():
        of = scores.empty_references if kind == "empty reference" else len(scores.reference)
        if of:
            numbers = [sum(sign.kind == kind for sign in model.signs) for model in scores.models]
            rows.append([f"clips with {words}", *(f"{number:,} of {of:,}" for number in numbers)])
    return rows


def _silence(scores: Scores) -> list[list[Cell | str]]:
    """What the models write where nobody speaks."""
    found = []
    for name in scores.model.transcripts.probes:
        texts = [model.transcripts.probes.get(name, "") for model in scores.models]
        found.append([name, *(Cell(text, "bad") if text else "–" for text in texts)])
    return found


def _utterance(scores: Scores, row: int) -> dict[str, Any]:
    """Name and errors of one utterance, and what each model wrote."""
    counts, reference = scores.model.counts["wer"], scores.reference
    cells = [cells[row] for cells in reference.columns.values() if cells[row]]
    errors = errors_in(int(counts.errors[row]), int(counts.lengths[row]), scores.normalizer.unit)
    told = " · ".join([reference.names[row], f"{reference.seconds[row]:.1f} s", *cells, errors])
    return {"told": told, "models": [(model.model, model.alignments[row]) for model in scores.models]}


def _method(result: EvaluationResult) -> list[str]:
    scores, config = result.scores, result.plan.config
    found = scores.model.transcripts
    beams = "greedy" if config.generation_num_beams == 1 else f"{config.generation_num_beams} beams"
    dropped = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in result.dropped.items())
    items = [
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
    return items + [note for note in result.notes if not note.startswith("WARNING: ")]


def draw_spread(scores: Scores) -> Picture:
    """Clips by the number of errors in them, of one or two models."""
    sizes = [*map(str, range(_MOST_ERRORS)), f"{_MOST_ERRORS}+"]
    figure = new_figure(
        xaxis={"title": {"text": "errors in a clip"}, "type": "category", "showgrid": False},
        yaxis={"title": {"text": "clips, %"}},
        showlegend=scores.baseline is not None,
        bargap=0.25,
    )
    without = []
    for model, colour in zip(scores.models, (BLUE, ORANGE), strict=False):
        counts = model.counts["wer"]
        errors = [min(int(number), _MOST_ERRORS) for number in counts.errors[counts.lengths > 0]]
        shares = [100.0 * errors.count(size) / len(errors) for size in range(max(errors, default=0) + 1)]
        without.append(shares[0])
        figure.add_bar(
            x=sizes[: len(shares)],
            y=shares,
            marker={"color": colour},
            name=label(model.model, _LABEL_LETTERS),
            **pointed(
                [
                    f"{model.model}: {share:.1f} % of the clips have {size} errors"
                    for size, share in zip(sizes, shares, strict=False)
                ]
            ),
        )
    caption = f"{without[0]:.0f} % of the clips have no error at all"
    if scores.baseline is not None:
        caption += f", with {scores.baseline.model} {without[1]:.0f} %"
    return Picture("spread", f"{caption}.", figure, 290)


def draw_groups(column: str, groups: Sequence[Group], scores: Scores) -> Picture:
    """The main rate of each group with its interval."""
    shown, overall = groups[:_MOST_GROUPS], scores.model.rates["wer"].percent
    figure = new_figure(
        xaxis={"title": {"text": f"{scores.main_rate}, %"}, "rangemode": "tozero"},
        yaxis=rows_axis([f"{label(group.value, _LABEL_LETTERS)} ({len(group.rows):,})" for group in shown]),
        showlegend=scores.baseline is not None,
    )
    figure.add_vline(x=overall, line={"color": MUTED, "width": 1})
    sides: list[tuple[ModelScores, list[Rate | None], str, float]] = [
        (scores.model, [group.rate for group in shown], BLUE, -0.13 if scores.baseline else 0.0)
    ]
    if scores.baseline is not None:
        sides.append((scores.baseline, [group.baseline for group in shown], ORANGE, 0.13))
    for model, rates, colour, offset in sides:
        found = [(place, rate) for place, rate in enumerate(rates) if rate is not None]
        ends = [rate.interval or (rate.percent, rate.percent) for _, rate in found]
        told = [
            f"{model.model}, {shown[place].value}: {rate.percent:.2f} %, {between(rate.interval)}"
            for place, rate in found
        ]
        figure.add_scatter(
            x=[rate.percent for _, rate in found],
            y=[place + offset for place, _ in found],
            mode="markers",
            marker={"color": colour, "size": 9},
            error_x=whiskers([rate.percent for _, rate in found], ends),
            name=label(model.model, _LABEL_LETTERS),
            **pointed(told),
        )
    name = "by-" + (re.sub(r"[^a-z0-9]+", "-", column.lower()).strip("-") or "column")
    caption = (
        f"{scores.main_rate} by {column} with 95 % intervals; the line is {scores.model.model} on all clips."
    )
    return Picture(name, caption, figure, 110 + 32 * len(shown))
