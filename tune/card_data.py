"""What a model card says of the data, and of what the model is not good for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.config import TrainConfig
from trainer.transcription.transcripts import language_name

_SMALL = 500
"""Clips below which chance moves an error rate by about a point and more."""
_REASONS = {
    "too_long_audio": "longer than the model's window",
    "too_long_text": "text longer than the model can write",
    "empty_text": "no text",
    "empty_audio": "no audio",
    "unreadable_audio": "unreadable",
}
"""In words; other reasons stand as they are, without their underscores."""


def data_list(config: TrainConfig, settings: Mapping[str, Any], hours: Mapping[str, float]) -> list[str]:
    """Source, language, clips, hours, and what was left out, as a Markdown list."""
    source = config.data.rstrip("/").rsplit("/", 1)[-1] if config.data.startswith("/") else config.data
    rows = [
        f"- data set: `{source}`" + (f", configuration `{config.data_config}`" if config.data_config else ""),
        f"- language: `{config.language}`, task: `{config.task}`",
        "- clips: " + ", ".join(f"{count:,} {name}" for name, count in settings["clips"].items()),
    ]
    if hours:
        rows.append(
            "- hours of audio: " + ", ".join(f"{length:.2f} {name}" for name, length in hours.items())
        )
    if config.row_filter:
        rows.append(f"- only rows with `{config.row_filter}`")
    changes = {"lowercase": "lower-cased", "remove_punctuation": "without punctuation"}
    learnt = [words for name, words in changes.items() if getattr(config, name)]
    if learnt:
        rows.append(f"- the model learnt to write {' and '.join(learnt)}")
    dropped: Mapping[str, int] = settings.get("dropped") or {}
    if dropped:
        causes = ", ".join(
            f"{count:,} {_REASONS.get(reason, reason.replace('_', ' '))}" for reason, count in dropped.items()
        )
        rows.append(f"- left out: {sum(dropped.values()):,} clips ({causes})")
    return rows + [f"- {note.removeprefix('WARNING: ')}" for note in settings["notes"]]


def limits_list(
    config: TrainConfig,
    rates: Mapping[str, Mapping[str, Mapping[str, Any]]],
    window_seconds: float,
    longest_seconds: float | None,
) -> list[str]:
    """What a user should know before relying on the model, as a Markdown list."""
    language = language_name(config.language)
    longest = f"; the longest had {longest_seconds:.1f} s" if longest_seconds else ""
    rows = [
        f"- Trained on single clips no longer than the model's window of {window_seconds:g} s{longest}. "
        "Longer recordings must be cut, at pauses rather than anywhere.",
        "- Trained without timestamps: those that the base model could write are lost or wrong, and with them the "
        "usual way of transcribing long recordings.",
        f"- Trained on {language} only: other languages may have become worse than in the base model.",
        "- Like every Whisper it may write words where nobody speaks: on silence, noise and music. Leave these out.",
    ]
    if config.task == "translate":
        rows[2] = f"- Trained to translate {language} into English only; transcription may have become worse."
    if "test" not in rates:
        rows.append(
            "- There was no test split: the validation clips chose this model, so their figures flatter it."
        )
    else:
        rows.append(
            "- The validation clips chose this model, so their figures flatter it; the test clips chose nothing."
        )
    split = "test" if "test" in rates else next(iter(rates))
    clips = rates[split]["after"]["clips"]
    if clips < _SMALL:
        rows.append(
            f"- The {split} split has only {clips} clips: small differences of its figures may be chance."
        )
    return rows
