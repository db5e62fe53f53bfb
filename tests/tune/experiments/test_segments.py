"""The log of an experiment in an object store: segments, what counts of them, and that nothing published is lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from s3_server import give_keys, s3_server

from tune.experiments.events import Entry, SessionStarted, TrialRecovered, decode, encode
from tune.experiments.folder import EVENTS_FILE, EVENTS_FOLDER, LEASE_FILE
from tune.experiments.object_stores.lease import Lease
from tune.experiments.object_stores.object_store import Mark, ObjectStore, StorageError
from tune.experiments.object_stores.segments import SEGMENT_BYTES, SegmentUploader, download, read_segments
from tune.experiments.storage import Storage
from tune.util.errors import ExperimentError

NAME = "one"


class DictStore(ObjectStore):
    """A store in memory that can go away between two writes."""

    def __init__(self) -> None:
        super().__init__("memory://nowhere")
        self.objects: dict[str, bytes] = {}
        self.writes: list[str] = []
        self.fails: list[str] = []
        """What happens to the next writes: "" is well, "lost" writes nothing, "unheard" writes and does not say so."""

    def files(self, below: str, *skip: str) -> dict[str, Mark]:
        names = [name.removeprefix(f"{below}/") for name in self.objects if name.startswith(f"{below}/")]
        return {name: (0, 0.0) for name in names if name.split("/")[0] not in skip}

    def read(self, name: str) -> bytes:
        return self.objects[name]

    def write(self, name: str, content: bytes) -> None:
        how = self.fails.pop(0) if self.fails else ""
        if how != "lost":
            self.objects[name] = content
            self.writes.append(name)
        if how:
            raise StorageError("--storage memory://nowhere: cannot be reached")


def event(number: int, told: object = "") -> bytes:
    return encode(Entry(number, 1.0, TrialRecovered(trial_id="001", reason=str(told))))


def begun(number: int, owner: str, session: int) -> bytes:
    return encode(Entry(number, 1.0, SessionStarted(session=session, owner=owner, began=1.0)))


def lines_of(store: ObjectStore) -> list[bytes]:
    return read_segments(store, NAME).splitlines(keepends=True)


def numbers(store: ObjectStore) -> list[int]:
    return [decode(line).number for line in lines_of(store)]


def append(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(lines)


def put(store: ObjectStore, owner: str, number: int, *lines: bytes) -> None:
    store.write(f"{NAME}/{EVENTS_FOLDER}/{owner}-{number:06d}.jsonl", b"".join(lines))


def test_the_last_segment_grows_and_the_others_stay(tmp_path: Path) -> None:
    store, path = DictStore(), tmp_path / EVENTS_FILE
    uploader = SegmentUploader(store, NAME, "aa", path)
    append(path, begun(1, "aa", 1))
    uploader.publish()
    uploader.publish()
    append(path, event(2), event(3)[:-5])
    uploader.publish()
    assert store.writes == ["one/events/aa-000001.jsonl"] * 2
    assert numbers(store) == [1, 2]
    append(path, event(3)[-5:])
    text = "x" * 300_000
    for number in range(4, 16):
        append(path, event(number, text))
    uploader.publish()
    assert [name[-8:-6] for name in store.writes[2:]] == ["01", "02", "03"]
    sizes = [len(content) for content in store.objects.values()]
    assert sum(sizes) == path.stat().st_size
    assert all(SEGMENT_BYTES <= size < SEGMENT_BYTES + len(text) for size in sizes)
    for number in (16, 17):
        append(path, event(number))
        uploader.publish()
    assert store.writes[5:] == ["one/events/aa-000004.jsonl"] * 2
    assert numbers(store) == list(range(1, 18))
    assert read_segments(store, NAME) == path.read_bytes()


@pytest.mark.parametrize("how", ["lost", "unheard"])
def test_what_failed_goes_with_the_next(how: str, tmp_path: Path) -> None:
    store, path = DictStore(), tmp_path / EVENTS_FILE
    uploader = SegmentUploader(store, NAME, "aa", path, segment_bytes=100)
    append(path, begun(1, "aa", 1), *(event(number) for number in range(2, 20)))
    store.fails = ["", how]
    with pytest.raises(StorageError):
        uploader.publish()
    append(path, event(20))
    uploader.publish()
    assert numbers(store) == list(range(1, 21))


def test_a_machine_that_wrote_on_after_another_took_over(tmp_path: Path) -> None:
    store = DictStore()
    assert read_segments(store, NAME) == b""
    put(store, "zz", 1, begun(1, "zz", 1), event(2), event(3))
    put(store, "bb", 1, begun(3, "bb", 2), event(4, "twenty"))
    put(store, "zz", 2, event(4, "eleven"), event(5), event(6))
    put(store, "cc", 1, begun(5, "cc", 3))
    put(store, "bb", 2, event(5, "late"))
    put(store, "dd", 1, event(6), event(7))  # never got to its beginning
    store.write(f"{NAME}/{EVENTS_FOLDER}/.clock-aa", b"x")
    assert numbers(store) == [1, 2, 3, 4, 5]
    assert lines_of(store)[2:] == [begun(3, "bb", 2), event(4, "twenty"), begun(5, "cc", 3)]


def test_a_torn_last_line_is_cut_off() -> None:
    store = DictStore()
    put(store, "aa", 1, begun(1, "aa", 1), event(2))
    put(store, "aa", 2, event(3), event(4)[:-1])
    assert numbers(store) == [1, 2, 3]
    put(store, "bb", 1, begun(4, "bb", 2), event(5)[:7])
    assert numbers(store) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ({"aa-1": [begun(1, "aa", 1), event(2), event(4)]}, "event 3 is missing, events up to 4 are there"),
        ({"aa-1": [begun(1, "aa", 1)], "bb-1": [begun(3, "bb", 2)]}, "event 2 is missing"),
        ({"aa-2": [begun(2, "aa", 1)]}, "event 1 is missing"),
        (
            {"aa-1": [begun(1, "aa", 1), b"{}\n", event(3)]},
            "aa-000001.jsonl: line 2 is damaged, its check sum",
        ),
        ({"aa-1": [begun(1, "aa", 1)[:-3]], "aa-2": [event(2)]}, "aa-000001.jsonl: ends in mid-line"),
        ({"aa-1": [begun(1, "aa", 1), event(2)], "aa-2": [event(2, "else")]}, "line 1 is another event 2"),
        ({"aa-1": [begun(1, "aa", 1)], "bb-1": [begun(1, "bb", 1)]}, "aa and bb both wrote session 1"),
    ],
)
def test_a_log_that_is_not_whole(segments: dict[str, list[bytes]], said: str) -> None:
    store = DictStore()
    for name, lines in segments.items():
        owner, number = name.split("-")
        put(store, owner, int(number), *lines)
    with pytest.raises(ExperimentError, match=said) as refused:
        read_segments(store, NAME)
    assert str(refused.value).startswith("memory://nowhere/one/events")
    assert "\n" not in str(refused.value)


def test_the_local_log_is_brought_up_to_the_stores(tmp_path: Path) -> None:
    store, path = DictStore(), tmp_path / "copy" / EVENTS_FILE
    assert download(store, NAME, path) == 0
    assert not path.exists()
    lines = [begun(1, "aa", 1), event(2), event(3)]
    put(store, "aa", 1, *lines)
    whole = b"".join(lines)
    assert download(store, NAME, path) == len(whole)
    assert path.read_bytes() == whole
    # Its upload was cut off: what the store lacks stays, a torn line too, which the log itself cuts off.
    append(path, event(4, "ten"), event(5)[:9])
    longer = path.read_bytes()
    assert download(store, NAME, path) == len(whole)
    assert path.read_bytes() == longer
    # Another machine has gone on without it.
    put(store, "bb", 1, begun(4, "bb", 2))
    assert download(store, NAME, path) == len(whole) + len(begun(4, "bb", 2))
    assert path.read_bytes() == whole + begun(4, "bb", 2)
    path.write_bytes(whole[:30])
    download(store, NAME, path)
    assert path.read_bytes() == whole + begun(4, "bb", 2)
    assert [file.name for file in path.parent.iterdir()] == [EVENTS_FILE]


class Machines(RuleBasedStateMachine):
    """Two machines with a disk each; whoever resumes last has the lease, the other may not know it yet."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.store = DictStore()
        self.terms = 0
        self.events = 0
        self.sessions: list[tuple[str, SegmentUploader] | None] = [None, None]
        self.holder: int | None = None
        self.latest: int | None = None
        self.promised: list[bytes] = []
        """What a `publish` of the holder said is up."""

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def log(self, machine: int) -> Path:
        return self.folder / str(machine) / EVENTS_FILE

    def local(self, machine: int) -> list[bytes]:
        """The whole lines on a machine's disk."""
        return self.log(machine).read_bytes().split(b"\n")[:-1] if self.log(machine).exists() else []

    @rule(
        machine=st.sampled_from([0, 1]),
        fails=st.lists(st.sampled_from(["", "", "lost", "unheard"]), max_size=3),
    )
    def resume(self, machine: int, fails: list[str]) -> None:
        """Take the lease, read the log, begin a session, which counts once its beginning is up."""
        self.terms += 1
        owner = f"owner{(self.terms * 7919) % 1000}"  # in no order
        self.holder = None
        before = self.local(machine)
        start = download(self.store, NAME, self.log(machine))
        kept = self.local(machine)
        assert kept[: len(self.promised)] == self.promised
        if (
            machine == self.latest
        ):  # nobody has begun elsewhere: what could not be brought up is not lost either
            assert kept == before
        self.latest = None
        self.log(machine).parent.mkdir(exist_ok=True)
        self.log(machine).write_bytes(b"".join(line + b"\n" for line in kept))  # a torn line is cut off
        uploader = SegmentUploader(self.store, NAME, owner, self.log(machine), start, segment_bytes=200)
        uploader.publish()  # as a thread may before the session's beginning is written
        append(self.log(machine), begun(len(kept) + 1, owner, self.terms))
        self.sessions[machine] = (owner, uploader)
        self.holder = machine
        if self.published(machine, fails):
            self.latest = machine
        else:
            self.crash(machine)

    @precondition(lambda self: any(self.sessions))
    @rule(machine=st.sampled_from([0, 1]), count=st.integers(1, 6), between=st.booleans())
    def append(self, machine: int, count: int, between: bool) -> None:
        if self.sessions[machine]:
            number = len(self.local(machine))
            for index in range(count):
                self.events += 1
                line = event(number + index + 1, self.events)
                append(self.log(machine), line[:9])
                if between:  # the thread that publishes does not wait for the end of a line
                    self.published(machine, [])
                append(self.log(machine), line[9:])

    @precondition(lambda self: any(self.sessions))
    @rule(
        machine=st.sampled_from([0, 1]),
        fails=st.lists(st.sampled_from(["", "lost", "unheard"]), max_size=3),
        again=st.booleans(),
    )
    def publish(self, machine: int, fails: list[str], again: bool) -> None:
        if self.sessions[machine] and not self.published(machine, fails) and again:
            self.published(machine, [])

    def published(self, machine: int, fails: list[str]) -> bool:
        session = self.sessions[machine]
        assert session
        self.store.fails = list(fails)
        try:
            session[1].publish()
        except StorageError:
            return False
        finally:
            self.store.fails = []
        if machine == self.holder:
            self.promised = self.local(machine)
        return True

    @precondition(lambda self: any(self.sessions))
    @rule(machine=st.sampled_from([0, 1]), torn=st.booleans())
    def crash(self, machine: int, torn: bool = False) -> None:
        if torn and self.sessions[machine]:
            append(self.log(machine), event(len(self.local(machine)) + 1, "torn")[:-4])
        self.sessions[machine] = None
        if machine == self.holder:
            self.holder = None

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        if not hasattr(self, "store"):
            return
        lines = [line.rstrip() for line in lines_of(self.store)]
        assert lines[: len(self.promised)] == self.promised
        entries = [decode(line) for line in lines]
        assert [entry.number for entry in entries] == list(range(1, len(lines) + 1))
        told = [entry.event.reason for entry in entries if isinstance(entry.event, TrialRecovered)]
        assert len(set(told)) == len(told)
        if self.holder is not None:
            assert self.local(self.holder)[: len(lines)] == lines


