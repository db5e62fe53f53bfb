"""`python -m tune_whisper.process ANSWER COMMAND WORDS...`: a command whose outcome is written to a file."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from trainer.errors import UserError
from tune.util.environment import use_ray_token


def main(answer: str, command: str, *words: str) -> None:
    """Run `search` or `train`; writes the experiment's name and place, or the error of the user."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_ray_token()
    content: dict[str, str] = {}
    try:
        outcome = importlib.import_module(f"tune.commands.{command}").run(list(words))
        if outcome.tracking_problem:
            print(f"warning: {outcome.tracking_problem}", file=sys.stderr)
        content = {"experiment": outcome.plan.name, "storage": outcome.plan.storage.text}
    except UserError as error:
        content = {"module": type(error).__module__, "class": type(error).__name__, "error": str(error)}
    except KeyboardInterrupt:
        content = {"interrupted": command}
    Path(answer).write_text(json.dumps(content), encoding="utf-8")


def _end_with_parent() -> None:
    """Interrupt this process when its parent has closed the pipe to it, as one that was killed has."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(*sys.argv[1:])
