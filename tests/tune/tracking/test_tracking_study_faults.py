"""The Optuna study after kills, damage, full disks, and what others did to it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from event_logs import RUNGS, MadeLog, follow
from optuna.trial import TrialState
from studies import held, in_one_go, journal, place_of, study, tracker_of

from tune.tracking.optuna_study import OptunaTracker
from tune.tracking.tracker import Position
from tune.util.errors import TrackingError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=["journal", "database"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_sigkill_in_the_middle_of_writing_loses_nothing(tmp_path: Path) -> None:
    """Five followers that write event by event are killed at some moment; the sixth finds what they left."""
    made = MadeLog(tmp_path)
    made.begin(200)
    for number in range(1, 201):
        trial = made.propose(f"{number:03d}", 1e-3 + number * 1e-6)
        for rung in RUNGS:
            made.measure(trial, rung, 100.0 - number / 10)
        made.end(trial, "completed")
    moments = random.Random(1)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'tests')\n"
        "from event_logs import MadeLog, follow; from tune.tracking.optuna_study import OptunaTracker\n"
        f"made = MadeLog(Path({str(tmp_path)!r}))\n"
        "follow(OptunaTracker(), made, range(1, 2000, 7))\n"
    )
    for reached in (3_000, 20_000, 40_000, 60_000, 80_000):
        child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        while not journal(made).exists() or journal(made).stat().st_size < reached:
            assert child.poll() is None, "it was to be killed while it writes"
        time.sleep(moments.uniform(0, 0.02))
        child.kill()
        assert child.wait() == -signal.SIGKILL
    follow(OptunaTracker(), made)
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


def damage(journal: Path, how: str) -> None:
    content = journal.read_bytes()
    lines = content.splitlines(keepends=True)
    if how == "torn":
        content = content[: -len(lines[-1]) // 2]
    elif how == "no line break":
        content = content[:-1]
    elif how == "zeros":  # a machine that lost power
        content = content[: -len(lines[-1])] + bytes(len(lines[-1]) - 1) + b"\n"
    elif how == "middle":
        lines[3] = lines[3][:20] + b"\n"
        content = b"".join(lines)
    elif how == "concatenated":  # a torn line that something was written behind
        lines[3] = lines[3][:-20]
        content = b"".join(lines)
    elif how == "no study":
        content = b"".join(lines[2:])
    elif how == "not a journal":
        content = b"[1, 2]\n"
    elif how == "not text":
        content = b"\xff\xfe\x00" * 9 + b"\n" + content
    elif how == "empty":
        content = b""
    journal.write_bytes(content)


HOW = (
    "torn",
    "no line break",
    "zeros",
    "middle",
    "concatenated",
    "no study",
    "not a journal",
    "not text",
    "empty",
)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_journal_is_made_anew(tmp_path: Path, how: str) -> None:
    made = MadeLog(tmp_path)
    made.four()
    follow(OptunaTracker(), made)
    damage(journal(made), how)
    made.propose("005")
    made.measure("005", 100, 40.0)
    assert follow(OptunaTracker(), made) == Position(), "all of it is missing"
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


def test_a_journal_that_somebody_removes_is_made_anew(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.four()
    tracker = OptunaTracker()
    follow(tracker, made)
    journal(made).unlink()
    made.propose("005")
    follow(tracker, made, [len(made.entries) - 2], opened=True)
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


@pytest.mark.parametrize("how", HOW)
def test_a_journal_that_is_damaged_under_a_follower_is_made_anew_by_the_next(
    tmp_path: Path, how: str
) -> None:
    made = MadeLog(tmp_path)
    made.four()
    tracker = OptunaTracker()
    follow(tracker, made)
    damage(journal(made), how)
    made.propose("005")
    made.measure("005", 100, 40.0)
    with contextlib.suppress(TrackingError):  # or it notices nothing: Optuna reads what is new alone
        follow(tracker, made, [len(made.entries) - 3], opened=True)
    follow(OptunaTracker(), made)
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


@pytest.mark.parametrize("kind", ["file", "symbolic link"])
def test_the_lock_of_a_dead_follower_is_removed(tmp_path: Path, kind: str) -> None:
    """Optuna's own patience with it is 30 seconds for every line."""
    made = MadeLog(tmp_path)
    made.four()
    lock = Path(f"{journal(made)}.lock")
    if kind == "file":
        lock.touch()
    else:
        lock.symlink_to(journal(made))
    began = time.monotonic()
    follow(OptunaTracker(), made)
    assert time.monotonic() - began < 10
    assert len(held(journal(made))) == 4
    assert not os.path.lexists(lock)


