"""Errors clip by clip: what a comparison of trainings draws on. Apart from the metrics, whose imports take a second."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class UtteranceErrors:
    """Errors and reference words (or characters) of each text, in the order given; 0 and 0 for an empty reference."""

    word_errors: list[int]
    words: list[int]
