"""Utterances of an evaluation on its page: the worst of them aligned, and the errors that come again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from trainer.scoring.alignment import Piece
from tune.evaluation_words import errors_in
from tune.pages.page import Cell, Column, Html, folded, heading, paragraph, table

if TYPE_CHECKING:
    from trainer.scoring.scores import Scores

_WORST = 30
_OPEN = 10
"""Of these shown at once, the others on a click."""


def frequent_errors(scores: Scores) -> Iterator[str]:
    """The errors made more than once."""
    found = scores.model.frequent()
    if found:
        yield heading("Errors made more than once")
        kinds = {"substitute": "written for another", "delete": "left out", "insert": "added"}
        rows: list[list[Cell]] = [
            [said or "–", written or "–", kinds[kind], str(times)] for kind, said, written, times in found
        ]
        yield table([Column("said"), Column("written"), Column("kind"), Column("times", number=True)], rows)


def worst_utterances(scores: Scores) -> Iterator[str]:
    """The utterances with most errors, what was said and written in one line."""
    rows = scores.model.worst(_WORST)
    if not rows:
        return
    yield heading("Worst utterances")
    yield paragraph(
        Html(
            'Struck out and red: <del class="bad">said and not written</del>. Underlined and green: '
            '<ins class="good">written and not said</ins>. As counted, after the normaliser '
            f"{escape(scores.normalizer.name)}."
        ),
        "muted",
    )
    shown = [_utterance(scores, row) for row in rows]
    yield "".join(shown[:_OPEN])
    if len(shown) > _OPEN:
        yield folded(f"{len(shown) - _OPEN} more", "".join(shown[_OPEN:]))


def _utterance(scores: Scores, row: int) -> str:
    """Name and errors of one utterance, and below it what each model wrote."""
    counts, reference = scores.model.counts["wer"], scores.reference
    gap = " " if scores.normalizer.unit == "words" else ""
    cells = " · ".join(cells[row] for cells in reference.columns.values() if cells[row])
    told = f"{reference.names[row]} · {reference.seconds[row]:.1f} s{' · ' if cells else ''}{cells}"
    told += f" · {errors_in(int(counts.errors[row]), int(counts.lengths[row]), scores.normalizer.unit)}"
    lines = []
    for model in scores.models:
        whose = f'<span class="muted">{escape(model.model)}:</span> ' if scores.baseline else ""
        lines.append(whose + _aligned(model.alignments[row], gap))
    return paragraph(Html(f'<span class="muted">{escape(told)}</span><br>{"<br>".join(lines)}'))


def _aligned(pieces: Sequence[Piece], gap: str) -> str:
    """A reference with what was written instead; `dir=auto` sets Arabic and Hebrew from right to left."""
    words = []
    for piece in pieces:
        said, written = escape(gap.join(piece.reference)), escape(gap.join(piece.hypothesis))
        if piece.kind == "equal":
            words.append(said)
            continue
        words += [f'<del class="bad">{said}</del>'] if said else []
        words += [f'<ins class="good">{written}</ins>'] if written else []
    return f'<span dir="auto">{(gap or "&#8203;").join(words)}</span>'
