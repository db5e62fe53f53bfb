"""What a search or a training came to, as plain typed values, and what can be made of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from trainer.config import TrainConfig
from tune.util.errors import option_words

Status = Literal["finished", "failed", "unfinished"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training of an experiment. Error rates in percent."""

    id: str
    """Its number, `007`; of a finalist that was trained again `007-r1`."""
    status: str
    """`completed`, `early_stopped`, `diverged`, `failed` or `interrupted`."""
    config: Mapping[str, Any]
    """The settings that were chosen for it; one under a condition is there only where it was searched."""
    wer: float | None
    """The lowest WER of its evaluations; None before the first."""
    cer: float | None
    """The CER of the same evaluation."""
    evaluations: Sequence[tuple[int, float]]
    """Samples seen and WER of each."""
    seconds: float
    checkpoint: str | None
    """Folder, or address in an object store, of the weights with the lowest WER; None where they are gone."""
    error: str | None
    """The last failure, whole."""


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A search, or a single training, as it stood when it was read. Error rates in percent; of translations what is
    called WER here is 100 - chrF, which `results` call `chrf_error`.
    """

    name: str
    storage: str
    """The place of all experiments."""
    folder: Path
    """Where its files are on this machine."""
    status: Status
    """`unfinished`: it runs, or was interrupted and can be resumed."""
    baseline_wer: float | None
    """Of the untouched base model, on the same clips."""
    trials: Sequence[Trial]
    repeats: Sequence[Trial]
    """The finalists, trained again with other seeds."""
    averages: Sequence[Trial]
    """Means of the weights of repeats; `members` in `results` names them."""
    best: Trial | None
    """The training whose weights are exported; None before any was measured."""
    config: TrainConfig | None
    """All settings of the best training."""
    wer: float | None
    """What the winner is worth: the mean of its repeats where there are any, else its lowest WER."""
    test_wer: float | None
    """Of the best on the test split, where it was measured."""
    results: Mapping[str, Any]
    """All of it, as `results.json` has it."""

    @property
    def report(self) -> Path | None:
        """The page of the experiment; None where none was written."""
        from tune.experiments.results import REPORT_FOLDER

        page = self.folder / REPORT_FOLDER / "report.html"
        return page if page.is_file() else None

    def export(
        self,
        output: str | os.PathLike[str],
        *,
        trial: str | None = None,
        point: float | None = None,
        formats: Sequence[str] = (),
        quantization: str | None = None,
    ) -> Path:
        """Write the best model, or another trial's, as a Hugging Face folder and in other formats; the folder.

        All options are those of `tune-whisper export --help`.

        Raises:
            UserError: it cannot be written, or a format could not be made or drifted, as `tune-whisper export` tells.
        """
        from trainer.errors import UserError
        from tune.commands.export import run

        words = [self.name, f"--output={os.fspath(output)}", f"--storage={self.storage}"]
        words += [f"--format={name}" for name in formats]
        words += option_words(trial=trial, point=point, quantization=quantization)
        problems = run(words)
        if problems:
            raise UserError("\n".join(problems))
        return Path(output).expanduser()


def load_experiment(name: str, *, storage: str | os.PathLike[str] | None = None) -> Experiment:
    """An experiment of a storage, finished or not; what it holds is read now and does not change.

    Args:
        name: of the experiment.
        storage: folder of all experiments, `s3://bucket/prefix` or `gs://bucket/prefix`; `experiments` by default.

    Raises:
        ExperimentError: there is no such experiment, nothing of it was measured yet, or a file of it is damaged.
        StorageError: the object store cannot be read.
    """
    from tune.experiments.experiment import Experiment as SavedExperiment
    from tune.experiments.results import how_it_ended, results_of
    from tune.experiments.storage import DEFAULT_STORAGE, Storage
    from tune.runs.finish import find_finished

    parsed = Storage.parse(os.fspath(storage) if storage is not None else str(DEFAULT_STORAGE))
    folder = find_finished(name, parsed)
    saved = SavedExperiment.read(folder)
    results = results_of(folder, saved.state)
    rate = results["metric"]
    kinds = ("trials", "repeats", "averages")
    trials, repeats, averages = ([_trial(row, rate) for row in results[kind]] for kind in kinds)
    best, chosen = results["best"], saved.state.best()
    return Experiment(
        name=name,
        storage=parsed.text,
        folder=folder.path,
        status=how_it_ended(saved.state) or "unfinished",
        baseline_wer=results["baseline"][rate],
        trials=trials,
        repeats=repeats,
        averages=averages,
        best=next((run for run in [*trials, *repeats, *averages] if best and run.id == best["run"]), None),
        config=None if chosen is None else saved.config(chosen),
        wer=best.get(f"mean_{rate}", best[rate]) if best else None,
        test_wer=results["test"][rate] if results["test"] else None,
        results=results,
    )


def _trial(row: Mapping[str, Any], rate: str) -> Trial:
    return Trial(
        id=row["trial_id"],
        status=row["status"],
        config=row["config"],
        wer=row[f"best_{rate}"],
        cer=row.get("best_cer"),
        evaluations=[(each["samples_seen"], each[rate]) for each in row["evaluations"]],
        seconds=row["seconds"],
        checkpoint=row["checkpoint"],
        error=row["error"],
    )