TestMachines = Machines.TestCase
TestMachines.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    give_keys(monkeypatch, tmp_path / "first")
    with s3_server() as server:
        yield server.uri("logs")


def test_the_log_and_the_lease_are_no_small_files(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = ObjectStore(s3), Storage.parse(s3).experiment(NAME)
    lease = Lease.take(store, NAME, "aa")
    folder.path.mkdir(parents=True)
    (folder.path / "experiment.yaml").write_text("x")
    append(folder.path / EVENTS_FILE, begun(1, "aa", 1), *(event(number) for number in range(2, 500)))
    folder.upload()
    SegmentUploader(store, NAME, "aa", folder.path / EVENTS_FILE, segment_bytes=10_000).publish()
    names = set(store.files(NAME))
    assert {name for name in names if not name.startswith(f"{EVENTS_FOLDER}/")} == {
        "experiment.yaml",
        LEASE_FILE,
    }
    assert len(names) > 3
    lease.release()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    there = Storage.parse(s3).experiment(NAME)
    there.download()
    assert {file.name for file in there.path.iterdir()} == {".lock", ".uploaded.json", "experiment.yaml"}
    download(store, NAME, there.path / EVENTS_FILE)
    assert (there.path / EVENTS_FILE).read_bytes() == (folder.path / EVENTS_FILE).read_bytes()
    there.download()
    assert (there.path / EVENTS_FILE).exists()
