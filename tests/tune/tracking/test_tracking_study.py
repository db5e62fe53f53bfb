"""The Optuna study that a follower writes: what it holds, however it was delivered; damage, kills, full disks."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from made_logs import BEGAN, RUNGS, MadeLog, follow
from optuna.trial import TrialState

from tune.experiments.events import TrialProposed
from tune.experiments.saved import SavedExperiment
from tune.experiments.settings import ExperimentSettings
from tune.experiments.state import SearchState
from tune.tracking.optuna_study import STUDY_FILE, OptunaTracker, check_study
from tune.tracking.tracker import Position
from tune.util.errors import ExperimentError, TrackingError

ROOT = Path(__file__).resolve().parents[3]

COMPLETE, PRUNED, FAIL, RUNNING = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING


@pytest.fixture(params=["journal", "database"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def journal(made: MadeLog) -> Path:
    return made.folder / STUDY_FILE


def study(place: str | Path, name: str = "exp") -> optuna.Study:
    """As anybody opens it."""
    storage: Any = str(place)
    if isinstance(place, Path):
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(place)))
    return optuna.load_study(study_name=name, storage=storage)


def held(place: str | Path) -> list[tuple[Any, ...]]:
    """All that the study says of its trials, without the times, which are those of delivery for what ended live."""
    return [
        (
            *(trial.number, trial.user_attrs, trial.params, trial.distributions),
            *(trial.state, trial.values, trial.intermediate_values, trial.system_attrs),
        )
        for trial in study(place).trials
    ]


def in_one_go(made: MadeLog, folder: Path) -> list[tuple[Any, ...]]:
    """What a study has to hold: that of another follower, which got the whole log at once."""
    whole = MadeLog(folder / "exp")
    whole.log.path.write_bytes(made.log.path.read_bytes())
    follow(OptunaTracker(), whole)
    return held(journal(whole))


def place_of(made: MadeLog, kind: str) -> str | Path:
    return journal(made) if kind == "journal" else f"sqlite:///{made.folder / 'study.db'}"


def tracker_of(made: MadeLog, kind: str) -> OptunaTracker:
    place = place_of(made, kind)
    return OptunaTracker(None if isinstance(place, Path) else place)


def test_it_holds_what_the_log_says(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    settings = made.saved_at().state.records["001"].config
    made.log.append(TrialProposed(trial_id="average", config=settings, kind="average"))
    made.begin("001-r1", seed=1)
    made.measure("001-r1", 3200, 5.0)
    made.end("001-r1", "completed")
    made.finish()
    assert follow(tracker_of(made, kind), made) == Position()
    found = study(place_of(made, kind))
    assert found.direction == optuna.study.StudyDirection.MINIMIZE
    assert [trial.state for trial in found.trials] == [COMPLETE, PRUNED, FAIL, FAIL], (
        "without repeat and average"
    )
    assert [trial.user_attrs for trial in found.trials] == [
        {"trial_id": f"00{number}"} for number in (1, 2, 3, 4)
    ]
    assert [trial.values for trial in found.trials] == [[11.0], [70.0], None, None]
    assert [trial.params["learning_rate"] for trial in found.trials] == [1e-3, 2e-3, 3e-3, 4e-3]
    assert [trial.intermediate_values for trial in found.trials] == [
        *({384: 30.0, 1088: 11.0, 3200: 12.0}, {384: 70.0}, {}, {})
    ]
    assert found.trials[0].distributions == made.saved_at().space.to_optuna()  # type: ignore[union-attr]
    assert (found.best_value, found.best_trial.number) == (11.0, 0)
    before = held(place_of(made, kind))
    follow(tracker_of(made, kind), made, remember=False)  # the position is known: there is nothing to do
    tracker = tracker_of(made, kind)
    tracker.open(made.saved_at())
    tracker.deliver(made.entries, made.saved_at())
    assert held(place_of(made, kind)) == before, "what is delivered twice is there once"


def test_a_log_without_events_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    """A follower is there before the first of them, and before `experiment.yaml`."""
    made = MadeLog(tmp_path / "exp")
    tracker = tracker_of(made, kind)
    nothing = SavedExperiment(made.experiment, ExperimentSettings(), SearchState())
    assert tracker.open(nothing) == Position()
    assert not journal(made).exists()
    made.four()
    tracker.deliver(made.entries, made.saved_at())
    tracker.delivered(Position(len(made.entries)))
    assert held(place_of(made, kind)) == in_one_go(made, tmp_path / "whole")


def test_times_are_those_of_the_log(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    follow(tracker_of(made, kind), made)
    first = study(place_of(made, kind)).trials[0]
    number = {
        type(entry.event).__name__ + getattr(entry.event, "trial_id", ""): entry.number
        for entry in made.entries
    }
    assert first.datetime_start.timestamp() == BEGAN + number["TrialStarted001"] - 1
    assert first.datetime_complete.timestamp() == BEGAN + number["TrialEnded001"] - 1


def test_trials_show_while_they_run(tmp_path: Path, kind: str) -> None:
    made, place = MadeLog(tmp_path / "exp"), None
    made.session()
    tracker = tracker_of(made, kind)
    place = place_of(made, kind)
    follow(tracker, made)
    made.begin("001")
    made.measure("001", 384, 30.0)
    follow(tracker, made, opened=True)
    assert [(trial.state, trial.intermediate_values) for trial in study(place).trials] == [
        (RUNNING, {384: 30.0})
    ]
    made.measure("001", 1088, 20.0)
    made.begin("002")
    follow(tracker, made, opened=True)
    assert [trial.intermediate_values for trial in study(place).trials] == [{384: 30.0, 1088: 20.0}, {}]


def test_none_is_left_running_and_those_that_go_on_run_again(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("005")
    made.measure("005", 384, 40.0)
    made.finish()
    place = place_of(made, kind)
    tracker = tracker_of(made, kind)
    follow(tracker, made, [len(made.entries) - 1])
    before = held(place)
    assert (before[4][4], before[4][6]) == (FAIL, {384: 40.0})
    made.session()
    assert follow(tracker_of(made, kind), made).events == len(made.entries) - 1
    after = held(place)
    assert after[:4] == before[:4]
    assert (after[4][4], after[4][6]) == (RUNNING, {384: 40.0})
    made.measure("005", 1088, 10.5)
    made.measure("005", 3200, 10.0)
    made.end("005", "completed")
    made.finish()
    follow(tracker_of(made, kind), made)
    assert held(place)[4][4:7] == (COMPLETE, [10.0], {384: 40.0, 1088: 10.5, 3200: 10.0})
    assert study(place).best_value == 10.0


def test_one_that_was_decided_before_a_kill_ends_as_what_was_decided(tmp_path: Path, kind: str) -> None:
    """Killed between the evaluation and the trial's end: the next session ends it."""
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    made.measure("001", 384, 40.0, stop=True)
    tracker = tracker_of(made, kind)
    follow(tracker, made)
    assert held(place_of(made, kind))[0][4] == RUNNING
    made.session()
    tracker.deliver(made.entries[-1:], made.saved_at())
    assert held(place_of(made, kind))[0][4:6] == (PRUNED, [40.0])


