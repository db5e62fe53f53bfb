"""TensorBoard's files of an experiment, read as TensorBoard reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_experiments import BEGAN, MadeLog
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tune.tracking.tensorboard import FOLDER, TensorBoardStore

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def made(tmp_path: Path) -> MadeLog:
    return MadeLog(tmp_path / "exp")


class Board:
    """What TensorBoard shows of an experiment."""

    def __init__(self, made: MadeLog) -> None:
        self._runs = EventMultiplexer()
        self._runs.AddRunsFromDirectory(str(made.folder / FOLDER))
        self._runs.Reload()

    def points(self, run: str, tag: str) -> list[tuple[int, float, float]]:
        """Step, value and time of all points."""
        events = self._runs.Tensors(run, tag)
        return [(event.step, event.tensor_proto.float_val[0], event.wall_time) for event in events]

    def tags(self, run: str) -> set[str]:
        """Of a run's scalars."""
        return {tag for tag in self._runs.Runs()[run]["tensors"] if not tag.startswith("_hparams_")}

    def settings(self, run: str) -> dict[str, Any]:
        """On the page HParams."""
        metadata = self._runs.SummaryMetadata(run, "_hparams_/session_start_info")
        data = HParamsPluginData.FromString(metadata.plugin_data.content).session_start_info
        assert data.group_name == run
        return {name: getattr(value, value.WhichOneof("kind")) for name, value in data.hparams.items()}


def store_of(made: MadeLog) -> TensorBoardStore:
    return TensorBoardStore(made.target())


def check(made: MadeLog) -> None:
    """Everything that the log folds to is there, once."""
    board = Board(made)
    for run in made.saved.state.runs:
        points = board.points(run.trial_id, "wer") if run.evaluations else []
        assert [(step, pytest.approx(wer)) for step, wer, _ in points] == run.evaluations
        assert board.settings(run.trial_id) == {"seed": 0, **run.config}


def test_its_own_reader_finds_what_the_log_says(made: MadeLog) -> None:
    made.four()
    made.begin("001-r1", seed=43)
    made.measure("001-r1", 3200, 10.5)
    made.end("001-r1", "completed")
    made.begin("005", spec_augment=True, scheduler_type="cosine")
    made.measure("005", 384, 40.0)
    made.begin("006", lora_rank=None)
    store = store_of(made)
    for events in range(1, len(made.entries) + 1):
        store.sync(made.log_at(events))
    board = Board(made)
    settings = board.settings("006")
    assert settings["lora_rank"] == "null"
    assert [wer for _, wer, _ in board.points("001", "best_wer")] == [30.0, 11.0, 11.0]
    assert board.points("baseline", "wer") == [(0, 60.0, BEGAN + 1)]
    assert board.tags("005") == {"wer", "cer", "eval_loss", "epoch", "best_wer"}
    assert board.settings("001-r1")["seed"] == 43
    assert board.points("001", "cer") == [(384, 10.0, BEGAN + 10), *board.points("001", "cer")[1:]]


def test_a_new_store_begins_anew(made: MadeLog) -> None:
    made.four()
    store_of(made).sync(made.log_at())
    (old,) = (made.folder / FOLDER / "001").iterdir()
    old.write_bytes(old.read_bytes()[:-7])  # killed in the middle of a record
    made.session()
    made.begin("005")
    made.measure("005", 384, 40.0)
    store_of(made).sync(made.log_at())
    assert not old.exists()
    check(made)


def test_losses_between_evaluations(made: MadeLog) -> None:
    """A trial that lost its checkpoint comes by the same samples again."""
    made.session()
    made.begin("001")
    store = store_of(made)
    made.progress("001", 16, 32, learning_rate=1e-4)
    store.sync(made.log_at())
    made.measure("001", 384, 40.0)
    made.progress("001", 32, 48)
    made.progress("001", 64, loss=float("nan"))
    store.sync(made.log_at())
    store.sync(made.log_at())
    board = Board(made)
    losses = [(step, loss) for step, loss, _ in board.points("001", "loss")]
    assert losses == [(16, 6.25), (32, 3.125), (48, pytest.approx(100 / 48))]
    assert [step for step, _, _ in board.points("001", "learning_rate")] == [16, 32]
    check(made)
