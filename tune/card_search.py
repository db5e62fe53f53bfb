"""What a model card says of the settings and of the search that found them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainer.config import TrainConfig

_STATUS = {
    "completed": "went to the end",
    "early_stopped": "were stopped early",
    "diverged": "diverged",
    "failed": "failed",
    "interrupted": "were interrupted",
}
_ALWAYS_SHOWN = (
    *("learning_rate", "scheduler_type", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps"),
    *("epochs", "max_steps", "weight_decay", "precision", "seed"),
)
_NOT_SETTINGS = ("model", "data", "language", "task", "cache_dir", "output_dir", "evaluate_at")
"""Told elsewhere, or of the machine that it ran on."""


def settings_table(
    settings: Mapping[str, Any], searched: Mapping[str, Any], config: TrainConfig
) -> list[str]:
    """Searched and fixed settings as a Markdown table; what stands at its default only where it is asked for often."""
    rows = ["| setting | value | |", "| --- | --- | --- |"]
    parameters = settings.get("space", {}).get("parameters", {})
    alone = settings.get("kind") == "training"
    for name, value in searched.items():
        how = "given" if alone else (_range(parameters[name]) if name in parameters else "of this repeat")
        rows.append(f"| `{name}` | {_value(value)} | {how} |")
    defaults = TrainConfig().to_dict()
    for name, value in config.to_dict().items():
        if name in searched or name in _NOT_SETTINGS or value is None:
            continue
        if name in _ALWAYS_SHOWN or value != defaults[name]:
            rows.append(
                f"| `{name}` | {_value(value)} | {'fixed' if value != defaults[name] else 'default'} |"
            )
    return rows


def how_found(settings: Mapping[str, Any], results: Mapping[str, Any], *, alone: bool) -> str:
    """Size, budget, cost and versions, in sentences."""
    runs = [*results["trials"], *results.get("repeats", [])]
    cost = _cost(settings, runs)
    versions = settings.get("versions", {})
    tools = ", ".join(
        f"{name} {versions[name]}" for name in ("transformers", "torch", "ray", "optuna") if name in versions
    )
    made = f"With {tools}." if tools else ""
    if alone:
        return f"One training, without a search. {cost} {made}".strip()
    counts = Counter(trial["status"] for trial in results["trials"])
    outcomes = ", ".join(f"{counts[status]} {words}" for status, words in _STATUS.items() if counts[status])
    parts = [
        f"A search of {len(results['trials'])} trials ({outcomes}) over up to {settings['budget_samples']:,} samples "
        "each: Optuna proposed the settings, ASHA stopped trials early, validation WER decided."
    ]
    if results.get("repeats"):
        standings = results["finalists"]["standings"] if results.get("finalists") else []
        parts.append(
            f"{len(standings) or 'The best'} finalists were trained again with other seeds, "
            f"{len(results['repeats'])} times in all."
        )
    return " ".join([*parts, cost, made]).strip()


def _cost(settings: Mapping[str, Any], runs: list[dict[str, Any]]) -> str:
    """Time that all runs held their devices."""
    resources = settings.get("resources") or {}
    seconds = sum(run.get("seconds") or 0.0 for run in runs)
    gpus = float(resources.get("gpus") or 0.0)
    each, device = (gpus, "GPU") if gpus else (float(resources.get("cpus") or 1.0), "CPU")
    hours = each * seconds / 3600
    amount = f"{hours:.1f} {device}-hours" if hours >= 2 else f"{60 * hours:.1f} {device}-minutes"
    return f"It took {amount}."


def _range(parameter: Mapping[str, Any]) -> str:
    if parameter["type"] == "choice":
        return "searched: " + ", ".join(_value(value) for value in parameter["values"])
    log = ", log scale" if parameter.get("log") else ""
    return f"searched: {_value(parameter['low'])} to {_value(parameter['high'])}{log}"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
