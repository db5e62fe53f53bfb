"""The only place where the search meets the training: what runs inside Ray's worker processes."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.checkpoints import CONFIG_FILE, UTTERANCES_FILE, is_only_for_resume, seal
from trainer.config import TrainConfig
from trainer.distributed import private_folder
from tune.mailbox import post
from tune.scheduler import TRIAL_ID
from tune.workers.retries import train_persistently, with_earlier
from tune.workers.worker_group import Report, train_on_workers

if TYPE_CHECKING:
    from trainer.prepared import PreparedData
    from trainer.probe import Measured
    from trainer.train import Evaluation, TrainResult
    from tune.cluster import TrialResources

__all__ = [
    "CONFIG_FILE",
    "UTTERANCES_FILE",
    "check_model",
    "checkpoint_bytes",
    "count_clips",
    "early_eval_clips",
    "evaluate_model",
    "evaluate_shared",
    "evaluation_points",
    "evaluation_ratio",
    "export_model",
    "fetch_shared",
    "find_model",
    "full_budget",
    "is_only_for_resume",
    "keep_rates",
    "local_folders",
    "make_trainable",
    "prepare_data",
    "private_folder",
    "probe_shared",
    "read_settings",
    "recall_rates",
    "restore_evaluation",
    "seconds_per_sample",
    "train_on_ray_train",
]

_MEASURED_STEPS = 5
"""The first is not counted: it warms up."""
_TEXT_SETTINGS = ("lowercase", "remove_punctuation")
"""Searchable settings that change the labels, and so need them made anew (the features stay)."""


def prepare_data(config: TrainConfig, on_progress: Callable[[int, int], None] | None = None) -> PreparedData:
    """Find or compute the features of `config.data`; raises `DataError` or `ModelError`."""
    from trainer.prepared import prepare

    return prepare(config, on_progress)


def count_clips(config: TrainConfig) -> tuple[dict[str, int], list[str]]:
    """Clips of each split before any is dropped, and what was decided about the splits; reads no audio."""
    from trainer.data import load_clips

    table = load_clips(config)
    notes = list(table.notes)
    if table.drops:
        notes.append(f"{len(table.drops)} clips have no text and are left out")
    return {name: len(split) for name, split in table.splits.items()}, notes


def check_model(config: TrainConfig) -> float:
    """The learning rate known to be good for the model's size; `ModelError` where the model cannot be tuned so."""
    from trainer.model import default_learning_rate
    from trainer.processor import load_processor

    load_processor(config)
    return default_learning_rate(config)


def find_model(config: TrainConfig) -> Path:
    """The folder that has the model's settings, fetched from the hub where it is not here; raises `ModelError`."""
    from trainer.hub_models import fetch_model
    from trainer.pretrained import model_path

    path = model_path(config)
    return Path(path) if Path(path).is_dir() else Path(fetch_model(path, weights=False))


def full_budget(config: TrainConfig, n_train: int) -> int:
    """The budget of one trial in samples seen."""
    from trainer.train import budget_samples

    return budget_samples(config, n_train)


def evaluate_model(
    config: TrainConfig, split: str, cpus: float, *, data: PreparedData | None = None
) -> Evaluation:
    """Error rates of `config.model` as it is on a split, with `cpus` threads."""
    from trainer.train import evaluate

    _set_threads(cpus)
    return evaluate(config, split, data=data)


def recall_rates(config: TrainConfig, data: PreparedData, device: str, split: str) -> Evaluation | None:
    """The base model's rates where they were measured before."""
    from trainer import known_rates

    return known_rates.recall_rates(config, data, device, split)


def keep_rates(config: TrainConfig, data: PreparedData, device: str, split: str, found: Evaluation) -> None:
    """Write down the base model's rates; raises `OSError`."""
    from trainer import known_rates

    known_rates.keep_rates(config, data, device, split, found)


def early_eval_clips(config: TrainConfig, baseline: Evaluation) -> int:
    """Validation clips that early rungs measure, as asked for or as many as their decisions need; 0 is all."""
    from trainer.early_clips import enough_clips

    if config.early_eval_clips is not None:
        return config.early_eval_clips if config.early_eval_clips < baseline.clips else 0
    return enough_clips(baseline.utterances) or 0 if baseline.utterances else 0


def evaluate_shared(
    base: TrainConfig, data: PreparedData, share: Any, cpus: float, split: str = "validation"
) -> Evaluation:
    """Error rates of `base.model` as it is on a split, on whatever node this runs."""
    data, config = fetch_shared(base, data, share)
    return evaluate_model(config, split, cpus, data=data)


def evaluation_ratio(config: TrainConfig, data: PreparedData) -> float:
    """How much longer an evaluation on whole windows takes than one on those that trainings have."""
    from trainer.model import load_model_config
    from trainer.window import window_frames

    full = 2 * int(load_model_config(config).max_source_positions)
    return full / window_frames(config, data, full)


