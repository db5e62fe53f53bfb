"""The Optuna study that a follower writes: what it holds, however it was delivered, and what is refused."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from event_logs import BEGAN, RUNGS, MadeLog, follow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState
from studies import held, in_one_go, journal, place_of, study, tracker_of

from tune.experiments.events import TrialProposed
from tune.experiments.saved import SavedExperiment
from tune.experiments.settings import ExperimentSettings
from tune.experiments.state import SearchState
from tune.tracking.follower import StoreFollower
from tune.tracking.optuna_study import OptunaTracker, check_study
from tune.tracking.tracker import Orders, Position, make_tracker
from tune.util.errors import ExperimentError, TrackingError

ROOT = Path(__file__).resolve().parents[3]

COMPLETE, PRUNED, FAIL, RUNNING = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING


@pytest.fixture(params=["journal", "database"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_holds_what_the_log_says(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path)
    made.four()
    settings = made.saved().state.records["001"].config
    made.log.append(TrialProposed(trial_id="average", config=settings, kind="average"))
    made.propose("001-r1", seed=1)
    made.measure("001-r1", 900, 5.0)
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
        *({100: 30.0, 300: 11.0, 900: 12.0}, {100: 70.0}, {}, {})
    ]
    assert found.trials[0].distributions == made.saved().space.to_optuna()  # type: ignore[union-attr]
    assert (found.best_value, found.best_trial.number) == (11.0, 0)


def test_a_log_without_events_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    """A follower is there before the first of them, and before `experiment.yaml`."""
    made = MadeLog(tmp_path)
    tracker = tracker_of(made, kind)
    nothing = SavedExperiment(made.folder, ExperimentSettings(), SearchState())
    assert tracker.open(nothing) == Position()
    assert not journal(made).exists()
    made.four()
    tracker.deliver(made.entries, made.saved())
    tracker.delivered(Position(len(made.entries)))
    assert held(place_of(made, kind)) == in_one_go(made, tmp_path / "whole")


def test_the_follower_delivers_it_session_by_session(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.four()
    made.propose("005")
    made.finish()
    ended = threading.Event()
    ended.set()
    for _ in range(2):
        orders = Orders(folder=str(made.folder.path), name="exp", storage=str(tmp_path))
        follower = StoreFollower(make_tracker("optuna", orders), orders, ended)
        follower.follow()
        assert (follower.complete, follower.status.delivered) == (True, len(made.entries))
        assert held(journal(made)) == in_one_go(made, tmp_path / f"whole-{made.sessions}")
        made.begin()
        made.measure("005", 100, 5.0)
        made.finish()


def test_times_are_those_of_the_log(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path)
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
    made, place = MadeLog(tmp_path), None
    made.begin()
    tracker = tracker_of(made, kind)
    place = place_of(made, kind)
    follow(tracker, made)
    made.propose("001")
    made.measure("001", 100, 30.0)
    follow(tracker, made, [2], opened=True)
    assert [(trial.state, trial.intermediate_values) for trial in study(place).trials] == [
        (RUNNING, {100: 30.0})
    ]
    made.measure("001", 300, 20.0)
    made.propose("002")
    follow(tracker, made, [5], opened=True)
    assert [trial.intermediate_values for trial in study(place).trials] == [{100: 30.0, 300: 20.0}, {}]


def test_none_is_left_running_and_those_that_go_on_run_again(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path)
    made.four()
    made.propose("005")
    made.measure("005", 100, 40.0)
    made.finish()
    place = place_of(made, kind)
    tracker = tracker_of(made, kind)
    follow(tracker, made, [len(made.entries) - 1])
    before = held(place)
    assert (before[4][4], before[4][6]) == (FAIL, {100: 40.0})
    made.begin()
    assert follow(tracker_of(made, kind), made).events == len(made.entries) - 1
    after = held(place)
    assert after[:4] == before[:4]
    assert (after[4][4], after[4][6]) == (RUNNING, {100: 40.0})
    made.measure("005", 300, 10.5)
    made.measure("005", 900, 10.0)
    made.end("005", "completed")
    made.finish()
    follow(tracker_of(made, kind), made)
    assert held(place)[4][4:7] == (COMPLETE, [10.0], {100: 40.0, 300: 10.5, 900: 10.0})
    assert study(place).best_value == 10.0


def test_one_that_was_decided_before_a_kill_ends_as_what_was_decided(tmp_path: Path, kind: str) -> None:
    """Killed between the evaluation and the trial's end: the next session ends it."""
    made = MadeLog(tmp_path)
    made.begin()
    made.propose("001")
    made.measure("001", 100, 40.0, stop=True)
    tracker = tracker_of(made, kind)
    follow(tracker, made)
    assert held(place_of(made, kind))[0][4] == RUNNING
    made.begin()
    tracker.deliver(made.entries[-1:], made.saved())
    assert held(place_of(made, kind))[0][4:6] == (PRUNED, [40.0])


