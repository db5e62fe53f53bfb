"""Saving what an evaluation measured: at once, or in a thread while the training goes on."""

from __future__ import annotations

import contextlib
import copy
import functools
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from transformers import Seq2SeqTrainer

from trainer.files import has_room
from trainer.memory import free_memory
from trainer.model.adapters import adapter_state, is_adapted, read_adapter, write_adapter
from trainer.report import Decision, Keeper, Kept, Report
from trainer.training.checkpoints import (
    checkpoint_bytes,
    disk_full,
    seal,
    told_when_full,
    write_errors,
)
from trainer.training.distributed import first_says, local_rank, share_of_node, wait_for_all
from trainer.training.window import in_window

if TYPE_CHECKING:
    from trainer.config import TrainConfig
    from trainer.scoring.alignment import ClipErrors

_MOST_OF_MEMORY = 0.25
"""Of the free memory, that a copy of weights and moments may take."""
_KEPT: tuple[Kept | None, ...] = (None, "all", "weights", "errors")


class SavingTrainer(Seq2SeqTrainer):
    """The stock trainer, which can write a checkpoint from copies of what it trains."""

    full_frames: int
    """Feature frames of the whole window, which belong to the model that is saved."""
    utterances: ClipErrors
    """Of the last evaluation, in the split's order."""

    def write(self, folder: Path, keep: Kept) -> None:
        """This process' part of a checkpoint."""
        if keep != "errors":
            with in_window(self.model, self.full_frames):
                self.save_model(str(folder), _internal_call=True)
        if keep == "all":
            self._save_optimizer_and_scheduler(str(folder))
            self._write_states(folder)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """The stock method; of a model with adapters only these, and the small files that every model has."""
        if not is_adapted(self.model):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            _write_adapted(self.model, folder, state_dict and adapter_state(self.model, state_dict))
            self.processing_class.save_pretrained(str(folder))

    def _prepare_for_training(self, max_steps: int, loader: Any, checkpoint: str | None) -> Any:
        """The stock method; of a model with adapters DeepSpeed's engine writes and reads what is trained alone.

        The stock trainer asks the engine for that only where the model has PEFT's own wrapper.
        """
        apart = self.is_deepspeed_enabled and is_adapted(self.model)
        prepared = super()._prepare_for_training(max_steps, loader, None if apart else checkpoint)
        if apart:
            engine = self.model_wrapped
            engine.save_checkpoint = functools.partial(engine.save_checkpoint, exclude_frozen_parameters=True)
            if checkpoint is not None:
                engine.load_checkpoint(checkpoint, load_module_strict=False)
                self._load_optimizer_and_scheduler(checkpoint)
                self._load_scaler(checkpoint)
        return prepared

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The stock method, which knows only PEFT's own wrapper of models with adapters."""
        if is_adapted(self.model):
            read_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def writer_of_copies(self, folder: Path, keep: Kept) -> Callable[[], None]:
        """What writes the large files of a checkpoint from copies of this moment; the small ones are written now.

        For one process without DeepSpeed. A training that goes on changes weights, moments, random states, and for
        how long a window the model is set up.
        """
        folder.mkdir(parents=True, exist_ok=True)
        copies = _Copies()
        model = copy.copy(self.model)
        with in_window(self.model, self.full_frames):
            model.config = copy.deepcopy(self.model.config)
        weights = copies.of(adapter_state(self.model) if is_adapted(model) else self.model.state_dict())
        moments = None
        if keep == "all":
            moments = copies.of(self.optimizer.state_dict())
            torch.save(self.lr_scheduler.state_dict(), folder / "scheduler.pt")
            self._write_states(folder)

        def write() -> None:
            if is_adapted(model):
                _write_adapted(model, folder, weights)
            else:
                model.save_pretrained(str(folder), state_dict=weights)
            self.processing_class.save_pretrained(str(folder))
            if moments is not None:
                torch.save(moments, folder / "optimizer.pt")

        return write

    def _write_states(self, folder: Path) -> None:
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))
        if self.args.should_save:
            self.state.save_to_json(str(folder / "trainer_state.json"))


def _write_adapted(model: Any, folder: Path, state: Mapping[str, torch.Tensor] | None) -> None:
    """A model's adapters and settings; `state` as `write_adapter` takes it."""
    write_adapter(model, folder, state)
    model.config.save_pretrained(str(folder))
    model.generation_config.save_pretrained(str(folder))


