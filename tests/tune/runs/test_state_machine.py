"""A search as a state machine: real log, fold, rules, budgets, final round and finish; only the training is made up.

Trials start, are evaluated, stopped, fail and diverge; budgets end; the driver is killed at any event, also in the
middle of a line or between an event and the removal of files; `--resume` comes with other numbers and budgets. What
must hold does so after every step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from plans import search_plan
from search_process import read_log

import tune.experiments.log as log_module
from trainer.errors import ModelError
from tune.cluster.progress_channel import EVALUATED, SAVED, START
from tune.cluster.resources import TrialResources
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.events import Baseline, Data, ExportChosen, Prepared
from tune.experiments.experiment import OpenExperiment
from tune.experiments.folder import EVENTS_FILE, RESULTS_FILE
from tune.experiments.log import parse
from tune.experiments.results import results_of
from tune.experiments.storage import Storage
from tune.runs import finish as finish_module
from tune.runs.callback import SearchCallback
from tune.runs.candidates import measure_average
from tune.runs.final_round import (
    choose_export,
    compare,
    remove_dropped,
    remove_unnamed_checkpoints,
)
from tune.runs.finish import finish, finish_if_left
from tune.runs.plan import Plan, write_experiment_file
from tune.runs.ray_tune import RayStopper
from tune.runs.resume import resume
from tune.runs.session import session_started
from tune.runs.trials import TrialRunner
from tune.search.budgets import Budgets
from tune.search.scheduler import NEVER_STOP, TRIAL_ID, Judge
from tune.util.errors import ExperimentError
from tune.workers.averages import Measured

RUNGS = (400, 1200, 3200)
RESOURCES = TrialResources(1.0, 1.0, 2)
WERS = st.sampled_from([5.0, 8.0, 8.05, 12.4, 30.0, 55.0])
RATES = st.floats(1e-4, 1e-1)
BUDGETS = [Budgets(), Budgets(seconds=2e4, gpu_hours=4.0), Budgets(plateau_trials=2), Budgets(seconds=4e3)]
BUDGETS.append(Budgets(target_wer=20.0))
SPACE = """\
learning_rate: {type: float, low: 1e-4, high: 1e-1, log: true}
scheduler: {rungs: 3, reduction_factor: 3, min_trials_per_rung: 2}
"""


class Killed(BaseException):
    """The driver's process is gone."""


def whole_lines(content: bytes) -> list[bytes]:
    """Those that have their end."""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def begun(plan: Plan) -> Prepared:
    """What follows the beginning of a search's first session."""
    clips = {"train": 800, "validation": 10}
    return Prepared(
        train_config=plan.base.replace(evaluate_at=RUNGS).to_dict(),
        space=plan.space.to_dict(),
        rungs=RUNGS,
        trials_full_window=not plan.options.n_finalists,
        resources=RESOURCES,
        data=Data(clips=clips, splits={"validation": "a"}),
        baseline=Baseline(rates={"wer": 60.0, "cer": 30.0, "clips": 10.0}),
    )


def made_search(folder: Path, **asked: Any) -> tuple[Plan, OpenExperiment]:
    """A search in `folder / "experiments"` that has all its files but for events."""
    space = folder / "space.yaml"
    space.write_text(SPACE)
    plan = search_plan(Storage.parse(folder / "experiments"), "x", space=str(space), **asked)
    plan.folder.mkdir(parents=True)
    (plan.folder / "space.yaml").write_text(SPACE)
    write_experiment_file(plan, begun(plan))
    return plan, OpenExperiment(plan.experiment_folder)


def action(needs: str = "experiment", **drawn: Any) -> Any:
    """A rule for a driver that lives, and may be killed in it."""

    def decorate(act: Any) -> Any:
        @precondition(lambda self: self.experiment is not None and getattr(self, needs))
        @rule(**drawn)
        @functools.wraps(act)
        def within(self: SearchMachine, **found: Any) -> None:
            with self.driver():
                act(self, **found)

        return within

    return decorate


class SearchMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.now = 1_700_000_000.0
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.storage = Storage.parse(self.folder / "experiments")
        self.experiment: Any = None
        self.callback: Any = None
        self.running: dict[str, int] = {}
        """Trainings that a process works on now, with the rungs that they have passed."""
        self.saves: dict[str, tuple[int, float, str]] = {}
        """What their processes are still writing: samples seen, WER, what is kept."""
        self.written: list[bytes] = []
        """Lines that came to the disk whole, also where the driver was killed before it knew."""
        self.kill_after: int | None = None
        """Operations on the disk until the driver is killed."""
        self.torn = 0.0
        for target in ("tune.search.records.time", "tune.runs.ray_tune.time"):
            self.stack.enter_context(mock.patch(target, SimpleNamespace(time=self.time)))
        write_all = log_module._write_all

        def write(file: int, content: bytes) -> None:
            """What is written at once are several events where they belong together."""
            killed = self.dies()
            part = content[: int(self.torn * len(content))] if killed else content
            write_all(file, part)
            self.written += whole_lines(part)
            if killed:
                raise Killed

        self.replace(log_module, "_write_all", write)
        for name in ("remove", "strip"):
            self.replace(CheckpointFiles, name, self.mortal(getattr(CheckpointFiles, name)))
        # Pictures take seconds; the page is written from the same log as everything else.
        self.replace(finish_module, "write_report", lambda *_: None)

    def replace(self, place: Any, name: str, value: Any) -> None:
        self.stack.enter_context(mock.patch.object(place, name, value))

    def teardown(self) -> None:
        self.stack.close()

    def time(self) -> float:
        """Passes when it is told to, in seconds since the epoch."""
        self.now += 0.001
        return self.now

    def dies(self) -> bool:
        """Whether the driver is killed at this operation."""
        if self.kill_after is None:
            return False
        self.kill_after -= 1
        return self.kill_after < 0

    def may_die(self) -> None:
        if self.dies():
            raise Killed

    def mortal(self, call: Any) -> Any:
        def change(*args: Any) -> None:
            self.may_die()
            call(*args)

        return change

    @contextlib.contextmanager
    def driver(self) -> Iterator[None]:
        """What the driver does; where it is killed, its process leaves nothing but files."""
        try:
            yield
        except Killed:
            if self.experiment is not None:
                os.close(self.experiment.log._file)
                self.experiment._lock.close()
            self.experiment = self.callback = self.kill_after = None
            self.stop_trainings()

    def stop_trainings(self) -> None:
        self.running.clear()
        self.saves.clear()

    @property
    def state(self) -> Any:
        return self.experiment.log.state

    # -- the search ---------------------------------------------------------------------------------------------

    @initialize(
        trials=st.integers(1, 6),
        finalists=st.integers(0, 2),
        repeats=st.integers(1, 2),
        keep_checkpoints=st.sampled_from(["best", "all"]),
        budgets=st.sampled_from(BUDGETS),
    )
    def begin(self, **asked: Any) -> None:
        self.plan, self.experiment = made_search(self.folder, **asked)
        self.begin_session(begun(self.plan))
        self.look()

    def begin_session(self, *events: Any) -> None:
        self.experiment.log._clock = self.time
        started = session_started(self.plan, RESOURCES, "auto", self.now, self.state.session)
        self.experiment.log.append(started, *events)

    def look(self) -> None:
        """Choose the records that this stage works on, as `run_trials` and `run_repeats` do."""
        state = self.state
        self.final = state.trials_over
        records = state.repeats if self.final else state.records
        rules = NEVER_STOP if self.final else self.plan.space.scheduler
        judge = Judge(rules, RUNGS, records, 60.0)
        display: Any = SimpleNamespace(event=lambda _: None, print_progress=lambda: None)
        session: Any = SimpleNamespace(plan=self.plan, base=self.plan.base, resources=RESOURCES, channel=None)
        session.experiment, session.state = self.experiment, state
        self.callback = SearchCallback(self.plan.base, session, records, judge, display)
        runner = TrialRunner(session, self.plan.base, window_ratio=2.0)
        look = runner.final_round_cut if self.final else runner.trials_over
        self.stopper = RayStopper(self.experiment.log, look)

    def trial(self, name: str) -> Any:
        """What Ray tells callbacks of a trial."""
        session = self.state.session.session
        folder = name if session == 1 else f"{name}-{session}"
        error = self.plan.folder / "error.txt"
        error.write_text("Failure # 1\nValueError: made up\n")
        return SimpleNamespace(config={TRIAL_ID: name}, local_path=f"/ray/{folder}", error_file=str(error))

    @property
    def alive(self) -> bool:
        """Whether this stage trains on."""
        return self.experiment is not None and not self.stopper.stop_all()

    def waiting(self) -> list[str]:
        """What can be started now."""
        state = self.state
        if self.final:
            return [name for name in state.open_repeats if name not in self.running]
        known = [run.trial_id for run in state.records.running() if run.trial_id not in self.running]
        new = len(state.records) + 1
        return known or ([f"{new:03d}"] if new <= self.plan.options.trials else [])

    @action(rate=RATES)
    def start(self, rate: float) -> None:
        if self.alive and len(self.running) < 2 and self.waiting():
            self.begin_training(self.waiting()[0], rate)

    def begin_training(self, name: str, rate: float = 0.01) -> None:
        config = self.state.wanted_repeats[name] if self.final else {"learning_rate": rate}
        self.callback.proposed(name, config)
        self.callback.on_trial_start(0, [], self.trial(name))
        self.goes_from(name)

    def goes_from(self, name: str) -> None:
        """A process begins behind the checkpoint that the driver names."""
        self.saves.pop(name, None)
        found = self.callback.receive(name, START, {}, 0.0)["checkpoints"]
        seen = int(found[0].rpartition("_")[2]) if found else 0
        self.running[name] = sum(rung <= seen for rung in RUNGS)

    @action(
        "running",
        data=st.data(),
        wer=WERS,
        seconds=st.floats(1, 2000),
        nan=st.integers(0, 12),
        later=st.booleans(),
    )
    def evaluate(self, data: st.DataObject, wer: float, seconds: float, nan: int, later: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.now += seconds
        if self.alive:
            self.measure(name, math.nan if nan == 0 else wer, later=later)

    @action(rate=RATES, wers=st.lists(WERS, min_size=3, max_size=3))
    def train(self, rate: float, wers: list[float]) -> None:
        """One training from its beginning to its end, however it ends."""
        if not self.alive or not self.waiting():
            return
        name = self.waiting()[0]
        self.begin_training(name, rate)
        for wer in wers:
            self.now += 10.0
            if self.alive and name in self.running:
                self.measure(name, wer)

    def measure(self, name: str, wer: float, *, later: bool = False) -> None:
        """A trial evaluates, asks what follows, saves that (`later`, where it goes on), and ends where it shall."""
        self.save(name)
        place = self.running[name]
        result = {"wer": wer, "cer": wer / 3, "eval_loss": 0.5, "samples_seen": RUNGS[place]}
        result |= {"epoch": RUNGS[place] / 800, "finished": float(place == 2), "step": 1.0}
        result |= {"train_seconds": 10.0, "train_samples": 100.0}
        follows = self.callback.receive(name, EVALUATED, result, 0.0)
        self.running[name] += 1
        if follows["keep"]:
            self.saves[name] = (RUNGS[place], wer, follows["keep"])
        if not (later and follows["goes_on"]):
            self.save(name)
        if not follows["goes_on"]:
            del self.running[name]
            self.callback.on_trial_complete(0, [], self.trial(name))

    def save(self, name: str) -> None:
        """A trial's process writes what it was told to keep, and tells of it."""
        if name not in self.saves:
            return
        seen, wer, keep = self.saves.pop(name)
        folder = self.callback.receive(name, START, {}, 0.0)["folder"]
        path = CheckpointFiles(self.plan.experiment_folder).name(folder, seen)
        written = self.plan.folder / path
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir(parents=True)
        files = {"errors": [], "weights": ["model.safetensors"], "all": ["model.safetensors", "optimizer.pt"]}
        for file in ("config.json", *files[keep]):
            (written / file).write_text(str(wer))
        clips = {"word_errors": [int(wer)] * 10, "words": [100] * 10}
        (written / "utterances.json").write_text(json.dumps(clips))
        self.may_die()  # between its name and the event
        told = {"checkpoint": path, "samples_seen": seen, "epoch": seen / 800, "keep": keep}
        self.callback.receive(name, SAVED, told, 0.0)

    @action("saves", data=st.data())
    def save_now(self, data: st.DataObject) -> None:
        self.save(data.draw(st.sampled_from(sorted(self.saves))))

    @action("running", data=st.data(), again=st.booleans(), late=st.booleans())
    def fail(self, data: st.DataObject, again: bool, late: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        if self.alive:
            self.lose(name, again=again, late=late)

    def lose(self, name: str, *, again: bool, late: bool = False) -> None:
        """A training fails; a process of it may be killed later, and tell of what it saved meanwhile."""
        (self.callback.on_trial_recover if again else self.callback.on_trial_error)(0, [], self.trial(name))
        if late:
            self.save(name)
        self.saves.pop(name, None)
        del self.running[name]
        if again:
            self.goes_from(name)

    @action(failures=st.sampled_from([1, 3]), seconds=st.sampled_from([0, 0, 5000, 30_000]))
    def break_down(self, failures: int, seconds: float) -> None:
        """A machine on which every training fails: three in a row end a search, and hours pass that end its budget."""
        self.now += seconds
        for _ in range(failures):
            if self.alive and (self.running or self.waiting()):
                name = min(self.running, default="") or self.waiting()[0]
                if name not in self.running:
                    self.begin_training(name)
                self.lose(name, again=False)

    @action()
    def go_on(self) -> None:
        if self.alive and (self.running or self.waiting()):
            return
        self.stop_trainings()
        if not self.final and self.state.open_repeats:
            self.look()
            return
        if compare(self.experiment):
            measure_average(self.experiment, self.measure_mean, lambda _: None)
            assert not self.state.open_average
        self.end()

    def measure_mean(
        self, config: dict[str, Any], checkpoints: Sequence[str], name: str, most_wer: float
    ) -> Measured:
        """Some means are better than what they are of, some cannot be made."""
        self.may_die()
        for path in checkpoints:
            assert (self.plan.folder / path / "model.safetensors").is_file()
        wer = {0: most_wer + 1, 1: most_wer - 2, 2: most_wer}.get(self.state.events % 4)
        if wer is None:
            raise ModelError("a model cannot be averaged: made up")
        if wer <= most_wer:
            files = CheckpointFiles(self.plan.experiment_folder)
            place = files.place(name)
            place.mkdir(parents=True, exist_ok=True)
            for file in ("config.json", "model.safetensors"):
                (place / file).write_text(str(wer))
            files.complete(place, name, {})
        self.may_die()  # between its name and the event
        return Measured({"wer": wer, "cer": wer / 3, "loss": 0.5, "clips": 10.0}, wer <= most_wer)

    @action(wer=WERS, operations=st.integers(0, 5), torn=st.sampled_from([0.0, 0.5, 1.0]))
    def train_all_and_die(self, wer: float, operations: int, torn: float) -> None:
        """Nothing is left to train, and the driver is killed in the end of the search."""
        self.train_all(wer)
        if self.experiment is not None:
            self.kill_after, self.torn = operations, torn
            self.go_on()

    def train_all(self, wer: float) -> None:
        with self.driver():
            while self.alive and (self.running or self.waiting()):
                name = min(self.running, default="")
                if name:
                    self.measure(name, wer)
                else:
                    self.begin_training(self.waiting()[0])

    @property
    def undecided(self) -> bool:
        return bool(self.plan.options.n_finalists and not self.state.chosen)

    @action("undecided", wer=WERS, more=st.integers(1, 3))
    def come_to_the_end_and_add_trials(self, wer: float, more: int) -> None:
        """All that was asked for is done, the final round too, and then more trials are wanted."""
        for _ in ("trials", "repeats"):
            if self.experiment is not None:
                self.train_all(wer)
            if self.experiment is not None:
                self.go_on()
        if self.experiment is None:
            self.resume(more, None, None, None)
        if self.alive and self.waiting():
            self.begin_training(self.waiting()[0])

    @action()
    def interrupt(self) -> None:
        """Ctrl-C."""
        self.stop_trainings()
        self.end()

    def end(self) -> None:
        dropped = [run.trial_id for run in self.state.runs if run.weights_dropped]
        choose_export(self.experiment, pytest.fail)
        finish(self.experiment, pytest.fail)
        if self.state.open_repeats or self.state.open_average or self.state.failed:
            assert dropped == [run.trial_id for run in self.state.runs if run.weights_dropped]
        written = json.loads((self.plan.folder / RESULTS_FILE).read_text())
        made_again = results_of(self.plan.experiment_folder, read_log(self.plan.folder / EVENTS_FILE))
        assert written == json.loads(json.dumps(made_again))
        self.experiment.close()
        self.experiment = self.callback = None

    # -- its interruptions --------------------------------------------------------------------------------------

    @action(operations=st.integers(0, 6), torn=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
    def kill_soon(self, operations: int, torn: float) -> None:
        self.kill_after, self.torn = operations, torn

    @precondition(lambda self: self.experiment is None)
    @rule()
    def someone_finishes(self) -> None:
        """As `export` does with what it finds."""
        finish_if_left(self.plan.experiment_folder, pytest.fail)

    @precondition(lambda self: self.experiment is None)
    @rule(
        more=st.integers(-1, 4),
        repeats=st.sampled_from([None, 1, 2]),
        finalists=st.sampled_from([None, None, None, 0, 1, 2]),
        seconds=st.sampled_from([None, None, 1e9]),
    )
    def resume(self, more: int, repeats: int | None, finalists: int | None, seconds: float | None) -> None:
        before = read_log(self.plan.folder / EVENTS_FILE)
        asked = before.options
        wanted = {"trials": max(1, asked.trials + more) if more >= 0 else None}
        wanted |= {"repeats": repeats, "finalists": finalists}
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        again = {"seconds": seconds} if seconds else {}
        try:
            resumed = resume("x", self.storage, given | ({"budgets": again} if again else {}))
        except ExperimentError as error:
            if "have begun" not in str(error):
                assert "have ended" in str(error)
                assert before.written, "what is left undone can be done"
                assert (self.plan.folder / RESULTS_FILE).is_file()
            return
        self.experiment, self.plan = resumed.experiment, resumed.plan
        options = self.plan.options
        assert options.budgets == dataclasses.replace(asked.budgets, **again)
        assert options.n_finalists == given.get("finalists", asked.n_finalists)
        assert options.repeats == given.get("repeats", asked.repeats)
        with self.driver():
            if resumed.only_finish:
                self.experiment.log._clock = self.time
                self.end()
                return
            self.begin_session()
            remove_dropped(self.experiment, pytest.fail)
            remove_unnamed_checkpoints(self.experiment, pytest.fail)
            self.look()

    # -- what holds after every step ----------------------------------------------------------------------------

    @invariant()
    def the_log_is_whole(self) -> None:
        """No event is lost or counted twice; what is known is what the file folds to."""
        path = self.plan.folder / EVENTS_FILE
        assert whole_lines(path.read_bytes()) == self.written
        if self.experiment is not None:
            mine, told = self.state, read_log(path)
            folder = self.plan.experiment_folder
            assert results_of(folder, mine) == results_of(folder, told)
            assert [vars(run) for run in mine.runs] == [
                {**vars(run), "progress": mine.run(run.trial_id).progress} for run in told.runs
            ]

    @invariant()
    def something_can_be_exported(self) -> None:
        state = read_log(self.plan.folder / EVENTS_FILE)
        if any(run.best_value is not None for run in state.records.all()):
            best = state.best()
            assert (self.plan.folder / best.checkpoint / "model.safetensors").is_file()
        if state.chosen is not None:
            run = state.run(state.chosen.run)
            assert run.has_weights
            assert (self.plan.folder / run.checkpoint / "model.safetensors").is_file()

    @invariant()
    def weights_go_only_behind_a_choice(self) -> None:
        content = (self.plan.folder / EVENTS_FILE).read_bytes()
        state = log_module.SearchState()
        for entry in parse(content, Path(EVENTS_FILE)):
            if isinstance(entry.event, ExportChosen) and (going := state.superfluous(entry.event)):
                assert state.trials_over, "nothing goes before the trials of its session are over"
                assert not (state.end and state.end.reason == "failures")
                assert not state.open_repeats
                assert not state.open_average
                assert not {entry.event.run, *entry.event.keep} & {run.trial_id for run in going}
            state.apply(entry)

    @invariant()
    def a_trial_that_came_to_its_end_counts_its_best_evaluation(self) -> None:
        """Also where it was lost before its checkpoint was saved."""
        for run in read_log(self.plan.folder / EVENTS_FILE).runs:
            if run.status in ("completed", "early_stopped"):
                assert run.best_value == min(wer for _, wer in run.evaluations)

    @invariant()
    def every_checkpoint_that_is_named_is_there(self) -> None:
        """And its weights are those of the WER that counts."""
        for run in read_log(self.plan.folder / EVENTS_FILE).runs:
            for path in run.checkpoints:
                assert (self.plan.folder / path).is_dir()
            if run.has_weights:
                weights = self.plan.folder / run.checkpoint / "model.safetensors"
                assert float(weights.read_text()) == run.best_value


SHORT = settings(
    max_examples=10,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    phases=[Phase.generate],
)
TestSearch = pytest.mark.timeout(300)(SearchMachine.TestCase)
TestSearch.settings = SHORT


@pytest.mark.occasional
@pytest.mark.timeout(1500)
def test_many_long_searches() -> None:
    run_state_machine_as_test(
        SearchMachine, settings=settings(SHORT, max_examples=200, stateful_step_count=80)
    )


@pytest.mark.parametrize("torn", [0.5, 1.0])
def test_killed_at_each_operation_of_its_end(torn: float) -> None:
    """Some writes have several events, of which a kill leaves some, or all while the driver knows of none."""
    for operations in range(14):
        machine = SearchMachine()
        try:
            machine.begin(trials=1, finalists=1, repeats=2, budgets=Budgets())
            machine.train_all(5.0)
            machine.go_on()
            machine.train_all_and_die(wer=5.0, operations=operations, torn=torn)
            for _ in range(2):  # as it was left, and as it goes on
                machine.the_log_is_whole()
                machine.something_can_be_exported()
                machine.every_checkpoint_that_is_named_is_there()
                if machine.experiment is None:
                    machine.resume(-1, None, None, None)
                if machine.experiment is not None:
                    machine.train_all(5.0)
                    machine.go_on()
            assert read_log(machine.plan.folder / EVENTS_FILE).written
        finally:
            machine.teardown()


def test_what_is_exported_is_no_loser() -> None:
    """A choice without finalists came between two final rounds: the first one's winner had no weights any more."""
    machine = SearchMachine()
    machine.begin(trials=2, finalists=2, repeats=1, budgets=Budgets())
    machine.train(rate=0.03, wers=[30.0, 8.0, 12.4])
    for _ in range(2):  # trial 002, then the repeats
        machine.train_all(5.0)
        machine.go_on()
    machine.resume(more=1, repeats=None, finalists=0, seconds=None)
    machine.train_all(5.0)
    machine.go_on()
    assert read_log(machine.plan.folder / EVENTS_FILE).chosen.run == "003"
    machine.resume(more=0, repeats=2, finalists=2, seconds=None)
    machine.go_on()
    machine.train(rate=0.01, wers=[12.4, 12.4, 30.0])
    with machine.driver():
        raise Killed
    machine.resume(more=0, repeats=1, finalists=1, seconds=None)
    machine.go_on()
    machine.something_can_be_exported()
    machine.teardown()


@pytest.fixture
def search(request: pytest.FixtureRequest) -> Iterator[SearchMachine]:
    """Of four trials and one finalist; what holds after every step does so in the end."""
    machine = SearchMachine()
    machine.begin(trials=4, finalists=1, repeats=1, budgets=getattr(request, "param", Budgets()))
    for name in ("001", "002"):
        machine.begin_training(name)
    yield machine
    machine.the_log_is_whole()
    machine.every_checkpoint_that_is_named_is_there()
    machine.teardown()


def test_a_damaged_best_checkpoint_that_is_made_again_counts_with_its_own_wer(search: SearchMachine) -> None:
    search.measure("001", 10.0)
    search.lose("001", again=True)
    search.running["001"] = 0  # it finds its only checkpoint damaged
    search.measure("001", 11.0)  # some hardware does not compute the same twice
    assert search.state.records["001"].best_value == 11.0


@pytest.mark.parametrize("again", [True, False])
def test_what_is_told_after_a_trial_was_taken_for_lost_is_not_heard(
    search: SearchMachine, again: bool
) -> None:
    search.measure("001", 10.0, later=True)
    search.lose("001", again=again, late=True)
    record = search.state.records["001"]
    assert (record.checkpoints, record.best_value) == ([], None), "measured anew, it can be the best"
    assert not list(search.plan.folder.rglob("*checkpoint_*"))
    if again:
        search.measure("001", 10.0)
        assert record.best_value == 10.0


def test_a_finalist_has_weights_also_where_trials_that_never_ended_were_ahead(search: SearchMachine) -> None:
    search.measure("002", 20.0)
    search.measure("001", 10.0)
    for wer in (18.0, 15.0):
        search.measure("002", wer)
    search.lose("001", again=False)
    assert [trial.trial_id for trial in search.state.finalists(1)] == ["002"]
    assert search.state.records["002"].has_weights


@pytest.mark.parametrize("search", [Budgets(target_wer=13.25)], indirect=True)
def test_a_target_ends_the_search_once_the_best_is_below_it_by_more_than_noise(search: SearchMachine) -> None:
    for _ in range(3):
        search.measure("001", 4.0)  # up to 13.21 % by the ten clips, up to 13.31 with the noise of seeds
    for _ in range(2):
        search.measure("002", 3.0)
    assert search.alive, "002 is not at the end of its budget"
    search.measure("002", 3.0)
    assert not search.alive
    assert search.state.trials_cut.reason == "target"
    assert search.state.trials_cut.text.endswith("below the target of 13.25 %")


def test_failures_of_the_last_trials_end_nothing(search: SearchMachine) -> None:
    """The final round follows: what could be spared by an end has been spent."""
    for _ in range(3):
        search.measure("001", 10.0)
    search.lose("002", again=False)
    for name in ("003", "004"):
        search.begin_training(name)
        search.lose(name, again=False)
    assert search.alive
    assert search.state.trials_cut is None
    assert search.state.open_repeats == ["001-r1"]


def test_failures_of_all_trials_are_told(search: SearchMachine) -> None:
    for name in ("003", "004"):
        search.begin_training(name)
    for name in ("001", "002", "003", "004"):
        search.lose(name, again=False)
    assert not search.alive
    assert search.state.trials_cut.reason == "failures"
