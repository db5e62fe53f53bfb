"""Memory and time of the driver and of a trial's process against the number of clips, from the table to the labels.

    python benchmarks/many_clips.py --clips 1000 10000 100000 1000000

Rows name files (at most 50,000 different ones) of a data set that is written first. Features are not computed but
made up, one frame a clip: what is measured is what grows with the number of clips, whatever their length. The driver,
a process for each size, loads and prepares the data and puts it into Ray's object store. The trial, another process,
takes it from there, once as it is and once with other texts (`lowercase`), and looks at every clip's labels. Memory
is private memory (USS), so without what processes share through the object store or a mapped file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tables import markdown

FILES = 50_000
WORDS = ("the", "of", "seventeen", "houses", "were", "blue", "morning", "without", "where", "she")


def write_data(folder: Path, clips: int) -> Path:
    """A table of so many clips, its texts of 8 words each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "clips").mkdir(parents=True)
    for number in range(min(clips, FILES)):
        (folder / "clips" / f"recording_{number:07}.wav").touch()
    numbers, steps = range(clips), (1, 3, 5, 7, 11, 13)
    columns = {
        "audio": [f"clips/recording_{number % FILES:07}.wav" for number in numbers],
        "text": [
            " ".join(WORDS[number * step % len(WORDS)] for step in steps) + f" {number} Times"
            for number in numbers
        ],
        "split": [{1: "test", 2: "validation"}.get(number % 100, "train") for number in numbers],
    }
    path = folder / "clips.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def made_up(*_: Any) -> Any:
    """What comes of any clip."""
    import numpy as np

    row = {"frames": 1, "fill": -1.5, "samples": 160, "audio": 0, "cancelled": False, "i16": 0, "scale": 1.0}
    return row, {"f16": np.zeros((80, 1), np.float16)}


def memory() -> tuple[float, float]:
    """Private and peak resident memory of this process in MB."""
    import psutil

    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return psutil.Process().memory_full_info().uss / 2**20, peak / 2**10


def driver(data: Path, cache: Path) -> dict[str, Any]:
    """What preparing costs, and a trial's process after it."""
    import ray

    import trainer.data.feature_store
    from trainer.config import TrainConfig
    from trainer.data.clips import load_clips
    from trainer.data.prepared import prepare

    trainer.data.feature_store._compute = made_up  # type: ignore[assignment]
    config = TrainConfig(data=str(data), cache_dir=str(cache), split_by=None)
    before, _ = memory()
    began = time.monotonic()
    table = load_clips(config)
    loaded = time.monotonic() - began
    made = prepare(config, workers=1, table=table)
    del table
    seconds = time.monotonic() - began
    uss, peak = memory()
    ray.init(num_cpus=1, log_to_driver=False, object_store_memory=8 * 2**30)
    found = ray.get(ray.remote(max_retries=0)(trial).remote([ray.put(made)], config))
    ray.shutdown()
    return {
        "load_seconds": loaded,
        "prepare_seconds": seconds,
        "driver_mb": uss - before,
        "driver_peak_mb": peak - before,
        **found,
    }


def trial(stored: list[Any], config: Any) -> dict[str, float]:
    """What a trial's process holds, with the texts of all trials and with its own."""
    import ray

    from trainer.model.processor import load_processor

    load_processor(config)
    before, _ = memory()
    began = time.monotonic()
    data = ray.get(stored[0])
    for clip in range(len(data.splits["train"])):
        data.splits["train"].n_tokens(clip)
    opened = time.monotonic() - began
    plain, _ = memory()
    began = time.monotonic()
    other = data.with_texts(config.replace(lowercase=True))
    relabelled = time.monotonic() - began
    _ = other.splits["train"].labels(0)
    uss, peak = memory()
    return {
        "trial_seconds": opened,
        "trial_mb": plain - before,
        "relabel_seconds": relabelled,
        "relabelled_mb": uss - before,
        "relabelled_peak_mb": peak - before,
    }


def main() -> None:
    """Measure each number of clips in a process of its own, and print a table and JSON."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--clips", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--one", nargs=2, metavar=("DATA", "CACHE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(driver(*map(Path, arguments.one))))
        return
    rows = []
    for clips in arguments.clips:
        with tempfile.TemporaryDirectory() as scratch:
            data = write_data(Path(scratch) / "data", clips)
            words = [sys.executable, __file__, "--one", str(data), f"{scratch}/cache"]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            rows.append({"clips": clips, **json.loads(done.stdout.splitlines()[-1])})
            print(json.dumps(rows[-1]), flush=True)
    shown = [{name: f"{value:,.{0 if value >= 100 else 1}f}" for name, value in row.items()} for row in rows]
    print(markdown(shown))


if __name__ == "__main__":
    main()