@pytest.mark.parametrize("cut", ["and that was all", "and went on"])
def test_a_log_that_was_cut_back_takes_the_study_with_it(tmp_path: Path, kind: str, cut: str) -> None:
    """As the message of a damaged line says: cut the file before it and go on from there."""
    made = MadeLog(tmp_path)
    made.four()
    made.propose("005")
    follow(tracker_of(made, kind), made)
    lines = made.path.read_bytes().splitlines(keepends=True)
    made.path.write_bytes(b"".join(lines[:-2]))
    again = MadeLog(tmp_path)
    if cut == "and went on":
        again.propose("005", 9e-3)
    tracker = tracker_of(again, kind)
    tracker.open(again.saved())
    tracker.deliver(again.entries, again.saved())
    assert held(place_of(again, kind)) == in_one_go(again, tmp_path / "whole")


def test_what_somebody_did_to_it_in_the_dashboard_is_undone(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path)
    made.begin()
    made.propose("001")
    tracker, place = tracker_of(made, kind), place_of(made, kind)
    follow(tracker, made)
    study(place).tell(0, 1.0)
    made.measure("001", 100, 50.0)
    with pytest.raises(TrackingError, match="cannot be used: "):
        follow(tracker, made, [4], opened=True)
    follow(tracker, made, [4], opened=True)
    assert held(place)[0][4:7] == (TrialState.RUNNING, None, {100: 50.0})
    optuna.delete_study(study_name="exp", storage=study(place)._storage)
    made.measure("001", 300, 40.0)
    with pytest.raises(TrackingError, match=r"cannot be used: .*not exist") as caught:
        follow(tracker, made, [5], opened=True)
    assert "\n" not in str(caught.value)
    follow(tracker, made, [5], opened=True)
    assert held(place) == in_one_go(made, tmp_path / "whole")


def test_a_full_disk_is_told_and_the_next_delivery_mends_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.four()
    code = (
        "import resource, signal, sys; from pathlib import Path; sys.path.insert(0, 'tests')\n"
        "from event_logs import MadeLog; from tune.util.errors import TrackingError\n"
        "from tune.tracking.optuna_study import OptunaTracker\n"
        f"made = MadeLog(Path({str(tmp_path)!r})); tracker = OptunaTracker(); tracker.open(made.saved())\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))\n"
        "try:\n    tracker.deliver(made.entries, made.saved())\n"
        "except TrackingError as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "tracker.deliver([], made.saved())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{journal(made)}: cannot be used: [Errno 27] File too large\n"
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


def test_a_database_that_goes_away_gets_the_rest_when_it_is_back(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.begin()
    made.propose("001")
    (tmp_path / "there").mkdir()
    url = f"sqlite:///{tmp_path / 'there' / 'study.db'}"
    tracker = OptunaTracker(url)
    follow(tracker, made)
    (tmp_path / "there").rename(tmp_path / "gone")
    tracker.close()
    made.measure("001", 100, 30.0)
    for _ in range(2):
        with pytest.raises(TrackingError, match="cannot be used"):
            follow(tracker, made, [4], opened=True)
    (tmp_path / "gone").rename(tmp_path / "there")
    follow(tracker, made, [4], opened=True)
    assert held(url) == in_one_go(made, tmp_path / "whole")
