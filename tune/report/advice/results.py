"""Advice on what the search came to: against the base model, against noise, and over the training's length."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from tune.report.advice.advice import Advice, counted
from tune.report.analysis import Analysis
from tune.util.console import short_value

_FALL = 0.1
"""Share of its WER that the winner lost between the last two rungs from which more training is likely to pay.

The learning rate goes to zero at the end, which lowers WER by itself; a curve that is done falls by a few percent."""
_RISING_SHARE = 0.5
"""Share of the whole trials whose WER rose again from which that is told."""
_MOST_WRONG = 80.0
"""WER in percent from which a model is of no use, and its settings are unlikely to be the cause."""
_DOUBTFUL = 50.0
"""WER in percent of the base model from which wrong texts may be why nothing is better."""


def worse_than_base(analysis: Analysis) -> Iterator[Advice]:
    """No trial has a lower WER than the base model, which may make no error at all."""
    best, state = analysis.winning_trial, analysis.state
    wer, base = state.value, state.comparable_base
    if best is None or wer is None or wer < base:
        return
    if not base:
        clips = counted(analysis.settings.data.clips["validation"], "validation clip")
        yield Advice(
            f"The base model makes no error on the {clips}: they can show no gain.",
            "Keep it, or search with clips that are harder for it.",
        )
        return
    follows = "" if base >= _MOST_WRONG else "Keep the base model."
    rate = best.config.get("learning_rate")
    if rate is not None and wer > base:
        follows += f" The best trial had `learning_rate` {short_value(rate)}: search lower ones."
    check = "that there is enough data"
    if base >= _DOUBTFUL:
        check = f"that texts and audio match, and {check}"
    yield Advice(
        f"The result is no better than the base model: {wer:.2f} %, against {base:.2f} %.",
        f"{follows} Check {check}.".lstrip(),
    )


def most_is_wrong(analysis: Analysis) -> Iterator[Advice]:
    """The model to export is of no use: texts that do not match the audio, another language, repetitions."""
    winner, base = analysis.winner, analysis.state.comparable_base
    if winner is None or winner.value < _MOST_WRONG:
        return
    seen = f"Most of what the {analysis.who} writes is wrong: WER {winner.value:.2f} %."
    if winner.value > 100:
        seen = (
            f"The {analysis.who} makes more errors than there are words: WER {winner.value:.2f} %. It adds words that "
            "nobody said, for example by repeating itself."
        )
    if base < _MOST_WRONG:
        yield Advice(
            seen,
            f"The base model has {base:.2f} %, so texts and audio match, and the training is at fault: lower "
            "`learning_rate`.",
        )
        return
    settings = analysis.settings.base
    data, language = shlex.quote(settings.data), settings.language or "en"
    yield Advice(
        seen,
        f"Check that the texts match the audio and are in the language `{language}`: "
        f"`tune-whisper inspect --data {data} --language {language}` finds texts that do not.",
    )


def nothing_left(analysis: Analysis) -> Iterator[Advice]:
    """The winner makes no error, which is more often a leak than a perfect model."""
    winner, base = analysis.winner, analysis.state.comparable_base
    if winner is None or winner.value or not base:
        return
    clips = counted(analysis.settings.data.clips["validation"], "validation clip")
    yield Advice(
        f"The {analysis.who} makes no error on the {clips}: they can show no further gain.",
        "Check with `tune-whisper inspect` that none of them is also in the training data, and evaluate the model on "
        "other clips.",
    )


def still_falling(analysis: Analysis) -> Iterator[Advice]:
    """The winner's WER fell much between its last two rungs."""
    winner = analysis.winning_trial
    if winner is None or winner.status != "completed" or len(winner.evaluations) < 2:
        return
    (before, earlier), (seen, last) = winner.evaluations[-2:]
    if earlier - last < _FALL * earlier or earlier - last < analysis.pair_noise:
        return
    # Nothing is left to gain, or something else is wrong.
    if last <= analysis.pair_noise or last >= _MOST_WRONG or not analysis.state.comparable_base:
        return
    epochs, base = winner.epoch, analysis.settings.base
    option = f"--epochs {2 * epochs:.3g}"
    for name in ("max_steps", "max_samples", "max_hours"):
        if limit := getattr(base, name):
            option = f"--{name.replace('_', '-')} {2 * limit}"
    yield Advice(
        f"The {analysis.who}'s WER was still falling at the end: from {earlier:.2f} to {last:.2f} % between epochs "
        f"{epochs * before / seen:.3g} and {epochs:.3g}.",
        f"More training is likely to help: `{option}`.",
    )


def rises_at_the_end(analysis: Analysis) -> Iterator[Advice]:
    """Whole trials end above their own best."""
    whole = [trial for trial in analysis.ranked if trial.status == "completed"]
    rising = [
        trial
        for trial in whole
        if trial.value is not None
        and trial.best_value is not None
        and trial.value - trial.best_value > analysis.pair_noise
    ]
    if len(rising) < min(2, len(whole)) or len(rising) < _RISING_SHARE * len(whole) or not rising:
        return
    where = "the only completed trial"
    if len(whole) > 1:
        where = f"{len(rising)} of {len(whole)} completed trials"
    yield Advice(
        f"WER rises again before the end in {where}.",
        "They overfit: train fewer epochs, or search with `--space regularisation`.",
    )
