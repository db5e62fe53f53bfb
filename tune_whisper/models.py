"""`evaluate` and `transcribe`: the commands of the same names, in this process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from tune.util.errors import option_words
from tune_whisper.keywords import in_keywords

if TYPE_CHECKING:
    import pandas

    from trainer.scoring.intervals import Comparison
    from trainer.scoring.scores import Rate
    from trainer.transcription.transcripts import Transcript

_Path = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """How good a model is on a split. Rates in percent, by their names: `wer`, `cer`, those of text as it is written
    (`wer_orthographic`, `cer_orthographic`); of translations `chrf_error` alone, which is 100 - chrF.
    """

    rates: Mapping[str, Rate]
    baseline_rates: Mapping[str, Rate]
    """Of the other model, on the same clips; empty without one."""
    comparisons: Mapping[str, Comparison]
    """The model against the other one, by rate; empty without one."""
    results: Mapping[str, Any]
    """All of it, as `evaluation.json` has it."""

    @property
    def utterances(self) -> pandas.DataFrame:
        """A row for each clip: what was said, what the model heard, and its errors."""
        import pandas

        return pandas.DataFrame(self.results["utterances"])

    def __repr__(self) -> str:
        known = self.results
        lines = [
            f"{known['model']} on {known['clips']:,} clips of the split {known['split']!r} of {known['data']}"
        ]
        for name, rate in self.rates.items():
            text = f"{name} {rate.percent:.2f} %"
            if rate.interval is not None:
                text += ", 95 % interval {:.2f} to {:.2f}".format(*rate.interval)
            if name in self.baseline_rates:
                text += f"; {known['baseline']} {self.baseline_rates[name].percent:.2f} %"
            lines.append(text)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def evaluate(
    model: str,
    *,
    data: str | None = None,
    split: str = "test",
    baseline: str | None = None,
    language: str | None = None,
    normalizer: Literal["auto", "whisper", "basic", "none"] | None = None,
    by: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    storage: _Path | None = None,
) -> Evaluation:
    """Measure a model on a split of a data set, as `tune-whisper evaluate` does, whose options these are.

    Args:
        settings: of the data, the decoding or the machine, as `--set` gives them.

    Raises:
        UserError: something that was given cannot be used; its class is that of the command.
    """
    options = dict(locals())
    with in_keywords(evaluate):
        from tune.commands.evaluate import run

        _, found = run([options.pop("model"), *option_words(**options)])
    scores = found.scores
    other = scores.baseline.rates if scores.baseline else {}
    return Evaluation(scores.model.rates, other, scores.comparisons, found.to_dict())


def transcribe(
    model: str,
    audio: _Path | Sequence[_Path],
    *,
    channel: int | None = None,
    format: Literal["text", "json", "srt", "vtt"] | None = None,  # noqa: A002
    output: _Path | None = None,
    language: str | None = None,
    task: Literal["transcribe", "translate"] | None = None,
    batch_size: int | None = None,
    storage: _Path | None = None,
) -> list[Transcript]:
    """Write down what is said in recordings of any length, as `tune-whisper transcribe` does, whose options these are.

    Args:
        audio: a file or a folder, or several.
        format: of the files that are written where `output` is given.

    Returns:
        what was heard in each recording. One that cannot be read has no segments, and says why in `incomplete`.

    Raises:
        UserError: something that was given cannot be used; its class is that of the command.
    """
    options = dict(locals())
    del options["model"], options["audio"]
    with in_keywords(transcribe):
        from tune.commands.transcribe import run

        files = [audio] if isinstance(audio, str | os.PathLike) else audio
        return run([model, *map(str, files), *option_words(**options)])
