"""Finding a model in a folder, on the hub or embedded, and loading its parts, never from a pickle.

A model of the hub is fetched as a whole first. `from_pretrained` asks the hub for every optional file, and where the
hub cannot be reached it tries each six times: 330 seconds for the processor of a model that was all in the cache
(measured, transformers 5.23). A snapshot asks once and falls back to the cache at once, and all that is loaded from it
comes from one commit.
"""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import MODEL_SHORT_NAMES
from trainer.errors import ModelError, one_line
from trainer.memory import is_out_of_memory
from trainer.model.adapters import base_of, has_adapter, merge_adapter

if TYPE_CHECKING:
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

SAFE_WEIGHTS = ("model.safetensors", "model-?????-of-?????.safetensors")
"""One file or numbered pieces, but not the copies in other formats and precisions that some models have too."""
PICKLES = "pytorch_model*.bin"


def refuse_pickles(model: str, names: Iterable[str]) -> None:
    """Look at the files of a model before anything is loaded from it.

    Raises:
        ModelError: it has its weights as pickles alone.
    """
    names = sorted(names)
    if any(fnmatch.fnmatch(name, pattern) for name in names for pattern in SAFE_WEIGHTS):
        return
    if pickles := fnmatch.filter(names, PICKLES):
        folder, fetch = str(Path(model).expanduser()), ""
        if not Path(folder).is_dir():
            folder = model.rpartition("/")[2]
            fetch = f"fetch it with `hf download {model} --local-dir {folder}`, give ./{folder}, and "
        code = (
            "import sys; from transformers import WhisperForConditionalGeneration as W; "
            "W.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])"
        )
        raise ModelError(
            f"model={model!r}: {pickles[0]} is a pickle, which is not loaded since it can run code, and there is no "
            f'model.safetensors; if you trust it, {fetch}convert it: python -c "{code}" {shlex.quote(folder)}'
        )


def no_answer() -> type[Exception]:
    """What the hub's client raises where it gets no answer: an error of httpx or httpx2, by its version."""
    from huggingface_hub.errors import HfHubHTTPError

    base: type[Exception] = HfHubHTTPError.__bases__[0]
    return base


#: Configuration and processor; some tokenizers have their vocabulary as text.
_SMALL_FILES = ("*.json", "*.txt", "*.jinja")


def fetch_model(repo: str, *, weights: bool) -> str:
    """The folder in Hugging Face's cache with a model's small files, and its weights if wanted.

    Raises:
        ModelError: there is no such model, or no model can have this name; the hub cannot be reached and the
            model was never fetched; it cannot be downloaded; or its weights are no safetensors.
    """
    from huggingface_hub import list_repo_files, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    # Bars for a dozen small files would bury what is printed; gigabytes of weights deserve one.
    (enable_progress_bars if weights else disable_progress_bars)()
    try:
        folder = snapshot_download(repo, allow_patterns=[*_SMALL_FILES, *(SAFE_WEIGHTS if weights else ())])
        if weights and not any(Path(folder).glob("model*.safetensors")):
            # Where the hub cannot be reached this says so: the cache may have no more than the small files.
            refuse_pickles(repo, list_repo_files(repo))
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
    # OSError: the hub's refusals, and a disk that is full or read-only.
    except (no_answer(), OSError) as error:
        raise ModelError(f"model={repo!r}: cannot be fetched from the hub: {one_line(error)}") from error
    return str(folder)


DEMO_MODEL = Path(__file__).resolve().parents[1] / "demo" / "model"


def model_path(model: str) -> str:
    """What `from_pretrained` takes: a hub id or a folder.

    Raises:
        ModelError: the text is neither a short name, a hub id nor an existing folder, or its weights are pickles.
    """
    source = MODEL_SHORT_NAMES.get(model, model)
    if source == "demo":
        return str(DEMO_MODEL)
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(
                f"model={model!r}: the folder has no config.json; give a Hugging Face model folder"
            )
        refuse_pickles(model, (path.name for path in folder.iterdir()))
        return str(folder)
    if "\\" in source or source.startswith(("/", ".", "~")) or source.count("/") != 1:
        names = ", ".join(MODEL_SHORT_NAMES)
        raise ModelError(
            f"model={model!r}: no such folder; give a folder, a hub id such as openai/whisper-small, or one of {names}"
        )
    return source


