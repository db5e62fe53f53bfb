"""What can happen in an experiment: one frozen class an event, and its line in the log.

A line is a JSON object with the event's number `n` from 1 on, its `time` in seconds since the epoch, the name of its
class (`event`), its fields (`data`) and `sum`, the CRC-32 of all before it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from trainer.config import TrainConfig
from trainer.scoring import objectives
from trainer.training.report import Kept
from tune.cluster.resources import TrialResources
from tune.experiments.options import SearchOptions
from tune.search.budgets import EndReason
from tune.search.finalists import Verdict
from tune.search.guards import GuardLoss
from tune.search.records import Stop, TrialOutcome
from tune.search.searcher import WarmStart
from tune.util.plain import restored

SearchStatus = Literal["completed", "failed", "interrupted"]
_SUM = b', "sum": "'
RATES = (*objectives.RATES, "eval_loss")
"""What an evaluation measures; with it stands in `Evaluated` what the training reports of itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened; each kind is a class below this one."""

    decision: ClassVar[bool] = False
    """Whether it is to be on the disk before anything acts on it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionStarted(Event):
    """A process begins to run the experiment, or goes on with it; what it was asked for holds from here on."""

    decision = True
    session: int
    """1 for the first process, one more for each `--resume`."""
    began: float
    """When its command began, in seconds since the epoch: time budgets count from there."""
    options: SearchOptions
    gpus_per_trial: float = 0.0
    precision: str = "auto"
    """Arithmetic of all trials whose settings leave it open; `auto`: what each has where it runs."""
    space: dict[str, Any] | None = None
    """What is searched from here on, its bounds as numbers; None for what was searched before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The clips that are trained on and measured."""

    clips: dict[str, int] = dataclasses.field(default_factory=dict)
    splits: dict[str, str] = dataclasses.field(default_factory=dict)
    """Digest of each split's clips and texts."""
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Seconds of audio of each split."""
    longest_seconds: float | None = None
    epoch_samples: float = 0.0
    """Samples in an epoch, by the weights of the data's sources."""
    sources: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """Of data with several sources, by their names: `language` and `task` of the clips, `weight`, `clips` by split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baseline:
    """The base model on the validation split."""

    rates: dict[str, float]
    """Those of `RATES` that are known, in percent, `loss`, `clips`."""
    trial_rates: dict[str, float] = dataclasses.field(default_factory=dict)
    """The same as trials are measured, in their window on their clips; empty where that is as here."""
    trial_clips: int | None = None
    """Validation clips that trials measure at least, see `chosen_clips`; None for all."""
    sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Rates by the source of the clips, where there are several."""
    trial_sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The same of `trial_rates`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared(Event):
    """Everything that was resolved before the first trial; `experiment.yaml` shows it to people."""

    decision = True
    train_config: dict[str, Any]
    """Fields of `TrainConfig` that all trials share."""
    space: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What is searched, its bounds as numbers; empty of a training."""
    rungs: tuple[int, ...]
    """Samples seen at which trials are measured; the last one is the full budget of the longest trial."""
    trials_full_window: bool = True
    """Whether trials are measured as the model will be used, or with the window that they train with."""
    resources: TrialResources
    data: Data
    baseline: Baseline
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    """Clips that were left out, by reason."""
    notes: tuple[str, ...] = ()
    """What the user should know of the data."""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    warm_starts: list[WarmStart] = dataclasses.field(default_factory=list)
    """What the searcher knows of other experiments."""

    @functools.cached_property
    def base(self) -> TrainConfig:
        """What all trials share, as it was where the experiment began; ConfigError where a later version wrote it."""
        return TrainConfig.from_dict(self.train_config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialProposed(Event):
    """The searcher has chosen settings; the final round trains those of a finalist again; or runs are averaged."""

    trial_id: str
    config: dict[str, Any]
    effective_batch: int = 0
    members: list[str] = dataclasses.field(default_factory=list)
    """Of an average: the runs whose weights it is the mean of."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialStarted(Event):
    """A process trains it; also after a failure, and when the search goes on."""

    trial_id: str
    folder: str
    """Below `trials/`, where its checkpoints go."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """A trial was measured at a rung, and what was decided on it."""

    decision = True
    trial_id: str
    samples_seen: int
    epoch: float
    metrics: dict[str, float | None]
    """Those of `RATES` that are known, in percent, and what the training reported with them; None for no finite number.
    """
    finished: bool
    """Whether this was the full budget."""
    stop: Stop | None = None
    """Why the trial ends here, before its budget."""
    keep: Kept | None = None
    """What the trial was told to save of it; `CheckpointSaved` says that it has."""
    sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Rates by the source of the clips, where there are several."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """What was to be kept of an evaluation, or between two to go on from there, is complete on the storage."""

    decision = True
    trial_id: str
    samples_seen: int
    """What the training had seen."""
    epoch: float
    """The same in epochs."""
    checkpoint: str
    """Relative to the experiment."""
    keep: Kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialRecovered(Event):
    """A trial's process failed, and it is tried again."""

    trial_id: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialEnded(Event):
    """Nothing more comes of a trial."""

    decision = True
    trial_id: str
    status: TrialOutcome
    error: str | None = None
    samples_seen: int = 0
    """As last heard: after the last evaluation where it failed later."""
    epoch: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CutShort(Event):
    """No further trials, or in the final round repeats, are begun in this session, though some are left."""

    decision = True
    final_round: bool = False
    reason: EndReason
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalistsCompared(Event):
    """What the repeats came to."""

    verdict: Verdict | None
    """None where a finalist has no repeat that came to its end."""
    text: str = ""
    """Why there is none; empty where there were no finalists."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardMeasured(Event):
    """A model on a guard: on data that is not trained on."""

    guard: str
    """Its data."""
    run: str | None
    """None is the base model."""
    rates: dict[str, float]
    """In percent; empty where it could not be measured."""
    errors: list[float] = dataclasses.field(default_factory=list)
    """What each clip adds to the rate that is compared ..."""
    words: list[float] = dataclasses.field(default_factory=list)
    """... and its length."""
    clips_digest: str = ""
    """Tells these clips and texts from others."""
    seconds: float = 0.0
    text: str = ""
    """Why it could not be measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardsJudged(Event):
    """What keeping the guards costs, and what is exported for it."""

    run: str
    models: dict[str, list[GuardLoss]]
    """What each run has lost on each guard, those to be exported rather than others first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportChosen(Event):
    """The run that is exported. The weights of other runs that have ended go, unless `keep_checkpoints` is `all`."""

    decision = True
    run: str
    keep: list[str] = dataclasses.field(default_factory=list)
    """Other runs whose weights stay."""
    losers: list[str] = dataclasses.field(default_factory=list)
    """Trials that lost in the final round; they are not compared again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOutMeasured(Event):
    """A run, and the base model, on the held-out test split."""

    run: str
    rates: dict[str, float]
    baseline: dict[str, float]
    sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Rates by the source of the clips, where there are several."""
    baseline_sources: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """The same of the base model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchEnded(Event):
    """The session is over."""

    decision = True
    status: SearchStatus


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultsWritten(Event):
    """`results.json` and the report say what the log says so far."""


