"""`--notify URL`: a POST of `{"text": ...}`, as Slack and Mattermost take it, for a new best, a failure and the end."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

from trainer.scoring.objectives import describe_rates
from tune.experiments.events import SearchEnded, SessionStarted, TrialEnded
from tune.experiments.experiment import Experiment
from tune.tracking.sync import Log, Store, Target
from tune.util.errors import TrackingError

_SECONDS = 10.0


class Notifier(Store):
    """Posts what happens in this session; what happened before is no news."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._url = target.notify
        self._best: float | None = None

    def sync(self, log: Log) -> None:
        saved, entries = log.saved, log.entries
        if not self.delivered:
            begins = [n for n, entry in enumerate(entries, 1) if isinstance(entry.event, SessionStarted)]
            self.delivered = (begins or [0])[-1]
            self._best = _best(saved) if len(begins) > 1 else None
        for number, entry in enumerate(entries[self.delivered :], self.delivered + 1):
            event = entry.event
            if isinstance(event, TrialEnded) and event.status == "failed":
                why = (event.error or "").partition("\n")[0]
                self._post(f"{saved.name}: trial {event.trial_id} failed: {why}")
            elif isinstance(event, SearchEnded):
                self._post(f"{saved.name}: {event.status}, {_standing(saved)}")
            self.delivered = number
        best = _best(saved)
        if best is not None and (self._best is None or best < self._best) and not saved.state.ended:
            self._post(f"{saved.name}: new best, {_standing(saved)}")
        self._best = best

    def _post(self, text: str) -> None:
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS):
                pass
        except (
            OSError,
            ValueError,
        ) as error:  # neither its text nor the address, which is a secret, is shown
            why = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            raise TrackingError(f"--notify: nothing could be posted ({why})") from None


def _best(saved: Experiment) -> float | None:
    best = saved.state.best()
    return None if best is None else best.best_value


def _standing(saved: Experiment) -> str:
    state, best = saved.state, saved.state.best()
    ended = sum(record.status != "running" for record in state.records.all())
    trials = f"{ended} of {state.options.trials} trials ended"
    if best is None or best.best_value is None:
        return trials
    name = state.objective
    return (
        f"{describe_rates({name: best.best_value})} ({best.trial_id}), "
        f"before fine-tuning {describe_rates({name: state.base_rates[name]})}; {trials}"
    )
