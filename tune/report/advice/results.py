"""Advice on what the search came to: against the base model, against noise, and over the training's length."""

from __future__ import annotations

import shlex
import statistics
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
"""WER in percent from which a model is of no use, and something else than its settings the likely cause."""
_DOUBTFUL = 50.0
"""WER in percent of the base model from which the texts may be the cause that nothing is better."""
WHOLE_SECONDS = 30.0
"""Whisper's window."""


def worse_than_base(analysis: Analysis) -> Iterator[Advice]:
    """Nothing beats the untouched base model, which may have no error to mend."""
    best, state = analysis.state.records.best(), analysis.state
    wer, base = state.value, state.comparable_base
    if best is None or wer is None or wer < base:
        return
    if not base:
        clips = counted(analysis.settings.data.clips["validation"], "validation clip")
        yield Advice(
            f"The untouched base model makes no error on the {clips}: there is nothing to gain on these.",
            "Keep it, or search on clips that are harder for it.",
        )
        return
    follows = "" if base >= _MOST_WRONG else "Keep the base model."
    rate = best.config.get("learning_rate")
    if rate is not None and wer > base:
        follows += f" The best had `learning_rate` {short_value(rate)}: search below it."
    check = "that there is enough data"
    if base >= _DOUBTFUL:
        check = f"that texts and audio belong together, and {check}"
    found = f"No trial is better than the untouched base model: {wer:.2f} % at best, against {base:.2f} %."
    exported = state.best()
    if state.verdict is not None and exported is not None and exported.best_value is not None:
        found = (
            f"The winner's settings are no better than the untouched base model: {wer:.2f} % as the mean of "
            f"{len(state.verdict.score.values)} seeds, against {base:.2f} %. "
            f"{exported.trial_id}, which is exported, has {exported.best_value:.2f} % on the clips that chose it."
        )
    yield Advice(found, f"{follows} Check {check}.".lstrip())


def most_is_wrong(analysis: Analysis) -> Iterator[Advice]:
    """The model to take away is of no use: texts that are not of the audio, another language, loops."""
    winner, base = analysis.winner, analysis.state.comparable_base
    if winner is None or winner.value < _MOST_WRONG:
        return
    seen = f"Most of what the {analysis.who} writes is wrong: WER {winner.value:.2f} %."
    if winner.value > 100:
        seen = (
            f"The {analysis.who} makes more errors than there are words: WER {winner.value:.2f} %. It writes much that "
            "nobody says, such as loops."
        )
    if base < _MOST_WRONG:
        yield Advice(
            seen,
            f"The untouched model has {base:.2f} %, so the texts fit and training breaks it: lower `learning_rate`.",
        )
        return
    settings = analysis.settings.base
    data, language = shlex.quote(settings.data), settings.language or "en"
    yield Advice(
        seen,
        f"Check that the texts are those of the audio and in the language `{language}`: "
        f"`tune-whisper inspect --data {data} --language {language}` finds texts that do not fit.",
    )


def nothing_left(analysis: Analysis) -> Iterator[Advice]:
    """The winner makes no error, which is more often a leak than a perfect model."""
    winner, base = analysis.winner, analysis.state.comparable_base
    if winner is None or winner.value or not base:
        return
    clips = counted(analysis.settings.data.clips["validation"], "validation clip")
    yield Advice(
        f"The {analysis.who} makes no error on the {clips}: there is nothing left to search for on these.",
        "Make sure that none of their texts or recordings is in the training data (`tune-whisper inspect` tells), and "
        "measure it on other clips.",
    )


def gain_is_noise(analysis: Analysis) -> Iterator[Advice]:
    """The winner is better than the base model, but by no more than chance can make."""
    winner, base = analysis.winner, analysis.state.comparable_base
    if winner is None or not analysis.gain_noise:
        return
    yield Advice(
        f"The gain over the base model, {base - winner.value:.2f} points, is within noise: {analysis.gain_noise}.",
        "More training data or more epochs would help more than more trials.",
    )


def still_falling(analysis: Analysis) -> Iterator[Advice]:
    """The winner's WER fell much between its last two rungs."""
    winner = analysis.winning_trial
    if winner is None or winner.status != "completed" or len(winner.evaluations) < 2:
        return
    (before, earlier), (seen, last) = winner.evaluations[-2:]
    if earlier - last < _FALL * earlier or earlier - last < analysis.pair_noise:
        return
    # There is nothing to gain, or something else to mend.
    if last <= analysis.pair_noise or last >= _MOST_WRONG or not analysis.state.comparable_base:
        return
    epochs = winner.epoch
    option = f"--epochs {2 * epochs:.3g}"
    if steps := analysis.settings.base.max_steps:
        option = f"--max-steps {2 * steps}"
    yield Advice(
        f"The {analysis.who}'s WER still fell at the end: from {earlier:.2f} to {last:.2f} % between epochs "
        f"{epochs * before / seen:.3g} and {epochs:.3g}.",
        f"More training is likely to help: `{option}`.",
    )


def rises_at_the_end(analysis: Analysis) -> Iterator[Advice]:
    """Whole trials end above their own best."""
    whole = analysis.whole
    rising = [
        trial
        for trial in whole
        if trial.value is not None
        and trial.best_value is not None
        and trial.value - trial.best_value > analysis.pair_noise
    ]
    if len(rising) < min(2, len(whole)) or len(rising) < _RISING_SHARE * len(whole) or not rising:
        return
    where = "the only whole trial" if len(whole) == 1 else f"{len(rising)} of {len(whole)} whole trials"
    yield Advice(
        f"WER rises again before the end in {where}.",
        "The training clips are learned by heart: fewer epochs, or search the space `regularisation`.",
    )


def short_window(analysis: Analysis) -> Iterator[Advice]:
    """Training and measuring with a shorter window than the model's own cost more than seeds make."""
    window, verdict = analysis.settings.base.audio_window, analysis.state.verdict
    fixed = analysis.settings.space.get("fixed") or {}
    if verdict is None or window == WHOLE_SECONDS or "full_window_evaluation" in fixed:
        return
    if "audio_window" in analysis.parameters:  # each finalist has its own
        return
    trials = {trial.trial_id: trial.best_value for trial in analysis.trials if trial.best_value is not None}
    known = [found for found in verdict.scores if found.trial_id in trials]
    if not known:
        return
    more = statistics.mean(found.mean - trials[found.trial_id] for found in known)
    if more > analysis.pair_noise:
        length = f"{window:g} s" if isinstance(window, float | int) else "the longest clip"
        yield Advice(
            f"The finalists' repeats have {more:.2f} WER points more with the model's whole window than their trials "
            f"had with that of {length}{' of each batch' * (window == 'batch')}.",
            "Seeds alone do not make so much: compare with `--set audio_window=30`, which takes more time.",
        )