def probe_shared(
    base: TrainConfig,
    data: PreparedData,
    share: Any,
    cpus: float,
    micro_batches: Sequence[int],
    seconds: float,
    gate: Any,
) -> list[Measured]:
    """Train for some seconds with the largest micro-batch that fits, on whatever node this runs.

    Args:
        base: the settings.
        data: the prepared data.
        share: serves the driver's folders to nodes that lack them.
        cpus: threads of a trial.
        micro_batches: sizes to try.
        seconds: of training that are timed.
        gate: an actor at which several wait until all of them train; None where this one is alone.
    """
    import ray

    from trainer.probe import probe_step

    _set_threads(cpus)
    data, config = fetch_shared(base, data, share)
    return probe_step(
        config,
        data,
        micro_batches=micro_batches,
        seconds=seconds,
        evaluated=gate is None,
        ready=lambda: gate is None or bool(ray.get(gate.wait.remote())),
    )


def read_settings(path: Path) -> dict[str, Any]:
    """The settings that a YAML file of them gives, checked; `ConfigError` where it cannot be used."""
    import yaml

    from trainer.__main__ import read_config

    config = read_config(path)
    given = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    return {name: getattr(config, name) for name in given}


def evaluation_points(config: TrainConfig, n_train: int) -> tuple[int, ...]:
    """Samples seen at which a training outside a search is evaluated; the last one is its budget."""
    from trainer.train import plan_batches

    return plan_batches(config, n_train).points


def restore_evaluation(rates: Mapping[str, Any]) -> Evaluation:
    """An evaluation from the figures that its `rates` gave, without transcripts."""
    from trainer.train import Evaluation

    return Evaluation(**rates, predictions=[])


def export_model(config: TrainConfig, checkpoint: Path, output: Path) -> None:
    """Write a checkpoint as a plain Hugging Face folder; raises `ModelError`."""
    from trainer.export import write_model

    write_model(config, checkpoint, output)


def make_trainable(
    base: TrainConfig,
    data: PreparedData,
    mailbox: Any,
    resources: TrialResources,
    share: Any,
    starts: Mapping[str, Sequence[Any]],
) -> Any:
    """The function that Ray runs for a trial, with the resources that a trial takes.

    One worker trains in the trial's own process; several are processes of the trial's placement group.

    Args:
        base: what all trials share.
        data: the prepared data.
        mailbox: receives progress.
        resources: what each trial gets.
        share: serves the driver's folders to nodes that lack them.
        starts: checkpoints of an interrupted search from which trials, by number, go on; first choice first.

    `data` goes through the object store once: a trial that looked for it anew would read the tables, ask the
    hub and look at every audio file again, and see other data if those had changed meanwhile.
    """
    import ray
    import ray.tune

    stored = ray.put(data)

    def whisper_trial(sampled: dict[str, Any]) -> None:
        import ray.tune

        from trainer.memory import halve_micro_batch, is_out_of_memory

        values = dict(sampled)
        trial_id = values.pop(TRIAL_ID)
        tell = functools.partial(post, mailbox, trial_id)

        def checkpoints() -> list[Any]:
            last = ray.tune.get_checkpoint()
            return [*(with_earlier(last) if last else []), *starts.get(trial_id, [])]

        def work(config: TrainConfig, checkpoint: Any) -> TrainResult:
            part = functools.partial(
                _train_here,
                config,
                base,
                stored,
                share,
                cpus=resources.cpus_per_worker,
                checkpoint=checkpoint,
                progress=tell,
            )
            # DeepSpeed keeps state in its modules that a second engine in the same process would trip over.
            return _run(part, _report_to_tune, resources, reuse=base.deepspeed is None)

        result = train_persistently(
            work,
            base.replace(**values),
            checkpoints=checkpoints,
            broken=_is_broken,
            out_of_memory=is_out_of_memory,
            smaller=halve_micro_batch,
            tell=tell,
        )
        if result.diverged:
            ray.tune.report(
                {"wer": float("nan"), "samples_seen": result.samples_seen, "diverged": 1.0, "finished": 0.0}
            )

    return ray.tune.with_resources(whisper_trial, resources.request())


def checkpoint_bytes(config: TrainConfig) -> int:
    """What a checkpoint of the model will take on disk, optimiser included."""
    from trainer.disk_space import estimated_checkpoint_bytes

    return estimated_checkpoint_bytes(config)


