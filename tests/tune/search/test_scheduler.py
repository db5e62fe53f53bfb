"""Where trials are measured, which evaluations end them, and how the reason reads."""

import json
import math
from typing import Any

import pytest

from trainer.config import TrainConfig
from tune.search.records import Records, Stop
from tune.search.scheduler import Judge, losses_compare, rung_grid
from tune.space.settings import SchedulerSettings

RUNGS = (100, 300, 900)


def result(samples: int, wer: float, loss: float = 1.0) -> dict[str, Any]:
    return {
        **{"samples_seen": samples, "wer": wer, "cer": wer / 3, "eval_loss": loss},
        **{"epoch": samples / 900, "finished": float(samples == 900)},
    }


class Search:
    """Records and a judge; `tell` does with an evaluation what a search does."""

    def __init__(
        self,
        baseline: float | None = None,
        baseline_loss: float | None = None,
        compare_losses: bool = True,
        **settings: Any,
    ) -> None:
        self.records = Records()
        rules = SchedulerSettings(**settings)
        self.judge = Judge(
            *(rules, RUNGS, self.records, baseline, baseline_loss),
            compare_losses=compare_losses,
            kept=lambda record: record.trial_id == "usual",
        )

    def tell(self, trial: str, samples: int, wer: float, loss: float = 1.0, **others: float) -> Stop | None:
        record, row = self.records.start(trial, {}), result(samples, wer, loss) | others
        stop = self.judge.judge(record, row)
        record.add_evaluation(row, stop)
        return stop

    def reasons(self, trial: str, *curve: tuple[int, float, float]) -> list[str | None]:
        stops = [self.tell(trial, *point) for point in curve]
        return [stop.reason if stop else None for stop in stops]


@pytest.mark.parametrize(
    ("budget", "factor", "rungs", "multiple", "least", "expected"),
    [
        (900, 3, 3, 1, 1, (100, 300, 900)),
        (1000, 10, 4, 1, 1, (1, 10, 100, 1000)),
        (3600, 2, 4, 1, 1, (450, 900, 1800, 3600)),
        (1, 3, 3, 1, 1, (1,)),
        (600, 3, 1, 1, 1, (600,)),
        # On whole batches, where rungs are large enough.
        (3200, 3, 3, 64, 1, (384, 1088, 3200)),
        (240, 3, 3, 64, 1, (27, 80, 240)),
        # None before the largest batch has taken some steps.
        (3200, 3, 3, 64, 128, (384, 1088, 3200)),
        (640, 3, 3, 64, 128, (192, 640)),  # not at 64, where the largest batch has taken one step
        (400, 3, 3, 64, 128, (128, 400)),
        (3200, 3, 3, 256, 512, (512, 1024, 3200)),  # not at 356: there instead
        (240, 3, 3, 64, 128, (240,)),
    ],
)
def test_rungs(
    budget: int, factor: float, rungs: int, multiple: int, least: int, expected: tuple[int, ...]
) -> None:
    assert rung_grid(budget, factor, rungs, multiple, least) == expected


def test_a_rung_stops_nobody_before_it_holds_enough_trials() -> None:
    search = Search(min_trials_per_rung=3, reduction_factor=2.5)
    assert search.tell("001", 100, 20.0) is None
    assert search.tell("002", 100, 90.0) is None
    # of three two go on
    assert search.tell("003", 100, 91.0) == Stop("asha", 100, 91.0, 90.0, 3, 1.0)
    assert search.tell("004", 100, 10.0) is None


@pytest.mark.parametrize(
    ("factor", "cutoff"), [(2.5, 50.0), (3, 40.0), (2, 50.0), (100, 10.0), (1.2, 70.0), (1.1, None)]
)
def test_of_six_a_share_goes_on_rounded_up(factor: float, cutoff: float | None) -> None:
    def stop(wer: float) -> Stop | None:
        search = Search(reduction_factor=factor)
        for number, before in enumerate((40.0, 10.0, 50.0, 60.0, 70.0)):
            search.tell(f"{number:03d}", 100, before)
        return search.tell("006", 100, wer)

    assert cutoff is None or stop(cutoff) is None
    assert stop(70.1) == (None if cutoff is None else Stop("asha", 100, 70.1, cutoff, 6, 1.0))


def test_trials_are_compared_by_the_product_of_wer_and_loss() -> None:
    """Of a low WER with a high loss less is to be expected."""

    earlier = Records()

    def third(*searched: str, **fixed: str) -> Stop | None:
        search = Search(compare_losses=losses_compare(TrainConfig(**fixed), searched, earlier))
        assert search.tell("001", 100, 30.0, 2.0) is None
        search.tell("002", 100, 40.0, 1.0)
        return search.tell("003", 100, 25.0, 3.2)

    stop = third("learning_rate")
    assert stop == Stop("asha", 100, 25.0, 18.75, 3, 3.2)
    assert stop.describe() == (
        "WER 25.00 % at 100 samples is above 18.75 %, the cutoff among 3 trials for its loss of 3.200"
    )
    for name in ("label_smoothing", "timestamp_share", "lowercase"):  # there the WER alone decides
        assert third("learning_rate", name) is None
    assert third(objective="worst_source") is None
    assert third(task="translate") is None
    earlier.start("001", {"label_smoothing": 0.1})  # in a session whose space had it
    assert third("learning_rate") is None


