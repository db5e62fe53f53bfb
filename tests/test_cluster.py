"""What a trial gets of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tune.cluster import TrialResources, trial_resources
from tune.errors import ResourceError
from tune.plan import SearchRequest


def request(**changes: Any) -> SearchRequest:
    return SearchRequest(space="lr_batch", trials=100, storage=Path("x"), **changes)


@pytest.mark.parametrize(
    ("asked", "available", "expected"),
    [
        ({}, {"CPU": 4}, TrialResources(gpus=0, cpus=1, concurrent=4)),
        ({}, {"CPU": 16, "GPU": 2}, TrialResources(gpus=1, cpus=8, concurrent=2)),
        ({}, {"CPU": 96, "GPU": 4}, TrialResources(gpus=1, cpus=8, concurrent=4)),
        ({"gpus_per_trial": 0.5}, {"CPU": 16, "GPU": 2}, TrialResources(gpus=0.5, cpus=4, concurrent=4)),
        ({"gpus_per_trial": 0.4}, {"CPU": 64, "GPU": 2}, TrialResources(gpus=0.4, cpus=8, concurrent=4)),
        ({"gpus_per_trial": 2.0}, {"CPU": 16, "GPU": 5}, TrialResources(gpus=2, cpus=6, concurrent=2)),
        ({"gpus_per_trial": 0.0}, {"CPU": 16, "GPU": 2}, TrialResources(gpus=0, cpus=1, concurrent=16)),
        ({"max_concurrent": 1}, {"CPU": 4}, TrialResources(gpus=0, cpus=1, concurrent=1)),
        ({"cpus_per_trial": 2.0}, {"CPU": 5}, TrialResources(gpus=0, cpus=2, concurrent=2)),
    ],
)
def test_resources(asked: dict[str, Any], available: dict[str, float], expected: TrialResources) -> None:
    assert trial_resources(request(**asked), available) == expected


@pytest.mark.parametrize(
    ("asked", "available", "message"),
    [
        ({"gpus_per_trial": 1.0}, {"CPU": 4}, "--gpus-per-trial 1: the cluster has 0 GPUs; use 0"),
        (
            {"gpus_per_trial": 4.0},
            {"CPU": 4, "GPU": 1},
            "--gpus-per-trial 4: the cluster has 1 GPU; lower it",
        ),
        ({"cpus_per_trial": 8.0}, {"CPU": 4}, "--cpus-per-trial 8: the cluster has 4 CPUs; lower it"),
    ],
)
def test_asking_for_too_much(asked: dict[str, Any], available: dict[str, float], message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        trial_resources(request(**asked), available)
    assert message in str(caught.value)
