"""The one whole search on the demo that all tests read which need one, and with which broken ones are compared.

It is made once in a run of the tests, from Python; who reads it may change nothing in it.
"""

import contextlib
import fcntl
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow_server import shared_folder
from search_process import ONE_CPU, QUICK, Search, share_features

NAME = "small"
SPACE = """\
method: {type: choice, values: [full, lora]}
learning_rate:
  - {type: float, low: 1e-3, high: 1e-2, log: true, when: {method: full}}
  - {type: float, low: auto, high: auto, log: true, when: {method: lora}}
lora_rank: {type: choice, values: [4, 8], when: {method: lora}}
train_batch_size: {type: choice, values: [4, 8]}
dropout: 0.1
try_first:
  - {method: full, learning_rate: 1e-3, train_batch_size: 8}
  - {method: lora, learning_rate: auto, train_batch_size: 4, lora_rank: 8}
scheduler: {rungs: 3, reduction_factor: 2, min_trials_per_rung: 2, rising_rungs: 0}
searcher: {startup_trials: 2}
"""
"""At each rung two of three trials may go on."""
ASKED = {"trials": 3, "epochs": 4, "seed": 11, "finalists": 1, "repeats": 2, "max_concurrent": 1}
RUNGS = [48, 96, 192]
OUTER = {"MLFLOW_RUN_ID": "0" * 32, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
"""The environment of another program's run, and a proxy that leads nowhere: they do no harm."""
FROM_PYTHON = """
import json, sys
import tune_whisper
ended = []
found = tune_whisper.search(experiment="small", on_trial_end=ended.append, **json.loads(sys.argv[1]))
assert found == tune_whisper.load_experiment("small"), "what is returned is what can be read again"
assert [run.trial_id for run in ended] == [name for name in found.runs if "-a" not in name]
assert all(run.status in ("completed", "early_stopped") for run in ended)
"""


def begin(folder: Path, **how: Any) -> Search:
    """The same search by the command, in a folder of its own; `how` as of `Search`."""
    folder.mkdir()
    (folder / "space.yaml").write_text(SPACE)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in ASKED.items()]
    return Search(folder, "--space", "space.yaml", "--experiment", NAME, *options, *QUICK, **ONE_CPU, **how)


@functools.cache
def demo_search() -> Path:
    """The working folder of the search, which is over; `printed` holds all that it printed."""
    folder = shared_folder() / "demo-search"
    with (shared_folder() / "demo-search.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this run may be making it
        if not folder.exists():
            folder.mkdir()
            (folder / "space.yaml").write_text(SPACE)
            share_features(folder)
            settings = dict(word.split("=") for word in QUICK if word != "--set")
            asked = {**ASKED, "space": "space.yaml", "settings": settings}
            search = Search(folder, json.dumps(asked), program=["-c", FROM_PYTHON], **ONE_CPU, **OUTER)
            with contextlib.suppress(AssertionError):
                (folder / "code").write_text(str(search.end()))
            (folder / "printed").write_text(search.log)
    assert (folder / "code").read_text() == "0", (folder / "printed").read_text()
    return folder


def demo_experiment() -> Path:
    return demo_search() / "experiments" / NAME


def runs_of(results: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """Trials, repeats and averages in one row."""
    return [*results["trials"], *results["repeats"], *results["averages"]]