def test_a_loss_that_is_not_known_stops_nobody() -> None:
    search = Search()
    for number, wer in (("001", 50.0), ("002", 0.0)):
        assert search.tell(number, 100, wer, 0.0) is None
    assert search.tell("003", 100, 60.0, 2.0) is None
    assert search.tell("004", 100, 60.0, 2.1) == Stop("asha", 100, 60.0, 60.0 * 2.0 / 2.1, 2, 2.1)


def test_no_other_trial_stops_the_one_with_the_usual_settings() -> None:
    search = Search(baseline=60.0)
    assert search.tell("001", 100, 20.0) is None
    assert search.tell("usual", 100, 50.0) is None
    assert search.tell("003", 100, 51.0) is not None
    assert search.tell("usual", 300, 121.0) == Stop("above_baseline", 300, 121.0, 120.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["wer", "loss"])
@pytest.mark.parametrize("samples", [100, 900])
def test_a_wer_or_loss_that_is_no_number_is_a_divergence(which: str, value: float, samples: int) -> None:
    search = Search()
    rates = {"wer": 20.0, "loss": 1.0, which: value}
    stop = search.tell("001", samples, rates["wer"], rates["loss"])
    assert (stop.reason, stop.samples_seen) == ("diverged", samples)
    assert stop.value == (None if which == "wer" else 20.0)
    assert search.records["001"].outcome == "diverged"
    assert Stop(**json.loads(json.dumps(vars(stop), allow_nan=False))) == stop


def test_a_wer_far_above_the_base_models_ends_a_trial_alone_in_its_rung() -> None:
    search = Search(baseline=60.0, max_wer_to_baseline=1.5)
    assert search.tell("001", 100, 90.0) is None
    assert search.tell("002", 100, 90.5) == Stop("above_baseline", 100, 90.5, 90.0)
    assert Search(baseline=60.0, max_wer_to_baseline=0).tell("001", 100, 500.0) is None
    assert Search(baseline=None, max_wer_to_baseline=1.5).tell("001", 100, 500.0) is None


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([(100, 20.0, 3.0), (200, 21.0, 2.0), (300, 22.0, 1.0)], [None, None, "rising_wer"]),
        ([(100, 20.0, 1.0), (200, 21.0, 2.0), (300, 22.0, 3.0)], [None, None, None]),
        ([(100, 20.0, 3.0), (200, 19.0, 2.0), (300, 22.0, 1.0)], [None, None, None]),
        ([(100, 20.0, 3.0), (200, 21.0, 2.0), (300, 21.0, 1.0)], [None, None, None]),
    ],
)
def test_a_wer_that_rises_while_the_loss_falls_ends_a_trial(
    curve: list[tuple[int, float, float]], expected: list[str | None]
) -> None:
    assert Search(rising_rungs=2).reasons("001", *curve) == expected
    assert Search(rising_rungs=0).reasons("001", *curve) == [None] * 3


def test_by_default_three_rungs_must_rise() -> None:
    """In the first quarter the WER of a good trial may rise, too."""
    search = Search(40.0, 3.0, min_trials_per_rung=9)
    curve = [(100, 41.0, 2.0), (200, 42.0, 1.5), (300, 43.0, 1.0)]
    assert search.reasons("001", *curve) == [None, None, "rising_wer"]


@pytest.mark.parametrize(
    ("baseline", "loss", "curve", "expected"),
    [
        (40.0, 3.0, [(100, 41.0, 2.0), (300, 42.0, 1.0)], "rising_wer"),
        (40.0, None, [(100, 41.0, 2.0), (300, 42.0, 1.0)], "rising_wer"),
        (40.0, 1.5, [(100, 41.0, 2.0), (300, 42.0, 1.0)], None),  # the loss rose at first
        (40.0, 3.0, [(100, 39.0, 2.0), (300, 42.0, 1.0)], None),
        (40.0, 3.0, [(100, 41.0, 2.0), (300, 40.5, 1.0)], None),
        (None, None, [(100, 41.0, 2.0), (300, 42.0, 1.0)], None),
    ],
)
def test_the_base_model_is_the_first_point_of_a_curve(
    baseline: float | None, loss: float | None, curve: list[tuple[int, float, float]], expected: str | None
) -> None:
    search = Search(baseline, loss, min_trials_per_rung=9, rising_rungs=2)
    assert search.reasons("001", *curve) == [None, expected]
    if expected:
        assert search.records["001"].stop == Stop("rising_wer", 300, 42.0, 41.0)


def test_the_full_budget_is_never_stopped() -> None:
    search = Search(baseline=10.0, min_trials_per_rung=1, rising_rungs=1)
    search.tell("001", 900, 5.0)
    assert search.reasons("002", (100, 4.0, 3.0), (900, 99.0, 1.0)) == [None, None]
    assert search.records["002"].outcome == "completed"


def test_a_trial_whose_own_budget_ends_at_a_rung_is_not_stopped_there() -> None:
    """With `max_steps` one of small batches has fewer samples than the longest."""
    search = Search(min_trials_per_rung=1)
    search.tell("001", 100, 5.0)
    assert search.tell("002", 100, 50.0, finished=1.0) is None
    assert search.records["002"].outcome == "completed"


def test_a_trial_that_went_past_a_rung_is_not_judged_there_again() -> None:
    search = Search(min_trials_per_rung=2)
    assert search.tell("002", 100, 50.0) is None
    for number, wer in [("003", 20.0), ("004", 15.0), ("005", 10.0)]:
        assert search.tell(number, 100, wer) is None
    assert search.tell("002", 100, 50.0) is None  # again, after its process was lost
    assert search.tell("006", 100, 50.0) is not None
