"""One search from its plan to its results: features, baseline, trials, the best of them."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.config import TrainConfig
from tune.cluster import TrialResources, ray_session, trial_resources
from tune.display import SearchDisplay, print_plan
from tune.errors import ExperimentError, UserError
from tune.mailbox import MailboxReader, start_mailbox
from tune.mlflow_logging import MlflowRecorder
from tune.mlflow_store import absolute_tracking_uri, default_tracking_uri
from tune.records import Records
from tune.results import SearchOutcome, write_experiment_file
from tune.scheduler import METRIC
from tune.trainable import count_clips, evaluate_model, make_trainable, prepare_data

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.train import Evaluation
    from tune.plan import SearchPlan

TRIALS_FOLDER = "trials"
DROPPED_FILE = "dropped_clips.jsonl"


def run_search(plan: SearchPlan, console: Console) -> SearchOutcome:
    """Run the planned search; everything it leaves is in `plan.folder`.

    Raises:
        UserError: the data, the cluster or the tracking store cannot be used; the folder is removed again.
    """
    started = time.monotonic()
    with console.status("looking at the data ..."):
        count_clips(plan.base)  # mistakes in the data show here, before anything starts
    with ray_session(console):
        import ray

        resources = trial_resources(plan.request, ray.cluster_resources())
        with _new_folder(plan):
            recorder = _start_recorder(plan, console)
            print_plan(plan, console)
            try:
                data = _prepare(plan, console)
                baseline = _measure_baseline(plan, resources, console)
            except BaseException:
                recorder.finish("failed")
                raise
        rungs = plan.rungs(len(data.splits["train"]))
        base = plan.base.replace(evaluate_at=rungs)
        write_experiment_file(plan, base, data, resources, rungs, baseline)
        recorder.log(None, {f"baseline_{name}": rate for name, rate in _headline(baseline).items()}, step=0)
        records = Records()
        console.print(
            f"each trial sees up to {rungs[-1]:,} samples; rungs at {', '.join(f'{rung:,}' for rung in rungs)}; "
            f"{resources.concurrent} at a time with {resources.gpus:g} GPU and {resources.cpus:g} CPU each\n",
            soft_wrap=True,
        )
        display = SearchDisplay(
            console,
            records,
            n_trials=plan.request.trials,
            budget=rungs[-1],
            baseline=baseline.wer,
            trouble=lambda: recorder.problem,
        )
        with display:
            grid = _run_trials(plan, base, resources, rungs, records, recorder, display)
        outcome = SearchOutcome.collect(plan, records, baseline, grid, seconds=time.monotonic() - started)
    outcome.finish(recorder, data)
    return outcome


@contextlib.contextmanager
def _new_folder(plan: SearchPlan) -> Iterator[None]:
    """Make the experiment's folder, and remove it again where the search ends before it began."""
    made = [path for path in (plan.folder, *plan.folder.parents) if not path.exists()]
    try:
        plan.folder.mkdir(parents=True)
    except OSError as error:
        raise ExperimentError(
            f"--storage {plan.request.storage}: cannot make {plan.folder}: {error.strerror}"
        ) from error
    try:
        (plan.folder / "space.yaml").write_text(plan.space.source_text, encoding="utf-8")
        yield
    except BaseException:
        shutil.rmtree(plan.folder)
        for path in made[1:]:
            if not any(path.iterdir()):
                path.rmdir()
        raise


def _start_recorder(plan: SearchPlan, console: Console) -> MlflowRecorder:
    uri = plan.request.tracking_uri
    local = uri is None
    recorder = MlflowRecorder(
        default_tracking_uri(plan.folder) if uri is None else absolute_tracking_uri(uri),
        plan.name,
        plan.folder / "mlartifacts" if local else None,
    )
    with console.status("opening the MLflow store ..."):
        recorder.start(
            params={
                "trials": plan.request.trials,
                "seed": plan.request.seed,
                "space": plan.space.path.name,
                **{f"search.{name}": text for name, text in plan.space.describe()},
                **plan.base.to_dict(),
            },
            tags={"role": "experiment", "model": plan.base.model, "data": plan.base.data},
            description=f"Search over `{plan.space.path.name}` with {plan.request.trials} trials.",
            artifacts=[plan.folder / "space.yaml"],
            compare=list(plan.space.parameters),
        )
    return recorder


