"""The winner beside others: error rates with 95 % intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trainer.scoring.intervals import Interval
from trainer.training.checkpoints import UTTERANCES_FILE
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.settings_file import baseline_clips, parse_clips
from tune.report.known import Experiment
from tune.search.finalists import ClipErrors, Noise, describe_mean, seed_noise, wer_interval
from tune.search.records import TrialRecord
from tune.util.cloud_errors import cloud_errors


@dataclasses.dataclass(frozen=True)
class Contender:
    """One model beside others: its WER with what is known of its uncertainty. In percent."""

    name: str
    wer: float
    """The mean of several seeds where there are any."""
    interval: Interval | None
    """95 %; None where the clips' own errors are not known."""
    wers: tuple[float, ...]
    """Of each training; empty for the base model."""
    kind: str
    """`winner`, `finalist`, `recipe` or `base`."""
    trial_id: str | None = None
    unfinished: bool = False
    """Whether it was stopped before its full budget, so that it would have come further."""

    def describe(self) -> str:
        """What the WER is the mean of, and how sure it is."""
        return describe_mean(len(self.wers), self.interval)


def noise_of(experiment: Experiment) -> Noise:
    """The noise between seeds: the usual one, with what the finalists show of it."""
    return seed_noise(experiment.verdict.standings if experiment.verdict else ())


def contenders(experiment: Experiment) -> list[Contender]:
    """Winner, other finalists, the usual settings and the untouched base model, from the best to the base."""
    winner, recipe = experiment.winner, experiment.recipe_trial
    found = []
    if experiment.verdict is not None:
        for standing in experiment.verdict.standings:
            runs = [run for run in experiment.repeats if run.trial_id in standing.runs]
            kind = "winner" if standing.trial_id == experiment.verdict.winner else "finalist"
            found.append(
                _contender(experiment, kind, standing.trial_id, runs, standing.wers, standing.mean_interval)
            )
    elif winner is not None and winner.best_wer is not None:
        found.append(_contender(experiment, "winner", winner.trial_id, [winner], [winner.best_wer]))
    others = all(contender.trial_id != recipe.trial_id for contender in found) if recipe else False
    if recipe is not None and recipe.best_wer is not None and others:
        found.append(_contender(experiment, "recipe", recipe.trial_id, [recipe], [recipe.best_wer]))
    found.sort(key=lambda contender: contender.wer)
    return [*found, _base(experiment)]


def _contender(
    experiment: Experiment,
    kind: str,
    trial_id: str,
    runs: Sequence[TrialRecord],
    wers: Sequence[float],
    interval: Interval | None = None,
) -> Contender:
    if interval is None:
        clips = [read_clips(experiment, run) for run in runs]
        known = [errors for errors in clips if errors is not None]
        interval = wer_interval(known, noise_of(experiment)) if len(known) == len(wers) else None
    return Contender(
        name=f"trial {trial_id}",
        wer=sum(wers) / len(wers),
        interval=interval,
        wers=tuple(wers),
        kind=kind,
        trial_id=trial_id,
        unfinished=any(run.status != "completed" for run in runs),
    )


def _base(experiment: Experiment) -> Contender:
    clips = read_baseline_clips(experiment)
    interval = None if clips is None else wer_interval([clips])
    return Contender(experiment.model, experiment.baseline, interval, (), "base")


def read_clips(experiment: Experiment, run: TrialRecord) -> ClipErrors | None:
    """The errors of a run's best checkpoint by clip; None where they are gone, or cannot be read now."""
    if run.checkpoint is None:
        return None
    try:
        return parse_clips(CheckpointFiles(experiment.folder).read(run.checkpoint, UTTERANCES_FILE))
    except cloud_errors(OSError, StorageError):
        return None


def read_baseline_clips(experiment: Experiment) -> ClipErrors | None:
    """The base model's; None where the search did not keep them."""
    return baseline_clips(experiment.folder.path)
