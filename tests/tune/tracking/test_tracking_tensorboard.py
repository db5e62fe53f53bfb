"""TensorBoard's files of an experiment, read as TensorBoard reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_logs import BEGAN, RUNGS, MadeLog, sync_in_steps
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from tune.experiments.state import SearchState
from tune.tracking.sync import Log
from tune.tracking.tensorboard import FOLDER, TensorBoardStore
from tune.util.errors import TrackingError

ROOT = Path(__file__).resolve().parents[3]


class Board:
    """What TensorBoard shows of an experiment."""

    def __init__(self, made: MadeLog) -> None:
        folder = str(made.folder / FOLDER)
        self.multiplexer = EventMultiplexer()
        self.multiplexer.AddRunsFromDirectory(folder)
        self.multiplexer.Reload()
        self._provider = MultiplexerDataProvider(self.multiplexer, folder)

    def points(self, run: str, tag: str) -> list[tuple[int, float, float]]:
        """Step, value and time of all points."""
        events = self.multiplexer.Tensors(run, tag)
        return [(event.step, event.tensor_proto.float_val[0], event.wall_time) for event in events]

    def tags(self, run: str) -> set[str]:
        """Of a run's scalars."""
        known = self._provider.list_scalars(RequestContext(), experiment_id="", plugin_name="scalars")
        return set(known.get(run, {}))

    def hparams(self) -> dict[str, tuple[dict[str, Any], dict[str, float], str]]:
        """The page HParams: settings, metrics and status of every run."""
        request = api_pb2.ListSessionGroupsRequest(
            start_index=0, slice_size=1000, allowed_statuses=api_pb2.Status.values(), include_metrics=True
        )
        context = Context(TBContext(data_provider=self._provider))
        found = Handler(RequestContext(), context, "", request).run()
        return {
            group.name: (
                {name: _value(value) for name, value in group.hparams.items()},
                {metric.name.tag: metric.value for metric in group.metric_values},
                api_pb2.Status.Name(group.sessions[0].status).removeprefix("STATUS_"),
            )
            for group in found.session_groups
        }


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("kind"))


def store_of(made: MadeLog) -> TensorBoardStore:
    return TensorBoardStore(made.folder / FOLDER)


def check(made: MadeLog) -> None:
    """Everything that the log folds to is there, once."""
    state: SearchState = made.saved_at().state
    board = Board(made)
    hparams = board.hparams()
    assert set(hparams) == {run.trial_id for run in state.runs}
    for run in state.runs:
        points = board.points(run.trial_id, "wer") if run.evaluations else []
        assert [(step, pytest.approx(wer)) for step, wer, _ in points] == run.evaluations
        settings, results, status = hparams[run.trial_id]
        assert settings == {"seed": 0, **run.config}
        assert results.get("best_wer") == (None if run.best_value is None else pytest.approx(run.best_value))
        good, over = run.status in ("completed", "early_stopped"), run.status != "running"
        assert status == ("SUCCESS" if good else "FAILURE" if over else "UNKNOWN")


def test_its_own_reader_finds_what_the_log_says(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("001-r1", seed=43)
    made.measure("001-r1", 3200, 10.5)
    made.end("001-r1", "completed")
    made.begin("005")
    made.measure("005", 384, 40.0)
    sync_in_steps(store_of(made), made)
    check(made)
    board = Board(made)
    assert board.points("baseline", "wer") == [(0, 60.0, BEGAN + 2)]
    assert board.tags("005") == {"wer", "cer", "eval_loss", "epoch", "best_wer"}
    assert board.hparams()["001-r1"][0]["seed"] == 43
    assert board.points("001", "cer") == [(384, 10.0, BEGAN + 11), *board.points("001", "cer")[1:]]


def test_a_store_that_is_there_before_the_first_event(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    store = store_of(made)
    store.sync(Log(made.experiment))
    assert not (made.folder / FOLDER).exists()
    made.four()
    store.sync(made.log_at())
    check(made)


def test_settings_of_every_type_are_shown(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001", spec_augment=True, scheduler_type="cosine", lora_rank=None)
    sync_in_steps(store_of(made), made)
    settings, _, status = Board(made).hparams()["001"]
    assert settings | {"spec_augment": True, "scheduler_type": "cosine", "lora_rank": "null"} == settings
    assert status == "UNKNOWN"


def test_event_by_event_comes_to_the_same(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    sync_in_steps(store_of(made), made, range(1, 40))
    check(made)
    assert [wer for _, wer, _ in Board(made).points("001", "best_wer")] == [30.0, 11.0, 11.0]


def test_a_new_store_begins_anew(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    sync_in_steps(store_of(made), made)
    (old,) = (made.folder / FOLDER / "001").iterdir()
    old.write_bytes(old.read_bytes()[:-7])  # killed in the middle of a record
    made.session()
    made.begin("005")
    made.measure("005", 384, 40.0)
    sync_in_steps(store_of(made), made)
    assert not old.exists()
    check(made)


def test_a_trial_that_was_decided_before_a_kill_is_over(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    made.measure("001", 384, 40.0, stop=True)
    store = store_of(made)
    store.sync(made.log_at())
    assert Board(made).hparams()["001"][2] == "UNKNOWN"
    made.session()
    store.sync(made.log_at())
    assert Board(made).hparams()["001"][2] == "SUCCESS"


def test_losses_between_evaluations(tmp_path: Path) -> None:
    """A trial that lost its checkpoint comes by the same samples again."""
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    store = store_of(made)
    store.sync(made.log_at())

    made.progress("001", 16, 32, learning_rate=1e-4)
    store.sync(made.log_at())
    made.measure("001", 384, 40.0)
    store.sync(made.log_at())
    made.progress("001", 32, 48)
    made.progress("001", 64, loss=float("nan"))
    store.sync(made.log_at())
    store.sync(made.log_at())
    board = Board(made)
    assert [(step, loss) for step, loss, _ in board.points("001", "loss")] == [
        (16, 6.25),
        (32, 3.125),
        (48, pytest.approx(100 / 48)),
    ]
    assert [step for step, _, _ in board.points("001", "learning_rate")] == [16, 32]
    check(made)


def test_a_full_disk_is_told_and_the_next_sync_writes_the_rest(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    for number in range(1, 6):
        for rung in RUNGS:
            made.measure(made.begin(f"{number:03d}") if rung == RUNGS[0] else f"{number:03d}", rung, 30.0)
    code = (
        "import resource, signal, sys; from pathlib import Path; sys.path.insert(0, 'tests/support')\n"
        "from made_logs import MadeLog; from tune.util.errors import TrackingError\n"
        f"made = MadeLog(Path({str(tmp_path)!r}, 'exp'))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))\n"
        "for _ in range(2):\n"
        "    try:\n        made.deliver(stores=['tensorboard'])\n"
        "    except TrackingError as error:\n        print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "made.deliver(stores=['tensorboard'])\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'tensorboardX', 'tensorflow'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    told = f"{made.folder / FOLDER}: cannot be written: File too large\n"
    assert done.stdout == f"{told}{told}[]\n"
    check(made)


def test_it_says_that_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        TrackingError, match=r"^--track tensorboard: pip install 'tune-whisper\[tensorboard\]'$"
    ):
        MadeLog(tmp_path / "exp").deliver(stores=["tensorboard"])


def test_a_folder_that_cannot_be_removed_is_one_line(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    (made.folder / FOLDER).write_text("a file")
    with pytest.raises(TrackingError, match=f"/{FOLDER}: cannot be removed: Not a directory$"):
        made.deliver(stores=["tensorboard"])
