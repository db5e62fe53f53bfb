"""Everything that an evaluation says of a model, and of another one beside it, on the same clips."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from trainer.scoring.alignment import Counts, ErrorCounts, Piece, align, count_errors, frequent_errors
from trainer.scoring.decoding import Transcripts
from trainer.scoring.hallucinations import Sign, find_signs
from trainer.scoring.intervals import Comparison, Interval, compare, rate_interval
from trainer.scoring.normalizers import Normalizer, as_one
from trainer.scoring.objectives import CHRF_ERROR, objective_name
from trainer.scoring.translation import TRANSLATE, bleu, count_chrf

LENGTH = "clip length"
"""The name of the groups by seconds, which every data set has."""
_RANGES = 4
_UNKNOWN = "(empty)"


@dataclasses.dataclass(frozen=True)
class Counted:
    """Texts of a model against what was said."""

    normalized: list[str]
    """The model's texts as they are counted."""
    alignments: list[list[Piece]]
    """Of each utterance, normalised."""
    counts: Mapping[str, Counts]
    """By rate: `wer`, `cer` of normalised text, `wer_orthographic`, `cer_orthographic` of text as written; of
    translations `chrf_error` alone."""


def count_rates(
    references: Sequence[str],
    hypotheses: Sequence[str],
    normalizers: Sequence[Normalizer],
    *,
    silence: bool = False,
) -> Counted:
    """Align and count, normalised and as written, each pair of texts by a normaliser of its own.

    Where a normaliser's unit is the character, the WER is the CER, so that a language without spaces is measured by
    what it has; spaces count in neither. With `silence` nothing is said where a reference is empty, so that all that is
    written there was inserted; else nobody knows what is said there, and such clips are in no rate.
    """

    def by_character(words: ErrorCounts, said: Sequence[str], heard: Sequence[str]) -> ErrorCounts:
        said, heard = (
            ["" if alike else text for alike, text in zip(same, texts, strict=True)]
            for texts in (said, heard)
        )
        return ErrorCounts(np.where(same, words.kinds, count_errors(said, heard, "characters").kinds))

    same = [own.unit == "characters" for own in normalizers]
    said, heard = (
        [own(text) for own, text in zip(normalizers, texts, strict=True)]
        for texts in (references, hypotheses)
    )
    spoken, written = (
        [own.as_written(text) for own, text in zip(normalizers, texts, strict=True)]
        for texts in (references, hypotheses)
    )
    spoken = [text if words.strip() else "" for text, words in zip(spoken, said, strict=True)]
    alignments = align(said, heard)
    counted, taken = alignments, heard
    if not silence:
        spoken_in = [bool(text.strip()) for text in said]
        counted = [pieces if there else [] for pieces, there in zip(alignments, spoken_in, strict=True)]
        taken, written = (
            [text if there else "" for text, there in zip(texts, spoken_in, strict=True)]
            for texts in (heard, written)
        )
    words, orthographic = ErrorCounts.of_alignments(counted), count_errors(spoken, written)
    counts = {
        "wer": words,
        "wer_orthographic": orthographic,
        "cer": by_character(words, said, taken),
        "cer_orthographic": by_character(orthographic, spoken, written),
    }
    return Counted(heard, alignments, counts)


@dataclasses.dataclass(frozen=True)
class Rate:
    """A corpus-level error rate in percent, with its 95 % interval (None for too few utterances)."""

    percent: float
    interval: Interval | None


@dataclasses.dataclass(frozen=True)
class Reference:
    """What was said: of each utterance its name, seconds and text, in one order."""

    names: list[str]
    seconds: list[float]
    texts: list[str]
    normalizers: Sequence[Normalizer]
    """Of each text its own, where they are in several languages."""
    columns: Mapping[str, Sequence[str]]
    """Cells by column, for groups."""
    silence: bool = False
    """Whether nothing is said where a text is empty; else nobody knows."""

    @functools.cached_property
    def normalized(self) -> list[str]:
        """The texts as they are counted."""
        return [own(text) for own, text in zip(self.normalizers, self.texts, strict=True)]

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class ModelScores(Counted):
    bleu: float | None
    """Of translations."""

    model: str
    transcripts: Transcripts
    rates: Mapping[str, Rate]
    signs: list[Sign]
    """Of hallucination."""

    @property
    def decides(self) -> Counts:
        """Those of the objective."""
        return self.counts[objective_name(self.counts)]

    def frequent(self) -> list[tuple[str, str, str, int]]:
        """The errors made most often: kind, said, written, times; other words of a translation are none."""
        return [] if self.bleu is not None else [*frequent_errors(self.alignments)]


@dataclasses.dataclass(frozen=True)
class Group:
    """Utterances that have something in common."""

    value: str
    rows: list[int]
    length: int
    """Reference words (or characters)."""
    rate: Rate
    baseline: Rate | None


