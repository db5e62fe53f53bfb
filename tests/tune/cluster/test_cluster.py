"""What a trial gets of the cluster, and which clusters a search can join."""

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from made_experiments import MadeLog
from ray_nodes import Nodes
from rich.console import Console
from search_process import QUICK, Search, read_log

from trainer.config import TrainConfig
from tune.cli import main
from tune.cluster import session
from tune.cluster.resources import ResourceRequest, TrialResources
from tune.cluster.session import gpu_precision, ray_session
from tune.experiments.folder import EVENTS_FILE
from tune.util.errors import ResourceError
from tune.workers.inputs import TrialInputs, runs_on
from tune.workers.trainable import with_gpu_use

FOUR, EIGHT_AND_ONE = {"CPU": 4.0}, {"CPU": 8.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("asked", "nodes", "expected"),
    [
        ({}, [FOUR], TrialResources(gpus=0, cpus=1, concurrent=4)),
        ({}, [{"CPU": 16, "GPU": 2}], TrialResources(gpus=1, cpus=8, concurrent=2)),
        ({"gpus": 0.4}, [{"CPU": 64, "GPU": 2}], TrialResources(gpus=0.4, cpus=8, concurrent=4)),
        ({"max_concurrent": 1}, [FOUR], TrialResources(gpus=0, cpus=1, concurrent=1)),
        ({"cpus": 2.0}, [{"CPU": 5}, {"CPU": 3}], TrialResources(gpus=0, cpus=2, concurrent=3)),
        (
            {},
            [{"CPU": 8}, {"CPU": 8, "GPU": 2}, {"CPU": 4, "GPU": 1}],
            TrialResources(gpus=1, cpus=4, concurrent=3),
        ),
        # Workers of a trial may lie on two nodes.
        ({"workers": 2}, [EIGHT_AND_ONE] * 3, TrialResources(gpus=2, cpus=16, concurrent=1, workers=2)),
    ],
)
def test_resources(asked: dict[str, Any], nodes: list[dict[str, float]], expected: TrialResources) -> None:
    assert ResourceRequest(**{"trials": 100, **asked}).fit(nodes) == expected


TRAINING = {"workers": 2, "per_worker": True}


