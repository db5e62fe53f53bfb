"""What trainings tell the driver, what of it is logged, and what they are asked for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_experiments import RUNGS, MadeLog

from trainer.config import TrainConfig
from tune.cluster.progress_channel import EVALUATED, PROGRESS, SAVED, START
from tune.experiments.events import CutShort
from tune.runs.callback import SearchCallback
from tune.runs.ray_tune import RaySearcher, RayStopper
from tune.search.records import Records
from tune.search.scheduler import NEVER_STOP, TRIAL_ID, Judge
from tune.search.searcher import Repeater


class Driver:
    """A callback over a log, which trainings reach without Ray."""

    def __init__(self, made: MadeLog, records: Records) -> None:
        self.printed, self.orders = list[str](), list[tuple[str, set[str]]]()
        state, none = made.log.state, lambda: None
        experiment = SimpleNamespace(log=made.log, state=state, folder=made.experiment, before_deletion=none)
        order = SimpleNamespace(remote=lambda *words: self.orders.append(words))
        channel, base = SimpleNamespace(order=order), TrainConfig()
        session: Any = SimpleNamespace(
            experiment=experiment,
            channel=channel,
            base=base,
            state=state,
            plan=SimpleNamespace(checkpoint_bytes=lambda: 3_500_000_000),
        )
        display: Any = SimpleNamespace(event=self.printed.append, print_progress=lambda: None)
        judge = Judge(NEVER_STOP, RUNGS, records)
        self.callback = SearchCallback(TrainConfig(evaluate_at=RUNGS), session, records, judge, display)

    def tell(self, name: str, kind: str, **content: Any) -> Any:
        return self.callback.receive(name, kind, content, 0.0)

    def save(self, name: str, samples: int, keep: str = "all") -> None:
        path = f"trials/{name}/checkpoint_{samples:09d}"
        self.tell(name, SAVED, checkpoint=path, samples_seen=samples, epoch=samples / 800, keep=keep)


@pytest.fixture
def made(tmp_path: Path) -> MadeLog:
    made = MadeLog(tmp_path / "made")
    made.session(save_every=1e-9)
    return made


def test_a_trial_that_fails_once_it_was_stopped_is_not_printed_as_diverged(
    made: MadeLog, tmp_path: Path
) -> None:
    made.measure(made.begin("001"), RUNGS[0], 70.0, stop=True)
    driver, error = Driver(made, made.log.state.records), tmp_path / "error.txt"
    error.write_text("Failure # 1\nValueError: made up\n")
    driver.callback.on_trial_error(0, [], SimpleNamespace(config={TRIAL_ID: "001"}, error_file=str(error)))
    assert ["failed" in line for line in driver.printed] == [True], driver.printed


def test_a_training_is_asked_to_save_once_it_has_not_for_so_long(made: MadeLog) -> None:
    name = made.begin("001")
    driver, trial = Driver(made, made.log.state.records), made.log.state.records[name]
    driver.save(name, 8)
    assert trial.resumable == [], "it was not asked: a process that outlived its training's failure"
    driver.tell(name, START)
    for samples in (16, 24):
        driver.tell(name, PROGRESS, samples_seen=samples, epoch=samples / 800)
    assert driver.orders == [("save", {name})]
    driver.save(name, 24)
    assert trial.resumable == [f"trials/{name}/checkpoint_000000024"]
    driver.tell(name, PROGRESS, samples_seen=32, epoch=0.04)
    assert driver.orders == 2 * [("save", {name})]


def test_an_interrupted_repeat_has_time_to_save_behind_a_rung_that_was_not_saved_whole(made: MadeLog) -> None:
    name, rung = made.begin("001-r1"), RUNGS[0]
    driver = Driver(made, made.log.state.repeats)
    metrics = {"samples_seen": rung, "epoch": rung / 800, "wer": 50.0, "eval_loss": 1.0, "finished": 0.0}
    driver.tell(name, PROGRESS, samples_seen=rung, epoch=rung / 800)
    assert driver.tell(name, EVALUATED, **metrics) == {"goes_on": True, "keep": "weights"}
    driver.save(name, rung, "weights")
    driver.callback.interrupt("interrupted")
    assert driver.orders[-1] == ("end", {name})
    assert "saving checkpoints of what is running (1), about 3.5 GB each" in driver.printed[-1]
    assert driver.callback.saving()
    driver.save(name, rung + 8)
    assert not driver.callback.saving()


def test_the_best_so_far_may_be_no_better_than_the_base_model(made: MadeLog) -> None:
    name = made.begin("001")
    driver = Driver(made, made.log.state.records)
    for rung, wer in zip(RUNGS, (168.0, 59.0), strict=False):
        driver.tell(name, EVALUATED, samples_seen=rung, epoch=1.0, wer=wer, eval_loss=1.0, finished=0.0)
    assert [line.partition(" %")[2] for line in driver.printed] == [
        ", best so far, but no better than the base model's 60.00 %",
        ", best so far",
    ]


def test_a_budgets_end_has_trials_save_and_waits_a_minute_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """On commit 53069ea7 what they had trained since their last rung was lost."""
    now, saving, events, asked = [1000.0], [True], [], []
    monkeypatch.setattr("tune.runs.ray_tune.time.time", lambda: now[0])
    log: Any = SimpleNamespace(state=SimpleNamespace(events=1), problem=None, append=events.append)
    end = CutShort(reason="time_budget", text="the time budget of 1h is spent")
    stopper = RayStopper(log, lambda _: end, lambda: saving[0], save=asked.append)
    assert not stopper.stop_all()
    assert (events, asked) == ([end], ["the time budget of 1h is spent"])
    now[0] += 59
    assert not stopper.stop_all()
    saving[0] = False
    assert stopper.stop_all()
    saving[0], now[0] = True, 1061.0
    assert stopper.stop_all()
    assert len(events) == len(asked) == 1


def test_no_trial_begins_while_a_budgets_end_waits() -> None:
    log: Any = SimpleNamespace(state=SimpleNamespace(events=1), problem=None, append=lambda _: None)
    stopper = RayStopper(log, lambda _: CutShort(reason="time_budget", text=""), lambda: True)
    source = Repeater({"001-r1": {"seed": 1}, "001-r2": {"seed": 2}}, Records(), lambda: 2)
    searcher = RaySearcher(source, lambda: stopper.over)
    assert searcher.suggest("a") == {"seed": 1, "trial_id": "001-r1"}
    assert not stopper.stop_all()
    assert searcher.suggest("b") is None