@pytest.mark.parametrize("what", ["killed", "forgotten"])
def test_delivered_event_by_event_by_ever_new_followers(tmp_path: Path, kind: str, what: str) -> None:
    """Killed before it remembers the event, or that is forgotten, as by a store that was brought back."""
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("005")
    made.measure("005", 384, 40.0)
    made.finish("interrupted")
    made.session()
    made.measure("005", 1088, 30.0)
    made.measure("005", 384, 41.0)  # its checkpoint was lost
    made.begin("006")
    entries = made.entries
    for end in range(1, len(entries) + 1):
        tracker = tracker_of(made, kind)
        done = tracker.open(made.saved_at(end)).events
        tracker.deliver(entries[done:end], made.saved_at(end))
        if what == "forgotten" and end % 3:
            tracker.delivered(Position(end))
    assert held(place_of(made, kind)) == in_one_go(made, tmp_path / "whole")


def test_a_database_with_a_study_of_this_name_is_refused(tmp_path: Path) -> None:
    first = MadeLog(tmp_path / "one" / "exp")
    first.four()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    follow(OptunaTracker(url), first)
    before = held(url)
    with pytest.raises(ExperimentError, match=r"^--optuna-storage sqlite:.*: has a study 'exp' already; .*$"):
        check_study(url, "exp")
    check_study(url, "another")
    check_study(url, None)
    other = MadeLog(tmp_path / "two" / "exp", created="2024-02-02T00:00:00+00:00")
    other.session()
    with pytest.raises(ExperimentError, match=r"has a study 'exp' already"):
        OptunaTracker(url).open(other.saved_at())
    assert held(url) == before
    moved = MadeLog(tmp_path / "moved" / "exp")  # the first one, from elsewhere
    moved.log.path.write_bytes(first.log.path.read_bytes())
    assert follow(OptunaTracker(url), moved).events == len(first.entries)


