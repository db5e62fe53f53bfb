"""What a search or a training came to, and what can be made of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from trainer.config import TrainConfig
from tune.search.records import Trial
from tune.util.errors import option_words

Status = Literal["finished", "failed", "unfinished"]


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
    """Means of the weights of repeats, their `members`."""
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
    state, results = saved.state, results_of(folder, saved.state)
    rate, best = results["metric"], state.best()
    return Experiment(
        name=name,
        storage=parsed.text,
        folder=folder.path,
        status=how_it_ended(state) or "unfinished",
        baseline_wer=results["baseline"][rate],
        trials=state.records.all(),
        repeats=state.repeats.all(),
        averages=state.averages.all(),
        best=best,
        config=saved.config(best) if best else None,
        wer=state.value if best else None,
        test_wer=results["test"][rate] if results["test"] else None,
        results=results,
    )
