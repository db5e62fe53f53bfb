"""Saving what shall be kept of an evaluation."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import Seq2SeqTrainer

from trainer.config import TrainConfig
from trainer.files import has_room
from trainer.manifest import seal
from trainer.model.adapters import is_adapted, read_adapter, write_adapter
from trainer.scoring.alignment import ClipErrors
from trainer.training.checkpoints import checkpoint_bytes, disk_full, full_disk_errors, write_errors
from trainer.training.distributed import from_first, local_rank, share_of_node, wait_for_all
from trainer.training.report import CheckpointStore, Decision, Kept, Order, Report
from trainer.training.weight_average import WeightAverage
from trainer.training.window import in_window


class SavingTrainer(Seq2SeqTrainer):
    """The stock trainer, which writes checkpoints of models with adapters too."""

    full_frames: int
    """Feature frames of the whole window, which belong to the model that is saved."""
    utterances: ClipErrors
    """Of the last evaluation, in the split's order."""
    average: WeightAverage
    """What is measured and saved as the model before the end of the training."""

    def write(self, folder: Path, keep: Kept) -> None:
        """This process' part of a checkpoint."""
        if keep != "errors":
            with in_window(self.model, self.full_frames), self.average.in_model():
                self.save_model(str(folder), _internal_call=True)
        if keep == "all":
            if self.args.should_save:
                self.average.save(folder)
            self._save_optimizer_and_scheduler(str(folder))
            self._save_scaler(str(folder))
            self._save_rng_state(str(folder))
            if self.args.should_save:
                self.state.save_to_json(str(folder / "trainer_state.json"))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """The stock method; of a model with adapters only these, and the small files that every model has."""
        if not is_adapted(self.model):
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            write_adapter(self.model, folder, state_dict)
            for part in (self.model.config, self.model.generation_config, self.processing_class):
                part.save_pretrained(str(folder))

    def _prepare_for_training(self, max_steps: int, loader: Any, checkpoint: str | None) -> Any:
        """The stock method, and what else there is of a mean of the weights.

        Of a model with adapters DeepSpeed's engine writes and reads what is trained alone: the stock trainer asks for
        that only where the model has PEFT's own wrapper.
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
        if checkpoint is not None:
            self.average.load(Path(checkpoint))
        return prepared

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """The stock method, which knows only PEFT's own wrapper of models with adapters."""
        if is_adapted(self.model):
            read_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)


class CheckpointSaver:
    """Asks what follows each evaluation, and what is wanted in between; writes what is to be kept."""

    def __init__(self, config: TrainConfig, trainer: SavingTrainer, store: CheckpointStore) -> None:
        self._config, self._trainer, self._store = config, trainer, store
        self._args = trainer.args
        self._order: Order | None = None

    def evaluated(self, metrics: Mapping[str, float]) -> bool:
        """Save what shall be kept of an evaluation; whether the training goes on.

        Called in all processes at once.

        Raises:
            DiskFullError: there is no room for it.
        """
        first = self._args.process_index == 0
        decision = self._store.decide(metrics) if first else Decision(False, None)
        decision = from_first(self._args, decision)
        if decision.keep is not None:
            self._save(metrics, decision.keep, measured=True)
        return decision.goes_on

    @property
    def order(self) -> Order | None:
        """What the training is asked to do before its next evaluation; known in the first process alone."""
        self._order = self._store.order() or self._order
        return self._order

    def obey(self, position: Mapping[str, float]) -> bool:
        """Save where the training is if that is asked for; whether it goes on.

        Called in all processes after the same step.

        Raises:
            DiskFullError: there is no room for the checkpoint.
        """
        order = from_first(self._args, self.order if self._args.process_index == 0 else None)
        if order is None:
            return True
        self._order = None
        self._save(position, "all", measured=False)
        return order == "save"

    def _save(self, metrics: Mapping[str, float], keep: Kept, *, measured: bool) -> None:
        folder = self._store.begin(int(metrics["samples_seen"]), int(metrics["step"]))
        needed = checkpoint_bytes(self._config, self._trainer.model, keep, share_of_node())
        if local_rank() == 0:  # what a killed process left there, or the step was saved before
            shutil.rmtree(folder, ignore_errors=True)
        if not from_first(self._args, has_room(folder, needed)):
            raise disk_full(folder, needed)
        wait_for_all(self._args)
        taken: dict[str, Mapping[str, int]] = {}
        with full_disk_errors(folder, needed):
            self._trainer.write(folder, keep)
            if self._args.process_index == 0 and measured:
                write_errors(folder, self._config, self._trainer.utterances)
            wait_for_all(self._args)
            if local_rank() == 0:
                taken.update(self._store.hand_over(folder))
            if self._args.world_size > 1:
                for other in gather_object([taken]):
                    taken.update(other)
            if self._args.process_index == 0:
                self._store.complete(folder, taken, metrics, keep)
        wait_for_all(self._args)


class ReportingStore:
    """Keeps everything of every evaluation, and reports it with its sealed folder."""

    def __init__(self, report: Report, folder: Path, *, keep: bool) -> None:
        """`folder` gets checkpoints as `checkpoint-STEP`; each goes once it was reported, unless they are kept."""
        self._report, self._folder, self._keep = report, folder, keep
        self.checkpoints: dict[int, Path] = {}
        """Folders that stay, by optimiser step."""
        self._last: Path | None = None

    def order(self) -> Order | None:
        return None

    def decide(self, metrics: Mapping[str, float]) -> Decision:
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
        self, folder: Path, taken: Mapping[str, Mapping[str, int]], metrics: Mapping[str, float], keep: Kept
    ) -> None:
        seal(folder)
        self._report(metrics, folder)
        if not self._keep:
            shutil.rmtree(folder, ignore_errors=True)
