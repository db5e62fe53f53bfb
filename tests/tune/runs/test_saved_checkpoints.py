"""What trials tell of their checkpoints, in any order: the weights that are kept are those of the WER told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_state_machine import RESOURCES, RUNGS, Display, begun, made_search

from tune.cluster.progress_channel import EVALUATED, SAVED, START
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.runs.callback import SearchCallback
from tune.runs.session import session_started
from tune.search.records import TrialRecord
from tune.search.scheduler import TRIAL_ID, Judge


class Driver:
    """A search whose trials are made up: what they tell is heard when `fetch` is called, as from a channel."""

    def __init__(self, folder: Path, **asked: Any) -> None:
        self.plan, self.experiment = made_search(folder, **asked)
        self.log = self.experiment.log
        self.log.append(session_started(self.plan, RESOURCES, "auto", 0.0, None), begun(self.plan))
        records = self.log.state.records
        judge = Judge(self.plan.space.scheduler, RUNGS, records, 60.0)
        display: Any = Display()
        self.callback = SearchCallback(self.plan.base, self.experiment, records, judge, display)
        self.callback.fetch = self.fetch
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.files = CheckpointFiles(self.plan.experiment_folder)

    def fetch(self) -> None:
        """Hear all that was told."""
        told, self.told = self.told, []
        for trial, content in told:
            self.callback.hear(trial, SAVED, content, 0.0)

    def trial(self, name: str) -> Any:
        error = self.plan.folder / "error.txt"
        error.write_text("Failure # 1\nValueError: made up\n")
        return SimpleNamespace(config={TRIAL_ID: name}, local_path=f"/ray/{name}", error_file=str(error))

    def record(self, name: str) -> TrialRecord:
        return self.log.state.records[name]

    def begin(self, *names: str) -> None:
        for name in names:
            self.callback.proposed(name, {"learning_rate": 0.01})
            self.callback.on_trial_start(0, [], self.trial(name))

    def evaluate(self, name: str, rung: int, wer: float) -> dict[str, Any]:
        """The answer to the trial, which has evaluated at this rung."""
        result = {"wer": wer, "cer": wer / 3, "eval_loss": 0.5, "samples_seen": RUNGS[rung]}
        result |= {"epoch": RUNGS[rung] / 800, "finished": float(rung == 2)}
        self.fetch()  # messages come in their order
        return self.callback.hear(name, EVALUATED, result, 0.0)  # type: ignore[no-any-return]

    def save(self, name: str, rung: int, keep: str, content: str) -> None:
        """A checkpoint is written, and told of."""
        path = self.files.name(self.callback.hear(name, START, {}, 0.0)["folder"], RUNGS[rung])
        written = self.files.place(path)
        written.mkdir(parents=True)
        (written / "model.safetensors").write_text(content)
        self.files.complete(written, path, {})
        self.told.append((name, {"checkpoint": path, "samples_seen": RUNGS[rung], "keep": keep}))

    def weights(self, name: str) -> str:
        """What would be exported of a trial."""
        return (self.plan.folder / str(self.record(name).checkpoint) / "model.safetensors").read_text()

    @property
    def there(self) -> set[str]:
        """Checkpoints on the disk."""
        return {
            path.relative_to(self.plan.folder).as_posix() for path in self.plan.folder.rglob("*checkpoint_*")
        }


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path, trials=4, finalists=1, repeats=1)
    yield made
    made.experiment.close()


def test_a_checkpoint_that_was_told_counts_before_the_next_evaluation_is_decided_on(driver: Driver) -> None:
    driver.begin("001")
    driver.evaluate("001", 0, 10.0)
    driver.save("001", 0, "all", "first")
    assert driver.evaluate("001", 1, 20.0)["keep"] == "all"
    driver.save("001", 1, "all", "second")
    follows = driver.evaluate("001", 2, 15.0)
    assert follows == {"goes_on": False, "keep": None}, "it is not the best"
    driver.fetch()
    driver.callback.on_trial_complete(0, [], driver.trial("001"))
    assert driver.there == {driver.record("001").checkpoint}
    assert (driver.weights("001"), driver.record("001").best_value) == ("first", 10.0)


def test_a_damaged_best_checkpoint_that_is_made_again_counts_with_its_own_wer(driver: Driver) -> None:
    driver.begin("001")
    driver.evaluate("001", 0, 10.0)
    driver.save("001", 0, "all", "first")
    driver.fetch()
    driver.callback.on_trial_recover(0, [], driver.trial("001"))  # it finds its only checkpoint damaged
    driver.evaluate("001", 0, 11.0)  # some hardware does not compute the same twice
    driver.save("001", 0, "all", "again")
    driver.fetch()
    assert (driver.weights("001"), driver.record("001").best_value) == ("again", 11.0)


def test_what_is_told_after_a_trial_was_taken_for_lost_is_not_heard(driver: Driver) -> None:
    """A process may be killed later than its trial is told to be over, as others of its group."""
    driver.begin("001", "002")
    driver.evaluate("001", 0, 10.0)
    driver.callback.on_trial_recover(0, [], driver.trial("001"))
    driver.save("001", 0, "all", "late")
    driver.fetch()
    assert driver.record("001").checkpoints == [], "measured anew, it can be the best"
    driver.evaluate("001", 0, 10.0)
    driver.save("001", 0, "all", "anew")
    driver.fetch()
    assert (driver.weights("001"), driver.record("001").best_value) == ("anew", 10.0)

    driver.evaluate("002", 0, 12.0)
    driver.callback.on_trial_error(0, [], driver.trial("002"))
    driver.save("002", 0, "all", "late")
    driver.fetch()
    assert (driver.record("002").status, driver.record("002").checkpoints) == ("failed", [])


def test_a_trial_that_was_stopped_stays_so_where_its_process_fails_afterwards(driver: Driver) -> None:
    driver.begin("001", "002", "003")
    for name, wer in (("001", 20.0), ("002", 20.0), ("003", 30.0)):
        keep = driver.evaluate(name, 0, wer)["keep"]
        driver.save(name, 0, keep, name) if keep else None
    driver.fetch()
    assert driver.record("003").outcome == "early_stopped"
    driver.callback.on_trial_recover(0, [], driver.trial("003"))
    assert driver.evaluate("003", 0, 30.0)["goes_on"] is False


def test_a_finalist_has_weights_also_where_trials_that_never_ended_were_ahead(driver: Driver) -> None:
    driver.begin("001", "002")
    driver.evaluate("001", 0, 10.0)
    driver.save("001", 0, "all", "001")
    driver.fetch()
    for rung, wer in enumerate((20.0, 18.0, 15.0)):
        keep = driver.evaluate("002", rung, wer)["keep"]
        driver.save("002", rung, keep, f"{wer}") if keep else None
        driver.fetch()
    driver.callback.on_trial_complete(0, [], driver.trial("002"))
    driver.callback.on_trial_error(0, [], driver.trial("001"))
    assert [trial.trial_id for trial in driver.log.state.finalists(1)] == ["002"]
    assert driver.record("002").has_weights
    assert driver.weights("002") == "15.0"
