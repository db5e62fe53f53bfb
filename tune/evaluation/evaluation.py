"""One evaluation from the data to its figures, with progress on the way."""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trainer.errors import DataError
from trainer.scoring.objectives import CHRF_ERROR
from trainer.scoring.translation import ChrfCounts
from tune.evaluation.plan import EvaluationPlan, check_columns
from tune.util.console import ProgressBar, say_notes

if TYPE_CHECKING:
    from trainer.data.split_data import SplitData
    from trainer.scoring.decoding import Decoder, Transcripts
    from trainer.scoring.scores import Group, ModelScores, Scores


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    plan: EvaluationPlan
    scores: Scores
    split: str
    """As the data set names it."""
    dropped: dict[str, int]
    """Clips that could not be used, by reason."""
    notes: list[str]
    created: str
    """ISO date and time."""

    def to_dict(self) -> dict[str, Any]:
        """The content of `evaluation.json`; rates in percent, plain values only."""
        scores, config = self.scores, self.plan.config
        unit = scores.normalizer.unit
        return {
            "kind": KIND,
            "created": self.created,
            "model": scores.model.model,
            "baseline": scores.baseline.model if scores.baseline else None,
            "data": config.data,
            "split": self.split,
            "language": config.language,
            "task": config.task,
            "normalizer": {
                "name": scores.normalizer.name,
                "unit": unit,
                "description": scores.normalizer.description,
            },
            "decoding": {
                "beams": config.generation_num_beams,
                "batch_size": scores.model.transcripts.batch_size,
            },
            "clips": len(scores.reference),
            "audio_seconds": round(sum(scores.reference.seconds), 3),
            "empty_references": scores.empty_references,
            "dropped": self.dropped,
            "notes": self.notes,
            **_model_dict(scores.model),
            "baseline_scores": _model_dict(scores.baseline) if scores.baseline else None,
            "comparison": {
                rate: {
                    **dataclasses.asdict(found),
                    "difference_shown": found.shown,
                    "same_errors": found.same_errors,
                }
                for rate, found in scores.comparisons.items()
            },
            "breakdown": {
                column: [_group_dict(scores, group) for group in groups]
                for column, groups in scores.groups.items()
            },
            "utterances": [_utterance_dict(scores, row) for row in range(len(scores.reference))],
        }


KIND = "tune-whisper evaluation"
"""Tells an `evaluation.json` of this command from that of an export."""


def _model_dict(found: ModelScores) -> dict[str, Any]:
    transcripts = found.transcripts
    return {
        "rates": {name: dataclasses.asdict(rate) for name, rate in found.rates.items()},
        **(
            {}
            if found.bleu is None
            else {"bleu": found.bleu, "chrf": 100.0 - found.rates[CHRF_ERROR].percent}
        ),
        "errors": {name: counts.totals() for name, counts in found.counts.items()},
        "speed": {
            "real_time_factor": transcripts.real_time_factor,
            "decoding_seconds": transcripts.seconds,
            "device": transcripts.device,
            "precision": transcripts.precision,
        },
        "hallucination": {"signs": [dataclasses.asdict(sign) for sign in found.signs]},
        "frequent_errors": [
            {"kind": kind, "said": said, "written": written, "times": times}
            for kind, said, written, times in found.frequent()
        ],
    }


def _group_dict(scores: Scores, group: Group) -> dict[str, Any]:
    return {
        "value": group.value,
        "clips": len(group.rows),
        "reference": group.length,
        scores.objective: dataclasses.asdict(group.rate),
        f"baseline_{scores.objective}": dataclasses.asdict(group.baseline) if group.baseline else None,
    }


