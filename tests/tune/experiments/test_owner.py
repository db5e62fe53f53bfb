"""One session at a time writes to an experiment in a bucket: two machines, each with a disk of its own."""

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_experiments import measured
from mlflow_server import wait_for
from plans import search_plan
from s3_server import S3Server, give_keys, s3_server

from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import (
    ExportChosen,
    SessionStarted,
    TrialEnded,
    TrialProposed,
    TrialRecovered,
    TrialStarted,
)
from tune.experiments.experiment import OpenExperiment, find_experiment
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.log import parse
from tune.experiments.object_stores import owner
from tune.experiments.object_stores.object_store import ObjectStore, StorageError
from tune.experiments.options import SearchOptions
from tune.experiments.storage import Storage
from tune.runs.final_round import remove_dropped
from tune.runs.session import Session
from tune.util.errors import ExperimentError

LOG = f"one/{EVENTS_FILE}"


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    give_keys(monkeypatch)
    monkeypatch.setattr(owner, "_MOMENT", 0.3)
    return server.uri(tmp_path.name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., OpenExperiment]]:
    """Opens the experiment `one` on a machine of this name; all are closed in the end."""
    every: list[OpenExperiment] = []

    def open_it(uri: str, machine: str, **how: Any) -> OpenExperiment:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        folder = Storage.parse(uri).experiment("one")
        folder.path.mkdir(parents=True, exist_ok=True)
        every.append(OpenExperiment(folder, **how))
        return every[-1]

    yield open_it
    for each in every:
        each.close()


def begin(experiment: OpenExperiment) -> None:
    last = experiment.log.state.session
    experiment.log.append(
        SessionStarted(session=last.session + 1 if last else 1, began=1.0, options=SearchOptions())
    )
    if last is None:
        experiment.log.append(TrialProposed(trial_id="001", config={}))


def tell(experiment: OpenExperiment, reason: str) -> None:
    experiment.log.append(TrialRecovered(trial_id="001", reason=reason))


def told(store: ObjectStore) -> list[str]:
    """What the store's log says was told, in order; the log is whole."""
    events = [entry.event for entry in parse(store.read(LOG), Path(EVENTS_FILE))]
    return [event.reason for event in events if isinstance(event, TrialRecovered)]


def test_a_second_session_is_refused_until_the_first_has_ended(
    s3: str, opened: Callable[..., OpenExperiment]
) -> None:
    first = opened(s3, "a")
    begin(first)
    tell(first, "kept")
    first.upload()
    with pytest.raises(ExperimentError) as refused:
        opened(s3, "b")
    said = str(refused.value)
    assert re.search(
        rf"/one: process {os.getpid()} on \S+ runs it \(last heartbeat \d s ago; 120 s after", said
    )
    assert "--take-over" in said
    assert "\n" not in said
    first.before_deletion()
    first.close()
    second = opened(s3, "b")
    assert second.log.state.session is not None
    assert told(ObjectStore(s3)) == ["kept"]
    second.close()
    assert set(ObjectStore(s3).files("one")) == {EVENTS_FILE}  # no marker, no probe of the clock


def test_one_that_was_taken_over_writes_nothing_more(s3: str, opened: Callable[..., OpenExperiment]) -> None:
    store, first = ObjectStore(s3), opened(s3, "a")
    begin(first)
    tell(first, "first")
    (first.folder.path / "results.json").write_text("of the first")
    first.upload()
    tell(first, "was not uploaded")
    second = opened(s3, "b", take_over=True)
    begin(second)
    tell(second, "second")
    (second.folder.path / "results.json").write_text("of the second")
    second.upload()
    tell(first, "too late")
    (first.folder.path / "results.json").write_text("too late")
    for write in (first.upload, first.before_deletion):
        with pytest.raises(ExperimentError, match=rf"process {os.getpid()} on \S+ has taken it over") as lost:
            write()
        assert "\n" not in str(lost.value)
    assert first.problem is lost.value
    first.close()
    second.before_deletion()
    assert told(store) == ["first", "second"]
    assert store.read("one/results.json") == b"of the second"
    second.close()
    # The first machine takes what the second one left in place of its own.
    third = opened(s3, "a")
    assert told(store) == ["first", "second"]
    assert third.log.state.events == 5
    assert (third.folder.path / "results.json").read_text() == "of the second"


