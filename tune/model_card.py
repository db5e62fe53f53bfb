"""The model card of an exported model: `README.md` with the metadata that the Hugging Face hub reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from trainer.config import TrainConfig
from trainer.conversion.decoding import Decoding
from trainer.conversion.usage import PLACE
from trainer.scoring.normalizers import describe_normalizer, unit_note
from trainer.transcription.transcripts import language_name
from tune.card_data import data_list, limits_list
from tune.card_metadata import Rates, card_metadata, is_hub_id, short_name
from tune.card_search import how_found, settings_table
from tune.card_use import usage

__all__ = ["PLACE", "CardFacts", "Rates", "model_card"]

_CARD = """\
---
{metadata}
---

# Whisper fine-tuned for {language}

{base_model}, fine-tuned with tune-whisper: {which}.

## Error rates

Corpus-level, in percent. WER and CER are of normalised text (normaliser `{normalizer}`: {normalizer_text}), the
orthographic WER is of the text as written.{unit}{intervals}

{rates}

{verdict}

## How to use

{usage}

## Limits

{limits}

## Data

{data}

## Settings

{origin}; the model saw {samples:,} samples. All settings are in `train_config.json`.

{settings}

## How it was found

{found}
"""


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What only some callers know."""

    hours: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Hours of audio by split."""
    longest_seconds: float | None = None
    """Of the training clips."""
    formats: Collection[str] = ()
    """Other formats beside the model, `ctranslate2`, `ggml` or `onnx`, each in a folder of its name."""


def model_card(
    settings: dict[str, Any],
    results: dict[str, Any],
    trial: dict[str, Any],
    config: TrainConfig,
    rates: Rates,
    decoding: Decoding,
    *,
    facts: CardFacts | None = None,
) -> str:
    """The card as Markdown.

    Args:
        settings: the experiment's `experiment.yaml`.
        results: its `results.json`.
        trial: the exported trial's entry in it.
        config: the exported trial's full settings.
        rates: error rates by split, `before` and `after`.
        decoding: how the exported model decodes.
        facts: what else is known.
    """
    facts = facts or CardFacts()
    alone = settings.get("kind") == "training"
    which = f"the training `{results['experiment']}`" if alone else _which(results, trial["trial_id"])
    intervals = any("wer_interval" in found for pair in rates.values() for found in pair.values())
    return _CARD.format(
        metadata=card_metadata(config, rates, results["experiment"]),
        language=language_name(config.language),
        base_model=_base_link(config),
        which=which,
        normalizer=config.normalizer_name,
        normalizer_text=describe_normalizer(config)[1],
        unit=f" {note}." if (note := unit_note(config)) else "",
        intervals=" In brackets: 95 % intervals by bootstrap over the clips." if intervals else "",
        rates="\n".join(_rates_table(rates)),
        verdict=_verdict(rates),
        usage=usage(decoding, facts.formats),
        limits="\n".join(limits_list(config, rates, decoding.window_seconds, facts.longest_seconds)),
        data="\n".join(data_list(config, settings, facts.hours)),
        origin="Given to the training" if alone else "Found by the search",
        samples=trial["best_samples_seen"],
        settings="\n".join(settings_table(settings, trial["config"], config)),
        found=how_found(settings, results, alone=alone),
    )


def _which(results: dict[str, Any], run: str) -> str:
    """The trial, or the repeat of a finalist, and what it was in its search."""
    search = f"of the search `{results['experiment']}` ({len(results['trials'])} trials)"
    best = results["best"] is not None and results["best"].get("run") == run
    finalists: dict[str, Any] = results.get("finalists") or {}
    standings = [found for found in finalists.get("standings", []) if run in found["runs"]]
    if not standings:
        return f"trial {run}{', the best' if best else ''} {search}"
    (found,) = standings
    place = "a finalist"
    if finalists["winner"] == found["trial_id"]:
        place = "the winner, to which others show no difference," if finalists["tie"] else "the winner"
    rates = f"{found['mean']:.2f}" + ("" if found["sd"] is None else f" ± {found['sd']:.2f}")
    times = f"{len(found['wers'])} seeds" if len(found["wers"]) > 1 else "1 seed"
    return (
        f"training {run} of trial {found['trial_id']}, {place} {search}. "
        f"With {times} that trial's settings have a validation WER of {rates} %"
    )


def _rates_table(rates: Rates) -> list[str]:
    rows = [
        "| split | clips | model | WER | CER | orthographic WER |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for split, pair in rates.items():
        for name, what in (("before", "base model"), ("after", "this model")):
            found = pair[name]
            figures = [_figure(found, rate) for rate in ("wer", "cer", "wer_orthographic")]
            rows.append(f"| {split} | {found['clips']} | {what} | {' | '.join(figures)} |")
    return rows


def _figure(found: Mapping[str, Any], rate: str) -> str:
    if rate not in found:
        return ""
    interval = found.get(f"{rate}_interval")
    return f"{found[rate]:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


def _verdict(rates: Rates) -> str:
    """What the figures come to, on the split that chose nothing where there is one."""
    split = "test" if "test" in rates else next(iter(rates))
    before, after = (rates[split][when]["wer"] for when in ("before", "after"))
    if after >= before:
        return (
            f"**No better than the base model** on the {split} split: {after:.2f} % against {before:.2f} %."
        )
    share = f", {100 * (before - after) / before:.0f} % fewer errors" if before else ""
    return f"On the {split} split {before - after:.2f} points of WER below the base model{share}."


def _base_link(config: TrainConfig) -> str:
    source = config.model_source
    if is_hub_id(source):
        return f"[{source}](https://huggingface.co/{source})"
    return f"`{short_name(source)}`"
