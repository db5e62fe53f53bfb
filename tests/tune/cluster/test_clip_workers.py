"""Features that the nodes of a real cluster compute together: the same bytes as one machine's, also after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from make_data import examples, records, write_clips, write_manifest, write_processor
from ray_nodes import Nodes

from trainer.config import TrainConfig
from trainer.data.prepared import prepare

CLIPS, KILLED = 60, 40
CODE = """
import json, os, signal, sys
import ray
import trainer.data.features, trainer.data.unfinished, tune.cluster.clip_workers
from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from tune.util.environment import use_ray_token

settings, address, told, killed = json.loads(sys.argv[1])
trainer.data.features._SMALL, trainer.data.unfinished.KEEP_SECONDS = 0, 0
tune.cluster.clip_workers._CLIPS_EACH = 10
tune.cluster.clip_workers.cores = lambda: 1
use_ray_token()
ray.init(address, logging_level="ERROR", log_to_driver=False)
submit = tune.cluster.clip_workers.Processes.submit
begun, here = [], []

def count(self, sources):
    here.append(len(sources))
    return submit(self, sources)

def progress(done, total):
    begun.append(done)
    if done == killed:
        os.kill(os.getpid(), signal.SIGKILL)

tune.cluster.clip_workers.Processes.submit = count
said = []
workers = tune.cluster.clip_workers.cluster_workers(said.append)
data = prepare(TrainConfig(**settings), progress, workers, waveforms=True)
with open(told, "w") as file:
    json.dump(dict(said=said, first=begun[0], here=sum(here), drops=len(data.drops), folder=str(data.folder)), file)
"""


def compute(config: TrainConfig, nodes: Nodes, place: Path, killed: int = -1) -> dict[str, object] | None:
    """Features by a driver on the head; what it found out, None where it was killed after so many clips."""
    settings = {
        name: getattr(config, name)
        for name in ("model", "data", "cache_dir", "row_filter", "max_dropped_share")
    }
    told = place / "told.json"
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([settings, nodes.address, str(told), killed])],
        check=False,
        capture_output=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )
    if killed >= 0:
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        return None
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, object] = json.loads(told.read_text())
    return found


def files(folder: Path) -> dict[str, bytes]:
    """All that is in the folders of features and waveforms."""
    return {
        path.name: path.read_bytes()
        for place in (folder, *folder.parent.glob(f"waveforms-*-{folder.name}"))
        for path in place.iterdir()
        if path.name != "manifest.json" or place == folder
    }


@pytest.mark.parametrize("head_cpus", [1, 0])
def test_nodes_compute_together_and_go_on_after_a_kill(tmp_path: Path, head_cpus: int) -> None:
    rows = examples(CLIPS)
    write_clips(tmp_path / "clips", rows)
    (tmp_path / "clips" / rows[8].file).write_bytes(b"no audio")
    (tmp_path / "clips" / rows[9].file).unlink()
    config = TrainConfig(
        model=str(write_processor(tmp_path / "model")),
        data=str(write_manifest(tmp_path / "all.csv", records(rows))),
        cache_dir=str(tmp_path / "cache"),
        row_filter="language=en,language=de",
        max_dropped_share=1.0,
    )
    alone = prepare(config.replace(cache_dir=str(tmp_path / "alone")), waveforms=True)
    with Nodes(cpus=head_cpus) as nodes:
        nodes.add(cpus=1)
        compute(config, nodes, tmp_path, KILLED)
        found = compute(config, nodes, tmp_path)
        assert found is not None
        assert found["said"] == [
            f"features are computed on 1 other node of the cluster{' too' if head_cpus else ''}"
        ]
        assert KILLED - 2 <= found["first"] <= KILLED + 1, "it goes on where it was"
        if not head_cpus:
            assert found["here"] <= 16, "only what cannot be read there is looked at here"
        assert files(Path(str(found["folder"]))) == files(alone.folder)
        assert found["drops"] == len(alone.drops) == 2
