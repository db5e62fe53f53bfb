"""The model card as the hub reads it: metadata by its own classes, and what a reader must be told."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from made_experiments import made_trial, write_experiment

from trainer.config import TrainConfig
from tune.cluster.resources import TrialResources
from tune.commands.export import export_parser
from tune.experiments.events import Baseline, Data, FinalistsCompared, Prepared
from tune.experiments.experiment import Experiment
from tune.experiments.folder import ExperimentFolder
from tune.experiments.options import SearchOptions
from tune.experiments.state import SearchState
from tune.export.model_card import PLACE, Rates, model_card
from tune.search.finalists import FinalistScore, Verdict
from tune.search.records import Trial

CONFIG = TrainConfig(
    model="openai/whisper-small",
    data="google/fleurs",
    data_config="be_by",
    language="be",
    weight_decay=0.01,
    seed=7,
)
SETTINGS = Prepared(
    train_config={},
    rungs=(9_000,),
    baseline=Baseline(rates={}),
    resources=TrialResources(gpus=0.5, cpus=4.0, concurrent=2),
    data=Data(clips={"train": 2_400, "validation": 300, "test": 900}),
    dropped={"too_long_audio": 12, "empty_text": 1},
    notes=("WARNING: 3 texts are in train and in test",),
    space={
        "parameters": {
            "learning_rate": {"type": "float", "low": 1e-6, "high": 1e-4, "log": True},
            "train_batch_size": {"type": "choice", "values": [8, 16]},
        },
        "fixed": {"weight_decay": 0.01},
    },
)
BEFORE = {"wer": 61.254, "cer": 20.0, "wer_orthographic": 70.0, "clips": 300}
AFTER = {"wer": 24.126, "cer": 6.5, "wer_orthographic": 31.0, "clips": 300}
RATES: Rates = {"validation": {"before": BEFORE, "after": AFTER}, "test": {"before": BEFORE, "after": AFTER}}


def trial(name: str, seconds: float) -> Trial:
    return Trial(
        name,
        {"learning_rate": 3.5e-5, "train_batch_size": 16},
        status="completed",
        best_value=24.1,
        best_samples_seen=6_000,
        seconds=seconds,
        checkpoint=f"trials/{name}/checkpoint_000000",
    )


def card(
    config: TrainConfig = CONFIG,
    settings: Prepared = SETTINGS,
    rates: Rates = RATES,
    formats: Sequence[str] = (),
    others: Sequence[Trial] = (Trial("005", {}, status="early_stopped", seconds=1_800.0),),
    verdict: Verdict | None = None,
    kind: Any = "search",
    **facts: Any,
) -> str:
    """The card of trial 004, with some of what it is made from changed."""
    data = dataclasses.replace(settings.data, **facts)
    saved = Experiment(ExperimentFolder("fleurs-be", Path("fleurs-be")), SearchState())
    saved.state.options = SearchOptions(kind=kind)
    saved.state.prepared = dataclasses.replace(settings, train_config=config.to_dict(), data=data)
    chosen = trial("004", 7_200.0)
    for run in (chosen, *others):
        (saved.state.repeats if "-r" in run.trial_id else saved.state.records).add(run)
    if verdict is not None:
        saved.state.compared = FinalistsCompared(verdict=verdict)
    return str(model_card(saved, chosen, rates, 30.0, formats=formats))


def metadata(text: str) -> dict[str, Any]:
    found = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(found, dict)
    return found


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def test_the_hub_reads_what_is_meant() -> None:
    """Through the hub's own classes and back."""
    read = ModelCard(card()).data
    assert read.base_model == "openai/whisper-small"
    assert read.datasets == ["google/fleurs"]
    assert read.language == ["be"]
    assert (read.license, read.library_name) == ("apache-2.0", "transformers")
    assert read.pipeline_tag == "automatic-speech-recognition"
    assert read.model_name == "fleurs-be"
    results = [
        (each.dataset_type, each.dataset_config, each.dataset_split, each.metric_type, each.metric_value)
        for each in read.eval_results
    ]
    assert results == [
        ("google/fleurs", "be_by", split, metric, value)
        for split in ("validation", "test")
        for metric, value in (("wer", 24.13), ("cer", 6.5))
    ]
    assert {each.metric_config for each in read.eval_results} == {"normalizer auto-be"}
    assert metadata(card())["base_model_relation"] == "finetune"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("large-v3-turbo", {"license": "mit", "base_model": "openai/whisper-large-v3-turbo"}),
        ("/data/models/mine", {"license": "unknown"}),
        (
            "someone/whisper-be",
            {
                "license": "other",
                "license_name": "as someone/whisper-be",
                "license_link": "https://huggingface.co/someone/whisper-be",
                "base_model": "someone/whisper-be",
            },
        ),
    ],
)
def test_licence_of_the_base_model(model: str, expected: dict[str, str]) -> None:
    found = metadata(card(config=CONFIG.replace(model=model)))
    names = ("license", "license_name", "license_link", "base_model")
    assert {name: found[name] for name in names if name in found} == expected


def test_local_data_is_named_but_not_linked() -> None:
    text = card(config=CONFIG.replace(data="/home/me/clips/talks.csv", data_config=None))
    assert "datasets" not in metadata(text)
    dataset = metadata(text)["model-index"][0]["results"][0]["dataset"]
    assert (dataset["name"], dataset["type"]) == ("talks.csv", "local")
    assert "/home/me" not in text


