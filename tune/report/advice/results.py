"""Advice on what the search came to: against the base model, against noise, and over the training's length."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from tune.report.advice.advice import Advice, listed
from tune.report.analysis import Analysis
from tune.search.records import trial_order
from tune.util.console import short_value

_FALL = 0.1
"""Share of its WER that the winner lost between the last two rungs from which more training is likely to pay.

The learning rate goes to zero at the end, which lowers WER by itself; a curve that is done falls by a few percent."""
_RISING_SHARE = 0.5
"""Share of the whole trials whose WER rose again from which that is told."""
_ALIKE = 3
"""Trials as good as the best from which their order is told to be chance."""
_WIDE = 0.15
"""Half of the winner's interval, as a share of its WER, from which the validation clips are too few."""
WHOLE_SECONDS = 30.0
"""Whisper's window."""


def worse_than_base(analysis: Analysis) -> Iterator[Advice]:
    """No trial beat the untouched base model."""
    best, base = analysis.experiment.best_trial, analysis.experiment.base_wer
    if best is None or best.best_wer is None or best.best_wer < base:
        return
    rate = best.config.get("learning_rate")
    low = "" if rate is None else f" The best had `learning_rate` {short_value(rate)}: search below it."
    yield Advice(
        f"No trial is better than the untouched base model: {best.best_wer:.2f} % at best, against {base:.2f} %.",
        f"Keep the base model.{low} Check that texts and audio belong together, and that there is enough data.",
    )


def gain_is_noise(analysis: Analysis) -> Iterator[Advice]:
    """The winner is better than the base model, but by no more than chance can make."""
    winner, base = analysis.winner, analysis.experiment.base_wer
    if winner is None or winner.wer >= base:
        return
    if analysis.gain is not None:
        low, high = analysis.gain
        if low > 0:
            return
        told = f"the 95 % interval of the gain goes from {low:.2f} to {high:.2f} points"
    elif base - winner.wer > analysis.pair_noise:
        return
    else:
        told = f"seeds alone make up to {analysis.pair_noise:.1f} points"
    yield Advice(
        f"The gain over the base model, {base - winner.wer:.2f} points, is within noise: {told}.",
        "More training data or more epochs would help more than more trials.",
    )


def still_falling(analysis: Analysis) -> Iterator[Advice]:
    """The winner's WER fell much between its last two rungs."""
    experiment, winner = analysis.experiment, analysis.experiment.winner
    if winner is None or winner.status != "completed" or len(winner.evaluations) < 2:
        return
    (before, earlier), (seen, last) = winner.evaluations[-2:]
    if earlier - last < _FALL * earlier or earlier - last < analysis.pair_noise:
        return
    epochs = winner.epoch
    option = f"--epochs {2 * epochs:.3g}"
    steps = experiment.train_config.get("max_steps")
    if steps:
        option = f"--max-steps {2 * int(steps)}"
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
        if trial.wer is not None
        and trial.best_wer is not None
        and trial.wer - trial.best_wer > analysis.pair_noise
    ]
    if len(rising) < 2 or len(rising) < _RISING_SHARE * len(whole):
        return
    yield Advice(
        f"WER rises again before the end in {len(rising)} of {len(whole)} whole trials.",
        "They learn the training clips by heart: fewer epochs, or search the space `regularisation`.",
    )


def order_is_noise(analysis: Analysis) -> Iterator[Advice]:
    """Several trials are as good as the best."""
    whole = analysis.whole
    if len(whole) < _ALIKE:
        return
    best = analysis.expected[whole[0].trial_id]
    alike = [trial for trial in whole if analysis.expected[trial.trial_id] - best <= analysis.pair_noise]
    if len(alike) < _ALIKE:
        return
    source = "as the finalists show" if analysis.noise_measured else "as is usual"
    yield Advice(
        f"Trials {listed([trial.trial_id for trial in alike])} lie within {analysis.pair_noise:.1f} points of the "
        "best, no more than seeds make.",
        f"Their order is chance (seeds differ by {analysis.noise:.2f} points, {source}).",
        change=False,
    )


