"""Records as another process has them: written to a log and folded again."""

from __future__ import annotations

from tune.experiments.events import (
    Entry,
    Evaluated,
    Event,
    TrialEnded,
    TrialProposed,
    TrialStarted,
    decode,
    encode,
)
from tune.experiments.state import SearchState
from tune.search.records import Records, TrialRecord


def folded(records: Records) -> Records:
    """What the log of these trials folds to; a search that was killed in mid-trial had not written their ends."""
    state = SearchState()
    for record in records.all():
        for event in events_of(record):
            state.apply(decode(encode(Entry(state.events + 1, 1.0, event))))
    return state.records


def events_of(record: TrialRecord) -> list[Event]:
    """What is written of a trial."""
    name = record.trial_id
    events: list[Event] = [
        TrialProposed(trial_id=name, config=record.config, effective_batch=record.effective_batch),
        TrialStarted(trial_id=name, folder=record.folder or name),
    ]
    last = len(record.evaluations)
    for place, ((seen, wer), loss) in enumerate(zip(record.evaluations, record.losses, strict=True), 1):
        metrics: dict[str, float | None] = {"wer": wer, "cer": wer / 2, "eval_loss": loss}
        if seen in record.wer_errors:
            metrics |= {"wer_error": record.wer_errors[seen], "eval_clips": 1.0}
        ends = place == last and not (record.stop and record.stop.reason == "diverged")
        events.append(
            Evaluated(
                trial_id=name,
                samples_seen=seen,
                epoch=seen / 100,
                metrics=metrics,
                finished=ends and record.finished,
                stop=record.stop if ends else None,
            )
        )
    if record.stop is not None and record.stop.reason == "diverged":
        seen = record.stop.samples_seen
        events.append(
            Evaluated(
                trial_id=name,
                samples_seen=seen,
                epoch=1.0,
                metrics={"wer": None},
                finished=False,
                stop=record.stop,
            )
        )
    outcome = record.outcome
    if outcome != "running":
        events.append(TrialEnded(trial_id=name, status=outcome, error=record.error))
    return events
