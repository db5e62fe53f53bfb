"""What a trial gets of the cluster."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path
from typing import Any

import pytest

from tune.cluster.resources import TRAINING_OPTIONS, ResourceRequest, TrialResources
from tune.cluster.session import check_address
from tune.experiments.plan import SearchRequest
from tune.util.errors import ResourceError


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
        ({"cpus_per_trial": 2.0}, [{"CPU": 5}, {"CPU": 3}], TrialResources(gpus=0, cpus=2, concurrent=3)),
        (
            {},
            [{"CPU": 8}, {"CPU": 8, "GPU": 2}, {"CPU": 4, "GPU": 1}],
            TrialResources(gpus=1, cpus=4, concurrent=3),
        ),
    ],
)
def test_resources(asked: dict[str, Any], available: Any, expected: TrialResources) -> None:
    assert (
        request(**asked).resources.fit(available if isinstance(available, list) else [available]) == expected
    )


@pytest.mark.parametrize(
    ("asked", "available", "message"),
    [
        ({"gpus_per_trial": 1.0}, {"CPU": 4}, "--gpus-per-trial 1: this machine has 0 GPUs; use 0"),
        (
            {"gpus_per_trial": 4.0},
            {"CPU": 4, "GPU": 1},
            "--gpus-per-trial 4: this machine has 1 GPU; lower it",
        ),
        ({"cpus_per_trial": 8.0}, {"CPU": 4}, "--cpus-per-trial 8: this machine has 4 CPUs; lower it"),
        (
            {"gpus_per_trial": 2.0},
            [{"CPU": 4, "GPU": 1}] * 3,
            "no node of the cluster has more than 1 GPU; lower",
        ),
    ],
)
def test_asking_for_too_much(asked: dict[str, Any], available: Any, message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        request(**asked).resources.fit(available if isinstance(available, list) else [available])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "available", "expected"),
    [
        ({}, {"CPU": 4}, TrialResources(gpus=0, cpus=2, concurrent=2, workers=2)),
        ({}, {"CPU": 16, "GPU": 4}, TrialResources(gpus=2, cpus=8, concurrent=2, workers=2)),
        ({}, {"CPU": 2, "GPU": 4}, TrialResources(gpus=2, cpus=1, concurrent=2, workers=2)),
        # Workers of a trial may lie on two nodes.
        ({}, [{"CPU": 8, "GPU": 1}] * 3, TrialResources(gpus=2, cpus=16, concurrent=1, workers=2)),
        (
            {"gpus_per_trial": 0.0},
            {"CPU": 4, "GPU": 4},
            TrialResources(gpus=0, cpus=2, concurrent=2, workers=2),
        ),
        (
            {"cpus_per_trial": 4.0},
            {"CPU": 9, "GPU": 9},
            TrialResources(gpus=2, cpus=4, concurrent=2, workers=2),
        ),
    ],
)
def test_resources_of_two_workers(asked: dict[str, Any], available: Any, expected: TrialResources) -> None:
    nodes = available if isinstance(available, list) else [available]
    assert request(workers_per_trial=2, **asked).resources.fit(nodes) == expected


@pytest.mark.parametrize(
    ("asked", "available", "message"),
    [
        (
            {},
            {"CPU": 4, "GPU": 1},
            "--workers-per-trial 2: there is room for 1 of 1 GPU and 4 CPU each; lower it",
        ),
        ({}, {"CPU": 1}, "--workers-per-trial 2: there is room for 1 of 0 GPU and 1 CPU each; lower it"),
    ],
)
def test_too_many_workers(asked: dict[str, Any], available: dict[str, float], message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        request(workers_per_trial=2, **asked).resources.fit([available])
    assert message in str(caught.value)


@pytest.mark.parametrize("address", ["http://me:hush@head:8265", "ray://head:10001/?token=hush"])
def test_an_address_that_a_search_cannot_join_is_told_without_its_password(address: str) -> None:
    with pytest.raises(ResourceError, match=r"--address (http|ray)://.*\*\*\*") as caught:
        check_address(address)
    assert "hush" not in str(caught.value)


def test_an_address_where_a_web_server_answers() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(
            ResourceError, match="is a web server, as Ray's dashboard is; a search joins HOST:6379"
        ):
            check_address(address)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"gpus": 1.0, "workers": 2},
            "--gpus-per-worker 1: this machine has 0 GPUs; use 0 to train on the CPU",
        ),
        ({"cpus": 8.0, "workers": 2}, "--cpus-per-worker 8: this machine has 4 CPUs; lower it"),
        ({"workers": 5}, "--workers 5: there is room for 4 of 0 GPU and 1 CPU each; lower it"),
    ],
)
def test_a_training_is_told_in_the_words_of_its_own_options(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        ResourceRequest(**asked, options=TRAINING_OPTIONS).fit([{"CPU": 4.0}])
    assert str(caught.value) == message