def test_translation_and_languages_of_other_codes() -> None:
    assert metadata(card(config=CONFIG.replace(task="translate")))["language"] == ["be", "en"]
    assert metadata(card(config=CONFIG.replace(language="jw")))["language"] == ["jv"]


def test_other_runtimes_are_told_of() -> None:
    text = section(card(), "How to use")
    assert f'pipeline("automatic-speech-recognition", "{PLACE}")' in text
    for name in ("ctranslate2", "ggml"):
        convert = f"tune-whisper export --from-model {PLACE} --output whisper-{name} --format {name}"
        assert f"convert the model with `{convert}`" in text
        assert export_parser().parse_args(convert.split()[2:]).format == [name]
    text = section(card(formats=("ctranslate2", "ggml")), "How to use")
    assert "tune-whisper export" not in text
    assert "**whisper.cpp**: the code is in `ggml/README.md`." in text


SURE = {"after": AFTER | {"wer_interval": [22.0, 26.5]}, "before": BEFORE}
WORSE = {"before": AFTER, "after": BEFORE}
MANY = {"before": BEFORE | {"clips": 900}, "after": AFTER | {"clips": 900}}
ALONE: dict[str, Any] = {
    "settings": dataclasses.replace(SETTINGS, space={}),
    "kind": "training",
    "others": (),
    "rates": {"validation": RATES["validation"]},
}
STANDING = FinalistScore("004", ["004", "004-r1"], [24.1, 24.5], 24.3, 0.28, 60.0)
FINALISTS = {"others": [trial("004-r1", 60.0)], "verdict": Verdict([STANDING], "004", tie=False)}
HOURS = {"seconds": {"train": 23_400.0, "test": 8_100.0}}


ALWAYS = (
    "| validation | 300 | base model | 61.25 | 20.00 | 70.00 |",
    "| test | 300 | this model | 24.13 | 6.50 | 31.00 |",
    "normaliser `auto-be`: Belarusian",
    "On the test split the WER is 37.13 points below that of the base model: 61 % fewer errors.",
    "Trained without timestamps",
    "Trained on Belarusian only",
    "the test clips were held out",
    "The test split has only 300 clips",
    "`google/fleurs`, configuration `be_by`",
    "2,400 train, 300 validation, 900 test",
    "left out: 13 clips (12 too long audio, 1 empty text)",
    "- 3 texts are in train and in test",
    "| `learning_rate` | 3.5e-05 |",
    "run 004, the best of the search `fleurs-be` (2 trials)",
    "Found by a search of 2 trials; the model saw 6,000 samples",
)
"""What every card says of such a search."""


def test_what_every_card_says() -> None:
    text = card()
    assert [words for words in ALWAYS if words not in text] == []


@pytest.mark.parametrize(
    ("made_of", "said"),
    [
        ({"rates": {"validation": SURE}}, "| 24.13 (22.00 to 26.50) | 6.50 | 31.00 |"),
        (
            {"rates": {"test": WORSE}},
            "**No better than the base model** on the test split: 61.25 % against 24.13 %.",
        ),
        ({"config": CONFIG.replace(task="translate")}, "translate Belarusian into English only"),
        ({"rates": {"validation": SURE}}, "There was no test split"),
        ({"longest_seconds": 12.34}, "window of 30 s; the longest had 12.3 s."),
        (HOURS, "- hours of audio: 6.50 train, 2.25 test"),
        ({"config": CONFIG.replace(lowercase=True)}, "the model learnt to write lower-cased"),
        ({"config": CONFIG.replace(row_filter="gender=female")}, "only rows with `gender=female`"),
        (ALONE, "the training `fleurs-be`."),
        (ALONE, "Settings of a single training, without a search;"),
        ({}, "Over all clips together, in percent."),
        ({"config": CONFIG.replace(objective="worst_source")}, "Over the worst source, in percent."),
        (FINALISTS, "Its settings have a validation WER of 24.30 ± 0.28 % (mean of 2 seeds)."),
    ],
)
def test_what_the_card_says(made_of: dict[str, Any], said: str) -> None:
    assert said in card(**made_of)


def test_what_is_not_known_is_not_said() -> None:
    assert "95 %" not in card() and "weight_decay" not in card()
    assert "may be due to chance" not in card(rates={"test": MANY})
    assert "without timestamps" not in card(config=CONFIG.replace(timestamp_share=0.2))


def test_rates_of_sources_are_those_of_the_model() -> None:
    """Not those of the best run, where another one is exported."""
    best = dataclasses.replace(trial("003", 1.0), best_value=20.0, best_sources={"own": {"wer": 20.0}})
    sources = {"own": {"language": ["be"], "task": [], "weight": 1.0, "clips": {}}}
    assert "| own | be | 1 |\n" in card(others=[best], sources=sources)


def test_of_a_mean_the_samples_of_each_model_are_told(tmp_path: Path) -> None:
    """Each has its own best rung: the card once gave them all that of the best."""
    made = write_experiment(tmp_path, [made_trial(1, [40, 20, 10])], repeats={"001": [10.0, 11.0, 12.0]})
    saved = Experiment.read(made)
    saved.state.run("001-r2").best_samples_seen = 1088
    told = str(model_card(saved, saved.state.run("001-a1"), RATES, 30.0))
    assert "; the models in the mean saw 3,200 and 1,088 samples. " in told
    assert "; the model saw 1,088 samples. " in str(model_card(saved, saved.state.run("001-r2"), RATES, 30.0))
