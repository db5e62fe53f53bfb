"""How much a search writes, and for how long its trainings stand still for that.

    python benchmarks/bytes_written.py [--other FOLDER] [--trials 8] [--finalists 2] [--s3] [--repeats 1]

A search of trials of whisper-tiny's shape (the demo's model widened, a part of its data, three rungs and finalists), by
this checkout and by another one of this project in FOLDER. Counted are the bytes that all processes of the search
hand to the disk (`write_bytes` of `/proc/PID/io`), and with `--s3` what a server in between is sent. A pause is what
a training loses at a rung after its evaluation: writing, copying, waiting for the driver's decision.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "support")]

import shapes  # noqa: E402
from s3_server import KEYS, S3Server  # noqa: E402

SPACE = """\
learning_rate: {type: float, low: 1e-5, high: 3e-3, log: true}
scheduler: {rungs: 3, reduction_factor: 3, max_wer_to_baseline: 0}
"""
DATA = ["max_train_clips=64", "max_eval_clips=24", "generation_max_length=32", "train_batch_size=4"]
_PAUSES = '''\
"""Times what comes between an evaluation and the next step, in whatever version of tune-whisper."""
import importlib.abc, importlib.util, os, sys, time

HOOKED = {"trainer.callbacks": "ReportingCallback.on_save", "trainer.training.callbacks": "ReportingCallback.on_save",
          "trainer.training.saving": "CheckpointSaver.evaluated", "transformers.trainer": "Trainer._save_checkpoint"}

def timed(call, name):
    def measured(*args, **kwargs):
        began = time.monotonic()
        try:
            return call(*args, **kwargs)
        finally:
            with open(os.environ["PAUSES"], "a") as file:
                file.write(f"{name} {time.monotonic() - began}\\n")
    return measured

class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in HOOKED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None:
            return None
        execute = spec.loader.exec_module
        def run(module):
            execute(module)
            kind, method = HOOKED[name].split(".")
            found = getattr(module, kind, None)
            if found is not None and method in vars(found):
                setattr(found, method, timed(getattr(found, method), method))
        spec.loader.exec_module = run
        return spec

sys.meta_path.insert(0, Hook())
'''


@dataclasses.dataclass(frozen=True)
class Written:
    """What one search wrote."""

    disk: int
    """Bytes."""
    sent: int
    """Bytes that an object store was sent."""
    evaluations: int
    pause: float
    """Median over the evaluations, in seconds."""
    seconds: float


def search(checkout: Path, model: Path, asked: argparse.Namespace) -> Written:
    """Run one search to its end, and count."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "space.yaml").write_text(SPACE)
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(_PAUSES)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "RAY_"))},
            "PYTHONPATH": f"{folder / 'hook'}:{checkout}",
            "PAUSES": str(folder / "pauses"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder),
        }
        storage, sent = str(folder / "experiments"), folder / "sent"
        if asked.s3:
            server = S3Server("experiments", sent=sent)
            server.start()
            stack.callback(server.stop)
            environment |= KEYS | {"AWS_EC2_METADATA_DISABLED": "true"}
            storage = server.uri("runs")
        words = [
            "--space",
            "space.yaml",
            "--trials",
            str(asked.trials),
            "--epochs",
            "3",
            "--storage",
            storage,
        ]
        words += [
            "--finalists",
            str(asked.finalists),
            "--experiment",
            "x",
            "--model",
            str(model),
            "--data",
            "demo",
            "--language",
            "en",
        ]
        words += [word for setting in DATA for word in ("--set", setting)]
        began = time.monotonic()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tune", *words],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        disk = counted(process)
        if process.returncode:
            raise SystemExit((folder / "log").read_text()[-3000:])
        seconds = time.monotonic() - began
        rows = [line.split() for line in (folder / "pauses").read_text().splitlines()]
        names = {name for name, _ in rows}
        ends = "evaluated" if "evaluated" in names else "on_save"
        total = sum(float(value) for name, value in rows if ends in (name, "on_save"))
        count = sum(name == ends for name, _ in rows)
        return Written(
            disk, int(sent.read_text() or 0) if asked.s3 else 0, count, total / max(count, 1), seconds
        )


def counted(process: subprocess.Popen[bytes]) -> int:
    """Bytes that the processes of a session, and those that they started in others, wrote until they ended.

    Linux adds to a process what the children wrote for whose end it has waited. So the one that Ray's workers are
    forked from, which writes nothing, is not counted, nor is the driver once it has waited for that one.
    """
    written: dict[tuple[int, float], int] = {}
    known: dict[int, psutil.Process] = {}
    server: psutil.Process | None = None
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            known |= {each.pid: each for each in (parent, *parent.children(recursive=True))}
            if server is None:
                server = next((each for each in parent.children() if _forks(each)), None)
        for each in list(known.values()):
            try:
                bytes_so_far = each.io_counters().write_bytes
                if each == server or (each.pid == process.pid and server and not server.is_running()):
                    continue
                written[each.pid, each.create_time()] = bytes_so_far
            except psutil.Error:
                known.pop(each.pid)
        time.sleep(0.05)
    return sum(written.values())


def _forks(process: psutil.Process) -> bool:
    return any(word.endswith("fork_server.py") for word in process.cmdline())


def main() -> None:
    """Run the searches one after the other, and print both and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--s3", action="store_true", help="store the experiments in an object store")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--finalists", type=int, default=2)
    words = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        model = shapes.widen_demo(Path(name) / "tiny")
        checkouts = {"this": ROOT, **({"other": words.other.absolute()} if words.other else {})}
        found: dict[str, list[Written]] = {each: [] for each in checkouts}
        for _ in range(words.repeats):
            for each, checkout in checkouts.items():
                found[each].append(search(checkout, model, words))
                print(json.dumps({"checkout": each, **dataclasses.asdict(found[each][-1])}), flush=True)
    for each, rows in found.items():
        middle = {
            field.name: statistics.median(getattr(row, field.name) for row in rows)
            for field in dataclasses.fields(Written)
        }
        print(
            f"{each:6} {middle['disk'] / 1e9:7.2f} GB on the disk {middle['sent'] / 1e9:7.2f} GB sent "
            f"{middle['evaluations']:4g} evaluations, {middle['pause']:.3f} s of pause each, {middle['seconds']:.0f} s"
        )
    if "other" in found:
        for key in ("disk", "sent") if words.s3 else ("disk",):
            pairs = zip(found["this"], found["other"], strict=True)
            ratios = [getattr(mine, key) / getattr(theirs, key) for mine, theirs in pairs]
            print(f"{key}: this / other {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
