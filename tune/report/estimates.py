"""The winner beside others: error rates with 95 % intervals."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.scoring.intervals import rate_interval
from tune.checkpoint_files import CheckpointFiles
from tune.cloud_errors import cloud_errors
from tune.comparison import seed_noise
from tune.experiments.settings_file import BASELINE_CLIPS_FILE
from tune.object_store import StorageError
from tune.report.known import Experiment
from tune.search.records import TrialRecord
from tune.trainable import UTTERANCES_FILE

if TYPE_CHECKING:
    import numpy as np

USUAL_SD = 0.5
"""Standard deviation between seeds, in WER points, where no finalists show it."""


@dataclasses.dataclass(frozen=True)
class ClipErrors:
    """What each validation clip adds to a WER, in the split's order."""

    word_errors: np.ndarray
    words: np.ndarray


@dataclasses.dataclass(frozen=True)
class Contender:
    """One model beside others: its WER with what is known of its uncertainty. In percent."""

    name: str
    wer: float
    """The mean of several seeds where there are any."""
    interval: tuple[float, float] | None
    """95 %; None where the clips' own errors are not known."""
    wers: tuple[float, ...]
    """Of each training; empty for the base model."""
    kind: str
    """`winner`, `finalist`, `recipe` or `base`."""
    trial_id: str | None = None
    unfinished: bool = False
    """Whether it was stopped before its full budget, so that it would have come further."""


def noise_of(experiment: Experiment) -> tuple[float, int]:
    """Standard deviation between seeds in points, and its degrees of freedom: 0 where it is only the usual one."""
    if experiment.verdict is None:
        return USUAL_SD, 0
    return seed_noise(experiment.verdict.standings)


def contenders(experiment: Experiment) -> list[Contender]:
    """Winner, other finalists, the usual settings and the untouched base model, from the best to the base."""
    winner, recipe = experiment.winner, experiment.recipe_trial
    found = []
    if experiment.verdict is not None:
        for standing in experiment.verdict.standings:
            runs = [run for run in experiment.repeats if run.trial_id in standing.runs]
            kind = "winner" if standing.trial_id == experiment.verdict.winner else "finalist"
            found.append(_contender(experiment, kind, standing.trial_id, runs, standing.wers))
    elif winner is not None and winner.best_wer is not None:
        found.append(_contender(experiment, "winner", winner.trial_id, [winner], [winner.best_wer]))
    others = all(contender.trial_id != recipe.trial_id for contender in found) if recipe else False
    if recipe is not None and recipe.best_wer is not None and others:
        found.append(_contender(experiment, "recipe", recipe.trial_id, [recipe], [recipe.best_wer]))
    found.sort(key=lambda contender: contender.wer)
    return [*found, _base(experiment)]


def _contender(
    experiment: Experiment, kind: str, trial_id: str, runs: Sequence[TrialRecord], wers: Sequence[float]
) -> Contender:
    clips = [read_clips(experiment, run) for run in runs]
    known = [errors for errors in clips if errors is not None]
    return Contender(
        name=f"trial {trial_id}",
        wer=sum(wers) / len(wers),
        interval=wer_interval(known, noise_of(experiment)) if len(known) == len(wers) else None,
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
        return _clips(CheckpointFiles(experiment.folder).read(run.checkpoint, UTTERANCES_FILE))
    except cloud_errors(OSError, StorageError):
        return None


def read_baseline_clips(experiment: Experiment) -> ClipErrors | None:
    """The base model's; None where the search did not keep them."""
    return baseline_clips(experiment.folder.path)


def baseline_clips(folder: Path) -> ClipErrors | None:
    """The base model's, of the experiment in a folder; None where they were not kept."""
    path = folder / BASELINE_CLIPS_FILE
    return _clips(path.read_bytes()) if path.is_file() else None


def _clips(content: bytes) -> ClipErrors | None:
    import numpy as np

    try:
        saved = json.loads(content)
        found = ClipErrors(np.asarray(saved["word_errors"], float), np.asarray(saved["words"], float))
    except (ValueError, KeyError, TypeError):
        return None
    usable = found.words.shape == found.word_errors.shape and found.words.sum() > 0
    return found if usable else None


def wer_interval(
    runs: Sequence[ClipErrors], noise: tuple[float, int] | None = None
) -> tuple[float, float] | None:
    """95 % interval of the mean WER of trainings with the same settings, in percent.

    Args:
        runs: the trainings; None comes out where they are not on the same clips, or on very few.
        noise: standard deviation between seeds in points and its degrees of freedom; None for a model that was
            not trained here.
    """
    errors = _mean_errors(runs)
    found = None if errors is None else _interval(errors, runs[0].words, noise, len(runs))
    return None if found is None else (max(0.0, found[0]), found[1])


def gain_interval(
    runs: Sequence[ClipErrors], base: ClipErrors, noise: tuple[float, int]
) -> tuple[float, float] | None:
    """95 % interval of the base model's WER minus the runs' mean, in points, over the same clips."""
    if _mean_errors([*runs, base]) is None:
        return None
    less = base.word_errors - _mean([run.word_errors for run in runs])
    return _interval(less, base.words, noise, len(runs))


def _mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return sum(arrays[1:], arrays[0]) / len(arrays)


def _mean_errors(runs: Sequence[ClipErrors]) -> np.ndarray | None:
    """By clip; None where the runs were not measured on the same clips."""
    same = all(run.words.shape == runs[0].words.shape for run in runs)
    return _mean([run.word_errors for run in runs]) if same else None


def _interval(
    errors: np.ndarray, words: np.ndarray, noise: tuple[float, int] | None, runs: int
) -> tuple[float, float] | None:
    """The bootstrap over clips; where models were trained, with Student's t for the seeds added in squares."""
    found = rate_interval(errors, words)
    if found is None or noise is None:
        return found
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    sd, freedom = noise
    seeds = (float(stdtrit(freedom, 0.975)) if freedom else 1.96) * sd / math.sqrt(runs)
    rate = 100.0 * float(errors.sum() / words.sum())
    return rate - math.hypot(rate - found[0], seeds), rate + math.hypot(found[1] - rate, seeds)