class _Copies:
    """Copies of tensors in main memory; what shares memory shares it in the copies too."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        """A copy of nested dicts, lists and tuples."""
        if isinstance(value, torch.Tensor):
            place = value.device, value.data_ptr(), value.shape, value.stride(), value.dtype
            if place not in self._made or not value.numel():
                self._made[place] = value.detach().to("cpu", copy=True)
            return self._made[place]
        if isinstance(value, Mapping):
            return {key: self.of(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.of(part) for part in value)
        return value


class CheckpointSaver:
    """Asks what follows each evaluation, and has the checkpoint written where the keeper wants it."""

    def __init__(self, config: TrainConfig, trainer: SavingTrainer, keeper: Keeper) -> None:
        self._config, self._trainer, self._keeper = config, trainer, keeper
        self._args = trainer.args
        self._writing: threading.Thread | None = None
        self._error: BaseException | None = None

    def evaluated(self, metrics: Mapping[str, float]) -> bool:
        """Save what shall be kept of an evaluation; whether the training goes on.

        Called in all processes at once.

        Raises:
            DiskFullError: there is no room for it, or there was none for the one before.
        """
        began = time.monotonic()
        self.wait()  # two copies at a time would take too much memory; and they end in their order
        decision = self._decide(metrics)
        if decision.keep is None:
            return decision.goes_on
        seen, step = int(metrics["samples_seen"]), int(metrics["step"])
        folder = self._keeper.begin(seen, step)
        needed = self._bytes(decision.keep)
        if local_rank() == 0:  # what a killed process left there, or the step was saved before
            shutil.rmtree(folder, ignore_errors=True)
        if not first_says(self._args, has_room(folder, needed)):
            raise disk_full(folder, needed)
        if self._may_go_on(decision):
            self._save_in_background(folder, metrics, decision.keep, began)
            return True
        wait_for_all(self._args)
        with told_when_full(folder, needed):
            self._trainer.write(folder, decision.keep)
            if self._args.process_index == 0:
                write_errors(folder, self._config, self._trainer.utterances)
        wait_for_all(self._args)
        stop = self._finish(folder, metrics, decision.keep, began, needed)
        return decision.goes_on and not stop

    def check(self) -> None:
        """Raise what a save in the background has failed with."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Return once nothing is written any more; raises as `check` does."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        self.check()

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Wait for the last save at the end of the block, also where it fails."""
        try:
            yield
        except BaseException:
            if self._writing is not None:
                self._writing.join()  # what is told is why the training failed
            raise
        self.wait()

    def _decide(self, metrics: Mapping[str, float]) -> Decision:
        """The first process' decision, in all of them."""
        first = self._args.process_index == 0
        decision = self._keeper.decide(metrics) if first else Decision(False, None)
        if self._args.world_size == 1:
            return decision
        told = torch.tensor([decision.goes_on, _KEPT.index(decision.keep)], device=self._args.device)
        torch.distributed.broadcast(told, src=0)
        goes_on, place = told.tolist()
        return Decision(bool(goes_on), _KEPT[place])

    def _may_go_on(self, decision: Decision) -> bool:
        """Whether the training goes on while the checkpoint is written."""
        alone = self._args.world_size == 1 and not self._trainer.is_deepspeed_enabled
        if decision.keep is None or decision.keep == "errors":
            return False
        if not (self._keeper.in_background and decision.goes_on and alone):
            return False
        return self._bytes(decision.keep) <= _MOST_OF_MEMORY * free_memory()

    def _save_in_background(
        self, folder: Path, metrics: Mapping[str, float], keep: Kept, began: float
    ) -> None:
        needed = self._bytes(keep)
        with told_when_full(folder, needed):
            write = self._trainer.writer_of_copies(folder, keep)
            write_errors(folder, self._config, self._trainer.utterances)
        pause = time.monotonic() - began

        def save() -> None:
            try:
                with told_when_full(folder, needed):
                    write()
                    self._keeper.complete(folder, self._keeper.hand_over(folder), metrics, keep, pause)
            except BaseException as error:  # noqa: BLE001 - raised by `check` in the training's own thread
                self._error = error

        self._writing = threading.Thread(target=save, name="checkpoint-saver", daemon=True)
        self._writing.start()

    def _finish(
        self, folder: Path, metrics: Mapping[str, float], keep: Kept, began: float, needed: int
    ) -> bool:
        taken: dict[str, Mapping[str, int]] = {}
        with told_when_full(folder, needed):
            if local_rank() == 0:
                taken.update(self._keeper.hand_over(folder))
            if self._args.world_size > 1:
                for other in gather_object([taken]):
                    taken.update(other)
            stop = None
            if self._args.process_index == 0:
                stop = self._keeper.complete(folder, taken, metrics, keep, time.monotonic() - began)
        wait_for_all(self._args)
        return first_says(self._args, bool(stop))

    def _bytes(self, keep: Kept) -> int:
        """What it takes on this node's disk, at most."""
        return checkpoint_bytes(self._config, self._trainer.model, keep, share_of_node())


class ReportingKeeper:
    """Keeps everything of every evaluation, and reports it with its sealed folder."""

    in_background = False

    def __init__(self, report: Report, folder: Path, *, keep: bool) -> None:
        """`folder` gets checkpoints as `checkpoint-STEP`; each goes once it was reported, unless they are kept."""
        self._report, self._folder, self._keep = report, folder, keep
        self.checkpoints: dict[int, Path] = {}
        """Folders that stay, by optimiser step."""
        self._last: Path | None = None

    def decide(self, metrics: Mapping[str, float]) -> Decision:
        """It goes on, until the report says otherwise."""
        return Decision(goes_on=True, keep="all")

    def begin(self, samples_seen: int, step: int) -> Path:
        """A folder of the step; a training that goes on saves some steps once more."""
        before, self._last = self._last, self._folder / f"checkpoint-{step}"
        if self._keep:
            self.checkpoints[step] = self._last
        elif before is not None and local_rank() == 0:  # on other nodes than the first one's
            shutil.rmtree(before, ignore_errors=True)
        return self._last

    def hand_over(self, folder: Path) -> Mapping[str, Mapping[str, int]]:
        """The files are where they shall be."""
        return {}

    def complete(
        self,
        folder: Path,
        taken: Mapping[str, Mapping[str, int]],
        metrics: Mapping[str, float],
        keep: Kept,
        pause: float,
    ) -> bool | None:
        """Seal it and report it."""
        seal(folder)
        stop = self._report(metrics, folder)
        if not self._keep:
            shutil.rmtree(folder, ignore_errors=True)
        return stop