def test_a_heartbeat_keeps_it_and_notices_the_next_owner(
    s3: str, opened: Callable[..., OpenExperiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "HEARTBEAT", 1.0)  # well above the moment that a new owner waits
    monkeypatch.setattr(owner, "EXPIRES", 3.0)
    first = opened(s3, "a")
    time.sleep(4.5)
    with pytest.raises(ExperimentError, match="runs it"):
        opened(s3, "b")
    opened(s3, "b", take_over=True)
    wait_for(lambda: first.problem, 30)
    assert "has taken it over" in str(first.problem)


def test_what_nobody_keeps_is_free_by_the_stores_clock(
    s3: str, opened: Callable[..., OpenExperiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "EXPIRES", 3.0)
    first = opened(s3, "a")  # its next heartbeat is half a minute off
    real = time.time
    for hours in (-5, 5):
        monkeypatch.setattr(time, "time", lambda hours=hours: real() + 3600 * hours)
        with pytest.raises(ExperimentError, match="runs it"):
            opened(s3, "b")
    monkeypatch.setattr(time, "time", real)
    time.sleep(4.5)
    begin(opened(s3, "b"))
    with pytest.raises(ExperimentError, match="has taken it over"):
        first.before_deletion()


def test_of_several_at_a_time_one_gets_it(s3: str) -> None:
    store, taken, refused = ObjectStore(s3), [], []
    barrier = threading.Barrier(4)

    def take() -> None:
        barrier.wait()
        try:
            taken.append(owner.Owner.take(store, "one"))
        except ExperimentError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 3)
    taken[0].check()
    taken[0].release()


def test_killed_it_goes_on_from_what_its_disk_has(
    s3: str, opened: Callable[..., OpenExperiment], tmp_path: Path
) -> None:
    """Another machine has what was uploaded."""
    first = opened(s3, "a")
    begin(first)
    first.upload()
    tell(first, "not uploaded")
    shutil.copytree(tmp_path / "a", tmp_path / "disk of a")
    elsewhere = opened(s3, "b", take_over=True)
    assert elsewhere.log.state.events == 2
    again = opened(s3, "disk of a", take_over=True)
    assert again.log.state.events == 3
    again.upload()
    assert told(ObjectStore(s3)) == ["not uploaded"]


def test_the_log_is_there_before_weights_go(
    s3: str, opened: Callable[..., OpenExperiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, experiment, seen = ObjectStore(s3), opened(s3, "a"), []
    begin(experiment)
    experiment.upload()
    experiment.log.append(
        TrialStarted(trial_id="001", folder="001"),
        *measured("001", 3200, 9.0, checkpoint="trials/001/c"),
        TrialEnded(trial_id="001", status="completed"),
        ExportChosen(run="002"),
    )
    store.write("one/trials/001/c/model.safetensors", b"weights")
    strip = CheckpointFiles.strip

    def look(*arguments: Any) -> None:
        seen.append(store.read(LOG) == (experiment.folder.path / EVENTS_FILE).read_bytes())
        strip(*arguments)

    monkeypatch.setattr(CheckpointFiles, "strip", look)
    remove_dropped(experiment, print)
    assert seen == [True]
    assert not [name for name in store.files("one") if name.startswith("trials")]


def test_nothing_is_deleted_while_the_store_is_away(
    opened: Callable[..., OpenExperiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    give_keys(monkeypatch)
    with s3_server() as away:
        experiment = opened(away.uri("x"), "a")
        begin(experiment)
        away.stop()
        with pytest.raises(StorageError, match="cannot be reached"):
            experiment.before_deletion()
        assert experiment.problem is None
        away.start()
        experiment.close()


def test_a_line_that_is_being_written_stays_here(s3: str, opened: Callable[..., OpenExperiment]) -> None:
    first = opened(s3, "a")
    begin(first)
    whole = (first.folder.path / EVENTS_FILE).read_bytes()
    with (first.folder.path / EVENTS_FILE).open("ab") as log:
        log.write(b'{"half')
    first.upload()
    assert ObjectStore(s3).read(LOG) == whole
    # Another command on this machine reads it meanwhile, and leaves the log as it is.
    (first.folder.path / "experiment.yaml").write_text("x")
    first.upload()
    assert find_experiment("one", Storage.parse(s3)).path == first.folder.path
    assert (first.folder.path / EVENTS_FILE).read_bytes() == whole + b'{"half'


def test_a_new_search_that_is_refused_leaves_the_one_of_its_name_alone(
    s3: str, opened: Callable[..., OpenExperiment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its name was free when it was planned, minutes before. It deleted the other one, checkpoints and all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    session: Any = SimpleNamespace(plan=search_plan(Storage.parse(s3), "one", space="lr_batch"), data=None)
    first = opened(s3, "a")
    begin(first)
    first.upload()
    with pytest.raises(ExperimentError, match="runs it"), Session.new_experiment(session):
        raise AssertionError
    assert told(ObjectStore(s3)) == []
    assert not session.plan.folder.exists()


def test_nothing_is_left_of_a_new_search_that_fails(
    s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    session: Any = SimpleNamespace(
        plan=search_plan(Storage.parse(s3), "one", space="lr_batch"), splits=b"clips"
    )
    session.data, session.stack = SimpleNamespace(drops=[]), contextlib.ExitStack()
    session.tracking = SimpleNamespace(start=lambda: None, stop=lambda: None)
    with session.stack, pytest.raises(KeyError), Session.new_experiment(session):
        session._experiment.upload()
        assert "splits.parquet" in ObjectStore(s3).files("one")
        raise KeyError
    assert ObjectStore(s3).files("one") == {}
    assert not session.plan.folder.exists()


def test_checkpoints_that_were_put_aside_go_in_the_end(
    s3: str, opened: Callable[..., OpenExperiment]
) -> None:
    files, store = CheckpointFiles(opened(s3, "a").folder), ObjectStore(s3)
    store.write("one/trials/001/checkpoint_1/weights", b"x")
    files.remove_unnamed([], remove=False)
    assert "trials/001/aside_checkpoint_1/weights" in store.files("one")
    files.remove_unnamed([], remove=True)
    assert not [name for name in store.files("one") if name.startswith("trials")]
