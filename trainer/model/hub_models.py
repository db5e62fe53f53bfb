"""Models from the Hugging Face hub, fetched as a whole before anything is loaded from them.

`from_pretrained` asks the hub for every optional file, and where the hub cannot be reached it tries each six
times: 330 seconds for the processor of a model that was all in the cache (measured, transformers 5.23). A
snapshot asks once and falls back to the cache at once, and all that is loaded from it comes from one commit.
"""

from __future__ import annotations

from trainer.errors import ModelError
from trainer.pickles import PICKLES, SAFE_WEIGHTS, pickle_of_the_hub

#: Configuration and processor; some tokenizers have their vocabulary as text.
_SMALL_FILES = ("*.json", "*.txt", "*.jinja")


def fetch_model(repo: str, *, weights: bool) -> str:
    """The folder in Hugging Face's cache with a model's small files, and its weights if wanted.

    Raises:
        ModelError: there is no such model, or no model can have this name; the hub cannot be reached and the
            model was never fetched; it cannot be downloaded; or its weights are no safetensors.
    """
    from fnmatch import fnmatch
    from pathlib import Path

    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    # Bars for a dozen small files would bury what is printed; gigabytes of weights deserve one.
    (enable_progress_bars if weights else disable_progress_bars)()
    no_answer: type[Exception] = HfHubHTTPError.__bases__[0]  # the client's own: httpx or httpx2, by version
    try:
        folder = snapshot_download(repo, allow_patterns=[*_SMALL_FILES, *(SAFE_WEIGHTS if weights else ())])
        if weights and not any(Path(folder).glob("model*.safetensors")):
            # Where the hub cannot be reached this says so: the cache may have no more than the small files.
            pickles = sorted(name for name in list_repo_files(repo) if fnmatch(name, PICKLES))
            if pickles:
                raise pickle_of_the_hub(repo, pickles[0])
            raise ModelError(f"model={repo!r}: the repository has no model.safetensors; take another model")
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"model={repo!r}: no such folder here and no such model on the hub (for a private or gated one, "
            "log in with `hf auth login`)"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"model={repo!r}: the hub cannot be reached and the model is not in its cache; check the "
            "connection, or give a folder with the model"
        ) from error
    except HFValidationError as error:
        raise ModelError(
            f"model={repo!r}: no such folder here, and no model on the hub can have this name; give a folder, or a "
            "hub id such as openai/whisper-small"
        ) from error
    except (no_answer, OSError) as error:  # OSError: the hub's refusals, and a disk that is full or read-only
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"model={repo!r}: cannot be fetched from the hub: {lines[0]}") from error
    return str(folder)
