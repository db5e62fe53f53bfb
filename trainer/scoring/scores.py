"""Everything that an evaluation says of a model, and of another one beside it, on the same clips."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.scoring.alignment import ErrorCounts, Piece, align, count_errors, frequent_errors
from trainer.scoring.breakdown import LENGTH, by_ranges, group_by
from trainer.scoring.decoding import Transcripts
from trainer.scoring.hallucinations import Sign, find_signs
from trainer.scoring.intervals import Comparison, Interval, compare, rate_interval
from trainer.scoring.normalizers import Normalizer
from trainer.scoring.objectives import CHRF_ERROR, objective_name
from trainer.scoring.translation import TRANSLATE, ChrfCounts, bleu, count_chrf


@dataclasses.dataclass(frozen=True)
class Counted:
    """Texts of a model against what was said."""

    normalized: list[str]
    """The model's texts as they are counted."""
    alignments: list[list[Piece]]
    """Of each utterance, normalised."""
    counts: Mapping[str, Any]
    """`ErrorCounts` by rate: `wer`, `cer` of normalised text, `wer_orthographic`, `cer_orthographic` of text as
    written; of translations `ChrfCounts` as `chrf_error` alone."""


def count_rates(
    references: Sequence[str],
    hypotheses: Sequence[str],
    normalizer: Normalizer,
    own: Sequence[Normalizer] | None = None,
) -> Counted:
    """Align and count, normalised and as written; references that are empty or only signs are in no rate.

    Where the normaliser's unit is the character, the WER is the CER, so that a language without spaces is measured by
    what it has; spaces count in neither.

    Args:
        references: what was said.
        hypotheses: as many.
        normalizer: of both.
        own: the normaliser of each text, where they are in several languages.
    """
    if own is None or all(one is own[0] for one in own):
        return _count_alike(references, hypotheses, own[0] if own else normalizer)
    rows: dict[int, list[int]] = {}
    for row, one in enumerate(own):
        rows.setdefault(id(one), []).append(row)
    parts = [
        (
            mine,
            _count_alike([references[row] for row in mine], [hypotheses[row] for row in mine], own[mine[0]]),
        )
        for mine in rows.values()
    ]
    heard, alignments = [""] * len(own), [list[Piece]()] * len(own)
    for mine, part in parts:
        for row, text, pieces in zip(mine, part.normalized, part.alignments, strict=True):
            heard[row], alignments[row] = text, pieces
    counts = {
        rate: ErrorCounts.together([(mine, part.counts[rate]) for mine, part in parts])
        for rate in parts[0][1].counts
    }
    return Counted(heard, alignments, counts)


def _count_alike(references: Sequence[str], hypotheses: Sequence[str], normalizer: Normalizer) -> Counted:
    said, heard = ([normalizer(text) for text in texts] for texts in (references, hypotheses))
    spoken = [
        normalizer.as_written(text) if words.strip() else ""
        for text, words in zip(references, said, strict=True)
    ]
    written = [normalizer.as_written(text) for text in hypotheses]
    alignments = align(said, heard)
    counts = {"wer": ErrorCounts.of_alignments(alignments), "wer_orthographic": count_errors(spoken, written)}
    if normalizer.unit == "characters":
        counts |= {"cer": counts["wer"], "cer_orthographic": counts["wer_orthographic"]}
    else:
        counts["cer"] = count_errors(said, heard, "characters")
        counts["cer_orthographic"] = count_errors(spoken, written, "characters")
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
    columns: Mapping[str, Sequence[str]]
    """Cells by column, for groups."""
    normalizers: Sequence[Normalizer] | None = None
    """Of each text its own, where they are in several languages."""

    def normalized(self, normalizer: Normalizer) -> list[str]:
        """The texts as they are counted."""
        own = self.normalizers or [normalizer] * len(self)
        return [each(text) for each, text in zip(own, self.texts, strict=True)]

    def __len__(self) -> int:
        return len(self.names)


