"""LoRA (arXiv:2106.09685) by PEFT: adapters put into a Whisper, written, read, and merged into its weights.

PEFT's import takes a third of a second, so that it is imported only where there are adapters.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.errors import ModelError, one_line

if TYPE_CHECKING:
    import torch
    from transformers import WhisperForConditionalGeneration

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""Names that PEFT knows."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_FEED_FORWARD = ("fc1", "fc2")
_PREFIX = "base_model.model."
"""What PEFT's own wrapper puts before the names of weights."""


def add_adapters(model: WhisperForConditionalGeneration, config: TrainConfig) -> None:
    """Put the adapters into the model that `config` asks for; nothing else of it is trained then.

    The model computes what it did before: what an adapter adds is 0 at first.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    targets = _ATTENTION if config.lora_targets == "attention" else _ATTENTION + _FEED_FORWARD
    frozen = "|".join(map(str, range(config.freeze_encoder_layers)))
    inject_adapter_in_model(
        LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            use_rslora=config.lora_scaling == "rank_stabilized",
            lora_dropout=config.lora_dropout,
            target_modules=list(targets),
            exclude_modules=rf"model\.encoder\.layers\.({frozen})\..*" if frozen else None,
            base_model_name_or_path=_portable_name(config.model),
        ),
        model,
    )
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False  # autocast does, and would have to cast back


def _portable_name(model: str) -> str:
    """A model as other processes find it, in whatever folder they run."""
    source = MODEL_SHORT_NAMES.get(model, model)
    folder = Path(source).expanduser()
    return str(folder.absolute()) if folder.is_dir() else source


def is_adapted(model: Any) -> bool:
    """Whether a model has adapters that are not merged."""
    return hasattr(model, "peft_config")


def adapter_state(model: Any, state: Mapping[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The adapters' own tensors in the model, not copied, by the names that PEFT gives them in files.

    `state` is that of the whole model, where it does not have its own weights (ZeRO 3).
    """
    from peft import get_peft_model_state_dict

    # Without the look at the hub for whether the embeddings have changed, which are never trained here.
    tensors = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
    return {f"{_PREFIX}{name}": tensor for name, tensor in tensors.items()}


def write_adapter(model: Any, folder: Path, state: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write a model's adapters as PEFT does; `state` as for `adapter_state`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = adapter_state(model, state)
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    model.peft_config["default"].save_pretrained(str(folder))


def read_adapter(model: Any, folder: Path) -> None:
    """Give the model's adapters the values that a folder holds.

    Raises:
        ModelError: these are other adapters.
    """
    import torch
    from safetensors.torch import load_file

    kept, own = load_file(folder / ADAPTER_WEIGHTS), adapter_state(model)
    if {name: value.shape for name, value in kept.items()} != {name: own[name].shape for name in own}:
        raise ModelError(f"{folder / ADAPTER_WEIGHTS}: its adapters do not match these settings")
    with torch.no_grad():
        for name, value in kept.items():
            own[name].copy_(value)


def has_adapter(folder: Path) -> bool:
    """Whether a folder holds adapters for a model that lies elsewhere."""
    return (folder / ADAPTER_CONFIG).is_file()


def base_of(folder: Path) -> str:
    """The base model, as `TrainConfig.model` takes it, that a folder's adapters belong to.

    Raises:
        ModelError: their configuration cannot be read.
    """
    path = folder / ADAPTER_CONFIG
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: cannot be read; copy the folder again") from error
    if not isinstance(base, str) or not base or Path(base) == folder:
        raise ModelError(
            f"{path}: base_model_name_or_path={base!r}: names no model; write its base model there"
        )
    return base


@contextlib.contextmanager
def with_base(folder: Path, base: str) -> Iterator[Path]:
    """A checkpoint whose adapters, if it has any, name a base model that is here.

    On a node that lacked the base model's folder a trial had it, and wrote it down, under another path.
    """
    if not has_adapter(folder) or base_of(folder) == _portable_name(base):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tune-whisper-") as scratch:
        renamed = Path(scratch) / folder.name
        shutil.copytree(folder, renamed, ignore=shutil.ignore_patterns(ADAPTER_CONFIG, ADAPTER_WEIGHTS))
        export_adapter(folder, renamed, _portable_name(base))
        yield renamed


def export_adapter(checkpoint: Path, output: Path, base: str) -> None:
    """Copy a checkpoint's adapters to a folder of their own, which `peft.PeftModel.from_pretrained` loads."""
    output.mkdir(exist_ok=True)
    shutil.copyfile(checkpoint / ADAPTER_WEIGHTS, output / ADAPTER_WEIGHTS)
    settings = json.loads((checkpoint / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    text = json.dumps({**settings, "base_model_name_or_path": base}, indent=2)
    (output / ADAPTER_CONFIG).write_text(text + "\n", encoding="utf-8")


def merge_adapter(model: WhisperForConditionalGeneration, folder: Path) -> WhisperForConditionalGeneration:
    """The base model with a folder's adapters merged into its weights; it is changed in place.

    Raises:
        ModelError: the adapters cannot be read, or are another model's.
    """
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of a name that PEFT asks transformers for
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = PeftModel.from_pretrained(model, str(folder), torch_device="cpu")
        whole: WhisperForConditionalGeneration = adapted.merge_and_unload()
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, UserWarning, SafetensorError) as error:
        raise ModelError(
            f"model={str(folder)!r}: cannot load the adapter: {one_line(error)}; the file is damaged or another "
            "model's: copy it again"
        ) from error
    if is_adapted(whole):
        del whole.peft_config
    return whole.requires_grad_()  # PEFT has switched it off


@contextlib.contextmanager
def merged(model: Any) -> Iterator[None]:
    """Within the block the model has plain layers with the adapters merged, as an export has them.

    Its own layers are put aside and come back as they were: to take away again what was added would not give the same
    numbers. Nothing happens to a model without adapters, nor with ZeRO 3, whose weights are whole only while a layer
    is called.
    """
    if not is_adapted(model) or any(hasattr(weight, "ds_id") for weight in model.parameters()):
        yield
        return
    import torch
    from peft.tuners.lora import Linear

    own = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    try:
        for name, module in own.items():
            base = module.get_base_layer()
            with torch.no_grad():
                weight = base.weight + module.get_delta_weight("default")
            plain = torch.nn.Linear(base.in_features, base.out_features, bias=False, device="meta")
            plain.weight = torch.nn.Parameter(weight, requires_grad=False)
            plain.bias = base.bias
            model.set_submodule(name, plain.train(module.training))
        yield
    finally:
        for name, module in own.items():
            model.set_submodule(name, module)