@pytest.mark.parametrize(
    ("asked", "nodes", "message"),
    [
        ({"gpus": 1.0}, [FOUR], "--gpus-per-trial 1: this machine has 0 GPUs; use 0 to train on the CPU"),
        (
            {"gpus": 2.0},
            [EIGHT_AND_ONE] * 3,
            "--gpus-per-trial 2: no node of the cluster has more than 1 GPU; lower it",
        ),
        ({"cpus": 8.0}, [FOUR], "--cpus-per-trial 8: this machine has 4 CPUs; lower it"),
        (
            {"cpus": 16.0, "gpus": 1.0},
            [EIGHT_AND_ONE, {"CPU": 64.0}],
            "--cpus-per-trial 16: no node of the cluster with enough GPUs has more than 8 CPUs; lower it",
        ),
        # A training is told in the words of its own options.
        (
            {**TRAINING, "gpus": 2.0},
            [FOUR],
            "--gpus-per-worker 1: this machine has 0 GPUs; use 0 to train on the CPU",
        ),
        (
            {**TRAINING, "workers": 5},
            [FOUR],
            "--workers 5: there is room for 4 with 0 GPU and 1 CPU each; lower it",
        ),
    ],
)
def test_asking_for_too_much(asked: dict[str, Any], nodes: list[dict[str, float]], message: str) -> None:
    with pytest.raises(ResourceError) as caught:
        ResourceRequest(**asked).fit(nodes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://me:hush@head:8265", "http://me:***@head:8265: start a search on a node of the cluster"),
        ("ray://head:10001/?token=hush", "from elsewhere use tune-whisper submit --address http://HOST:8265"),
        ("head", "must be HOST:PORT"),
        ("127.0.0.1:9", "no Ray cluster answers"),
        (None, "is a web server, probably Ray's dashboard; give HOST:6379"),
    ],
)
def test_addresses_that_a_search_cannot_join(
    address: str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = address or f"127.0.0.1:{server.server_port}"
        assert main(["--space", "lr_batch", "--address", address, "--storage", "/tmp/no-such-storage"]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: --address ") and told in error
    assert "hush" not in error


def test_a_folder_where_ray_cannot_keep_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray").touch()  # in place of its folder, since root may write to any
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    told = r"^Ray cannot be started with its files in .*/ray: .* set RAY_TMPDIR to a folder .*$"
    with pytest.raises(ResourceError, match=told), ray_session(Console(quiet=True)):
        pass


CHILD = """
from tune.util.environment import set_ray_variables

set_ray_variables()  # as commands do, before Ray is imported
import ray
from rich.console import Console
from tune.cluster.session import ray_session

with ray_session(Console(), "local"):
    print("environment:", ray.get_runtime_context().runtime_env)
"""


@pytest.mark.slow
@pytest.mark.occasional
def test_below_uv_run_the_working_folder_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD)
    # What Ray looks for: a process above whose words begin with `uv run`.
    (tmp_path / "run").write_text(f"{sys.executable} child.py\n")
    done = subprocess.run(
        ["uv", "run"], executable="/bin/sh", cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "environment: {}"


@pytest.mark.parametrize(
    ("kind", "workers", "words", "expected"),
    [
        ("search", 1, ["--gpus-per-trial", "2"], "--gpus-per-trial 2: each worker uses one GPU"),
        ("search", 2, ["--gpus-per-trial", "3"], "--gpus-per-trial 3: each worker uses one GPU"),
        ("training", 1, ["--gpus-per-worker", "2"], "--gpus-per-worker 2: each worker uses one GPU"),
    ],
)
def test_what_is_resumed_holds_no_gpu_that_no_worker_uses(
    tmp_path: Path, capsys: Any, kind: str, workers: int, words: list[str], expected: str
) -> None:
    made = MadeLog(tmp_path / "made", kind=kind, workers_per_trial=workers)
    made.session()
    made.begin("001")
    made.close()
    command = ["train"] if kind == "training" else []
    assert main([*command, "--resume", "made", "--storage", str(tmp_path), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.slow
@pytest.mark.occasional
def test_a_gpu_that_torch_cannot_use_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUNE_WHISPER_PRETEND_GPUS")
    with Nodes(cpus=1, gpus=1) as nodes:
        search = Search(
            tmp_path, "--space", "lr_batch", "--experiment", "x", "--address", nodes.address, *QUICK
        )
        assert search.end() == 2, search.log
    (line,) = [line for line in search.log.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: GPU: Ray found one on node ")
    assert f", but torch {torch.__version__}, " in line
    assert "CPU build" in line or "built for CUDA" in line
    assert "with the driver there; install " in line
    assert "--gpus-per-trial 0" in line
    assert not (tmp_path / "experiments" / "x").exists()


@pytest.mark.slow
@pytest.mark.occasional
def test_precision_is_that_of_the_gpus_with_which_the_search_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *["--space", "lr_batch", "--experiment", "x", "--trials", "1", "--finalists", "0", "--epochs", "1"],
        *QUICK,
    ]
    monkeypatch.setenv("TUNE_WHISPER_PRETEND_GPUS", "8.0")
    with Nodes(cpus=1, gpus=1) as nodes:
        search = Search(tmp_path, *words, "--address", nodes.address)
        assert search.end() == 0, search.log
    assert "precision: bf16, which every GPU here has" in search.log
    session = read_log(tmp_path / "experiments" / "x" / EVENTS_FILE).session
    assert session is not None and session.precision == "bf16"
    monkeypatch.setenv("TUNE_WHISPER_PRETEND_GPUS", "7.5")
    words = ["--resume", "x", "--trials", "2", "--max-failures", "0"]
    with Nodes(cpus=1, gpus=1) as nodes:
        search = Search(tmp_path, *words, "--address", nodes.address)
        assert search.end() == 0, search.log
    (line,) = [line for line in search.log.splitlines() if "trial 002 failed" in line]
    assert "precision='bf16': the GPU here has compute capability 7.5" in line
    session = read_log(tmp_path / "experiments" / "x" / EVENTS_FILE).session
    assert session is not None and (session.session, session.precision) == (2, "bf16")


def test_precision_is_one_that_all_gpus_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [])
    for capabilities, expected in (([8.0, 7.5], "fp16"), ([8.0, 9.0, None], "bf16"), ([None], "auto")):
        monkeypatch.setattr(session, "_on_nodes", lambda *_, found=capabilities, **__: dict(enumerate(found)))
        assert gpu_precision() == expected


@pytest.mark.parametrize(("gpus", "share"), [(0.25, [0.2]), (1.0, []), (2.0, []), (0.0, [])])
def test_a_trial_takes_no_more_of_a_gpu_than_its_share_and_without_one_sees_none(
    monkeypatch: pytest.MonkeyPatch, gpus: float, share: list[float]
) -> None:
    data: Any = SimpleNamespace(folder=Path("features"))
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    nothing = SimpleNamespace(get_accelerator_ids=dict)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: nothing)  # asked anew, it would start a Ray
    given: list[float] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 12_000_000_000))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    TrialInputs(config=TrainConfig(), data=data, copies=None, cpus=1.0, gpus=gpus).open()
    assert given == [pytest.approx(each) for each in share]  # 0.6 GB are CUDA's own
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("0" if gpus else "")


@pytest.mark.parametrize(
    ("capability", "runs"),
    [((7, 0), False), ((7, 5), True), ((8, 6), True), ((8, 9), True), ((9, 0), True), ((12, 1), True)],
)
def test_which_gpus_a_build_of_torch_has_code_for(capability: tuple[int, int], runs: bool) -> None:
    """Those of PyPI's torch 2.13.0, which leaves out Volta and older."""
    built = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
    assert runs_on(capability, built) is runs
    assert not runs_on((8, 9), ["sm_90a"]) and not runs_on((9, 0), ["sm_100", "compute_100"])


def test_its_use_is_sent_with_losses_every_ten_seconds() -> None:
    sent: list[Any] = []
    use = {"system/gpu_0_utilization_percentage": 90.0}
    progress = with_gpu_use(sent.append, lambda: use)
    for _ in range(2):
        progress({"loss": 1.0}, None)
    assert sent == [{"loss": 1.0, **use}, {"loss": 1.0}]
