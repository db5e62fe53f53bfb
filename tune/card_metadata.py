"""The metadata block of a model card, made by the hub's own classes so that the hub reads it as it is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import yaml

from trainer.config import TrainConfig

Rates: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Error rates in percent by split, `before` and `after`, with `wer_interval` and `cer_interval` where they are known:
the low and the high end, of 95 %."""

_LICENSES = {
    "demo": "cc0-1.0",
    "openai/whisper-large-v3-turbo": "mit",
    **{
        f"openai/whisper-{name}": "apache-2.0"
        for name in (
            *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
            *("large", "large-v2", "large-v3"),
        )
    },
}
"""As the base models' own cards on the hub have it."""
_HUB_CODES = {"jw": "jv"}
"""Where Whisper's code of a language is not ISO 639's."""


def card_metadata(config: TrainConfig, rates: Rates, experiment: str) -> str:
    """The YAML block.

    Args:
        config: the exported trial's full settings.
        rates: error rates by split, `before` and `after`.
        experiment: its name, by which the hub lists the results.
    """
    from huggingface_hub import EvalResult, ModelCardData

    language = config.language or "en"
    codes = dict.fromkeys(
        [_HUB_CODES.get(language, language), *(["en"] if config.task == "translate" else [])]
    )
    base = config.model_source if is_hub_id(config.model_source) else None
    described: dict[str, Any] = _license(config)
    if base:
        described |= {"base_model": base, "base_model_relation": "finetune"}
    if on_hub := is_hub_id(config.data):
        described["datasets"] = [config.data]
    evaluations = [
        EvalResult(
            task_type="automatic-speech-recognition",
            task_name="Automatic speech recognition",
            dataset_type=config.data if on_hub else "local",  # the hub links the id of one of its data sets
            dataset_name=short_name(config.data),
            dataset_config=config.data_config,
            dataset_split=split,
            dataset_args={"language": language},
            metric_type=metric,
            metric_name=metric.upper(),
            metric_value=round(pair["after"][metric], 2),
            metric_config=f"normalizer {config.normalizer_name}",
        )
        for split, pair in rates.items()
        for metric in ("wer", "cer")
    ]
    data = ModelCardData(
        language=list(codes),
        library_name="transformers",
        pipeline_tag="automatic-speech-recognition",
        tags=["whisper", "audio", "tune-whisper"],
        metrics=["wer", "cer"],
        model_name=experiment,
        eval_results=evaluations,
        **described,
    )
    return data.to_yaml().strip()


def _license(config: TrainConfig) -> dict[str, Any]:
    """The base model's licence, which its fine-tunings inherit."""
    source = config.model_source
    if source in _LICENSES:
        return {"license": _LICENSES[source]}
    if (own := _own_license(Path(source))) is not None:
        return {"license": own}
    if is_hub_id(source):
        name = f"as {source}"
        return {"license": "other", "license_name": name, "license_link": f"https://huggingface.co/{source}"}
    return {"license": "unknown"}


def _own_license(folder: Path) -> str | None:
    """What the card beside a local base model says."""
    from huggingface_hub import ModelCard

    if not (folder / "README.md").is_file():
        return None
    try:
        found = ModelCard.load(folder / "README.md", ignore_metadata_errors=True).data.license
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, str) else None


def is_hub_id(source: str) -> bool:
    """Of a model or a data set; the path of a local folder would mean nothing on the hub."""
    return source.count("/") == 1 and not source.startswith(("/", ".", "~")) and not Path(source).exists()


def short_name(source: str) -> str:
    """A folder by its name only; hub ids as they are."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith(("/", ".", "~")) else source
