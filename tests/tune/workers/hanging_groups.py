"""`python hanging_groups.py FOLDER WORDS...` is `tune-whisper WORDS...` whose second worker runs out of memory once.

In the process in which that happens `destroy_process_group` never returns, as with NCCL where the others do not leave.
A file `failed` then appears in FOLDER.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

from tune.workers.inputs import TrialInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailingInputs(TrialInputs):
    """Sets the process that opens them up for it."""

    folder: str

    def open(self) -> Any:
        """As the others, but for the first step of the second worker."""
        if os.environ.get("RANK") == "1" and not (Path(self.folder) / "failed").exists():
            import torch
            from transformers import WhisperForConditionalGeneration

            def fail(*_: Any, **__: Any) -> None:
                (Path(self.folder) / "failed").touch()
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

            WhisperForConditionalGeneration.forward = fail
            torch.distributed.destroy_process_group = lambda *_: time.sleep(3600)
        return super().open()


def main(folder: str, words: list[str]) -> int:
    """`tune-whisper` with these words; its exit code."""
    from tune.cli import main as tune_whisper
    from tune.runs.session import Session

    usual = Session.inputs

    def inputs(self: Any, *args: Any, **named: Any) -> TrialInputs:
        return FailingInputs(**vars(usual(self, *args, **named)), folder=folder)

    Session.inputs = inputs  # type: ignore[method-assign]
    return tune_whisper(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
