"""What one delivery has for one MLflow run, in as few calls as the store takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tune.tracking.mlflow_connection import RecordRefusedError, RunGoneError, RunStatus, TrackingStore

Metric = tuple[str, float, int, int]
"""Key, value, timestamp in ms, step."""
Item = tuple[str, Any]
"""`metrics`, `params` or `tags`, and one of them."""
_PER_CALL = {"metrics": 1000, "params": 100, "tags": 100}
"""What one `log_batch` may hold of each kind; the store refuses more."""
_ALL_PER_CALL = 1000
_MAX_PARAM_LENGTH = 6000
_MAX_TAG_LENGTH = 8000
_WORDS = {None: "null", True: "true", False: "false"}


def milliseconds(seconds: float) -> int:
    """A time as MLflow notes it, from seconds since the epoch."""
    return int(seconds * 1000)


def param_texts(params: Mapping[str, Any]) -> dict[str, str]:
    """Settings as params, written as in YAML: `null`, `true`, numbers that read back exactly (`3e-05`)."""
    return {
        key: _clip(
            _WORDS[value] if value is None or isinstance(value, bool) else str(value), _MAX_PARAM_LENGTH
        )
        for key, value in params.items()
    }


@dataclasses.dataclass
class RunWrites:
    """What is written to one run: what comes later replaces what came before, points are all kept."""

    started: float | None = None
    """When the run began, in seconds since the epoch, where it may have to be created."""
    name: str = ""
    metrics: list[Metric] = dataclasses.field(default_factory=list)
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    status: RunStatus | None = None
    """Also RUNNING, of a run that ended before."""
    ended: float = 0.0
    """When it ended, in seconds since the epoch."""
    files: list[tuple[Path, str | None]] = dataclasses.field(default_factory=list)
    """With the folder of the run's artifacts where each goes."""

    def log(self, metrics: Mapping[str, float | None], step: int, time: float) -> None:
        """Add the finite metrics of one moment; `time` in seconds since the epoch."""
        self.metrics += [
            (key, float(value), milliseconds(time), int(step))
            for key, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Add tags, shortened to what the store takes."""
        self.tags |= {key: _clip(str(value), _MAX_TAG_LENGTH) for key, value in tags.items()}

    @property
    def items(self) -> list[Item]:
        """All params, points and tags."""
        return [
            *(("params", pair) for pair in self.params.items()),
            *(("metrics", point) for point in dict.fromkeys(self.metrics)),
            *(("tags", pair) for pair in self.tags.items()),
        ]

    def send(self, store: TrackingStore, run_id: str, refused: list[str]) -> None:
        """Write all of it.

        Args:
            store: where to.
            run_id: of the run.
            refused: gets a reason for each record that the store will never take; these hold up nothing else.

        Raises:
            TrackingError: the store is away; all of it is to be written again.
        """
        if self.status == "RUNNING":
            attempt(refused, store.reopen_run, run_id)
        for batch in _batches(self.items):
            _send_batch(store, run_id, batch, refused)
        if self.status is not None and self.status != "RUNNING":
            attempt(refused, store.end_run, run_id, self.status, milliseconds(self.ended))
        for path, place in self.files:
            attempt(refused, store.upload, run_id, path, place)


def attempt(refused: list[str], call: Callable[..., None], *arguments: Any) -> None:
    """Make a call; the reason of one that the store will never take is added to those before."""
    try:
        call(*arguments)
    except (RecordRefusedError, RunGoneError) as error:
        refused.append(str(error))


def _batches(items: Sequence[Item]) -> Iterator[list[Item]]:
    """The items in pieces that one call can hold."""
    batch: list[Item] = []
    room = dict(_PER_CALL)
    for item in items:
        if len(batch) == _ALL_PER_CALL or not room[item[0]]:
            yield batch
            batch, room = [], dict(_PER_CALL)
        batch.append(item)
        room[item[0]] -= 1
    if batch:
        yield batch


def _send_batch(store: TrackingStore, run_id: str, batch: Sequence[Item], refused: list[str]) -> None:
    """One call; where the store refuses it, halves of it, so that one bad record does not take the others with it."""
    kinds: dict[str, list[Any]] = {kind: [] for kind in _PER_CALL}
    for kind, content in batch:
        kinds[kind].append(content)
    try:
        store.log_batch(run_id, **kinds)
    except RecordRefusedError as error:
        if len(batch) == 1:
            refused.append(str(error))
        else:
            half = len(batch) // 2
            _send_batch(store, run_id, batch[:half], refused)
            _send_batch(store, run_id, batch[half:], refused)
    except RunGoneError as error:
        refused += [str(error)] * len(batch)


def _clip(text: str, length: int) -> str:
    """`text` shortened to what MLflow stores, with a note that says so."""
    note = f"... ({len(text)} characters)"
    return text if len(text) <= length else text[: length - len(note)] + note
