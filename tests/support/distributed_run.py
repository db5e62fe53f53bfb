"""What each worker of a distributed training runs in the tests; see `processes.run_workers`.

The folder holds `config.json`, `most-clips-1` where worker 1 is to have memory for so few clips, and `ends-after`
where the training is asked to end after a step; results go there.
"""

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training import train
from transformers import TrainerCallback

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.data.streaming.stream import StreamedClip
from trainer.train import make_trainer
from trainer.training.distributed import leave_group
from trainer.training.report import Order, Report
from trainer.training.saving import ReportingStore
from trainer.training.streamed import StreamedSplit


def whole_training(config: TrainConfig, folder: Path) -> None:
    """Trains; keeps the rows and every checkpoint. `resume.json` names one to go on from."""
    rank = os.environ.get("RANK", "0")
    rows: list[dict[str, Any]] = []

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        kept = None
        if checkpoint_dir is not None and rank == "0":
            kept = str(folder / f"kept-{metrics['step']:.0f}")
            shutil.copytree(checkpoint_dir, kept)
        rows.append({**metrics, "checkpoint": kept, "evaluation": checkpoint_dir is not None})

    if config.streaming:
        _write_down(folder / f"stream-{rank}")
    resume = folder / "resume.json"
    resume_from = Path(json.loads(resume.read_text())) if resume.exists() else None
    ends = folder / "ends-after"
    store = EndingStore(report, folder, rows, int(ends.read_text())) if ends.exists() else None
    result = train(config, report, store=store, resume_from=resume_from)
    (folder / f"rows-{rank}.json").write_text(
        json.dumps({"rows": rows, "wer": result.best and result.best["wer"]})
    )


class EndingStore(ReportingStore):
    """Asks the training to save, and to end once its rows tell of a step."""

    def __init__(self, report: Report, folder: Path, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        super().__init__(report, folder, keep=False)
        self._rows, self._step = rows, step

    def order(self) -> Order | None:
        return "end" if self._rows and self._rows[-1]["step"] >= self._step else "save"


def _write_down(path: Path) -> None:
    """Have the names of the streamed clips that this process trains on in a file, one a line."""
    take = StreamedSplit._take

    def taken(split: StreamedSplit, places: Sequence[int]) -> list[StreamedClip]:
        found = take(split, places)
        with path.open("a") as file:
            file.writelines(f"{clip.name}\n" for clip in found)
        return found

    StreamedSplit._take = taken  # type: ignore[method-assign]


class Draws(TrainerCallback):
    """Writes down one number of each generator before each step, as the training would draw it next."""

    def __init__(self) -> None:
        self.numbers: list[dict[str, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        drawn = {"python": random.random(), "numpy": float(np.random.rand()), "torch": float(torch.rand(1))}
        self.numbers.append(drawn)
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def draw(config: TrainConfig, folder: Path) -> None:
    """Keeps the random numbers of each step, and the weights before the first."""
    data = prepare(config)
    trainer = make_trainer(config, data, data.splits["validation"], folder)
    weights = sum(float(parameter.double().sum()) for parameter in trainer.model.parameters())
    draws = Draws()
    trainer.add_callback(draws)
    trainer.train()
    found = {"numbers": draws.numbers, "weights": weights}
    (folder / f"draws-{trainer.args.process_index}.json").write_text(json.dumps(found))


@contextlib.contextmanager
def little_memory(most: int) -> Iterator[list[int]]:
    """Encoders of this process run out of memory with more clips than these; how many each was given."""
    given: list[int] = []

    def look(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(module, torch.nn.Conv1d) and module.in_channels == 80:
            given.append(len(inputs[0]))
            if given[-1] > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield given
    finally:
        handle.remove()


def act(action: str, target: Path) -> None:
    """Do one of them in this process."""
    settings = TrainConfig.from_dict(json.loads((target / "config.json").read_text()))
    torch.set_num_threads(1)
    actions = {"train": whole_training, "draw": draw}
    most = target / f"most-clips-{os.environ.get('RANK', '0')}"
    with little_memory(int(most.read_text())) if most.exists() else contextlib.nullcontext():
        actions[action](settings, target)
    leave_group()
