"""One search from its plan to its results: features, baseline, trials, the best of them."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trainer.config import TrainConfig
from tune.cluster import TrialResources, check_precision, ray_session, trial_resources
from tune.display import SearchDisplay, print_plan, say, say_notes, short_path
from tune.errors import ExperimentError, UserError
from tune.mailbox import MailboxReader, start_mailbox
from tune.mlflow_logging import MlflowRecorder
from tune.mlflow_store import check_store, default_artifact_root, is_server
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
        UserError: the data, the cluster or the tracking store cannot be used; nothing is left behind.
    """
    started = time.monotonic()
    with console.status("looking at the data and the MLflow store ..."):
        count_clips(plan.base)  # mistakes in the data show here, before anything starts
        check_store(plan.tracking_uri)
    with ray_session(console), contextlib.ExitStack() as stack:
        import ray

        resources = trial_resources(
            plan.request, [node["Resources"] for node in ray.nodes() if node["Alive"]]
        )
        check_precision(plan, resources)
        print_plan(plan, console)
        data = _prepare(plan, console)
        with _new_folder(plan):
            recorder = stack.enter_context(_recorder(plan, console))
            if data.drops:
                data.write_dropped(plan.folder / DROPPED_FILE)
                say(console, f"the dropped clips are listed in {short_path(plan.folder / DROPPED_FILE)}")
            baseline = _measure_baseline(plan, data, resources, console)
            rungs = plan.rungs(len(data.splits["train"]))
            base = plan.base.replace(evaluate_at=rungs)
            write_experiment_file(plan, base, data, resources, rungs, baseline)
        recorder.log(None, {f"baseline_{name}": rate for name, rate in baseline.rates().items()}, step=0)
        say(
            console,
            f"each trial sees up to {rungs[-1]:,} samples; rungs at {', '.join(f'{rung:,}' for rung in rungs)}; "
            f"{resources.concurrent} at a time with {resources.gpus:g} GPU and {resources.cpus:g} CPU each\n",
        )
        records = Records()
        with SearchDisplay(
            console,
            records,
            n_trials=plan.request.trials,
            budget=rungs[-1],
            baseline=baseline.wer,
            trouble=lambda: recorder.problem,
        ) as display:
            grid = _run_trials(plan, base, data, resources, rungs, records, recorder, display)
        outcome = SearchOutcome.collect(plan, records, baseline, grid, seconds=time.monotonic() - started)
        outcome.finish(recorder)
    return outcome


@contextlib.contextmanager
def _new_folder(plan: SearchPlan) -> Iterator[None]:
    """Make the experiment's folder, and remove it again where the search ends before its first trial."""
    made = [path for path in (plan.folder, *plan.folder.parents) if not path.exists()]
    try:
        plan.folder.mkdir(parents=True)
        (plan.folder / "space.yaml").write_text(plan.space.source_text, encoding="utf-8")
    except OSError as error:
        where = f"--storage {plan.request.storage}"
        raise ExperimentError(f"{where}: cannot make {plan.folder}: {error.strerror}") from error
    try:
        yield
    except BaseException:
        shutil.rmtree(plan.folder)
        for path in made[1:]:
            if not any(path.iterdir()):
                path.rmdir()
        raise


@contextlib.contextmanager
def _recorder(plan: SearchPlan, console: Console) -> Iterator[MlflowRecorder]:
    """The open MLflow store with the parent run; a block that fails ends the run as failed."""
    local = not is_server(plan.tracking_uri)
    recorder = MlflowRecorder(
        plan.tracking_uri, plan.name, default_artifact_root(plan.folder) if local else None
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
    try:
        yield recorder
    except BaseException as error:
        problem = recorder.finish("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        if problem:
            say(console, f"warning: {problem}")
        raise


def _prepare(plan: SearchPlan, console: Console) -> PreparedData:
    """Features of all splits, with a progress bar where they have to be computed."""
    columns = (TextColumn("computing features"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    begun = time.monotonic()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("features", total=None)
        data = prepare_data(plan.base, lambda done, total: progress.update(task, completed=done, total=total))
    say_notes(console, data.notes)
    sizes = ", ".join(f"{len(split):,} {name}" for name, split in data.splits.items())
    how = "found in the cache" if data.reused else f"computed in {time.monotonic() - begun:.1f} s"
    say(console, f"data {plan.base.data}: {sizes} clips (features {how})")
    return data


def _measure_baseline(
    plan: SearchPlan, data: PreparedData, resources: TrialResources, console: Console
) -> Evaluation:
    """The base model untouched, on the validation split, in a worker with a trial's resources."""
    import ray

    remote = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=0)(evaluate_model)
    with console.status(f"measuring the base model {plan.base.model} ..."):
        try:
            baseline: Evaluation = ray.get(remote.remote(plan.base, "validation", resources.cpus, data=data))
        except ray.exceptions.RayTaskError as error:
            # A user's mistake that only shows in the worker (weights that do not load) is still told in one line.
            if isinstance(error.cause, UserError):
                raise error.cause from error
            raise
    say(
        console,
        f"baseline: {plan.base.model} untouched has WER {baseline.wer:.2f} %, CER {baseline.cer:.2f} % "
        f"on {baseline.clips} validation clips",
    )
    return baseline


def _run_trials(
    plan: SearchPlan,
    base: TrainConfig,
    data: PreparedData,
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
            make_trainable(base, data, mailbox, resources.cpus),
            {"cpu": resources.cpus, "gpu": resources.gpus},
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
        if reader.error is not None:
            display.event(f"loss and learning rate between rungs were lost: {escape(str(reader.error))}")
