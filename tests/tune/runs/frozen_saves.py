"""`python frozen_saves.py WHERE NUMBER FOLDER WORDS...` is `tune-whisper WORDS...` of which one save stands still.

At `writing` the weights are written half, at `naming` all is written and not sealed, at `telling` the checkpoint has
its name and the driver does not know it. A file `there` then appears in FOLDER; once there is a file `go`, it goes on.
"""

import sys
import time
from pathlib import Path
from typing import Any


def freeze(where: str, number: int, folder: Path) -> None:
    """Set this process, one of Ray's, up for it."""
    import torch

    from trainer.training.saving import SavingTrainer
    from tune.cluster.progress_channel import Driver
    from tune.experiments.checkpoint_files import CheckpointFiles

    places: dict[str, tuple[Any, str]] = {
        "writing": (SavingTrainer, "write"),
        "naming": (CheckpointFiles, "complete"),
        "telling": (Driver, "saved"),
    }
    owner, name = places[where]
    call = getattr(owner, name)

    def stopped(*args: Any, **kwargs: Any) -> Any:
        save = len([*folder.glob("save-*")]) + 1
        (folder / f"save-{save}").touch()
        if save == number:
            if where == "writing":
                args[1].mkdir(parents=True, exist_ok=True)
                torch.save({"half": torch.zeros(1000)}, args[1] / "model.safetensors")
            (folder / "there").touch()
            while not (folder / "go").exists():
                time.sleep(0.02)
        return call(*args, **kwargs)

    setattr(owner, name, stopped)


def main(where: str, number: int, folder: Path, words: list[str]) -> int:
    """`tune-whisper` with these words; its exit code."""
    import ray.tune

    import tune.runs.trials
    from tune.cli import main as tune_whisper
    from tune.workers.trainable import make_trainable

    def make(inputs: Any, channel: Any, resources: Any, files: Any) -> Any:
        trial = make_trainable(inputs, channel, resources, files)

        def freezing_trial(sampled: dict[str, Any]) -> None:
            freeze(where, number, folder)
            trial(sampled)

        return ray.tune.with_resources(freezing_trial, resources.request())

    tune.runs.trials.make_trainable = make
    return tune_whisper(words)


if __name__ == "__main__":
    place, save, hold, *rest = sys.argv[1:]
    Path(hold).mkdir(exist_ok=True)
    sys.exit(main(place, int(save), Path(hold), rest))