def finalists_tie(analysis: Analysis) -> Iterator[Advice]:
    """The finalists' intervals reach zero."""
    verdict = analysis.experiment.verdict
    if verdict is None or not verdict.tie:
        return
    alike = listed(sorted([verdict.winner, *verdict.undecided], key=trial_order))
    repeats = 2 * max(len(verdict.standing.wers), 1)
    yield Advice(
        f"Between finalists {alike} no difference beyond noise is shown.",
        f"Trial {verdict.reason}. If the difference matters, `--repeats {repeats}` tells more.",
        change=False,
    )


def usual_settings_do(analysis: Analysis) -> Iterator[Advice]:
    """The usual settings of the model's size came to the same."""
    experiment, recipe, winner = analysis.experiment, analysis.recipe, analysis.winner
    if recipe is None or winner is None or recipe.best_wer is None:
        return
    if recipe.status != "completed" or winner.wer >= experiment.base_wer:
        return
    if recipe.trial_id == winner.trial_id:
        won = "won" if experiment.has_ended else "are the best so far"
        yield Advice(
            f"The usual settings for this model's size {won} (trial {recipe.trial_id}).",
            "On data like this you can begin with them." if experiment.has_ended else "",
            change=False,
        )
        return
    worse = recipe.best_wer - winner.wer
    noise = 1.96 * analysis.noise * (1 + 1 / max(1, len(analysis.winning_runs))) ** 0.5
    if worse > noise:
        return
    yield Advice(
        f"The usual settings do as well within noise: {recipe.best_wer:.2f} % (trial {recipe.trial_id}), the "
        f"{analysis.who} {winner.wer:.2f} %.",
        "On data like this you can do without a search.",
        change=False,
    )


def few_clips(analysis: Analysis) -> Iterator[Advice]:
    """The winner's interval is wide because there are few validation clips."""
    winner = analysis.winner
    if winner is None or winner.interval is None or not winner.wer or winner.unfinished:
        return
    half = (winner.interval[1] - winner.interval[0]) / 2
    if half < _WIDE * winner.wer or half < analysis.pair_noise:
        return
    clips = analysis.experiment.settings.clips["validation"]
    yield Advice(
        f"{clips:,} validation clips tell the {analysis.who}'s WER only to ± {half:.1f} points.",
        "More of them would tell settings apart that look alike now.",
    )


def short_window(analysis: Analysis) -> Iterator[Advice]:
    """What training and measuring with a shorter window than the model's own cost or gained."""
    experiment = analysis.experiment
    train, verdict = experiment.train_config, experiment.verdict
    window = train.get("audio_window")
    fixed = experiment.settings.space.get("fixed") or {}
    if verdict is None or window == WHOLE_SECONDS or "full_window_evaluation" in fixed:
        return
    if "audio_window" in experiment.parameters:  # each finalist has its own
        return
    trials = {trial.trial_id: trial.best_wer for trial in experiment.trials if trial.best_wer is not None}
    known = [found for found in verdict.standings if found.trial_id in trials]
    if not known:
        return
    change = statistics.mean(found.mean - trials[found.trial_id] for found in known)
    heard = "the longest clip" if window is None else f"{window:g} s"
    compared = (
        f"The finalists {listed([found.trial_id for found in known])} were trained on the audio window of {heard}. "
        f"With the model's whole one, as it will be used, their repeats have {abs(change):.2f} WER points "
        f"{'more' if change > 0 else 'less'} than their trials had with it"
    )
    if change <= analysis.pair_noise:
        yield Advice(f"{compared}: no more than seeds make.", change=False)
        return
    yield Advice(
        f"{compared}.",
        "Other seeds alone do not make so much: compare with a search at `--set audio_window=30`, which takes "
        "more time.",
    )
