"""What the runs of trials follow from: what the search's own run says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune.mlflow_records import param_pairs
from tune.mlflow_view import BEST, WINNER

if TYPE_CHECKING:
    from tune.mlflow_client import RunFacts

NAMED_BY = {BEST: "best_trial", WINNER: "winner"}
"""Tags of trials, and the search's tags that name the trial which has them."""
_BASELINE = "baseline_wer"
_GPUS = "gpus_per_trial"
_SEARCHED = "search."
"""With what the search's params begin that describe the searched settings."""


@dataclasses.dataclass
class SearchFacts:
    """Params, metrics and tags of the search's run that matter for those of its trials."""

    shared: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Its params: what a trial has in common with them is not said again."""
    searched: frozenset[str] = frozenset()
    """Settings that are said all the same."""
    baseline: float | None = None
    """WER of the untouched base model in percent, once it is measured."""
    named: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The trials that earlier sessions named, by the tag of `NAMED_BY`."""

    @classmethod
    def of(cls, params: Mapping[str, Any], searched: Sequence[str]) -> SearchFacts:
        """Those of a search that begins."""
        return cls(dict(param_pairs(params)), frozenset(searched))

    @classmethod
    def read(cls, run: RunFacts) -> SearchFacts:
        """Those of a search that goes on."""
        searched = {key.removeprefix(_SEARCHED) for key in run.params if key.startswith(_SEARCHED)}
        named = {tag: run.tags[key] for tag, key in NAMED_BY.items() if key in run.tags}
        return cls(run.params, frozenset(searched), run.metrics.get(_BASELINE), named)

    @property
    def gpus(self) -> float:
        """GPUs that each trial takes."""
        return float(self.shared.get(_GPUS) or 0.0)

    def heard(self, metrics: Mapping[str, float]) -> None:
        """Take in metrics of the search."""
        self.baseline = metrics.get(_BASELINE, self.baseline)

    def own_params(self, params: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Of a trial's settings the searched ones, and those that are not the search's."""
        return [
            (key, value)
            for key, value in param_pairs(params)
            if key in self.searched or self.shared.get(key) != value
        ]

    def figures(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Metrics of an ended trial, with `wer_gain` and `gpu_hours` where they follow."""
        found = dict(metrics)
        if "best_wer" in found and self.baseline is not None:
            found["wer_gain"] = round(self.baseline - found["best_wer"], 4)
        if "seconds" in found and self.gpus:
            found["gpu_hours"] = round(self.gpus * found["seconds"] / 3600, 4)
        return found