def _prepare(plan: SearchPlan, console: Console) -> PreparedData:
    """Features of all splits, with a progress bar where they have to be computed."""
    columns = (TextColumn("computing features"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begun = time.monotonic()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("features", total=None)
        data = prepare_data(plan.base, lambda done, total: progress.update(task, completed=done, total=total))
    for note in data.notes:
        console.print(f"note: {note}", soft_wrap=True)
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    how = "found in the cache" if data.reused else f"computed in {time.monotonic() - begun:.1f} s"
    console.print(f"data {plan.base.data}: {sizes} clips (features {how})", soft_wrap=True)
    if data.drops:
        data.write_dropped(plan.folder / DROPPED_FILE)
        console.print(f"the dropped clips are listed in {plan.folder / DROPPED_FILE}", soft_wrap=True)
    return data


def _measure_baseline(plan: SearchPlan, resources: TrialResources, console: Console) -> Evaluation:
    """The base model untouched, on the validation split, in a worker with a trial's resources."""
    import ray

    remote = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0)(evaluate_model)
    with console.status(f"measuring the base model {plan.base.model} ..."):
        try:
            baseline: Evaluation = ray.get(remote.remote(plan.base, "validation", resources.cpus))
        except ray.exceptions.RayTaskError as error:
            # A user's mistake that only shows in the worker (weights that do not load) is still told in one line.
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise
    console.print(
        f"baseline: {plan.base.model} untouched has WER {baseline.wer:.2f} %, CER {baseline.cer:.2f} % "
        f"on {baseline.clips} validation clips"
    )
    return baseline


def _run_trials(
    plan: SearchPlan,
    base: TrainConfig,
    resources: TrialResources,
    rungs: tuple[int, ...],
    records: Records,
    recorder: MlflowRecorder,
    display: SearchDisplay,
) -> Any:
    """All trials through Ray Tune; returns its `ResultGrid`."""
    import ray.tune

    from tune.scheduler import make_scheduler
    from tune.search_callback import SearchCallback
    from tune.searcher import TRIAL_ID, make_searcher

    mailbox = start_mailbox()
    callback = SearchCallback(base, plan.folder / TRIALS_FOLDER, records, recorder, display)
    tuner = ray.tune.Tuner(
        ray.tune.with_resources(
            make_trainable(base, mailbox, resources.cpus), {"cpu": resources.cpus, "gpu": resources.gpus}
        ),
        tune_config=ray.tune.TuneConfig(
            num_samples=plan.request.trials,
            # No more than run at once, so that none is proposed before the results it could learn from.
            max_concurrent_trials=resources.concurrent,
            search_alg=make_searcher(plan.space, experiment=plan.name, seed=plan.request.seed),
            scheduler=make_scheduler(plan.space.scheduler, rungs),
            reuse_actors=True,
            trial_name_creator=lambda trial: str(trial.config[TRIAL_ID]),
            trial_dirname_creator=lambda trial: str(trial.config[TRIAL_ID]),
        ),
        run_config=ray.tune.RunConfig(
            name=TRIALS_FOLDER,
            storage_path=str(plan.folder),
            callbacks=[callback],
            checkpoint_config=ray.tune.CheckpointConfig(
                num_to_keep=1, checkpoint_score_attribute=METRIC, checkpoint_score_order="min"
            ),
            verbose=0,
        ),
    )
    reader = MailboxReader(mailbox, callback.progress)
    reader.start()
    try:
        return tuner.fit()
    finally:
        reader.stop()


def _headline(baseline: Evaluation) -> dict[str, float]:
    rates = baseline.rates()
    return {name: rates[name] for name in ("wer", "cer", "wer_orthographic", "cer_orthographic")}
