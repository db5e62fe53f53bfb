"""`--gpus-per-trial auto`: how many trials share a card, micro-batches that fit, and what becomes of mistakes."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
import ray
import torch
import yaml
from forks import fork_workers
from made_experiments import made_trial, write_experiment
from ray_cluster import HIDDEN_GPUS
from ray_nodes import Nodes
from rich.console import Console
from search_process import QUICK, Search

import tune.runs.gpu_sharing
from trainer.config import ConfigError, TrainConfig
from trainer.memory import room_on_gpu
from trainer.probe import Measured
from tune.cli import main
from tune.cluster.session import gpu_precision
from tune.commands.job_request import read_request
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import read_log
from tune.experiments.plan import SearchPlan, SearchRequest, make_plan
from tune.experiments.storage import Storage
from tune.runs.gpu_sharing import (
    Gate,
    find_share,
    heaviest,
    micro_batches,
    most_sharing,
    share_gpus,
    with_share,
)
from tune.runs.resume import load_search
from tune.runs.session import Session, session_started
from tune.util.errors import DataError, ResourceError
from tune.workers.inputs import TrialInputs

GIB = 2**30
SPACE = """\
learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}
train_batch_size: {type: choice, values: [4, 16]}
"""


# ----- the choice -----


def measure(
    fits: int, rates: dict[int, float | None], asked: list[tuple[int, list[int]]], peak: float | None = 6.0
) -> Any:
    """Stands for trainings of which passes of up to `fits` clips have memory, with these samples per second in all."""

    held = None if peak is None else round(peak * GIB)

    def measure_now(count: int, sizes: Sequence[int]) -> list[list[Measured]]:
        asked.append((count, list(sizes)))
        found = [Measured(size, None, 70 * GIB, 80 * GIB) for size in sizes if size > fits]
        rate = rates[count]
        one = next((size for size in sizes if size <= fits), None)
        if one is not None:
            found.append(Measured(one, None if rate is None else rate / count, held, 80 * GIB))
        return [found] * count

    return measure_now


@pytest.mark.parametrize(
    ("rates", "peak", "most", "expected"),
    [
        ({}, None, 1, 1),
        ({2: 78.0}, None, 2, 2),
        ({2: 43.0}, None, 8, 1),  # less than 10 % more
        ({2: 44.1, 4: 44.1}, None, 8, 2),
        ({2: None}, None, 8, 1),  # ran out of memory
        ({2: 78.0, 4: 131.0, 8: 133.0}, 6.1, 8, 4),
        ({2: 78.0, 4: 131.0, 8: 180.0}, 6.1, 8, 8),
        ({2: 78.0}, 36.0, 8, 2),  # 72 of 80 is what may be used
        ({}, 36.1, 8, 1),
        ({2: 78.0}, 20.0, 8, 2),
    ],
)
def test_how_many_trials_share_a_card(
    rates: dict[int, float | None], peak: float | None, most: int, expected: int
) -> None:
    asked: list[tuple[int, list[int]]] = []
    found = find_share(measure(16, {1: 40.0, **rates}, asked, peak), [16], most)
    assert found.trials == expected
    assert [count for count, _ in asked] == [1, *rates], "nothing more is measured than what decides"


def test_what_is_measured_and_said() -> None:
    asked: list[tuple[int, list[int]]] = []
    rates: dict[int, float | None] = {1: 41.0, 2: 78.2, 4: 131.0, 8: 133.0}
    found = find_share(measure(16, rates, asked), [16, 8, 4, 2, 1], 8)
    assert asked == [(1, [16, 8, 4, 2, 1]), (2, [16]), (4, [16]), (8, [16])]
    assert (found.trials, found.micro_batch, found.too_large) == (4, 16, None)
    assert found.describe() == [
        "card probe: 1 trial 41 samples/s and 6.0 of 80 GiB, 2: 78, 4: 131, 8: 133; 4 trials share a card"
    ]


def test_a_batch_that_does_not_fit_is_cut_and_two_of_it_may_not_fit_either() -> None:
    found = find_share(measure(4, {1: 9.25, 2: None}, asked := []), [16, 8, 4, 2, 1], 8)
    assert asked == [(1, [16, 8, 4, 2, 1]), (2, [4])]
    assert (found.trials, found.micro_batch, found.too_large) == (1, 4, 8)
    assert found.describe() == [
        "card probe: 1 trial 9.2 samples/s and 6.0 of 80 GiB, 2: out of memory; each trial has a card of its own",
        "micro-batch: 8 clips ran out of memory, 4 fit; larger batches are cut into equal passes, which changes no "
        "gradient",
    ]


def test_a_card_too_small_for_one_clip() -> None:
    with pytest.raises(ResourceError, match="not even a training in passes of one clip"):
        find_share(measure(0, {1: 1.0}, []), [2, 1], 8)


# ----- the plan -----


def plan_of(folder: Path, space: str = SPACE, **changes: Any) -> SearchPlan:
    path = folder / "space.yaml"
    path.write_text(space)
    settings = {"cache_dir": str(folder / "cache"), "max_train_clips": 24, "max_eval_clips": 8}
    request = {"trials": 32, "gpus_per_trial": "auto", "settings": settings} | changes
    return make_plan(SearchRequest(space=str(path), storage=Storage.parse(folder / "all"), **request))


@pytest.mark.parametrize(
    ("changes", "nodes", "expected"),
    [
        ({}, [{"CPU": 16.0, "GPU": 1.0}], 8),
        ({}, [{"CPU": 16.0, "GPU": 4.0}], 4),  # four CPUs for each card
        ({}, [{"CPU": 64.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}], 2),  # the node with the fewest counts
        ({}, [{"CPU": 64.0}, {"CPU": 2.0, "GPU": 1.0}], 2),
        ({}, [{"CPU": 1.0, "GPU": 1.0}], 1),
        ({"cpus_per_trial": 4.0}, [{"CPU": 16.0, "GPU": 1.0}], 4),
        ({"cpus_per_trial": 0.5}, [{"CPU": 2.0, "GPU": 1.0}], 4),
        ({"trials": 2}, [{"CPU": 64.0, "GPU": 1.0}], 2),
        ({"trials": 3}, [{"CPU": 64.0, "GPU": 1.0}], 4),
        ({"trials": 8}, [{"CPU": 64.0, "GPU": 8.0}], 1),  # each has a card anyway
        ({"trials": 9}, [{"CPU": 64.0, "GPU": 8.0}], 2),
        ({"max_concurrent": 1}, [{"CPU": 64.0, "GPU": 1.0}], 1),
    ],
)
def test_what_other_reasons_allow(
    tmp_path: Path, changes: dict[str, Any], nodes: list[dict[str, float]], expected: int
) -> None:
    assert most_sharing(plan_of(tmp_path, **changes), nodes) == expected


def test_the_largest_steps_of_the_space_are_measured(tmp_path: Path) -> None:
    assert micro_batches(plan_of(tmp_path)) == [16, 8, 4, 2, 1]
    assert micro_batches(plan_of(tmp_path, SPACE + "micro_batch: 6\n")) == [6, 3, 1]
    searched = """\
learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}
gradient_checkpointing: {type: choice, values: [true, false]}
precision: {type: choice, values: [bf16, fp32]}
dropout: {type: float, low: 0.0, high: 0.3}
audio_window: {type: choice, values: [null, batch, 10, 20]}
label_smoothing: 0.1
"""
    found = heaviest(plan_of(tmp_path, searched))
    assert not found.gradient_checkpointing
    assert (found.precision, found.dropout, found.audio_window) == ("fp32", 0.3, 20)
    assert found.label_smoothing == 0.1
    plan = plan_of(tmp_path, SPACE + "gradient_checkpointing: true\n")
    assert heaviest(plan) == plan.base


def test_the_plan_with_what_was_found(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    whole = with_share(plan, find_share(measure(16, {1: 9.0, 2: 18.0}, []), micro_batches(plan), 2))
    assert (whole.request.gpus_per_trial, whole.base) == (0.5, plan.base)
    assert whole.request.settings == plan.request.settings
    cut = with_share(plan, find_share(measure(4, {1: 9.0}, []), micro_batches(plan), 1))
    assert (cut.request.gpus_per_trial, cut.base.micro_batch) == (1.0, 4)
    assert cut.request.settings["micro_batch"] == 4
    # A later session with a larger card is not bound by what the first one found.
    assert with_share(cut, find_share(measure(16, {1: 9.0}, []), [16], 1)).base.micro_batch is None


@pytest.mark.parametrize(
    ("kind", "workers", "words", "expected"),
    [
        ("search", 1, ["--gpus-per-trial", "2"], "--gpus-per-trial 2: each worker uses one GPU"),
        ("search", 2, ["--gpus-per-trial", "4"], "began with 2 workers a trial; give --gpus-per-trial 2"),
        ("search", 2, ["--gpus-per-trial", "2"], "this machine has 0 GPUs"),
        (
            "search",
            2,
            ["--gpus-per-trial", "auto"],
            "--gpus-per-trial auto: is for trials of one worker, and",
        ),
        ("training", 1, ["--gpus-per-worker", "2"], "--gpus-per-worker 2: must be 1 or 0"),
    ],
)
def test_what_is_resumed_holds_no_gpu_that_no_worker_uses(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    workers: int,
    words: list[str],
    expected: str,
) -> None:
    folder = write_experiment(tmp_path, [made_trial(1, [40.0])], asked=4, state="interrupted")
    path = folder.path / "experiment.yaml"
    saved = yaml.safe_load(path.read_text())
    saved["resources"]["workers"], saved["kind"] = workers, kind
    path.write_text(yaml.safe_dump(saved))
    command = ["train"] if kind == "training" else []
    assert main([*command, "--resume", "made", "--storage", str(tmp_path), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


# ----- on one card of a real Ray, with trainings that are made up -----


@pytest.fixture(scope="module")
def one_gpu() -> Iterator[None]:
    """A Ray that was told of a GPU."""
    ray.shutdown()
    fork_workers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", HIDDEN_GPUS)
        ray.init("local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def probed(
    plan: SearchPlan, monkeypatch: pytest.MonkeyPatch, train_here: Callable[..., Any]
) -> tuple[SearchPlan, Any, str]:
    """What `share_gpus` makes of a plan where this function takes the place of the training."""
    monkeypatch.setattr("tune.runs.gpu_sharing.probe_shared", train_here)
    console = Console(file=io.StringIO(), width=200)
    resources = plan.resources.fit(tune.runs.gpu_sharing.alive_nodes())
    nothing: Any = SimpleNamespace()
    session = Session(console, plan, resources, nothing, None, nothing, nothing, 0.0)
    share_gpus(session)
    return session.plan, session.resources, console.file.getvalue()  # type: ignore[attr-defined]


def made(fits: int, rate: float) -> Callable[..., Any]:
    """A training in which so many clips have memory, and which sees so many samples a second beside others.

    It is defined in a function, so that Ray sends it along.
    """

    def train_here(inputs: Any, sizes: Any, seconds: float, gate: Any) -> Any:
        from types import SimpleNamespace

        import ray

        together = 1 if gate is None else int(1 / ray.get_runtime_context().get_assigned_resources()["GPU"])
        if gate is not None and not ray.get(gate.wait.remote()):
            return []
        found = []
        for size in sizes:
            fitting = size <= fits
            each = rate if together <= 2 else rate * 2.1 / together
            shown = {"micro_batch": size, "fits": fitting, "samples_per_second": each if fitting else None}
            found.append(SimpleNamespace(**shown, peak_bytes=None, total_bytes=None))
            if fitting:
                break
        return found

    return train_here


def test_trials_share_a_card_as_long_as_it_gains(
    one_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, resources, said = probed(plan_of(tmp_path), monkeypatch, made(8, 40.0))
    assert "card probe: 1 trial 40 samples/s, 2: 80, 4: 84; 2 trials share a card" in said
    assert "micro-batch: 16 clips ran out of memory, 8 fit" in said
    assert plan.request.gpus_per_trial == 0.5
    assert plan.base.micro_batch == 8
    assert (resources.gpus, resources.cpus, resources.concurrent) == (0.5, 2.0, 2)
    assert ray.available_resources().get("GPU", 0.0) in (0.0, 1.0)


def failing(error: Exception, *, alone: bool) -> Callable[..., Any]:
    """Fails: alone, or the first of two, while the second one waits for it."""
    work = made(16, 40.0)

    def train_here(inputs: Any, sizes: Any, seconds: float, gate: Any) -> Any:
        import ray

        if alone or (gate is not None and ray.get(gate.first.remote())):
            raise error
        return work(inputs, sizes, seconds, gate)

    return train_here


def counting_gate() -> type[Gate]:
    """A gate that tells the first training which asks that it is the first."""

    class CountingGate(Gate):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            self._asked = 0

        def first(self) -> bool:
            self._asked += 1
            return self._asked == 1

    return CountingGate


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("error", [DataError("data='x': is gone"), ZeroDivisionError("a fault of ours")])
def test_errors_of_the_trainings_are_passed_on(
    one_gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, alone: bool
) -> None:
    monkeypatch.setattr("tune.runs.gpu_sharing.Gate", counting_gate())
    with pytest.raises(type(error), match=str(error)) as caught:
        probed(plan_of(tmp_path), monkeypatch, failing(error, alone=alone))
    if isinstance(error, DataError):
        assert str(caught.value) == "data='x': is gone", "one line, as the command prints it"


def test_without_a_gpu_nothing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tune.runs.gpu_sharing.alive_nodes", lambda: [{"CPU": 4.0}])
    plan = plan_of(tmp_path)
    found, resources, said = probed(plan, monkeypatch, made(0, 0.0))
    assert said == "--gpus-per-trial auto: there is no GPU, trials have 0; nothing is measured\n"
    assert found is plan
    assert (resources.gpus, resources.concurrent) == (0.0, 4)


# ----- mistakes -----


def test_what_auto_cannot_be_combined_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    for words, expected in [
        (["auto", "--workers-per-trial", "2"], "--gpus-per-trial auto: is for trials of one worker"),
        (["auto", "--deepspeed"], "--gpus-per-trial auto: does not measure with DeepSpeed"),
        (["Auto"], "argument --gpus-per-trial: must be a number or auto, not 'Auto'"),
        (["nan"], "--gpus-per-trial nan: must be a finite number"),
    ]:
        place = ["--space", str(tmp_path / "space.yaml"), "--storage", str(tmp_path / "all")]
        assert main([*place, "--gpus-per-trial", *words]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert expected in error
    job = ["--space", "lr_batch", "--storage", "/mnt/shared/experiments", "--gpus-per-trial", "auto"]
    assert "--gpus-per-trial=auto" in read_request(job, "x").words
    with pytest.raises(ConfigError, match="--gpus-per-trial auto: is for trials of one worker"):
        read_request([*job, "--workers-per-trial", "2"], "x")
    with pytest.raises(ConfigError, match="micro_batch=0: must be a whole number of at least 1 or null"):
        TrainConfig(micro_batch=0)
    (tmp_path / "space.yaml").write_text(SPACE + "micro_batch: {type: int, low: 1, high: 4}\n")
    assert main(place) == 2
    assert "micro_batch: can be fixed but not searched: it has no effect" in capsys.readouterr().err


def test_what_a_search_measured_is_kept_for_its_next_session(tmp_path: Path) -> None:
    write_experiment(tmp_path / "all", [made_trial(1, [40.0])], name="one", asked=4, state="interrupted")
    request = SearchRequest(space="", trials=4, storage=Storage.parse(tmp_path / "all"))
    resumed = load_search(request, "one", [])
    found = find_share(measure(4, {1: 9.0, 2: 18.0}, []), micro_batches(resumed.plan), 2)
    session: Any = SimpleNamespace(
        plan=with_share(resumed.plan, found), resources=SimpleNamespace(gpus=0.5), began=1.0, precision="auto"
    )
    resumed.experiment.log.append(session_started(session, resumed.experiment))
    resumed.experiment.close()
    again = load_search(request, "one", [])
    again.experiment.close()
    assert again.plan.request.gpus_per_trial == 0.5
    assert again.plan.base.micro_batch == 4


def test_a_dry_run_measures_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    words = ["--space", str(tmp_path / "space.yaml"), "--storage", str(tmp_path / "all"), "--dry-run"]
    assert main([*words, "--gpus-per-trial", "auto"]) == 0
    assert "--gpus-per-trial auto: is measured when the search begins" in capsys.readouterr().out
    assert not (tmp_path / "all").exists()


# ----- a whole search -----


@pytest.mark.slow
def test_a_search_on_a_shared_card(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(SPACE)
    experiment = tmp_path / "all" / "x"
    with Nodes(cpus=2, gpus=1) as nodes:
        place = ["--storage", "all", "--address", nodes.address]
        words = ["--space", "space.yaml", "--trials", "2", "--epochs", "1", "--experiment", "x", *QUICK]
        words += ["--gpus-per-trial", "auto", "--cpus-per-trial", "1"]
        search = Search(tmp_path, *words, *place)
        assert search.end() == 0, search.log
        line = re.search(r"card probe: 1 trial ([\d.]+) samples/s, 2: ([\d.]+); (.*)", search.log)
        assert line, search.log
        share = {"2 trials share a card": 0.5, "each trial has a card of its own": 1.0}[line[3]]
        gain = float(line[2]) / float(line[1])
        assert share == (0.5 if gain >= 1.1 else 1.0) or 1.0 < gain < 1.2  # the figures are rounded
        saved = yaml.safe_load((experiment / "experiment.yaml").read_text())
        assert saved["resources"] == {"gpus": share, "cpus": 1.0, "concurrent": 1 / share, "workers": 1}
        asked = read_log(experiment / EVENTS_FILE).session
        assert asked is not None and asked.asked_resources["gpus_per_trial"] == share
        assert f"--gpus-per-trial {share:g} " in saved["run_again"]
        assert saved["train_config"]["micro_batch"] is None
        (parent,) = mlflow.MlflowClient(f"sqlite:///{experiment}/mlflow.db").search_runs(
            ["1"], "params.trials = '2'"
        )
        assert parent.data.params["gpus_per_trial"] == f"{share:g}"
        search = Search(tmp_path, "--resume", "x", "--trials", "3", *place)
        assert search.end() == 0, search.log
        assert "card probe" not in search.log
        assert f"at a time with {share:g} GPU and 1 CPU each" in search.log


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--space", "lr_batch", "--experiment", "x"], ["train", "--name", "x"]])
def test_a_gpu_that_torch_cannot_use_is_told_in_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 535.104.05\n")
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.delenv("TUNE_WHISPER_PRETEND_GPUS")
    with Nodes(cpus=1, gpus=1) as nodes:
        search = Search(tmp_path, *words, "--address", nodes.address, *QUICK)
        assert search.end() == 2, search.log
    (line,) = [line for line in search.log.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: GPU: Ray found one on node ")
    assert f", but torch {torch.__version__}, " in line
    assert "CPU build" in line or "built for CUDA" in line
    assert "NVIDIA driver 535.104.05; install " in line
    assert "--gpus-per-trial 0" in line
    assert not (tmp_path / "experiments" / "x").exists()


@pytest.mark.slow
def test_precision_is_that_of_the_gpus_with_which_the_search_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "--space",
        "lr_batch",
        "--experiment",
        "x",
        "--trials",
        "1",
        "--finalists",
        "0",
        "--epochs",
        "1",
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


@pytest.mark.slow
def test_precision_is_one_that_all_gpus_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_WHISPER_PRETEND_GPUS", "8.0")
    with Nodes(cpus=1, gpus=1) as nodes:
        monkeypatch.setenv("TUNE_WHISPER_PRETEND_GPUS", "7.5")
        nodes.add(cpus=1, gpus=1)
        ray.shutdown()
        ray.init(nodes.address, log_to_driver=False)
        try:
            assert gpu_precision() == "fp16"
        finally:
            ray.shutdown()


# ----- what a process may take -----


@pytest.mark.parametrize(("gpus", "share"), [(0.25, 0.25), (1.0, 1.0), (2.0, 1.0), (0.0, 1.0)])
def test_an_evaluation_counts_on_no_more_than_the_trials_share(
    monkeypatch: pytest.MonkeyPatch, gpus: float, share: float
) -> None:
    data: Any = SimpleNamespace(folder=Path("features"))
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    monkeypatch.setenv("TUNE_WHISPER_GPU_SHARE", "0.5")  # of the trial before in this process
    TrialInputs(config=TrainConfig(), data=data, share=None, cpus=1.0, gpus=gpus).open()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    assert room_on_gpu() == pytest.approx(0.85 * share * 80 * GIB)
