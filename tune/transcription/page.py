"""Two models' transcripts side by side as a page."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.transcription.differences import Comparison
from tune.pages.page import render_page
from tune.util.console import clock


def comparison_page(comparisons: Sequence[Comparison], base: str, model: str) -> str:
    """The page of all recordings: what only the base model heard is struck out, what only the model heard is bold."""
    count, changed = (sum(getattr(each, name) for each in comparisons) for name in ("count", "changed"))
    unit = comparisons[0].unit if comparisons else "words"
    return render_page(
        "comparison.html",
        f"{model} beside {base}",
        "what two models hear in the same recordings",
        tiles=[
            (f"{100 * changed / count if count else 0:.2f} %", f"of {unit} differ"),
            (f"{changed:,} of {count:,}", unit),
            (clock(sum(each.model.seconds for each in comparisons)), "of audio"),
        ],
        comparisons=comparisons,
        base=base,
        model=model,
    )
