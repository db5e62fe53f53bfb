"""An evaluation as a page: the figures and how sure they are, where the errors are, and what they look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.scoring.hallucinations import SIGNS
from trainer.scoring.normalizers import rates_note
from tune.evaluation.tables import (
    between,
    error_rows,
    errors_in,
    group_rows,
    p_sentence,
    percent,
    points,
    rate_rows,
    share_without_error,
    sign_counts,
    verdict,
)
from tune.pages.page import Cell, render_page
from tune.util.console import clock

if TYPE_CHECKING:
    from trainer.scoring.scores import Scores
    from tune.evaluation.evaluation import EvaluationResult

_MOST_SIGNS = 12
_WORST = 30
_KINDS = {"substitute": "substituted", "delete": "deleted", "insert": "inserted"}


def evaluation_page(result: EvaluationResult) -> str:
    scores, config = result.scores, result.plan.config
    against = f" against {scores.baseline.model}" if scores.baseline else ""
    counted = f"normaliser {scores.normalizer.name}, counted in {scores.normalizer.unit}"
    lead = (
        f"on {config.data}, split {result.split}, language {config.language}: {len(scores.reference):,} clips, "
        f"{clock(sum(scores.reference.seconds))} of audio · {'translations' if scores.translates else counted}"
    )
    text = verdict(scores) if scores.baseline else ""
    return render_page(
        "evaluation.html",
        f"{scores.model.model}{against}",
        lead,
        footer=f"tune-whisper evaluate, {result.created[:16].replace('T', ' ')}",
        tiles=_tiles(scores),
        verdict=text.replace("no difference", "No difference", 1) if text.startswith("no ") else text,
        warnings=[note.removeprefix("WARNING: ") for note in result.notes if note.startswith("WARNING: ")],
        scores=scores,
        models=[model.model for model in scores.models],
        baseline=scores.baseline.model if scores.baseline else "",
        rates=[[Cell(name, "nowrap"), *cells] for name, *cells in rate_rows(scores)],
        errors=error_rows(scores),
        groups=[(column, group_rows(groups)) for column, groups in scores.groups.items()],
        frequent=[
            [said or "–", written or "–", _KINDS[kind], str(times)]
            for kind, said, written, times in scores.model.frequent()
        ],
        sign_counts=[[f"clips with {SIGNS[kind]}", *counts] for kind, counts in sign_counts(scores).items()],
        signs=[
            f"{scores.reference.names[one.row]}: {SIGNS[one.kind]}: {one.detail}"
            for one in scores.model.signs
        ],
        most_signs=_MOST_SIGNS,
        worst=[_utterance(scores, row) for row in scores.model.decides.worst_first()[:_WORST]],
        gap=" " if scores.normalizer.unit == "words" else "",
        method=_method(result),
    )


def _tiles(scores: Scores) -> list[tuple[str, str]]:
    model, speed = scores.model, scores.model.transcripts
    tiles = [
        (f"{percent(model.rates[rate].percent)} %", f"{name}; 95 %: {between(model.rates[rate].interval)}")
        for rate, name in scores.shown_rates.items()
        if "orthographic" not in rate
    ]
    if scores.baseline is not None:
        found = scores.comparisons[scores.objective]
        shown = "" if found.shown else ": no difference shown"
        label = f"points of difference to {scores.baseline.model}, {p_sentence(found.p_value)}{shown}"
        tiles.append((points(found.difference), label))
    if scores.translates:
        tiles.append((f"{model.bleu or 0.0:.2f}", "BLEU"))
    else:
        tiles.append((share_without_error(model), "of the clips with speech have no error"))
    return [
        *tiles,
        (f"{speed.real_time_factor:.3f}", f"real-time factor on {speed.device}, {speed.precision}"),
    ]


def _utterance(scores: Scores, row: int) -> dict[str, Any]:
    """Name and errors of one utterance, and what each model wrote."""
    reference = scores.reference
    cells = [cells[row] for cells in reference.columns.values() if cells[row]]
    heading = [reference.names[row], f"{reference.seconds[row]:.1f} s", *cells, errors_in(scores, row)]
    return {
        "heading": " · ".join(heading),
        "models": [(model.model, model.alignments[row]) for model in scores.models],
    }


def _method(result: EvaluationResult) -> list[str]:
    scores, config = result.scores, result.plan.config
    found = scores.model.transcripts
    beams = "greedy" if config.generation_num_beams == 1 else f"{config.generation_num_beams} beams"
    dropped = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in result.dropped.items())
    items = [
        rates_note(config)
        if scores.translates
        else f"Normaliser {scores.normalizer.name}: {scores.normalizer.description}.",
        "Rates are corpus-level: all errors divided by the length of all references. Intervals treat clips as "
        "independent: they are too narrow where there are few speakers, or a few clips have most of the errors.",
        f"Decoding: {beams}, {found.precision}, {found.batch_size} clips at a time on {found.device}: "
        f"{found.audio_seconds:.1f} s of audio in {found.seconds:.1f} s, not counting reading and features.",
    ]
    if scores.baseline is not None:
        items.append(
            f"p: Student's t over {len(scores.reference):,} clips, paired; from 0.05 on no difference is shown."
        )
    if scores.empty_references:
        items.append(f"{scores.empty_references:,} clips in which nothing is said are not part of any rate.")
    if dropped:
        items.append(f"Left out: {dropped}.")
    return items + [note for note in result.notes if not note.startswith("WARNING: ")]