def find_model(model: str, *, weights: bool = False) -> Path:
    """The folder with the model's small files, and its weights if wanted, fetched from the hub where it is not here.

    Raises:
        ModelError: there is no such model, or its weights are pickles.
    """
    path = model_path(model)
    return Path(path) if Path(path).is_dir() else Path(fetch_model(path, weights=weights))


def is_here(model: str) -> bool:
    """Whether a model's weights are in a folder or in the hub's cache, so that nothing has to be fetched."""
    from huggingface_hub import try_to_load_from_cache

    path = model_path(model)
    return Path(path).is_dir() or isinstance(try_to_load_from_cache(path, "model.safetensors"), str)


def load_part(loader: Any, model: str, what: str, /, **kwargs: Any) -> Any:
    """`loader.from_pretrained`, with failures in one line; `what` names the part, and `weights` are large files."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers.utils import logging

    # Bars of a second's length, once a trial, would bury what the search prints.
    logging.disable_progress_bar()
    weights = what == "weights"
    folder = str(find_model(model, weights=weights))
    # PyTorch tells of damaged files with RuntimeError; elsewhere that would be a fault of the program.
    damaged = (SafetensorError, RuntimeError) if weights else ()
    try:
        return loader.from_pretrained(folder, **kwargs)
    except (OSError, ValueError, KeyError, StrictDataclassError, *damaged) as error:
        if is_out_of_memory(error):
            raise
        # The first line of the text, with the next one where it only announces that.
        lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
        reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
        if isinstance(error, damaged):
            reason += "; the file is damaged or not this model's: copy or download it again"
        raise ModelError(f"model={model!r}: cannot load the {what} from {folder!r}: {reason}") from error


def load_model_config(model: str) -> WhisperConfig:
    """The model's `WhisperConfig` (a small file, no weights).

    Raises:
        ModelError: the model cannot be found, or is no Whisper.
    """
    from transformers import AutoConfig

    loaded = load_part(AutoConfig, model, "configuration")
    if loaded.model_type != "whisper":
        raise ModelError(f"model={model!r}: is a {loaded.model_type} model; only Whisper models can be tuned")
    return loaded  # type: ignore[no-any-return]


def load_generation_config(model: str) -> GenerationConfig:
    """The model's own, as its files have it; of an older model that has none, what its configuration says.

    Raises:
        ModelError: the model cannot be found.
    """
    from transformers import GenerationConfig

    if (find_model(model) / "generation_config.json").is_file():
        return load_part(GenerationConfig, model, "generation configuration")  # type: ignore[no-any-return]
    return GenerationConfig.from_model_config(load_model_config(model))


def load_weights(model: str, config: WhisperConfig) -> WhisperForConditionalGeneration:
    """All weights of a model in float32, also where its folder holds adapters alone: the base model with them merged.

    Raises:
        ModelError: the weights cannot be read, or are not those of the model that `config.json` describes; or the base
            model of adapters cannot be loaded.
    """
    folder = Path(model_path(model))
    if not has_adapter(folder):
        return _load_weights(model, config)
    base, generation = base_of(folder), load_generation_config(model)
    try:
        loaded = load_weights(base, config)
    except ModelError as error:
        raise ModelError(f"model={model!r}: has adapters for {base}, and {error}") from error
    loaded = merge_adapter(loaded, folder)
    loaded.generation_config = generation
    return loaded


def _load_weights(model: str, config: WhisperConfig) -> WhisperForConditionalGeneration:
    import torch
    from transformers import WhisperForConditionalGeneration
    from transformers.utils import logging

    # transformers would print a line for each weight that does not fit, and make up those that are missing.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        loaded, info = load_part(
            WhisperForConditionalGeneration,
            model,
            "weights",
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    finally:
        logging.set_verbosity(verbosity)
    unfit = [
        f"{name} has the shape {tuple(has)} and needs {tuple(needs)}"
        for name, has, needs in sorted(info["mismatched_keys"])
    ] + [f"{name} is missing" for name in sorted(info["missing_keys"])]
    if unfit:
        others = f" ({len(unfit) - 1} more do not fit)" if len(unfit) > 1 else ""
        raise ModelError(
            f"model={model!r}: the weights do not match its config.json: {unfit[0]}{others}; "
            "take both from the same model"
        )
    return loaded  # type: ignore[no-any-return]