def test_what_is_delivered_twice_is_there_once(tmp_path: Path, kind: str) -> None:
    made = MadeLog(tmp_path)
    made.four()
    tracker, place = tracker_of(made, kind), place_of(made, kind)
    follow(tracker, made, remember=False)
    before = held(place)
    tracker.deliver(made.entries, made.saved())
    assert held(place) == before
    assert follow(tracker_of(made, kind), made) == Position(), "nothing was remembered"
    assert held(place) == before
    assert follow(tracker_of(made, kind), made).events == len(made.entries)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[str, Any]], list[tuple[int, str]]]:
    """What happens in a search, and after which event the follower delivers, is killed, or forgets it."""
    steps, running, number, rungs, decided = [("begin", None)], [], 0, {}, set()
    for _ in range(draw(st.integers(5, 25))):
        step = draw(
            st.sampled_from(["propose", "measure", "measure", "measure", "stop", "fail", "finish", "begin"])
        )
        open_ = [trial for trial in running if trial not in decided]
        if step == "propose":
            number += 1
            running.append(f"{number:03d}")
            rungs[running[-1]] = 0
            steps.append((step, running[-1]))
        elif step in ("measure", "stop", "fail") and open_:
            trial = draw(st.sampled_from(open_))
            if step == "fail":
                running.remove(trial)
                steps.append((step, trial))
                continue
            again = rungs[trial] and draw(st.booleans()) and draw(st.booleans())
            rung = rungs[trial] - 1 if again else rungs[trial]  # its checkpoint was lost
            wer = draw(st.sampled_from([10.0, 12.5, 30.0, 70.0, None]))
            steps.append((step, (trial, RUNGS[rung], wer)))
            rungs[trial] = rung + 1
            if wer is None or step == "stop" or rung + 1 == len(RUNGS):
                decided.add(trial)
                if draw(st.booleans()):  # else the search is killed before it can end it
                    running.remove(trial)
                    ended = "diverged" if wer is None else "early_stopped" if step == "stop" else "completed"
                    steps.append(("end", (trial, ended)))
        elif step in ("finish", "begin"):
            steps.append((step, None))
            if step == "begin":
                running = open_
    kinds = st.sampled_from(["delivered", "killed", "forgotten"])
    return steps, draw(st.lists(st.tuples(st.integers(1, 40), kinds), min_size=2, max_size=8))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_any_delivery_comes_to_the_study_made_in_one_go(
    tmp_path_factory: pytest.TempPathFactory, history: tuple[list[tuple[str, Any]], list[tuple[int, str]]]
) -> None:
    steps, cuts = history
    made = MadeLog(tmp_path_factory.mktemp("history"))
    play(made, steps)
    entries = made.entries
    tracker = OptunaTracker()
    done = tracker.open(made.saved()).events
    for end, kind in [
        *((end, kind) for end, kind in cuts if end < len(entries)),
        (len(entries), "delivered"),
    ]:
        if end > done:
            tracker.deliver(entries[done:end], made.saved(end))
            done = end
            if kind != "forgotten":
                tracker.delivered(Position(end))
        if kind != "delivered":
            tracker = OptunaTracker()
            done = tracker.open(made.saved()).events
    assert held(journal(made)) == in_one_go(made, made.folder.path / "whole")


def play(made: MadeLog, steps: list[tuple[str, Any]]) -> None:
    for step, what in steps:
        if step == "begin":
            made.begin()
        elif step == "finish":
            made.finish()
        elif step == "propose":
            made.propose(what, 1e-4 * int(what) + 1e-4)
        elif step == "fail":
            made.end(what, "failed")
        elif step == "end":
            made.end(*what)
        else:
            made.measure(*what, stop=step == "stop" and what[2] is not None)


def test_a_database_with_a_study_of_this_name_is_refused(tmp_path: Path) -> None:
    first = MadeLog(tmp_path / "one")
    first.four()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    follow(OptunaTracker(url), first)
    before = held(url)
    with pytest.raises(ExperimentError, match=r"^--optuna-storage sqlite:.*: has a study 'exp' already; .*$"):
        check_study(url, "exp")
    check_study(url, "another")
    check_study(url, None)
    other = MadeLog(tmp_path / "two", created="2024-02-02T00:00:00+00:00")
    other.begin()
    with pytest.raises(ExperimentError, match=r"has a study 'exp' already"):
        OptunaTracker(url).open(other.saved())
    assert held(url) == before
    moved = MadeLog(tmp_path / "moved")  # the first one, from elsewhere
    moved.path.write_bytes(first.path.read_bytes())
    assert follow(OptunaTracker(url), moved).events == len(first.entries)


def test_one_that_was_killed_before_the_study_was_marked_goes_on(tmp_path: Path) -> None:
    made = MadeLog(tmp_path)
    made.four()
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    optuna.create_study(study_name="exp", storage=url, direction="maximize")
    follow(OptunaTracker(url), made)
    assert study(url).best_value == 11.0
    optuna.create_study(study_name="theirs", storage=url).set_user_attr("for", "something")
    theirs = MadeLog(tmp_path, "theirs")
    theirs.begin()
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
    made = MadeLog(tmp_path)
    made.begin()
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


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    MadeLog(tmp_path).four()
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'tests')\n"
        "from event_logs import MadeLog, follow; from tune.tracking.optuna_study import OptunaTracker\n"
        f"follow(OptunaTracker(), MadeLog(Path({str(tmp_path)!r})))\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'transformers', 'sqlalchemy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