def seconds_per_sample(config: TrainConfig, cpus: float) -> float | None:
    """Seconds of training per sample on this machine, from a few real steps; evaluations are not in it.

    Args:
        config: one worker's settings.
        cpus: threads of a trial.

    Returns:
        None where the features are not computed yet.
    """
    from trainer.prepared import is_prepared, prepare
    from trainer.train import train

    if not is_prepared(config):
        return None
    data = prepare(config)
    _set_threads(cpus)

    seen: list[tuple[float, float]] = []

    def watch(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None:
        seen.append((time.monotonic(), metrics["samples_seen"]))
        if len(seen) > _MEASURED_STEPS or checkpoint_dir is not None:
            raise _MeasuredError
        return None

    with contextlib.suppress(_MeasuredError):
        train(config.replace(log_every_seconds=0.0), watch, data=data)
    (begun, first), (ended, last) = seen[1 if len(seen) > 2 else 0], seen[-1]
    return (ended - begun) / max(1.0, last - first)


class _MeasuredError(Exception):
    """Ends a training of which only a few steps were wanted."""


def _is_broken(error: BaseException) -> bool:
    """Whether a checkpoint was not whole, here or in a worker whose error Ray passes on."""
    from trainer.errors import CheckpointError

    return isinstance(error, CheckpointError) or isinstance(getattr(error, "cause", None), CheckpointError)


def _report_to_tune(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    """Hand an evaluation to Tune, which copies its checkpoint to the experiment's storage.

    Raises:
        DiskFullError: there is no room where the storage is a folder.
    """
    import ray.tune
    from pyarrow import fs

    from trainer.disk_space import disk_full, has_room

    storage = ray.tune.get_context().get_storage()
    folder, needed = Path(storage.trial_fs_path), _bytes_below(Path(str(checkpoint_dir)))
    if isinstance(storage.storage_filesystem, fs.LocalFileSystem) and not has_room(folder, needed):
        raise disk_full(folder, needed)
    try:
        ray.tune.report(dict(metrics), checkpoint=ray.tune.Checkpoint.from_directory(str(checkpoint_dir)))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full(folder, needed) from error


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _run(
    work: Callable[..., TrainResult], report: Report, resources: TrialResources, reuse: bool
) -> TrainResult:
    if resources.workers == 1:
        return work(report)

    def seal_and_report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None:
        if checkpoint_dir is not None:
            seal(checkpoint_dir)  # anew: parts came from other nodes
        return report(metrics, checkpoint_dir)

    result: TrainResult = train_on_workers(
        work,
        seal_and_report,
        workers=resources.workers,
        cpus=resources.cpus_per_worker,
        gpus=resources.gpus_per_worker,
        reuse=reuse,
    )
    return result


def _train_here(
    config: TrainConfig,
    base: TrainConfig,
    stored: Any,
    share: Any,
    report: Report,
    *,
    cpus: float,
    checkpoint: Any,
    progress: Callable[[Mapping[str, float]], None],
) -> TrainResult:
    """One worker's part of a trial, in whatever process it has."""
    import ray

    from trainer.distributed import leave_group
    from trainer.train import train

    _set_threads(cpus)
    _free_memory()
    data, local = fetch_shared(config, ray.get(stored), share)
    if any(getattr(config, name) != getattr(base, name) for name in _TEXT_SETTINGS):
        data = data.with_texts(config)

    def pass_on(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None:
        if checkpoint_dir is not None:
            return report(metrics, checkpoint_dir)
        progress(metrics)
        return None

    try:
        with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
            return train(local, pass_on, data=data, resume_from=Path(folder) if folder else None)
    finally:
        leave_group()


def train_on_ray_train(
    config: TrainConfig,
    data: PreparedData,
    share: Any,
    *,
    cpus: float,
    checkpoint: Any,
    report: Report,
) -> TrainResult:
    """One Ray Train worker's part of a training outside a search; its process group is Ray's and stays."""
    from trainer.train import train

    def pass_on(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> bool | None:
        return report(metrics, checkpoint_dir)

    _set_threads(cpus)
    data, local = fetch_shared(config, data, share)
    with checkpoint.as_directory() if checkpoint else contextlib.nullcontext() as folder:
        return train(local, pass_on, data=data, resume_from=Path(folder) if folder else None)


def local_folders(base: TrainConfig, data: PreparedData) -> list[Path]:
    """Folders of this machine that trials read: the features, and the model where it is one."""
    return [data.folder, *([Path(base.model)] if Path(base.model).is_absolute() else [])]


def fetch_shared(config: TrainConfig, data: PreparedData, share: Any) -> tuple[PreparedData, TrainConfig]:
    """Data and settings with the folders that this node has: the driver's own, or copies fetched once a node."""
    from tune.share import localize

    folder = localize(share, data.folder)
    if folder != data.folder:
        data = data.moved_to(folder)
    if Path(config.model).is_absolute():
        config = config.replace(model=str(localize(share, Path(config.model))))
    return data, config


def _set_threads(cpus: float) -> None:
    """Let PyTorch use the CPUs that Ray gave the process (Ray itself sets one thread for all)."""
    import torch

    torch.set_num_threads(max(1, int(cpus)))


def _free_memory() -> None:
    """Give back what the trial before left in this process: actors are reused, since their imports take seconds."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
