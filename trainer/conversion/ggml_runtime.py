"""Decoding with whisper.cpp, in a process of its own: what it does not like ends it without a word."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.conversion.decoding import Decoding
from trainer.conversion.ggml_format import MODEL_FILE
from trainer.errors import ModelError

if TYPE_CHECKING:
    import numpy as np


def transcribe(
    folder: Path, decoding: Decoding, clips: Sequence[np.ndarray], heard: Callable[[int], None]
) -> list[str]:
    """Transcripts of clips by whisper.cpp on the CPU; arguments as for `transformers_runtime.transcribe`.

    Raises:
        ModelError: whisper.cpp cannot load or run the model; with the last words of its log.
    """
    import numpy as np

    path = folder / MODEL_FILE
    texts: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        np.savez(Path(scratch) / "clips.npz", *clips)
        command = [sys.executable, "-m", "trainer.conversion.ggml_process"]
        command += [str(path), str(Path(scratch) / "clips.npz"), json.dumps(dataclasses.asdict(decoding))]
        log = Path(scratch) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                # A failed assertion would start a debugger.
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
            with process:
                for line in process.stdout or ():
                    texts.append(json.loads(line))
                    heard(len(texts))
        if process.returncode or len(texts) != len(clips):
            raise ModelError(f"{path}: whisper.cpp cannot use it: {_last_words(log)}")
    return texts


def _last_words(log: Path) -> str:
    """The last line of whisper.cpp's log that tells of an error, or the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [
        line for line in lines if any(word in line.lower() for word in ("error", "invalid", "fail", "assert"))
    ]
    return [*(lines[-1:] or ["it said nothing"]), *telling[-1:]][-1]
