"""The lease of an experiment in an object store: one has it, nobody loses it unknowingly, no clock here matters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec.config
import pytest
from cut_proxy import CutProxy
from gcs_server import GcsServer, gcs_server
from s3_server import KEYS, S3Server, give_keys, s3_server

from tune.experiments.folder import LEASE_FILE
from tune.experiments.object_stores import conditional
from tune.experiments.object_stores.lease import Lease
from tune.experiments.object_stores.object_store import ObjectStore, StorageError
from tune.util.errors import ExperimentError

ROOT = Path(__file__).resolve().parents[3]
OWNER = """
import sys, time
from tune.experiments.object_stores.lease import Lease
from tune.experiments.object_stores.object_store import ObjectStore
lease = Lease.take(ObjectStore(sys.argv[1]), "one", "first", ttl=float(sys.argv[2]))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with gcs_server() as server:
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    give_keys(monkeypatch)
    monkeypatch.setattr(conditional, "_MOMENT", 0.2)
    # A local folder through fsspec stands for "another store": here, and in processes that a test starts.
    monkeypatch.setitem(fsspec.config.conf, "local", {"auto_mkdir": True})
    monkeypatch.setenv("FSSPEC_LOCAL_AUTO_MKDIR", "1")


@pytest.fixture(params=["s3", "gs", "another"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A prefix of its own in each kind of store."""
    if request.param == "another":
        return f"local://{tmp_path}/bucket"
    server = request.getfixturevalue({"s3": "s3", "gs": "gcs"}[request.param])
    return str(server.uri(tmp_path.name))


def until(seen: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def owner_elsewhere(uri: str, ttl: float) -> subprocess.Popen[str]:
    """Another process that has the lease."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, uri, str(ttl)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def test_one_has_it_and_the_next_after_its_release(uri: str) -> None:
    store = ObjectStore(uri)
    first = Lease.take(store, "one", "first")
    assert first.held()
    assert first.conditional == (store.scheme in ("s3", "gs"))
    first.check()
    with pytest.raises(ExperimentError) as refused:
        Lease.take(store, "one", "second")
    said = str(refused.value)
    assert said.startswith(f"{store.address}/one: process {os.getpid()} on ")
    assert re.search(r"last heartbeat \d s ago, expires in 1[12]\d s", said)
    assert "--take-over" in said
    assert "\n" not in said
    first.check()
    first.release()
    assert not first.held()
    with pytest.raises(ExperimentError, match="was released"):
        first.check()
    second = Lease.take(store, "one", "second")
    assert (first.term, second.term) == (1, 2)
    second.release()
    assert Lease.take(store, "two", "second").term == 1  # another experiment


def test_the_lease_of_a_killed_process_expires_and_no_clock_here_matters(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, hours = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + hours[0] * 3600)
    process = owner_elsewhere(uri, ttl=6)  # a busy machine stands still for a second or two
    try:
        time.sleep(8)  # renewed meanwhile
        for hours[0] in (0, -5, 5):
            with pytest.raises(ExperimentError, match=rf"process {process.pid} on .* heartbeat [0-4] s ago"):
                Lease.take(ObjectStore(uri), "one", "second")
    finally:
        process.kill()
        process.communicate()
    killed = time.monotonic()
    taken: list[Lease] = []

    def take() -> bool:
        try:
            taken.append(Lease.take(ObjectStore(uri), "one", "second"))
        except ExperimentError:
            return False
        return True

    hours[0] = -5
    until(take)
    assert time.monotonic() - killed > 3  # the last heartbeat may be a quarter old
    assert taken[0].held()
    taken[0].release()


def race(store: ObjectStore, name: str, several: int) -> tuple[list[Lease], list[str]]:
    """What several that want one lease at the same moment get."""
    taken: list[Lease] = []
    refused: list[str] = []
    barrier = threading.Barrier(several)

    def take(owner: str) -> None:
        barrier.wait()
        try:
            taken.append(Lease.take(store, name, owner))
        except ExperimentError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take, args=[f"owner-{index}"]) for index in range(several)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken, refused


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_of_many_at_a_time_one_gets_it(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store = ObjectStore(request.getfixturevalue(kind).uri(tmp_path.name))
    Lease.take(store, "race-0", "before").release()  # the others are created in the race
    for index in range(5):
        taken, refused = race(store, f"race-{index}", several=6)
        assert len(taken) == 1
        assert len(refused) == 5
        assert taken[0].conditional
        taken[0].check()
        taken[0].release()


def test_taken_over_it_is_lost_for_good(uri: str) -> None:
    store = ObjectStore(uri)
    first = Lease.take(store, "one", "first", ttl=2)
    other = Lease.take(store, "one", "other", take_over=True, ttl=2)
    assert other.term == 2
    until(lambda: first.lost)  # by its next heartbeat
    assert not first.held()
    with pytest.raises(ExperimentError, match=f"process {os.getpid()} on .* has taken over"):
        first.check()
    other.check()
    other.release()
    with pytest.raises(ExperimentError, match="has taken over"):
        first.check()
    first.release()
    Lease.take(store, "one", "third").release()


def test_a_check_sees_at_once_that_another_has_it(uri: str) -> None:
    store = ObjectStore(uri)
    first = Lease.take(store, "one", "first", ttl=600)
    Lease.take(store, "one", "other", take_over=True, ttl=600).release()
    assert first.held()  # its next heartbeat is minutes away
    with pytest.raises(ExperimentError, match="has taken over"):
        first.check()
    assert not first.held()


def test_removed_with_its_experiment_it_is_lost_and_does_not_come_back(uri: str, gcs: GcsServer) -> None:
    store = ObjectStore(uri)
    first = Lease.take(store, "one", "first", ttl=2)
    second = Lease.take(store, "two", "first", ttl=600)
    if store.scheme == "gs":  # the stand-in knows nothing but single objects
        gcs.objects.clear()
    else:
        store.delete("one")
        store.delete("two")
    second.release()
    until(lambda: first.lost)
    assert "its lease was removed" in str(first.lost)
    time.sleep(1)
    assert not (gcs.objects if store.scheme == "gs" else store.files(""))


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_an_owner_without_network_stops_in_time_and_goes_on_when_it_is_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditional, "_TIMEOUTS", (0.5, 0.5))
    uri = request.getfixturevalue(kind).uri(tmp_path.name)
    port = re.search(r":(\d+)&", uri)
    assert port
    proxy = CutProxy(int(port[1]))
    proxy.start()
    lease = Lease.take(ObjectStore(uri.replace(port[1], str(proxy.port))), "one", "first", ttl=4)
    cut = time.monotonic()
    proxy.stop()
    with pytest.raises(StorageError, match="cannot be reached"):
        lease.check()
    asked = held = time.monotonic()
    while lease.held():
        asked, held = time.monotonic(), asked  # a busy machine may stand still between question and answer
        time.sleep(0.05)
    assert asked - cut > 2
    assert held - cut < 4.5
    assert lease.lost is None
    proxy.start()
    until(lease.held)
    lease.check()
    # A heartbeat that arrives, and whose answer does not, is not another's.
    proxy.cut_answers = True
    until(lambda: not lease.held())
    proxy.cut_answers = False
    until(lease.held)
    lease.release()
    proxy.stop()


@pytest.mark.parametrize("conditions", ["ignore", "implement"])
def test_an_old_server_that_minds_no_conditions_gets_the_best_effort(conditions: str) -> None:
    with s3_server(conditions=conditions) as server:
        store = ObjectStore(server.uri("old"))
        lease = Lease.take(store, "one", "first", ttl=2)
        assert not lease.conditional
        with pytest.raises(ExperimentError, match="has its lease"):
            Lease.take(store, "one", "second")
        other = Lease.take(store, "one", "second", take_over=True)
        until(lambda: lease.lost)
        other.check()


def test_best_effort_without_the_client(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    taken, _ = race(ObjectStore(s3.uri(tmp_path.name)), "one", several=4)
    assert len(taken) == 1
    assert not taken[0].conditional
    taken[0].check()


def test_the_endpoint_of_the_environment(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    store = ObjectStore(f"s3://{s3.bucket}/{tmp_path.name}")
    lease = Lease.take(store, "one", "first")
    assert lease.conditional
    assert list(store.files("one")) == [LEASE_FILE]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://experiments/x?endpoint_override=127.0.0.1:9&scheme=http", "cannot be reached"),
        ("s3://nobucket/x?{s3}", "the bucket does not exist"),
        ("gs://anonymous@experiments/x?endpoint_override=127.0.0.1:9&scheme=http", "cannot be reached"),
        ("gs://anonymous@nobucket/x?{gcs}", "bucket does not exist"),
    ],
)
def test_a_store_that_cannot_be_used(
    address: str, said: str, s3: S3Server, gcs: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditional, "_TIMEOUTS", (1.0, 1.0))
    uri = address.replace("{s3}", s3.query).replace("{gcs}", gcs.uri("").partition("?")[2])
    with pytest.raises(StorageError, match=said) as refused:
        Lease.take(ObjectStore(uri), "one", "first")
    assert "\n" not in str(refused.value)


def test_keys_that_are_refused_or_missing(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with s3_server(refuses=True) as server, pytest.raises(StorageError, match="access is refused"):
        Lease.take(ObjectStore(server.uri("x")), "one", "first")
    for name in KEYS:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(StorageError, match="no credentials were found"):
        Lease.take(ObjectStore(s3.uri("x")), "one", "first")


@pytest.mark.parametrize("content", [b"", b'{"owner": "fi', b"[]", b'{"owner": "x", "later": 1}'])
def test_a_lease_that_cannot_be_read_is_somebodys(content: bytes, tmp_path: Path) -> None:
    store = ObjectStore(f"local://{tmp_path}")
    store.write(f"one/{LEASE_FILE}", content)
    with pytest.raises(ExperimentError, match="on an unknown machine has its lease"):
        Lease.take(store, "one", "first")
    Lease.take(store, "one", "first", take_over=True).check()


def test_a_store_that_tells_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def unknown(*_: object) -> None:
        raise NotImplementedError

    store = ObjectStore("memory://box/no-times")
    first = Lease.take(store, "one", "first")
    with pytest.raises(ExperimentError, match="last heartbeat 0 s ago"):
        Lease.take(store, "one", "second")
    monkeypatch.setattr(MemoryFileSystem, "modified", unknown)
    with pytest.raises(ExperimentError, match="does not expire by itself"):
        Lease.take(store, "one", "second")
    first.release()
    Lease.take(store, "one", "second").release()
    assert list(store.files("one")) == [LEASE_FILE]  # nothing else stays
