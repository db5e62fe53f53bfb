"""`--notify URL`: a POST of `{"text": ...}`, as Slack and Mattermost take it, for a new best, a failure and the end."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request

from trainer.scoring.objectives import words
from tune.experiments.events import CheckpointSaved, Evaluated, SearchEnded, TrialEnded
from tune.experiments.experiment import Experiment
from tune.tracking.sync import Log, Store, Target
from tune.util.errors import error_line
from tune.util.redact import hide_password

_SECONDS = 5.0
_PAUSES = (1.0, 3.0)
"""Seconds before the second and the third try."""


class Notifier(Store):
    """Posts what comes to the log from its first sync on. What could not be posted is printed instead."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._url = target.notify
        self._best: float | None = None
        self._begun = False
        self._pauses: tuple[float, ...] = _PAUSES

    def sync(self, log: Log) -> None:
        saved, new = log.saved, log.entries[self.delivered :]
        before, self._best = self._best, _best(saved)
        self.delivered = len(log.entries)
        if not self._begun:
            self._begun = True
            return
        texts = []
        for event in (entry.event for entry in new):
            if isinstance(event, TrialEnded) and event.status == "failed":
                texts.append(f"trial {event.trial_id} failed: {error_line(event.error or '')}")
            elif isinstance(event, SearchEnded):
                texts.append(f"{event.status}, {_standing(saved)}")
        # What a session that goes on takes back, as what guards chose, is no news.
        measured = any(isinstance(entry.event, Evaluated | CheckpointSaved) for entry in new)
        better = self._best is not None and (before is None or self._best < before)
        if measured and better and not saved.state.ended:
            texts.append(f"new best, {_standing(saved)}")
        for text in texts:
            self._post(hide_password(f"{saved.name}: {text}"))

    def _post(self, text: str) -> None:
        """Post one text, or print why it could not be posted; the address is a secret and not shown."""
        body = json.dumps({"text": text}).encode()
        for pause in (*self._pauses, None):
            try:
                request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=_SECONDS):
                    self._pauses = _PAUSES
                    return
            except (OSError, ValueError, http.client.HTTPException) as error:
                why = (
                    f"HTTP {error.code}"
                    if isinstance(error, urllib.error.HTTPError)
                    else type(error).__name__
                )
            if pause is None:
                self._pauses = ()  # other stores wait meanwhile: one try for each text until one is taken
                print(f"warning: --notify: not posted ({why}): {text}", file=sys.stderr)
            else:
                time.sleep(pause)


def _best(saved: Experiment) -> float | None:
    best = saved.state.best()
    return None if best is None else best.best_value


def _standing(saved: Experiment) -> str:
    state, best = saved.state, saved.state.best()
    ended = sum(record.status != "running" for record in state.records.all())
    trials = f"{ended} of {state.options.trials} trials ended"
    if best is None or best.best_value is None:
        return trials
    verdict = state.verdict
    which = f"trial {verdict.winner}, {verdict.score.describe()}" if verdict else best.trial_id
    text = (
        f"WER {state.value:.2f} % ({which}), before fine-tuning WER {state.comparable_base:.2f} %; {trials}"
    )
    return words(text, state.task)
