"""DeepSpeed settings: where they come from, what they must leave to `TrainConfig`, whether the engine runs.

Nothing heavy is imported here: settings are read with every `TrainConfig`.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

PACKAGED = ("ds_config.json", "ds_config_zero3.json")
"""ZeRO 2 and ZeRO 3, beside the packages in the repository, in `share/tune-whisper` when installed."""
AUTO = (
    *("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"),
    *("gradient_clipping", "bf16.enabled", "fp16.enabled"),
    *(f"optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay")),
)
"""What `TrainConfig` decides, trial by trial: a number here would silently win over the search space."""


def packaged_file(name: str) -> Path:
    """Where a packaged settings file is: in the repository, or wherever pip put it.

    A distribution lists its files; but `pip install --target` moves the data away from where its list says, to a folder
    beside the packages.
    """
    root = Path(__file__).resolve().parent.parent
    try:
        listed = importlib.metadata.files("tune-whisper") or []
    except importlib.metadata.PackageNotFoundError:
        listed = []
    paths = [root / name, root / "share" / "tune-whisper" / name]
    paths += [Path(str(file.locate())) for file in listed if file.name == name]
    return next((path for path in paths if path.is_file()), paths[0])


def resolve_deepspeed(value: str) -> str:
    """The settings as one line of JSON, from a packaged file's name, a file, or JSON text.

    They travel inside `TrainConfig`, so that every node and every later export sees the same.

    Raises:
        ConfigError: there is no such file, it holds no JSON object, or it fixes what the search decides.
    """
    if value.lstrip().startswith("{"):
        source, text = "deepspeed", value
    else:
        path = packaged_file(value) if value in PACKAGED else Path(value).expanduser()
        source = f"deepspeed={value!r}"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(
                f"{source}: cannot be read: {reason}; give a JSON file, {PACKAGED[0]} (ZeRO 2) or {PACKAGED[1]}"
            ) from error
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source}: is not JSON: line {error.lineno}: {error.msg}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{source}: must hold DeepSpeed's settings as a JSON object")
    problems = [f"{source}: {problem}" for problem in _problems(settings)]
    if problems:
        raise ConfigError("\n".join(problems))
    return json.dumps(settings)


def _problems(settings: dict[str, Any]) -> list[str]:
    sections = ("bf16", "fp16", "optimizer", "zero_optimization")
    problems = [
        f"{name} is {json.dumps(settings[name])}; it must be an object of settings"
        for name in sections
        if name in settings and not isinstance(settings[name], dict)
    ]
    if problems:
        return problems
    for key in AUTO:
        value = _get(settings, key)
        if value not in (None, "auto"):
            problems.append(f'{key} is {json.dumps(value)}; set it to "auto", the trial decides it')
    if "scheduler" in settings:
        problems.append(
            "has a scheduler; remove it, scheduler_type and the warmup settings make the schedule"
        )
    zero = settings.get("zero_optimization", {})
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        problems.append(f"zero_optimization.stage is {json.dumps(stage)}; it must be 0, 1, 2 or 3")
    return problems


def _get(settings: dict[str, Any], key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    return value


def engine_settings(value: str) -> dict[str, Any]:
    """What `TrainingArguments(deepspeed=...)` is given: the settings with all that it must fill in."""
    settings: dict[str, Any] = json.loads(value)
    for key in AUTO[:4]:
        settings[key] = "auto"
    if "optimizer" in settings:
        # What is left out would be DeepSpeed's own: a learning rate of 0.001.
        own = settings["optimizer"].setdefault("params", {})
        momentum = "adam" in str(settings["optimizer"].get("type")).lower()
        for name in ("lr", "weight_decay", *(("betas", "eps") if momentum else ())):
            own[name] = "auto"
    for precision in ("bf16", "fp16"):
        settings.setdefault(precision, {})["enabled"] = "auto"
    if zero_stage(value) in (2, 3):
        # Else micro-batches are added up in bf16, which has 8 bits. Without ZeRO the engine refuses it, and with ZeRO 1
        # another optimiser would run (DeepSpeed 0.19).
        settings.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")
    if zero_stage(value) == 3:
        # Without it a checkpoint holds no weights that anything but DeepSpeed could read.
        settings["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    return settings


def zero_stage(value: str | None) -> int | None:
    """The ZeRO stage of settings, `None` without DeepSpeed."""
    return None if value is None else int(json.loads(value).get("zero_optimization", {}).get("stage", 0))


def join_on_cpu(timeout: datetime.timedelta) -> None:
    """Join DeepSpeed's processes over gloo where there is no GPU.

    By itself accelerate (1.15) picks no backend there and lets every process train alone, as one of one. The
    state made here is the one that `TrainingArguments` takes with `use_configured_state`.
    """
    import deepspeed
    from accelerate.state import AcceleratorState, PartialState

    # Sums through shared memory: compiled at run time, of no use over machines, and no faster on a few cores.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    try:
        PartialState(backend="gloo", timeout=timeout)
    finally:
        del os.environ["ACCELERATE_USE_DEEPSPEED"]


def check_engine(model: Any) -> None:
    """Raise unless `model`, as it is about to run forward, is a live DeepSpeed engine.

    The stock trainer drops DeepSpeed without a word in some settings (`use_cpu=True` is one).

    Raises:
        ConfigError: it is something else.
    """
    import deepspeed

    if not isinstance(model, deepspeed.DeepSpeedEngine):
        raise ConfigError(
            f"deepspeed: asked for, but the engine is not active (the model runs as {type(model).__name__})"
        )
