"""The Optuna study of a made-up log, as a tracker writes it and as anybody opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
from event_logs import MadeLog, follow

from tune.tracking.optuna_study import STUDY_FILE, OptunaTracker


def journal(made: MadeLog) -> Path:
    return made.folder.path / STUDY_FILE


def study(place: str | Path, name: str = "exp") -> optuna.Study:
    """As anybody opens it."""
    storage: Any = str(place)
    if isinstance(place, Path):
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(place)))
    return optuna.load_study(study_name=name, storage=storage)


def held(place: str | Path) -> list[tuple[Any, ...]]:
    """All that the study says of its trials, without the times, which are those of delivery for what ended live."""
    return [
        (
            *(trial.number, trial.user_attrs, trial.params, trial.distributions),
            *(trial.state, trial.values, trial.intermediate_values, trial.system_attrs),
        )
        for trial in study(place).trials
    ]


def in_one_go(made: MadeLog, folder: Path) -> list[tuple[Any, ...]]:
    """What a study has to hold: that of another follower, which got the whole log at once."""
    whole = MadeLog(folder)
    whole.path.write_bytes(made.path.read_bytes())
    follow(OptunaTracker(), whole)
    return held(journal(whole))


def place_of(made: MadeLog, kind: str) -> str | Path:
    return journal(made) if kind == "journal" else f"sqlite:///{made.folder.path / 'study.db'}"


def tracker_of(made: MadeLog, kind: str) -> OptunaTracker:
    place = place_of(made, kind)
    return OptunaTracker(None if isinstance(place, Path) else place)
