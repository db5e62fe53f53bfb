"""The model card of an exported model: `README.md` with the metadata that the Hugging Face hub reads."""

from __future__ import annotations

from typing import Any, TypeAlias

import yaml

from trainer.config import TrainConfig

Rates: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Error rates in percent by split, `before` and `after`."""

_CARD = """\
---
{metadata}
---

# Whisper fine-tuned for {language}

`{base_model}`, fine-tuned with tune-whisper: {which} of the search `{experiment}` ({n_trials} trials).

## Error rates

Corpus-level, in percent. WER and CER are of normalised text (normaliser `{normalizer}`), the orthographic WER
is of the text as written.

{rates}

## Data

{data}

## Settings

Found by the search; the model saw {samples:,} samples. All settings are in `train_config.json`.

{settings}

## Use

```python
from transformers import pipeline

transcribe = pipeline("automatic-speech-recognition", "PATH_OF_THIS_FOLDER")
print(transcribe("recording.wav")["text"])
```
"""


def model_card(
    settings: dict[str, Any],
    results: dict[str, Any],
    trial: dict[str, Any],
    config: TrainConfig,
    rates: Rates,
) -> str:
    """The card as Markdown.

    Args:
        settings: the experiment's `experiment.yaml`.
        results: its `results.json`.
        trial: the exported trial's entry in it.
        config: the exported trial's full settings.
        rates: error rates by split, `before` and `after`.
    """
    best = results["best"] is not None and results["best"]["trial_id"] == trial["trial_id"]
    return _CARD.format(
        metadata=yaml.safe_dump(_metadata(config, rates), sort_keys=False, allow_unicode=True).strip(),
        language=config.language or "en",
        base_model=_short(config.model_source),
        which=f"trial {trial['trial_id']}" + (", the best" if best else ""),
        experiment=results["experiment"],
        n_trials=len(results["trials"]),
        normalizer=config.normalizer_name,
        rates="\n".join(_rates_table(rates)),
        data="\n".join(_data_list(config, settings)),
        samples=trial["best_samples_seen"],
        settings="\n".join(_settings_table(trial["config"])),
    )


def _metadata(config: TrainConfig, rates: Rates) -> dict[str, Any]:
    language = config.language or "en"
    metadata: dict[str, Any] = {
        "language": [language],
        "library_name": "transformers",
        "pipeline_tag": "automatic-speech-recognition",
        "tags": ["whisper", "tune-whisper"],
        "metrics": ["wer", "cer"],
    }
    # The hub links cards to models that it holds; the path of a local folder would mean nothing there.
    if "/" in config.model_source and not config.model_source.startswith("/"):
        metadata["base_model"] = config.model_source
    results = [
        {
            "task": {"type": "automatic-speech-recognition"},
            "dataset": {"name": _short(config.data), "type": _short(config.data), "split": split},
            "metrics": [
                {"type": "wer", "value": round(pair["after"]["wer"], 2)},
                {"type": "cer", "value": round(pair["after"]["cer"], 2)},
            ],
        }
        for split, pair in rates.items()
    ]
    metadata["model-index"] = [{"name": f"whisper-{language}", "results": results}]
    return metadata


def _rates_table(rates: Rates) -> list[str]:
    rows = [
        "| split | clips | model | WER | CER | orthographic WER |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for split, pair in rates.items():
        for name, what in (("before", "base model"), ("after", "this model")):
            found = pair[name]
            figures = [
                f"{found[rate]:.2f}" if rate in found else "" for rate in ("wer", "cer", "wer_orthographic")
            ]
            rows.append(f"| {split} | {found['clips']} | {what} | {' | '.join(figures)} |")
    return rows


def _data_list(config: TrainConfig, settings: dict[str, Any]) -> list[str]:
    configuration = f", configuration `{config.data_config}`" if config.data_config else ""
    rows = [
        f"- data set: `{_short(config.data)}`{configuration}",
        f"- language: `{config.language}`, task: `{config.task}`",
        "- clips: " + ", ".join(f"{count:,} {name}" for name, count in settings["clips"].items()),
    ]
    return rows + [f"- {note}" for note in settings["notes"]]


def _settings_table(config: dict[str, Any]) -> list[str]:
    rows = ["| setting | value |", "| --- | --- |"]
    for name, value in config.items():
        rows.append(f"| `{name}` | {f'{value:.6g}' if isinstance(value, float) else value} |")
    return rows


def _short(source: str) -> str:
    """A folder by its name only; hub ids as they are."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith("/") else source
