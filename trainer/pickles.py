"""Weights that are a pickle: refused, and how to make safetensors of them.

Loading a pickle can run code that came with it; transformers takes one where there is nothing else.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from trainer.errors import ModelError

SAFE_WEIGHTS = ("model.safetensors", "model-?????-of-?????.safetensors")
"""One file or numbered pieces, but not the copies in other formats and precisions that some models have too."""
PICKLES = "pytorch_model*.bin"


def refuse_pickles(model: str, folder: Path) -> None:
    """Look at a model's folder before anything is loaded from it.

    Raises:
        ModelError: it has its weights as pickles alone.
    """
    if any(any(folder.glob(pattern)) for pattern in SAFE_WEIGHTS):
        return
    pickles = sorted(path.name for path in folder.glob(PICKLES))
    if pickles:
        raise _error(model, pickles[0], f"convert it: {_conversion(str(folder))}")


def pickle_of_the_hub(repo: str, name: str) -> ModelError:
    """The error for a repository that has its weights as the pickle `name` alone."""
    folder = repo.rpartition("/")[2]
    return _error(
        repo,
        name,
        f"fetch it with `hf download {repo} --local-dir {folder}`, and give ./{folder} for the model once you "
        f"have converted it: {_conversion(folder)}",
    )


def _error(model: str, name: str, way: str) -> ModelError:
    """The error for a model with the pickle `name`; `way` leads to safetensors."""
    return ModelError(
        f"model={model!r}: {name} is a pickle, which is not loaded since it can run code, and there is no "
        f"model.safetensors; if you trust it, {way}"
    )


def _conversion(folder: str) -> str:
    """A command that writes the weights of a folder again, as safetensors."""
    code = (
        "import sys; from transformers import WhisperForConditionalGeneration as W; "
        "W.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])"
    )
    return f'python -c "{code}" {shlex.quote(folder)}'