@dataclasses.dataclass(frozen=True)
class Scores:
    reference: Reference
    model: ModelScores
    baseline: ModelScores | None
    comparisons: Mapping[str, Comparison]
    """By rate, the model against the baseline; empty without one."""
    groups: Mapping[str, list[Group]]
    """By column, and by `clip length`."""

    @property
    def models(self) -> list[ModelScores]:
        """The model, and the baseline where there is one."""
        return [self.model, *([self.baseline] if self.baseline else [])]

    @property
    def translates(self) -> bool:
        """Whether it is of translations, judged by chrF."""
        return self.model.bleu is not None

    @property
    def normalizer(self) -> Normalizer:
        """All normalisers as reports name them."""
        return as_one(self.reference.normalizers)

    @property
    def unit(self) -> str:
        """What the lengths of texts are counted in."""
        return "characters" if self.translates else self.normalizer.unit

    @property
    def shown_rates(self) -> dict[str, str]:
        """The rates that differ from each other, with their names for people."""
        if self.translates:
            return {CHRF_ERROR: "chrF error"}
        if self.normalizer.unit == "characters":
            return {"wer": "CER", "wer_orthographic": "CER as written"}
        return {
            "wer": "WER",
            "cer": "CER",
            "wer_orthographic": "WER as written",
            "cer_orthographic": "CER as written",
        }

    @property
    def objective(self) -> str:
        """The name of the rate that decides."""
        return objective_name(self.model.rates)

    @property
    def main_rate(self) -> str:
        """The same for people: a language without spaces has no words to count."""
        return self.shown_rates[self.objective]

    @property
    def empty_references(self) -> int:
        """Utterances without a text."""
        return sum(not text.strip() for text in self.reference.normalized)


def score(
    reference: Reference,
    model: tuple[str, Transcripts],
    baseline: tuple[str, Transcripts] | None = None,
    *,
    task: str = "transcribe",
) -> Scores:
    """Count, compare and sort what one or two models, each with its name, wrote for the references, in their order.

    With the task `translate` these are translations, judged by chrF.

    Raises:
        ValueError: no reference has any text.
    """
    mine = _score_model(reference, *model, task == TRANSLATE)
    other = _score_model(reference, *baseline, task == TRANSLATE) if baseline else None
    comparisons = {
        rate: compare(mine.counts[rate].errors, counts.errors, counts.lengths)
        for rate, counts in (other.counts if other else {}).items()
    }
    groups = {name: _scored(group_by(cells), mine, other) for name, cells in reference.columns.items()}
    groups[LENGTH] = _scored(by_seconds(reference.seconds), mine, other)
    return Scores(reference, mine, other, comparisons, groups)


def _score_model(reference: Reference, name: str, transcripts: Transcripts, translates: bool) -> ModelScores:
    counted = count_rates(
        reference.texts, transcripts.texts, reference.normalizers, silence=reference.silence
    )
    if translates:
        counts = {CHRF_ERROR: count_chrf(reference.texts, transcripts.texts)}
        counted = dataclasses.replace(counted, counts=counts)
    unit = as_one(reference.normalizers).unit
    signs = find_signs(reference.normalized, counted.normalized, counted.alignments, unit)
    return ModelScores(
        **vars(counted),
        bleu=bleu(reference.texts, transcripts.texts) if translates else None,
        model=name,
        transcripts=transcripts,
        rates={rate: _rate(counts) for rate, counts in counted.counts.items()},
        signs=[] if translates else signs,  # other words than those of the reference are no sign of anything
    )


def _rate(counts: Counts) -> Rate:
    return Rate(counts.percent, rate_interval(counts.errors, counts.lengths))


def _scored(groups: Mapping[str, list[int]], mine: ModelScores, other: ModelScores | None) -> list[Group]:
    scored = []
    for value, rows in groups.items():
        counts = mine.decides.of(rows)
        if counts.lengths.sum():
            theirs = _rate(other.decides.of(rows)) if other else None
            scored.append(Group(value, rows, int(counts.lengths.sum()), _rate(counts), theirs))
    return scored


def group_by(values: Sequence[str]) -> dict[str, list[int]]:
    """Rows of each value of a column, the largest group first; those of empty cells come last, as `(empty)`."""
    groups: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        groups.setdefault(value, []).append(row)
    order = sorted(groups, key=lambda value: (not value, -len(groups[value]), value))
    return {value or _UNKNOWN: groups[value] for value in order}


def by_seconds(seconds: Sequence[float]) -> dict[str, list[int]]:
    """Rows in up to four ranges of seconds with about as many each, from the lowest on; equal ones stay together."""
    values = np.round(np.array(seconds), 2)
    edges = np.unique(np.quantile(values, np.arange(1, _RANGES) / _RANGES, method="lower"))
    groups = {}
    for at in range(_RANGES):
        rows = np.flatnonzero(np.searchsorted(edges, values) == at)
        if len(rows):
            low, high = values[rows].min(), values[rows].max()
            groups[f"{low:g} s" if low == high else f"{low:g} to {high:g} s"] = rows.tolist()
    return groups
