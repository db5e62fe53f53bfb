"""The model card of an exported model, `README.md` with the metadata that the Hugging Face hub reads: its facts.

Its words are in `model_card.md.jinja`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from trainer.config import MODEL_SHORT_NAMES, TrainConfig
from trainer.conversion.formats import CONVERTED, FORMATS
from trainer.languages import language_name
from trainer.scoring.normalizers import make_normalizer, unit_note
from trainer.scoring.objectives import objective_name, objective_words, words
from trainer.scoring.translation import TRANSLATE
from tune.experiments.results import source_table
from tune.search.records import Trial, listed
from tune.util.console import short_source

if TYPE_CHECKING:
    from huggingface_hub import ModelCard, ModelCardData

    from tune.experiments.experiment import Experiment

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
PLACE = "PATH_OF_THIS_FOLDER"
"""Stands in the examples for the folder that they are in: only its reader knows where it lies."""

Rates: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Rates in percent by split, `before` and `after`, with `wer_interval` or `chrf_error_interval` where that is known:
the low and the high end, of 95 %."""


def model_card(
    saved: Experiment,
    trial: Trial,
    rates: Rates,
    window_seconds: float,
    *,
    changed: Collection[str] = (),
    formats: Collection[str] = (),
    adapter: str | None = None,
    point: float | None = None,
) -> ModelCard:
    """The card, as it stands in the model's folder.

    Args:
        window_seconds: of the exported model.
        changed: splits whose clips are no longer all those of the search.
        formats: folders of other formats beside the model.
        adapter: folder with LoRA's adapters beside the model, if they are there.
        point: share of the run in its mean with the base model, where the model is not the run itself.
    """
    from huggingface_hub import ModelCard

    state, config = saved.state, saved.config(trial)
    sources, seconds = state.data.sources, state.data.seconds
    own = [code for each in sources.values() for code in each["language"]]
    languages = list(dict.fromkeys([config.language or "en", *own]))
    scores = state.verdict.scores if state.verdict else []
    objective = objective_name(next(iter(rates.values()))["after"])
    trained = [state.run(name) for name in trial.members] or [trial]
    # A mean with the base model was not measured by source.
    shown = trial if point is None else dataclasses.replace(trial, trial_id="", best_sources={})
    card: ModelCard = ModelCard.from_template(
        _metadata(config, rates, saved.name, languages),
        template_path=str(_TEMPLATE),
        saved=saved,
        trial=trial,
        config=config,
        rates=rates,
        window_seconds=window_seconds,
        changed=changed,
        formats=formats,
        adapter=adapter,
        point=point,
        language=listed([language_name(code) for code in languages], most=8),
        sources=source_table(state, str(config.language), shown),
        base=short_source(config.model_source),
        on_hub=_is_hub_id(config.model_source),
        score=next((each for each in scores if trial.trial_id in each.runs), None),
        averaged=listed(trial.members, most=len(trial.members)),
        seen=listed(list(dict.fromkeys(f"{run.best_samples_seen:,}" for run in trained))),
        normalizer_text=make_normalizer(config).description,
        unit=unit_note(config),
        objective=objective,
        decides=objective_words(config.objective),
        intervals=any(f"{objective}_interval" in each for pair in rates.values() for each in pair.values()),
        judged="test" if "test" in rates else next(iter(rates)),
        place=PLACE,
        runtimes={name: FORMATS[name].runtime for name in CONVERTED},
        data=short_source(config.data),
        hours={name: each / 3600 for name, each in seconds.items()},
    )
    card.content = words(card.content, config.task)
    return card


def _metadata(config: TrainConfig, rates: Rates, experiment: str, languages: Sequence[str]) -> ModelCardData:
    """What the hub reads, by its own classes; `experiment` is the name by which it lists the results."""
    from huggingface_hub import EvalResult, ModelCardData

    translates, source = config.task == TRANSLATE, config.model_source
    # Whisper's `jw` is no code of ISO 639.
    codes = ["jv" if code == "jw" else code for code in languages] + (["en"] if translates else [])
    described: dict[str, Any] = _license(source)
    if _is_hub_id(source):
        described |= {"base_model": source, "base_model_relation": "finetune"}
    if on_hub := _is_hub_id(config.data):
        described["datasets"] = [config.data]
    metrics = {"chrf": "chrF", "bleu": "BLEU"} if translates else {"wer": "WER", "cer": "CER"}
    evaluations = [
        EvalResult(
            task_type="automatic-speech-recognition",
            task_name="Automatic speech recognition",
            dataset_type=config.data if on_hub else "local",  # the hub links the id of one of its data sets
            dataset_name=short_source(config.data),
            dataset_config=config.data_config,
            dataset_split=split,
            dataset_args={"language": config.language or "en"},
            metric_type=metric,
            metric_name=name,
            metric_value=round(pair["after"][metric], 2),
            metric_config=None if translates else f"normalizer {config.normalizer_name}",
        )
        for split, pair in rates.items()
        for metric, name in metrics.items()
        if metric in pair["after"]
    ]
    return ModelCardData(
        language=list(dict.fromkeys(codes)),
        library_name="transformers",
        pipeline_tag="automatic-speech-recognition",
        tags=["whisper", "audio", "tune-whisper"],
        metrics=list(metrics),
        model_name=experiment,
        eval_results=evaluations,
        **described,
    )


def _license(source: str) -> dict[str, Any]:
    """The base model's licence, which its fine-tunings inherit; OpenAI's as their own cards on the hub have it."""
    if source == "demo":
        return {"license": "cc0-1.0"}
    if source.removeprefix("openai/whisper-") in MODEL_SHORT_NAMES:
        return {"license": "mit" if source.endswith("turbo") else "apache-2.0"}
    if _is_hub_id(source):
        link = f"https://huggingface.co/{source}"
        return {"license": "other", "license_name": f"as {source}", "license_link": link}
    return {"license": "unknown"}


def _is_hub_id(source: str) -> bool:
    """Of a model or a data set; the path of a local folder would mean nothing on the hub."""
    return source.count("/") == 1 and not source.startswith(("/", ".", "~")) and not Path(source).exists()
