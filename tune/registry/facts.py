"""What an exported folder says of itself, as MLflow is told it: tags, metrics and a description."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from trainer.languages import resolve_language
from trainer.scoring.translation import CHRF_ERROR
from tune.util.errors import ModelError
from tune.util.files import read_object

_SPLITS = ("validation", "test")
_FIGURES = ("wer", "cer", CHRF_ERROR, "chrf", "bleu")
_MAIN = ("wer", CHRF_ERROR)
"""Endings of the rates that decide."""
_PAGE = Path(__file__).with_name("model_version.md.jinja")


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """Of a folder that `tune-whisper export` wrote; of any other Whisper folder as much as there is."""

    language: str | None
    task: str | None
    base_model: str
    experiment: str | None
    trial: str | None
    rates: dict[str, dict[str, dict[str, Any]]]
    """Error rates in percent by split, `before` and `after`."""

    @classmethod
    def read(cls, folder: Path) -> ModelFacts:
        """What the folder's JSON files say.

        Raises:
            ModelError: it is no model folder, or one of them cannot be read.
            ConfigError: the model's generation config names a language that Whisper has not.
        """
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder}: is no model folder; give one that tune-whisper export wrote")
        generation = read_object(folder / "generation_config.json")
        language = generation.get("language")
        evaluation = read_object(folder / "evaluation.json")
        settings = read_object(folder / "train_config.json")
        evaluated = evaluation.get("evaluations") or {}
        source = str(settings.get("model") or read_object(folder / "config.json").get("_name_or_path") or "")
        return cls(
            language=resolve_language(language) if language else None,
            task=generation.get("task"),
            base_model=Path(source).name if source.startswith(("/", ".", "~")) else source,
            experiment=evaluation.get("experiment"),
            trial=evaluation.get("trial_id"),
            rates={split: evaluated[split] for split in _SPLITS if split in evaluated},
        )

    def figures(self) -> dict[str, float]:
        """WER and CER in percent by name: `validation_wer`, `validation_baseline_wer`, `test_cer`, ..."""
        found: dict[str, Any] = {}
        for split in _SPLITS:
            for when, word in (("before", "baseline_"), ("after", "")):
                rates = self.rates.get(split, {}).get(when, {})
                found |= {f"{split}_{word}{rate}": rates[rate] for rate in _FIGURES if rate in rates}
        return {name: round(float(rate), 4) for name, rate in found.items()}

    def tags(self) -> dict[str, str]:
        """Tags of the model and its version; figures in percent with two decimals."""
        known = {
            "language": self.language,
            "task": self.task,
            "base_model": self.base_model,
            "experiment": self.experiment,
            "trial": self.trial,
        }
        figures = {name: f"{rate:.2f}" for name, rate in self.figures().items() if name.endswith(_MAIN)}
        return {name: str(value) for name, value in known.items() if value} | figures

    def metadata(self) -> dict[str, str | float]:
        """The same for the file `MLmodel`, with figures as numbers; there MLflow keeps the key `task` to itself."""
        words = {name: tag for name, tag in self.tags().items() if not name.endswith(_MAIN)}
        task = words.pop("task", None)
        return {**words, **({"whisper_task": task} if task else {}), **self.figures()}

    def title(self) -> str:
        """What it is, in one line."""
        base = f"`{self.base_model}`" if self.base_model else "A Whisper"
        tuned = ", fine-tuned with tune-whisper" if self.experiment else ""
        return f"{base}{tuned}" + (f", for `{self.language}`" if self.language else "")

    def headline(self) -> str:
        """WER before and after, in a few words; empty where nothing was measured."""
        figures = self.figures()
        for split in reversed(_SPLITS):
            for rate, name in (("wer", "WER"), (CHRF_ERROR, "chrF error")):
                if f"{split}_{rate}" in figures:
                    before = figures.get(f"{split}_baseline_{rate}")
                    than = "" if before is None else f", the base model has {before:.2f} %"
                    return f"{name} {figures[f'{split}_{rate}']:.2f} % on {split}{than}"
        return ""

    def description(self, uri: str) -> str:
        """The version's page in MLflow, as Markdown; `uri` is what it is loaded by."""
        from jinja2 import Template

        page: str = Template(_PAGE.read_text(encoding="utf-8")).render(facts=self, uri=uri)
        return page