@dataclasses.dataclass(frozen=True)
class ModelScores(Counted):
    """One model on the split."""

    bleu: float | None
    """Of translations."""

    model: str
    """As the user named it."""
    transcripts: Transcripts
    rates: Mapping[str, Rate]
    signs: list[Sign]
    """Of hallucination."""

    @property
    def decides(self) -> Any:
        """`ErrorCounts` or `ChrfCounts` of the objective."""
        return self.counts[objective_name(self.counts)]

    def worst(self, most: int) -> list[int]:
        """Rows of the utterances with most errors."""
        found: list[int] = self.decides.worst_first()
        return found[:most]

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
    """An evaluation."""

    reference: Reference
    normalizer: Normalizer
    normalized: list[str]
    """References as they are counted."""
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
        """Utterances in which nothing is said; they are in no rate."""
        return sum(not text.strip() for text in self.normalized)


def score(
    reference: Reference,
    normalizer: Normalizer,
    model: tuple[str, Transcripts],
    baseline: tuple[str, Transcripts] | None = None,
    *,
    task: str = "transcribe",
) -> Scores:
    """Count, compare and sort what one or two models wrote.

    Args:
        reference: what was said.
        normalizer: the same for both models.
        model: its name and transcripts, in the order of the references.
        baseline: another one's.
        task: with `translate` what the models wrote are translations, judged by chrF.

    Raises:
        ValueError: no reference has any text.
    """
    normalized = reference.normalized(normalizer)
    translates = task == TRANSLATE
    mine = _score_model(reference, normalized, normalizer, *model, translates)
    other = _score_model(reference, normalized, normalizer, *baseline, translates) if baseline else None
    comparisons = {}
    if other is not None:
        comparisons = {
            rate: compare(mine.counts[rate].errors, other.counts[rate].errors, mine.counts[rate].lengths)
            for rate in mine.counts
        }
    return Scores(
        reference=reference,
        normalizer=normalizer,
        normalized=normalized,
        model=mine,
        baseline=other,
        comparisons=comparisons,
        groups=_groups(reference, mine, other),
    )


def _score_model(
    reference: Reference,
    normalized: list[str],
    normalizer: Normalizer,
    name: str,
    transcripts: Transcripts,
    translates: bool,
) -> ModelScores:
    counted = count_rates(reference.texts, transcripts.texts, normalizer, reference.normalizers)
    signs = find_signs(normalized, counted.normalized, counted.alignments, normalizer.unit)
    if translates:  # other words than those of the reference are no sign of anything
        counted = dataclasses.replace(
            counted, counts={CHRF_ERROR: count_chrf(reference.texts, transcripts.texts)}
        )
        signs = []
    return ModelScores(
        **vars(counted),
        bleu=bleu(reference.texts, transcripts.texts) if translates else None,
        model=name,
        transcripts=transcripts,
        rates={rate: _rate(counts) for rate, counts in counted.counts.items()},
        signs=signs,
    )


def _rate(counts: ErrorCounts | ChrfCounts) -> Rate:
    return Rate(counts.percent, rate_interval(counts.errors, counts.lengths))


def _groups(reference: Reference, mine: ModelScores, other: ModelScores | None) -> dict[str, list[Group]]:
    found = {name: _scored(group_by(cells, name), mine, other) for name, cells in reference.columns.items()}
    seconds = by_ranges(dict(enumerate(reference.seconds)), " s")
    return {**found, LENGTH: _scored(seconds, mine, other)}


def _scored(groups: Mapping[str, list[int]], mine: ModelScores, other: ModelScores | None) -> list[Group]:
    scored = []
    for value, rows in groups.items():
        counts = mine.decides.of(rows)
        if counts.lengths.sum():
            theirs = _rate(other.decides.of(rows)) if other else None
            scored.append(Group(value, rows, int(counts.lengths.sum()), _rate(counts), theirs))
    return scored
