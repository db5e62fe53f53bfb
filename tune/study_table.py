"""The Optuna study in its database, spoken to synchronously."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tune.records import TrialRecord
from tune.study_connection import StudyDatabaseError, connect, database_calls

if TYPE_CHECKING:
    import optuna

    from tune.records import Status


@dataclasses.dataclass
class News:
    """What has become known of a trial since it was last written."""

    params: dict[str, Any] | None = None
    """None where it was written before."""
    evaluations: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    status: Status = "running"
    best_wer: float | None = None


class StudyTable:
    """One study, untouched before `open`; any method may raise `StudyDatabaseError`."""

    def __init__(self, url: str, experiment: str, distributions: Mapping[str, Any]) -> None:
        """Args:
        url: as SQLAlchemy takes it.
        experiment: the study's name.
        distributions: the searched parameters.
        """
        self._url, self._experiment, self._distributions = url, experiment, distributions
        self._numbers: dict[str, int] = {}
        """Optuna's numbers of the trials in the database."""

    def exists(self) -> bool:
        """Whether the database has a study of this name."""
        import optuna

        storage = connect(self._url)
        with database_calls():
            return self._experiment in optuna.get_all_study_names(storage)

    def open(self, records: Iterable[TrialRecord], *, replace: bool) -> None:
        """Make the study, with these trials in it; `replace` one that is there."""
        import optuna

        storage = connect(self._url)
        with database_calls():
            if replace and self._experiment in optuna.get_all_study_names(storage):
                optuna.delete_study(study_name=self._experiment, storage=storage)
            self._study: optuna.Study = optuna.create_study(
                storage=storage, study_name=self._experiment, direction="minimize"
            )
        self._storage = storage
        self._numbers.clear()
        for record in records:
            self._add(record)

    def write(self, news: Mapping[str, News]) -> None:
        """Write what has become known of some trials."""
        for trial_id, one in news.items():
            self._write(trial_id, one)

    def end(self, trial_id: str, status: str, best_wer: float | None) -> None:
        """Tell how a trial ended."""
        from tune.searcher import trial_state

        number, state = self._numbers[trial_id], trial_state(status)
        value = best_wer if status == "completed" else None
        with database_calls(ValueError):  # somebody else has ended it, or deleted it: in the dashboard maybe
            self._study.tell(number, value, state=state)

    def _write(self, trial_id: str, news: News) -> None:
        if news.params is not None:
            self._add(
                TrialRecord(
                    trial_id,
                    news.params,
                    status=news.status,
                    best_wer=news.best_wer,
                    evaluations=news.evaluations,
                )
            )
            return
        for samples_seen, wer in news.evaluations:
            self._report(trial_id, samples_seen, wer)
        if news.status != "running":
            self.end(trial_id, news.status, news.best_wer)

    def _add(self, record: TrialRecord) -> None:
        from tune.searcher import frozen_trial

        self._numbers[record.trial_id] = len(self._numbers)
        value = record.best_wer if record.status == "completed" else None
        if record.status == "early_stopped" and record.evaluations:
            value = record.evaluations[-1][1]  # as Optuna does where it is told of one
        trial = frozen_trial(record.config, record.evaluations, value, self._distributions, record)
        with database_calls():
            self._study.add_trial(trial)

    def _report(self, trial_id: str, samples_seen: int, wer: float) -> None:
        import optuna

        number = self._numbers[trial_id]
        with database_calls():
            stored = self._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, number)
            optuna.trial.Trial(self._study, stored).report(wer, samples_seen)


class TableKilledError(StudyDatabaseError):
    """The process that wrote to the study was killed; what the table was told since it was opened may be lost."""


def killed_table(table: StudyTable) -> TableKilledError:
    """For `tune.apart`: `table` is a new one, to be opened."""
    return TableKilledError("the process that wrote to it was killed")