_CLASSES = {kind.__name__: kind for kind in Event.__subclasses__()}


@dataclasses.dataclass(frozen=True)
class Entry:
    """An event with its place in the log."""

    number: int
    time: float
    """When it happened, in seconds since the epoch."""
    event: Event


class LineError(ValueError):
    """A line is not what was written."""


def encode(entry: Entry) -> bytes:
    """The line of an event, with its line break.

    Raises:
        ValueError: a number in it is not finite.
    """
    kind, data = type(entry.event).__name__, vars(entry.event)
    content = {"n": entry.number, "time": entry.time, "event": kind, "data": data}
    # Not `asdict` of all, which would copy every container.
    body = json.dumps(content, allow_nan=False, default=dataclasses.asdict).encode()[:-1]
    return body + _SUM + b'%08x"}\n' % zlib.crc32(body)


def decode(line: bytes) -> Entry:
    """The event of a whole line.

    Raises:
        LineError: the line is damaged, or of another version.
    """
    body, found, rest = line.rstrip(b"\n").rpartition(_SUM)
    if not found or rest != b'%08x"}' % zlib.crc32(body):
        raise LineError(
            "is damaged: its checksum does not match; restore the file from a copy. The lines before it are intact: "
            "remove that line and all after it to go on from there"
        )
    try:
        content: Mapping[str, Any] = json.loads(body + b"}")
        event: Event = restored(_CLASSES[content["event"]], content["data"])
        return Entry(content["n"], content["time"], event)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"is no event that this version of tune-whisper knows ({error}); use the version that wrote it"
        raise LineError(text) from error
