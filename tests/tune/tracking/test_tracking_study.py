"""The Optuna study of an experiment: what it holds, however it was synced; damage, kills, full disks."""

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
from made_logs import BEGAN, RUNGS, MadeLog, sync_in_steps
from optuna.trial import TrialState

from tune.experiments.events import TrialProposed
from tune.tracking.optuna_study import STUDY_FILE, OptunaStore, check_study
from tune.tracking.sync import Log
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
    """What a study has to hold: that of another store, which got the whole log at once."""
    whole = MadeLog(folder / "exp")
    whole.log.path.write_bytes(made.log.path.read_bytes())
    sync_in_steps(store_of(whole), whole)
    return held(journal(whole))


def place_of(made: MadeLog, kind: str) -> str | Path:
    return journal(made) if kind == "journal" else f"sqlite:///{made.folder / 'study.db'}"


def store_of(made: MadeLog, kind: str = "journal") -> OptunaStore:
    return OptunaStore(place_of(made, kind))


def test_it_holds_what_the_log_says(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    settings = made.saved_at().state.records["001"].config
    made.log.append(TrialProposed(trial_id="average", config=settings, kind="average"))
    made.begin("001-r1", seed=1)
    made.measure("001-r1", 3200, 5.0)
    made.end("001-r1", "completed")
    made.finish()
    sync_in_steps(store_of(made, kind), made)
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
    sync_in_steps(store_of(made, kind), made)
    assert held(place_of(made, kind)) == before, "what is synced twice is there once"


def test_a_log_without_events_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    """Stores are connected before the first of them, and before `experiment.yaml`."""
    made = MadeLog(tmp_path / "exp")
    store = store_of(made, kind)
    store.sync(Log(made.experiment))
    assert not journal(made).exists()
    made.four()
    store.sync(made.log_at())
    assert held(place_of(made, kind)) == in_one_go(made, tmp_path / "whole")


def test_times_are_those_of_the_log(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    sync_in_steps(store_of(made, kind), made)
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
    store = store_of(made, kind)
    place = place_of(made, kind)
    store.sync(made.log_at())
    made.begin("001")
    made.measure("001", 384, 30.0)
    store.sync(made.log_at())
    assert [(trial.state, trial.intermediate_values) for trial in study(place).trials] == [
        (RUNNING, {384: 30.0})
    ]
    made.measure("001", 1088, 20.0)
    made.begin("002")
    store.sync(made.log_at())
    assert [trial.intermediate_values for trial in study(place).trials] == [{384: 30.0, 1088: 20.0}, {}]


def test_none_is_left_running_and_those_that_go_on_run_again(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("005")
    made.measure("005", 384, 40.0)
    made.finish()
    place = place_of(made, kind)
    store = store_of(made, kind)
    sync_in_steps(store, made, [len(made.entries) - 1])
    before = held(place)
    assert (before[4][4], before[4][6]) == (FAIL, {384: 40.0})
    made.session()
    sync_in_steps(store_of(made, kind), made)
    after = held(place)
    assert after[:4] == before[:4]
    assert (after[4][4], after[4][6]) == (RUNNING, {384: 40.0})
    made.measure("005", 1088, 10.5)
    made.measure("005", 3200, 10.0)
    made.end("005", "completed")
    made.finish()
    sync_in_steps(store_of(made, kind), made)
    assert held(place)[4][4:7] == (COMPLETE, [10.0], {384: 40.0, 1088: 10.5, 3200: 10.0})
    assert study(place).best_value == 10.0


def test_one_that_was_decided_before_a_kill_ends_as_what_was_decided(tmp_path: Path, kind: str) -> None:
    """Killed between the evaluation and the trial's end: the next session ends it."""
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    made.measure("001", 384, 40.0, stop=True)
    store = store_of(made, kind)
    store.sync(made.log_at())
    assert held(place_of(made, kind))[0][4] == RUNNING
    made.session()
    store.sync(made.log_at())
    assert held(place_of(made, kind))[0][4:6] == (PRUNED, [40.0])


def test_synced_event_by_event_by_ever_new_stores(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("005")
    made.measure("005", 384, 40.0)
    made.finish("interrupted")
    made.session()
    made.measure("005", 1088, 30.0)
    made.measure("005", 384, 41.0)  # its checkpoint was lost
    made.begin("006")
    for end in range(1, len(made.entries) + 1):
        store_of(made, kind).sync(made.log_at(end))
    assert held(place_of(made, kind)) == in_one_go(made, tmp_path / "whole")


def test_a_database_with_a_study_of_this_name_is_refused(tmp_path: Path) -> None:
    first = MadeLog(tmp_path / "one" / "exp")
    first.four()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    sync_in_steps(OptunaStore(url), first)
    before = held(url)
    with pytest.raises(ExperimentError, match=r"^--optuna-storage sqlite:.*: has a study 'exp' already; .*$"):
        check_study(url, "exp")
    check_study(url, "another")
    check_study(url, None)
    other = MadeLog(tmp_path / "two" / "exp", created="2024-02-02T00:00:00+00:00")
    other.session()
    with pytest.raises(ExperimentError, match=r"has a study 'exp' already"):
        sync_in_steps(OptunaStore(url), other)
    assert held(url) == before
    moved = MadeLog(tmp_path / "moved" / "exp")  # the first one, from elsewhere
    moved.log.path.write_bytes(first.log.path.read_bytes())
    sync_in_steps(OptunaStore(url), moved)
    assert held(url) == before


def test_one_that_was_killed_before_the_study_was_marked_goes_on(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    optuna.create_study(study_name="exp", storage=url, direction="maximize")
    sync_in_steps(OptunaStore(url), made)
    assert study(url).best_value == 11.0
    optuna.create_study(study_name="theirs", storage=url).set_user_attr("for", "something")
    theirs = MadeLog(tmp_path / "theirs")
    theirs.session()
    with pytest.raises(ExperimentError, match="has a study 'theirs' already"):
        sync_in_steps(OptunaStore(url), theirs)


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
        sync_in_steps(OptunaStore(url), made)
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
    """Five processes that sync some events at a time are killed at some moment; the sixth finds what they left."""
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
        "from made_logs import MadeLog, sync_in_steps; from tune.tracking.optuna_study import OptunaStore\n"
        f"made = MadeLog(Path({str(tmp_path)!r}, 'exp'))\n"
        "sync_in_steps(OptunaStore(made.folder / 'optuna_journal.log'), made, range(1, 2000, 7))\n"
    )
    for reached in (3_000, 20_000, 40_000, 60_000, 80_000):
        child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        while not journal(made).exists() or journal(made).stat().st_size < reached:
            assert child.poll() is None, "it was to be killed while it writes"
        time.sleep(moments.uniform(0, 0.02))
        child.kill()
        assert child.wait() == -signal.SIGKILL
    sync_in_steps(store_of(made), made)
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


@pytest.mark.parametrize("whose", ["the next one", "one that is there"])
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
def test_a_damaged_journal_is_made_anew(tmp_path: Path, how: str, whose: str) -> None:
    made = MadeLog(tmp_path / "exp")
    store = store_of(made)
    made.four()
    store.sync(made.log_at())
    damage(journal(made), how)
    made.begin("005")
    made.measure("005", 384, 40.0)
    if whose == "one that is there":
        with contextlib.suppress(TrackingError):  # or it notices nothing: Optuna reads what is new alone
            store.sync(made.log_at())
    sync_in_steps(store_of(made), made)
    assert held(journal(made)) == in_one_go(made, tmp_path / "whole")


@pytest.mark.parametrize("kind", ["file", "symbolic link"])
def test_the_lock_of_a_dead_process_is_removed(tmp_path: Path, kind: str) -> None:
    """Optuna's own patience with it is 30 seconds for every line."""
    made = MadeLog(tmp_path / "exp")
    made.four()
    lock = Path(f"{journal(made)}.lock")
    if kind == "file":
        lock.touch()
    else:
        lock.symlink_to(journal(made))
    began = time.monotonic()
    sync_in_steps(store_of(made), made)
    assert time.monotonic() - began < 10
    assert len(held(journal(made))) == 4
    assert not os.path.lexists(lock)


@pytest.mark.parametrize("cut", ["and that was all", "and went on"])
def test_a_log_that_was_cut_back_takes_the_study_with_it(tmp_path: Path, kind: str, cut: str) -> None:
    """As the message of a damaged line says: cut the file before it and go on from there."""
    made = MadeLog(tmp_path / "exp")
    made.four()
    made.begin("005")
    sync_in_steps(store_of(made, kind), made)
    lines = made.log.path.read_bytes().splitlines(keepends=True)
    made.log.path.write_bytes(b"".join(lines[:-2]))
    again = MadeLog(tmp_path / "exp")
    if cut == "and went on":
        again.begin("005", learning_rate=9e-3)
    sync_in_steps(store_of(again, kind), again)
    assert held(place_of(again, kind)) == in_one_go(again, tmp_path / "whole")


def test_what_somebody_did_to_it_in_the_dashboard_is_undone(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    store, place = store_of(made, kind), place_of(made, kind)
    store.sync(made.log_at())
    study(place).tell(0, 1.0)
    made.measure("001", 384, 50.0)
    with pytest.raises(TrackingError, match="cannot be used: "):
        store.sync(made.log_at())
    store = store_of(made, kind)
    store.sync(made.log_at())
    assert held(place)[0][4:7] == (TrialState.RUNNING, None, {384: 50.0})
    optuna.delete_study(study_name="exp", storage=study(place)._storage)
    made.measure("001", 1088, 40.0)
    with pytest.raises(TrackingError, match=r"cannot be used: .*not exist") as caught:
        store.sync(made.log_at())
    assert "\n" not in str(caught.value)
    sync_in_steps(store_of(made, kind), made)
    assert held(place) == in_one_go(made, tmp_path / "whole")


def test_a_full_disk_is_told_and_the_next_sync_repairs_it(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "exp")
    made.four()
    code = (
        "import resource, signal, sys; from pathlib import Path; sys.path.insert(0, 'tests/support')\n"
        "from made_logs import MadeLog; from tune.util.errors import TrackingError\n"
        f"made = MadeLog(Path({str(tmp_path)!r}, 'exp'))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))\n"
        "try:\n    made.deliver(stores=['optuna'])\n"
        "except TrackingError as error:\n    print(error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "made.deliver(stores=['optuna'])\n"
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
    store = OptunaStore(url)
    store.sync(made.log_at())
    (tmp_path / "there").rename(tmp_path / "gone")
    made.measure("001", 384, 30.0)
    for _ in range(2):
        with pytest.raises(TrackingError, match="cannot be used"):
            sync_in_steps(OptunaStore(url), made)
    (tmp_path / "gone").rename(tmp_path / "there")
    sync_in_steps(OptunaStore(url), made)
    assert held(url) == in_one_go(made, tmp_path / "whole")
