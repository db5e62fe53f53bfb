"""`python -m tune_whisper.process ANSWER COMMAND WORDS...`: a command whose outcome is written to a file."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.errors import UserError
from trainer.files import write_whole
from tune.util.environment import set_ray_variables
from tune_whisper.keywords import ARGUMENTS

if TYPE_CHECKING:
    from tune.runs.plan import Plan


def main(answer: str, command: str, *words: str) -> None:
    """Run `search` or `train`; writes the experiment's name and place once it is planned, then how that ended, or the
    error of the user.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    set_ray_variables()
    words += tuple(json.loads(os.environ.pop(ARGUMENTS, "[]")))
    content: dict[str, str] = {}
    plan = io.StringIO()

    def planned(asked: Plan) -> None:
        content.update(experiment=asked.name, storage=asked.storage.address, folder=str(asked.folder))
        write_whole(Path(answer), json.dumps(content))

    try:
        with contextlib.redirect_stdout(plan if "--dry-run" in words else sys.stdout):
            outcome = importlib.import_module(f"tune.commands.{command}").run(list(words), planned)
        if outcome is None:
            content["plan"] = plan.getvalue()
        elif outcome.tracking_problem:
            print(f"warning: {outcome.tracking_problem}", file=sys.stderr)
        content["ended"] = command
    except UserError as error:
        content = {"module": type(error).__module__, "class": type(error).__name__, "error": str(error)}
    except KeyboardInterrupt:
        content = {"interrupted": command}
    write_whole(Path(answer), json.dumps(content))


def _end_with_parent() -> None:
    """Interrupt this process when its parent has closed the pipe to it, as one that was killed has."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main(*sys.argv[1:])