def test_one_that_was_killed_before_the_study_was_marked_goes_on(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    optuna.create_study(study_name="exp", storage=url, direction="maximize")
    follow(OptunaTracker(url), made)
    assert study(url).best_value == 11.0
    optuna.create_study(study_name="theirs", storage=url).set_user_attr("for", "something")
    theirs = MadeLog(tmp_path / "theirs")
    theirs.session()
    with pytest.raises(ExperimentError, match="has a study 'theirs' already"):
        follow(OptunaTracker(url), theirs)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/there/is/optuna.db",
        "nonsense",
        "postgresql://user:topsecret@127.0.0.1:9/db",
        "postgresql://user:topsecret@127.0.0.1:port/db",
        "mysql+nodriver://user:topsecret@127.0.0.1:9/db",
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(tmp_path: Path, url: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    with pytest.raises(ExperimentError) as early:
        check_study(url, "exp")
    with pytest.raises(TrackingError) as late:
        follow(OptunaTracker(url), made)
    for text in (str(early.value), str(late.value)):
        assert text.startswith("--optuna-storage ")
        assert ": cannot be used: " in text
        assert "\n" not in text
        assert "topsecret" not in text


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    check_study(url, "exp")
    with contextlib.closing(sqlite3.connect(tmp_path / "old.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v0.9.0.a'")
    with pytest.raises(ExperimentError, match="cannot be used: The runtime optuna version"):
        check_study(url, "exp")


def test_sigkill_in_the_middle_of_writing_loses_nothing(tmp_path: Path) -> None:
    """Five followers that write event by event are killed at some moment; the sixth finds what they left."""
    made = MadeLog(tmp_path / "exp")
    made.session(trials=200)
    for number in range(1, 201):
        trial = made.begin(f"{number:03d}", learning_rate=1e-3 + number * 1e-6)
        for rung in RUNGS:
            made.measure(trial, rung, 100.0 - number / 10)
        made.end(trial, "completed")
    moments = random.Random(1)
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'tests/support')\n"
        "from made_logs import MadeLog, follow; from tune.tracking.optuna_study import OptunaTracker\n"
        f"made = MadeLog(Path({str(tmp_path)!r}, 'exp'))\n"
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
    if how == "removed":
        journal.unlink()


@pytest.mark.parametrize("follower", ["the next one", "one that is there"])
@pytest.mark.parametrize(
    "how",
    [
        *(
            "torn",
            "no line break",
            "zeros",
            "middle",
            "concatenated",
            "no study",
            "not a journal",
            "not text",
        ),
        *("empty", "removed"),
    ],
)
def test_a_damaged_journal_is_made_anew(tmp_path: Path, how: str, follower: str) -> None:
    made, tracker = MadeLog(tmp_path / "exp"), OptunaTracker()
    made.four()
    follow(tracker, made)
    damage(journal(made), how)
    made.begin("005")
    made.measure("005", 384, 40.0)
    if follower == "one that is there":
        with contextlib.suppress(TrackingError):  # or it notices nothing: Optuna reads what is new alone
            follow(tracker, made, opened=True)
    begun = follow(OptunaTracker(), made)
    assert begun == Position() or follower == "one that is there", "all of it is missing"
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


@pytest.mark.parametrize("kind", ["file", "symbolic link"])
def test_the_lock_of_a_dead_follower_is_removed(tmp_path: Path, kind: str) -> None:
    """Optuna's own patience with it is 30 seconds for every line."""
    made = MadeLog(tmp_path / "exp")
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
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("005")
    follow(tracker_of(made, kind), made)
    lines = made.log.path.read_bytes().splitlines(keepends=True)
    made.log.path.write_bytes(b"".join(lines[:-2]))
    again = MadeLog(tmp_path / "exp")
    if cut == "and went on":
        again.begin("005", learning_rate=9e-3)
    tracker = tracker_of(again, kind)
    tracker.open(again.saved_at())
    tracker.deliver(again.entries, again.saved_at())
    assert held(place_of(again, kind)) == in_one_go(again, tmp_path / "whole")


def test_what_somebody_did_to_it_in_the_dashboard_is_undone(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    tracker, place = tracker_of(made, kind), place_of(made, kind)
    follow(tracker, made)
    study(place).tell(0, 1.0)
    made.measure("001", 384, 50.0)
    with pytest.raises(TrackingError, match="cannot be used: "):
        follow(tracker, made, opened=True)
    follow(tracker, made)
    assert held(place)[0][4:7] == (TrialState.RUNNING, None, {384: 50.0})
    optuna.delete_study(study_name="exp", storage=study(place)._storage)
    made.measure("001", 1088, 40.0)
    with pytest.raises(TrackingError, match=r"cannot be used: .*not exist") as caught:
        follow(tracker, made, opened=True)
    assert "\n" not in str(caught.value)
    follow(tracker, made)
    assert held(place) == in_one_go(made, tmp_path / "whole")


def test_a_full_disk_is_told_and_the_next_delivery_mends_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    code = (
        "import resource, signal, sys; from pathlib import Path; sys.path.insert(0, 'tests/support')\n"
        "from made_logs import MadeLog, follow; from tune.util.errors import TrackingError\n"
        "from tune.tracking.optuna_study import OptunaTracker\n"
        f"made = MadeLog(Path({str(tmp_path)!r}, 'exp')); tracker = OptunaTracker(); tracker.open(made.saved_at())\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))\n"
        "try:\n    tracker.deliver(made.entries, made.saved_at())\n"
        "except TrackingError as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "follow(tracker, made)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"{journal(made)}: cannot be used: [Errno 27] File too large\n"
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


def test_a_database_that_goes_away_gets_the_rest_when_it_is_back(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    (tmp_path / "there").mkdir()
    url = f"sqlite:///{tmp_path / 'there' / 'study.db'}"
    tracker = OptunaTracker(url)
    follow(tracker, made)
    (tmp_path / "there").rename(tmp_path / "gone")
    made.measure("001", 384, 30.0)
    for _ in range(2):
        with pytest.raises(TrackingError, match="cannot be used"):
            follow(tracker, made)
    (tmp_path / "gone").rename(tmp_path / "there")
    follow(tracker, made)
    assert held(url) == in_one_go(made, tmp_path / "whole")
