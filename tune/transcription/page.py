"""Two models' transcripts side by side as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trainer.transcription.differences import Comparison, Difference
from tune.display import clock
from tune.pages.page import Column, Html, heading, paragraph, render_page, table, tiles


def comparison_page(comparisons: Sequence[Comparison], base: str, model: str) -> str:
    """The page of all recordings: what only the base model heard is struck out, what only the model heard is bold."""
    count, changed = (sum(getattr(each, name) for each in comparisons) for name in ("count", "changed"))
    unit = comparisons[0].unit if comparisons else "words"
    parts = [
        tiles(
            [
                (f"{100 * changed / count if count else 0:.2f} %", f"of {unit} differ"),
                (f"{changed:,} of {count:,}", unit),
                (clock(sum(each.model.seconds for each in comparisons)), "of audio"),
            ]
        ),
        paragraph(
            Html(
                f'Struck out and red: only <s class="bad">{escape(base)}</s> heard it. Bold and green: only '
                f'<b class="good">{escape(model)}</b> did. Capitals and punctuation do not count, and what differs '
                "in nothing else is grey."
            ),
            "muted",
        ),
    ]
    for comparison in comparisons:
        parts.append(heading(str(comparison.model.recording.path)))
        gap = " " if comparison.unit == "words" else ""
        parts.append(
            table(
                [Column("time", number=True), Column(base), Column(model)],
                [
                    [
                        clock(row.start),
                        _side(row.differences, "base", gap),
                        _side(row.differences, "model", gap),
                    ]
                    for row in comparison.rows
                ],
            )
        )
    return render_page(f"{model} beside {base}", "what two models hear in the same recordings", parts)


def _side(differences: Sequence[Difference], side: str, gap: str) -> Html:
    open_tag, close_tag = ('<s class="bad">', "</s>") if side == "base" else ('<b class="good">', "</b>")
    words = []
    for difference in differences:
        text = escape(getattr(difference, side))
        if not text:
            continue
        if difference.kind == "written":
            words.append(f'<span class="muted">{text}</span>')
        else:
            words.append(text if difference.kind == "equal" else f"{open_tag}{text}{close_tag}")
    return Html(gap.join(words))
