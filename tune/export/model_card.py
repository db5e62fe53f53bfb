"""The model card of an exported model, `README.md` with the metadata that the Hugging Face hub reads: its facts.

Its words are in `model_card.md.jinja`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from trainer.config import TrainConfig
from trainer.conversion.formats import CONVERTED, FORMATS
from trainer.languages import language_name
from trainer.scoring.normalizers import describe_normalizer, unit_note
from trainer.scoring.objectives import objective_name, words
from trainer.scoring.translation import TRANSLATE
from tune.experiments.results import source_table
from tune.search.records import listed
from tune.util.console import short_source

if TYPE_CHECKING:
    from huggingface_hub import ModelCard, ModelCardData

    from tune.experiments.saved import SavedExperiment
    from tune.search.records import TrialRecord

_TEMPLATE = Path(__file__).with_name("model_card.md.jinja")
PLACE = "PATH_OF_THIS_FOLDER"
"""Stands in the examples for the folder that they are in: only its reader knows where it lies."""

Rates: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""Rates in percent by split, `before` and `after`, with `wer_interval` or `chrf_error_interval` where that is known:
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


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """What only some callers know."""

    changed: Collection[str] = ()
    """Splits whose clips are no longer all those of the search."""
    formats: Collection[str] = ()
    """Other formats beside the model, `ctranslate2` or `ggml`, each in a folder of its name."""
    adapter: str | None = None
    """Folder with LoRA's adapters beside the model, if they are there."""
    point: float | None = None
    """Share of the run in its mean with the base model, where the model is not the run itself."""


def model_card(
    saved: SavedExperiment, trial: TrialRecord, rates: Rates, window_seconds: float, facts: CardFacts
) -> ModelCard:
    """The card, as it stands in the model's folder.

    Args:
        saved: the experiment.
        trial: of it, the exported one.
        rates: error rates by split, `before` and `after`.
        window_seconds: what the exported model hears at once.
        facts: what else is known.
    """
    from huggingface_hub import ModelCard

    settings, state, config = saved.settings, saved.state, saved.config(trial)
    source = config.model_source
    verdict = state.verdict
    standings = verdict.standings if verdict else []
    objective = objective_name(next(iter(rates.values()))["after"])
    card: ModelCard = ModelCard.from_template(
        _metadata(config, rates, saved.name, _languages(saved, config)),
        template_path=str(_TEMPLATE),
        settings=settings,
        experiment=saved.name,
        trials=len(state.records),
        repeats=len(state.repeats),
        verdict=verdict,
        trial=trial,
        config=config,
        rates=rates,
        window_seconds=window_seconds,
        facts=facts,
        prepared=state.data,
        alone=saved.is_training,
        language=listed([language_name(code) for code in _languages(saved, config)], most=8),
        sources=source_table(state, str(config.language)),
        base_model=source if _is_hub_id(source) else None,
        base_name=_short_name(source),
        standing=next((found for found in standings if trial.trial_id in found.runs), None),
        averaged=listed(trial.members, most=len(trial.members)),
        is_best=state.best() is trial,
        normalizer_text=describe_normalizer(config)[1],
        unit=unit_note(config),
        objective=objective,
        intervals=any(f"{objective}_interval" in found for pair in rates.values() for found in pair.values()),
        judged="test" if "test" in rates else next(iter(rates)),  # the split that chose nothing
        place=PLACE,
        converted={name: FORMATS[name].runtime for name in CONVERTED},
        data=short_source(config.data),
        parameters=defaultdict(dict, settings.space.get("parameters", {})),
        cost=_cost(saved),
    )
    card.content = words(card.content, config.task)
    return card


def _languages(saved: SavedExperiment, config: TrainConfig) -> list[str]:
    """Codes of all languages that the model was trained on, its own first."""
    sources = saved.state.data.sources if saved.state.data else {}
    own = [code for facts in sources.values() for code in facts["language"]]
    return list(dict.fromkeys([config.language or "en", *own]))


def _metadata(config: TrainConfig, rates: Rates, experiment: str, languages: Sequence[str]) -> ModelCardData:
    """What the hub reads, by its own classes; `experiment` is the name by which it lists the results."""
    from huggingface_hub import EvalResult, ModelCardData

    language = config.language or "en"
    own = [_HUB_CODES.get(code, code) for code in languages]
    codes = dict.fromkeys([*own, *(["en"] if config.task == "translate" else [])])
    described: dict[str, Any] = _license(config.model_source)
    if _is_hub_id(config.model_source):
        described |= {"base_model": config.model_source, "base_model_relation": "finetune"}
    if on_hub := _is_hub_id(config.data):
        described["datasets"] = [config.data]
    metrics = ["chrf", "bleu"] if config.task == TRANSLATE else ["wer", "cer"]
    evaluations = [
        EvalResult(
            task_type="automatic-speech-recognition",
            task_name="Automatic speech recognition",
            dataset_type=config.data if on_hub else "local",  # the hub links the id of one of its data sets
            dataset_name=_short_name(config.data),
            dataset_config=config.data_config,
            dataset_split=split,
            dataset_args={"language": language},
            metric_type=metric,
            metric_name="chrF" if metric == "chrf" else metric.upper(),
            metric_value=round(pair["after"][metric], 2),
            metric_config=None if config.task == TRANSLATE else f"normalizer {config.normalizer_name}",
        )
        for split, pair in rates.items()
        for metric in metrics
        if metric in pair["after"]
    ]
    return ModelCardData(
        language=list(codes),
        library_name="transformers",
        pipeline_tag="automatic-speech-recognition",
        tags=["whisper", "audio", "tune-whisper"],
        metrics=metrics,
        model_name=experiment,
        eval_results=evaluations,
        **described,
    )


def _license(source: str) -> dict[str, Any]:
    """The base model's licence, which its fine-tunings inherit."""
    if source in _LICENSES:
        return {"license": _LICENSES[source]}
    if (own := _own_license(Path(source))) is not None:
        return {"license": own}
    if _is_hub_id(source):
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


def _is_hub_id(source: str) -> bool:
    """Of a model or a data set; the path of a local folder would mean nothing on the hub."""
    return source.count("/") == 1 and not source.startswith(("/", ".", "~")) and not Path(source).exists()


def _short_name(source: str) -> str:
    """A folder by its name only; hub ids as they are."""
    return source.rstrip("/").rsplit("/", 1)[-1] if source.startswith(("/", ".", "~")) else source


def _cost(saved: SavedExperiment) -> str:
    """Time that all runs held their devices."""
    resources, seconds = saved.settings.resources, sum(run.seconds for run in saved.state.runs)
    each, device = (resources.gpus, "GPU") if resources.gpus else (resources.cpus, "CPU")
    hours = each * seconds / 3600
    return f"{hours:.1f} {device}-hours" if hours >= 2 else f"{60 * hours:.1f} {device}-minutes"