def _utterance_dict(scores: Scores, row: int) -> dict[str, Any]:
    counts = scores.model.decides
    if isinstance(counts, ChrfCounts):
        errors: dict[str, Any] = {CHRF_ERROR: counts.of([row]).percent if counts.lengths[row] else None}
    else:
        totals = counts.of([row]).totals()
        errors = {kind: totals[kind] for kind in ("substitutions", "deletions", "insertions")}
    found = {
        "name": scores.reference.names[row],
        "seconds": round(scores.reference.seconds[row], 3),
        "columns": {name: cells[row] for name, cells in scores.reference.columns.items()},
        "reference": scores.reference.texts[row],
        "hypothesis": scores.model.transcripts.texts[row],
        "reference_normalized": scores.reference.normalized[row],
        "hypothesis_normalized": scores.model.normalized[row],
        **errors,
        "reference_length": int(counts.lengths[row]),
    }
    if scores.baseline is not None:
        found["baseline_hypothesis"] = scores.baseline.transcripts.texts[row]
        other = scores.baseline.decides
        if isinstance(other, ChrfCounts):
            found[f"baseline_{CHRF_ERROR}"] = other.of([row]).percent if other.lengths[row] else None
        else:
            found["baseline_errors"] = int(other.errors[row])
    return found


def run_evaluation(plan: EvaluationPlan, console: Console) -> EvaluationResult:
    """Load data and model, decode, count; what goes wrong with the data or the models is found before decoding.

    Args:
        console: gets progress and notes, no results.

    Raises:
        DataError: the data has no such split, or cannot be used.
        ModelError: a model cannot be loaded or does not know the language.
        ConfigError: a column is not there, or a setting does not fit the machine.
    """
    from trainer.data.columns import SOURCE_COLUMN
    from trainer.data.split_data import load_split, prepare_split, without_learned
    from trainer.scoring.decoding import Decoder, check_model
    from trainer.scoring.normalizers import make_normalizers, unit_note
    from trainer.scoring.scores import Reference, score

    config = plan.config
    other = config.replace(model=plan.baseline.source) if plan.baseline else None
    with console.status("looking at the data and the models ..."):
        source = load_split(config, plan.split)
        check_columns(plan.by, source.columns, config.data)
        if other is not None:
            check_model(other)
        decoder = Decoder(config)
    with ProgressBar(console, "computing features") as progress:
        data = prepare_split(config, source, progress.update)
    for shown, splits in plan.learned.items():
        data = without_learned(config, data, shown, splits)
    note = unit_note(config)
    notes = [*plan.notes, *data.notes, *([note] if note else [])]
    say_notes(console, notes)
    origins = data.prepared.origins
    columns = dict.fromkeys(
        (*plan.by, *([SOURCE_COLUMN] if any(kind.source for kind in origins.kinds) else []))
    )
    reference = Reference(
        names=[data.prepared.name(row) for row in range(len(data))],
        seconds=[data.prepared.seconds(row) for row in range(len(data))],
        texts=[data.prepared.text(row) for row in range(len(data))],
        normalizers=make_normalizers(config, origins, decoder.processor.tokenizer),
        columns={name: data.column(name) for name in columns},
        silence=config.empty_text == "keep",
    )
    if not any(text.strip() for text in reference.normalized):  # before hours of decoding
        raise DataError(
            f"data={config.data!r}: no text of the split {plan.split!r} has a word left after the normaliser "
            f"{config.normalizer_name}; nothing to measure"
        )
    model = (plan.model.shown, _decode(decoder, data, console, plan.model.shown))
    del decoder  # the baseline may need its memory
    baseline = None
    if plan.baseline is not None and other is not None:
        baseline = (plan.baseline.shown, _decode(Decoder(other), data, console, plan.baseline.shown))
    with console.status("counting ..."):
        scores = score(reference, model, baseline, task=config.task)
    dropped = dict(Counter(drop.reason for drop in data.drops).most_common())
    created = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return EvaluationResult(plan, scores, source.name, dropped, notes, created)


def _decode(decoder: Decoder, data: SplitData, console: Console, shown: str) -> Transcripts:
    with ProgressBar(console, f"decoding with {shown}") as progress:
        same = decoder.config.model == data.model
        split = data.prepared if same else data.for_model(decoder.config, progress.update)
        return decoder.transcribe(split, progress.update)
