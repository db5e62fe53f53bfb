"""What a search or a training came to, and what can be made of it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.scoring.objectives import CHRF_ERROR, words
from trainer.scoring.translation import TRANSLATE
from tune.search.records import Trial
from tune.util.errors import option_words
from tune_whisper.keywords import in_keywords
from tune_whisper.notebook import in_notebook, show_page, small_table, trial_frame

if TYPE_CHECKING:
    import pandas

Status = Literal["finished", "failed", "unfinished", "planned"]


@dataclasses.dataclass(frozen=True, repr=False)
class Experiment:
    """A search, or a single training, as it stood when it was read. Error rates in percent; of translations what is
    called WER here is 100 - chrF, which `results` and `trials` call `chrf_error`.
    """

    name: str
    storage: str
    """The place of all experiments."""
    folder: Path
    """Where its files are on this machine."""
    status: Status
    """`unfinished`: it runs, or was interrupted and can be resumed; `planned`: by a dry run, nothing of it is there."""
    baseline_wer: float | None = None
    """Of the base model, measured as `wer` was: in the same window, on the same clips."""
    runs: Mapping[str, Trial] = dataclasses.field(default_factory=dict)
    """All trainings by their ids: trials (`001`), finalists trained again with other seeds (`001-r1`), and means of the
    weights of those (`001-a1`).
    """
    best: Trial | None = None
    """The training whose weights are exported; None before any was measured."""
    config: TrainConfig | None = None
    """All settings of the best training."""
    wer: float | None = None
    """What the winner is worth: the mean of its repeats where there are any, else its lowest WER."""
    test_wer: float | None = None
    """Of the best on the test split, where it was measured."""
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """All of it, as `results.json` has it."""
    plan: str = ""
    """Of a dry run: what it prints."""

    @property
    def trials(self) -> pandas.DataFrame:
        """A row for each trial, by `trial_id`: its settings, and what `results.json` has of it by the same names."""
        return trial_frame(self.results.get("trials", ()))

    def __repr__(self) -> str:
        if self.plan:
            return self.plan
        rates = {"WER": self.wer, "before fine-tuning": self.baseline_wer, "test WER": self.test_wer}
        known = [f"{name} {rate:.2f} %" for name, rate in rates.items() if rate is not None]
        trials = len(self.results.get("trials", ()))
        parts = [self.status, *known, f"{trials} trial{'s' * (trials != 1)}"]
        task = TRANSLATE if self.results.get("metric") == CHRF_ERROR else "transcribe"
        return words(f"Experiment {self.name!r}: {', '.join(parts)}", task)

    def _repr_html_(self) -> str:
        if self.plan:
            return f"<pre>{escape(self.plan)}</pre>"
        return f"<p>{escape(repr(self))}</p>{small_table(self.results['trials'])}"

    def report(self) -> Path:
        """The page of the experiment, written where there is none yet; a notebook shows it.

        Raises:
            ExperimentError: it cannot be written.
        """
        from tune.experiments.results import REPORT_FOLDER
        from tune.experiments.storage import Storage
        from tune.report.analysis import analyse
        from tune.report.writer import PAGE_FILE, save_page
        from tune.runs.finish import find_finished

        page = self.folder / REPORT_FOLDER / PAGE_FILE
        with in_keywords(self.report):
            if not page.is_file():
                storage = Storage.parse(self.storage)
                save_page(analyse(find_finished(self.name, storage), storage.option))
        if in_notebook():
            show_page(page)
        return page

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
        from tune.commands.export import run

        words = [self.name, f"--output={os.fspath(output)}", f"--storage={self.storage}"]
        words += option_words(trial=trial, point=point, format=formats, quantization=quantization)
        with in_keywords(self.export):
            problems = run(words)
        if problems:
            raise UserError("\n".join(problems))
        return Path(output).expanduser()


def load_experiment(name: str, *, storage: str | os.PathLike[str] | None = None) -> Experiment:
    """An experiment of a storage, finished or not; what it holds is read now and does not change.

    Args:
        name: of the experiment; a beginning is enough that no other has.
        storage: folder of all experiments, `s3://bucket/prefix` or `gs://bucket/prefix`; `experiments` by default.

    Raises:
        ExperimentError: there is no such experiment, nothing of it was measured yet, or a file of it is damaged.
        StorageError: the object store cannot be read.
    """
    from tune.experiments.experiment import Experiment as SavedExperiment
    from tune.experiments.results import how_it_ended, results_of
    from tune.experiments.storage import DEFAULT_STORAGE, Storage
    from tune.runs.finish import find_finished

    with in_keywords(load_experiment):
        parsed = Storage.parse(os.fspath(storage) if storage is not None else str(DEFAULT_STORAGE))
        folder = find_finished(name, parsed)
        saved = SavedExperiment.read(folder)
    state, results = saved.state, results_of(folder, saved.state)
    rate, best = results["metric"], state.best()
    status: Status = how_it_ended(state) or "unfinished"
    for trial in state.runs:
        if state.ended and trial.status == "running":
            trial.status = "interrupted"
    return Experiment(
        name=saved.name,
        storage=parsed.address,
        folder=folder.path,
        status=status,
        baseline_wer=state.comparable_base if state.base_rates else None,
        runs={run.trial_id: run for run in state.runs},
        best=best,
        config=saved.config(best) if best else None,
        wer=state.value if best else None,
        test_wer=results["test"][rate] if results["test"] else None,
        results=results,
    )
