"""The numbers of a report: costs, what stopped trials would have come to, importances, intervals, windows."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_experiments import MadeLog, made_trial, write_experiment
from scipy import stats

from trainer.scoring.alignment import ClipErrors, ErrorCounts
from trainer.scoring.objectives import combine
from tune.cli import main
from tune.experiments.events import Baseline, CutShort, Entry, SearchEnded
from tune.experiments.results import more_of, parse_clips, results_of, write_results
from tune.experiments.warm_start import read_warm_start
from tune.report.advice.settings import at_bounds
from tune.report.advice.trials import trials_failed
from tune.report.analysis import Analysis, analyse
from tune.report.costs import find_costs
from tune.report.figures import draw_parallel
from tune.report.search_page import search_page
from tune.report.writer import summary
from tune.search.finalists import Repeat, gain_interval, mean_interval, objective_interval
from tune.search.searcher import WarmStart
from tune_whisper import load_experiment


def analysed(folder: Path, trials: list[Any], **kinds: Any) -> Analysis:
    return analyse(write_experiment(folder, trials, **kinds))


def test_costs_by_outcome(tmp_path: Path) -> None:
    """A whole trial takes 20 + 1600 s, one that was stopped at the first rung 20 + 192 s."""
    trials = [
        made_trial(1, [40, 20, 10]),
        made_trial(2, [41, 21, 11], rate=2),
        made_trial(3, [42], rate=3),
    ]
    trials += [made_trial(4, [], rate=9), made_trial(5, [], error="x", rate=4)]
    costs = find_costs(analysed(tmp_path, trials, repeats={"001": [10, 11], "002": [12, 13]}, gpus=2.0))
    assert costs.device == "GPU"
    hours = {share.name: (share.runs, round(3600 * share.hours)) for share in costs.shares}
    assert hours == {
        "completed": (2, 2 * 2 * 1620),
        "stopped early": (1, 2 * 212),
        "diverged": (1, 2 * 212),
        "failed": (1, 2 * 20),
        "repeats of finalists": (4, 4 * 2 * 1620),
        "mean of repeats": (1, 0),
    }
    assert costs.full is not None
    # Only the one that was stopped would have gone on.
    assert 3600 * costs.saved == pytest.approx(2 * (1620 - 212))
    assert costs.unit == "GPU-hours"
    assert costs.tell(costs.total) == "5.6 GPU-hours"


SIXTEEN = [
    *(made_trial(n, [48, 28, wer], rate=n) for n, wer in enumerate((11.0, 11.2, 11.3, 15.0), 1)),
    *(made_trial(n, [60], rate=5) for n in range(5, 17)),
]


def test_what_more_trials_would_gain_and_cost(tmp_path: Path) -> None:
    """The best three lie 0.2 and 0.1 points apart, normalised both 0.2; eight more take 75 minutes of 2 GPUs."""
    found = analysed(tmp_path, SIXTEEN, gpus=2.0)
    gain, upper_end = 0.2 * math.log(1.5), 0.2 * math.log(4.5)
    seconds = (4 * 1620 + 12 * 212) / 2
    kept = json.loads((found.folder.path / "results.json").read_text())["more_trials"]
    assert kept == pytest.approx({"trials": 8, "gain": gain, "upper_end": upper_end, "seconds": seconds})
    told = "8 more trials: WER about 0.1 points lower (90 % interval 0 to 0.3), for 2.5 GPU-hours"
    assert f"more      {told}" in summary(found)
    assert f"{told}." in search_page(found)


@pytest.mark.parametrize(("rates", "known"), [(16, False), (23, False), (24, True)])
def test_more_trials_need_other_points_of_the_space(rates: int, known: bool, tmp_path: Path) -> None:
    values = [n * 1e-4 for n in range(1, rates + 1)]
    space = tmp_path / "rates.yaml"
    space.write_text(f"learning_rate: {{type: choice, values: {values}}}\n")
    trials = [
        dataclasses.replace(trial, config={"learning_rate": n * 1e-4}) for n, trial in enumerate(SIXTEEN, 1)
    ]
    assert (more_of(analysed(tmp_path, trials, space=str(space))) is not None) == known


def test_more_trials_are_compared_with_the_lowest_wer_of_the_search(tmp_path: Path) -> None:
    """It was found outside the space, which was changed since; trials inside lie far above it."""
    outside = made_trial(9, [40, 20, 5.0], accumulation=2)
    space = tmp_path / "one.yaml"
    space.write_text("learning_rate: {type: float, low: 1e-5, high: 1e-2, log: true}\n")
    inside = [
        dataclasses.replace(trial, config={"learning_rate": n * 1e-4}) for n, trial in enumerate(SIXTEEN, 1)
    ]
    assert more_of(analysed(tmp_path / "inside", inside, space=str(space))) is not None
    assert more_of(analysed(tmp_path / "both", [*inside, outside], space=str(space))) is None


def test_nothing_is_told_of_more_trials_where_the_search_failed_or_learned_from_others(
    tmp_path: Path,
) -> None:
    earlier = WarmStart([], baseline=50.0, budget=100, notes=[])
    found = analysed(tmp_path, SIXTEEN)
    assert more_of(found) is not None
    assert found.state.prepared is not None
    found.state.prepared = dataclasses.replace(found.state.prepared, warm_starts=[earlier])
    assert more_of(found) is None
    failed = analysed(tmp_path / "failed", SIXTEEN)
    cut = CutShort(reason="failures", text="3 trials in a row failed")
    failed.state.apply(Entry(failed.state.events + 1, 0.0, cut))
    assert more_of(failed) is None


def test_a_larger_batch_costs_more_where_steps_are_the_budget(tmp_path: Path) -> None:
    """400 steps: 3,200 samples of the whole trial, 6,400 of the one that was stopped."""
    trials = [made_trial(1, [40, 20, 10]), made_trial(2, [42], accumulation=2)]
    costs = find_costs(analysed(tmp_path, trials, settings={"max_steps": 400}, gpus=1.0))
    assert 3600 * costs.saved == pytest.approx(2 * 1620 - 212)


def test_a_stopped_trial_counts_with_what_others_came_to(tmp_path: Path) -> None:
    """All others' WERs are halved from rung to rung, so its own would have been too."""
    trials = [made_trial(n, [40 + n, 20 + n / 2, 10 + n / 4], rate=n) for n in range(1, 4)]
    trials += [made_trial(4, [60]), made_trial(5, [60, 30], rate=2)]
    trials += [made_trial(6, [], rate=9), made_trial(7, [50], error="x"), made_trial(8, [], error="x")]
    analysis = analysed(tmp_path, trials)
    expected = analysis.expected
    assert "stand at the WER extrapolated" in draw_parallel(analysis).caption
    assert expected["001"] == 10.25
    assert expected["004"] == pytest.approx(15)
    assert expected["005"] == pytest.approx(15)
    assert expected["006"] == max(expected[key] for key in ("001", "002", "003", "004", "005"))
    assert not {"007", "008"} & set(expected)


def spread(count: int, points: float) -> list[Any]:
    """Whole trials of which the learning rate alone makes the WER."""
    random = np.random.default_rng(0)
    found = []
    for index in range(count):
        rate = 10 ** random.uniform(-1, 1)
        wer = 10 + points * math.log10(rate) ** 2
        batch, warmup = int(random.choice([4, 8, 16])), float(random.uniform(0, 0.3))
        found.append(made_trial(index + 1, [wer + 20, wer + 5, wer], rate=rate, batch=batch, warmup=warmup))
    return found


def test_the_important_setting_is_named(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, spread(40, 20.0))
    found = analysis.importances
    assert set(found) == set(analysis.parameters)
    assert sum(found.values()) == pytest.approx(1)
    assert next(iter(found)) == "learning_rate"
    assert found["learning_rate"] > 0.6
    assert analyse(analysis.folder).importances == found, "the same each time"


def clips(wer: float, n: int, random: np.random.Generator) -> ClipErrors:
    """Clips of one model, which differ in length and difficulty."""
    words = random.integers(3, 20, size=n)
    hard = random.beta(2, 2 * (100 / wer - 1), size=n)
    return ClipErrors(random.binomial(words, hard).astype(float), words.astype(float))


def test_intervals_need_the_same_clips() -> None:
    random = np.random.default_rng(0)
    assert objective_interval([clips(20.0, 150, random), clips(20.0, 149, random)]) is None
    assert gain_interval([clips(20.0, 150, random)], clips(40.0, 149, random), (0.5, 4)) is None
    base = clips(60.0, 150, random)
    better = ClipErrors(np.maximum(0, base.word_errors - 3), base.words)
    interval = gain_interval([better], base, (0.5, 2))
    assert interval is not None
    gain = 100 * (base.word_errors - better.word_errors).sum() / base.words.sum()
    assert interval[0] < gain < interval[1]
    # With the same errors on every clip there are seeds, and what 150 clips cannot show.
    same = gain_interval([base], base, (0.5, 4))
    unseen = (100 * 3 * (1 + 0.3 * (base.words.mean() - 1)) / base.words.sum() / 1.96) ** 2
    half = (1.96 * unseen + stats.t.ppf(0.975, 4) * 0.25) / np.sqrt(unseen + 0.25)
    assert same == pytest.approx((-half, half), abs=0.001)
    # Paired: far narrower than the models' own.
    own = objective_interval([base])
    assert own is not None
    assert interval[1] - interval[0] < own[1] - own[0]


def test_of_the_worst_source_with_all_words_wrong_no_more_can_be_wrong() -> None:
    words, nothing = np.full(30, 9), np.zeros(30, int)
    wrong = np.where(np.arange(30) < 6, 9, 1)
    counts = ErrorCounts(np.stack([words - wrong, wrong, nothing, nothing]))
    worst = combine({"wer": counts}, ["a"] * 6 + ["b"] * 24, "worst_source")[1]
    assert objective_interval([worst]) == pytest.approx((81.1, 100.0), abs=0.05)
    low, high = objective_interval([worst], (0.5, 4)) or (0.0, 0.0)
    assert low == pytest.approx(81.06, abs=0.01)
    assert high == 100.0, "seeds make no more words wrong than there are"
    assert mean_interval([Repeat("001-r1", 100.0, 1.0, worst)], (0.5, 4)) == (low, high)
    kept = parse_clips(worst.to_json().encode())
    assert kept is not None and kept.worst_of == 2
    looped = ClipErrors(worst.word_errors + 9 * (np.arange(30) == 0), worst.words)
    assert (objective_interval([looped], (0.5, 4)) or (0.0, 0.0))[1] > 117


def test_a_damaged_file_of_clips_costs_the_interval_alone(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path, [made_trial(1, [40, 20, 10]), made_trial(2, [41, 21, 11], rate=2)])
    file = folder.path / "trials" / "001" / "checkpoint_3200" / "utterances.json"
    for content in ("{", "[]", '{"word_errors": [1], "words": [1, 2]}', '{"word_errors": [1], "words": [0]}'):
        file.write_text(content)
        winner = analyse(folder).winner
        assert winner is not None
        assert (winner.value, winner.interval) == (10.0, None)
    file.unlink()
    assert analyse(folder).winner is not None


def test_the_usual_settings_are_found_where_methods_and_weights_are_searched(tmp_path: Path) -> None:
    """On fed11aa they were looked for without the weights that the data file gives."""
    (tmp_path / "mix.yaml").write_text(
        "sources: {north: {data: demo, weight: 0.5}, south: {data: demo, train_split: validation}}\n"
    )
    space = tmp_path / "space.yaml"
    rate = "{type: float, low: auto, high: auto, log: true, when: {method: %s}}"
    space.write_text(
        f"method: {{type: choice, values: [full, lora]}}\nlearning_rate: [{rate % 'full'}, {rate % 'lora'}]\n"
        "weight.north: {type: float, low: 0.25, high: 4, log: true}\n"
    )
    trials = [made_trial(1, [40, 20, 10]), made_trial(2, [41, 21, 11])]
    usual = {"method": "full", "learning_rate": 1e-4, "weight.north": 0.5}
    for trial, changes in zip(trials, ({"weight.north": 1.0}, {}), strict=True):
        trial.config = usual | changes
    settings = {"data": str(tmp_path / "mix.yaml"), "model": "demo"}
    known = analysed(tmp_path, trials, space=str(space), settings=settings)
    assert known.recipe == usual
    assert known.recipe_trial is not None
    assert known.recipe_trial.trial_id == "002"
    many = [made_trial(number, [40, 30, 10 + 3 * number]) for number in range(1, 10)]
    for number, trial in enumerate(many):
        trial.config = usual | {"weight.north": 4.0 - number / 10 if number < 3 else 1.0}
    known = analysed(tmp_path / "many", many, space=str(space), settings=settings)
    assert [advice.follows for advice in at_bounds(known)] == ["Widen the range: `high: 12`."]


def test_a_search_that_goes_on_tells_of_the_run_to_export_not_of_one_that_lost_before(tmp_path: Path) -> None:
    """001 has the lowest WER of all trials, and lost to 002 in the first session's final round."""
    trials = [made_trial(1, [40, 20, 10]), made_trial(2, [41, 21, 11], rate=2)]
    made = write_experiment(tmp_path, trials, repeats={"001": [14, 14.5], "002": [11.2, 11.4]})
    log = MadeLog(made.path)
    log.session(trials=4, finalists=2)
    log.begin("003")
    log.append(SearchEnded(status="interrupted"))
    analysis = analyse(made)
    best = results_of(made, analysis.state)["best"]
    assert (best["run"], best["wer"]) == ("002-r1", 11.2)
    assert analysis.winner is not None and analysis.winning_trial is not None
    assert (analysis.winner.trial_id, analysis.winner.value) == ("002", 11.2)
    assert analysis.winning_trial.trial_id == "002"
    assert analysis.gain_text == "48.80 points: 81 % fewer errors"
    assert "lowest of" not in search_page(analysis)
    found = load_experiment(made.name, storage=tmp_path)
    assert found.trials.status["003"] == found.runs["003"].status == "interrupted"


@pytest.fixture
def windows(tmp_path: Path) -> MadeLog:
    """60 % in the whole window, 30 % in that of the trials, whose best has 20 %."""
    made = MadeLog(tmp_path / "experiments" / "windows")
    rates = {"rates": {"wer": 60.0, "cer": 20.0}, "trial_rates": {"wer": 30.0, "cer": 10.0}}
    made.session(trials=1, baseline=Baseline(**rates))
    made.trial("001", 25.0, 22.0, 20.0)
    made.finish()
    write_results(made.experiment, made.log.state)
    return made


def test_a_gain_is_of_one_window(windows: MadeLog, capsys: pytest.CaptureFixture[str]) -> None:
    storage = ["--storage", str(windows.folder.parent)]
    assert main(["list", *storage, "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["baseline_wer"] == 30.0
    assert load_experiment(windows.name, storage=windows.folder.parent).baseline_wer == 30.0
    assert main(["report", windows.name, *storage]) == 0
    assert "30.00 %" in capsys.readouterr().out
    page = (windows.folder / "report" / "report.html").read_text()
    assert "33 % fewer errors" in page
    assert "60.00" not in page
    results = json.loads((windows.folder / "results.json").read_text())
    assert (results["baseline"]["wer"], results["trial_baseline"]["wer"]) == (60.0, 30.0)


def test_the_clips_that_are_told_are_those_that_were_measured(tmp_path: Path) -> None:
    """Parts of several sources are rounded up: 500 were wanted."""
    made = MadeLog(tmp_path / "experiments" / "part")
    rates = [{"wer": 60.0, "cer": 20.0, "clips": clips} for clips in (1200.0, 510.0)]
    made.session(trials=1, baseline=Baseline(rates=rates[0], trial_rates=rates[1], trial_clips=500))
    made.trial("001", 25.0, 22.0, 20.0)
    made.finish()
    assert main(["report", made.name, "--storage", str(made.folder.parent)]) == 0
    page = (made.folder / "report" / "report.html").read_text()
    assert "Trials are measured on 510 of the validation clips" in page


def test_a_warm_start_takes_trials_relative_to_the_base_model_in_their_window(windows: MadeLog) -> None:
    settings = windows.saved.settings.base.to_dict()
    space = windows.saved.space
    assert space is not None
    assert read_warm_start(windows.saved, [space], settings).baseline == 30.0


def test_a_killed_search_has_taken_no_time_since(tmp_path: Path) -> None:
    trials = [made_trial(number, [40.0, 20.0, 10.0 + number]) for number in (1, 2)]
    folder = write_experiment(tmp_path, trials, state="killed", began=time.time() - 7 * 86400)
    assert sum(trial.elapsed for trial in analyse(folder).trials) < 3600


def test_an_error_is_told_as_on_the_screen(tmp_path: Path) -> None:
    """Its last line has Ray's "out of memory", for which smaller batches were advised."""
    monitor = (
        "Failure # 1 (occurred at 2026-01-01_12-00-00)\nTask was killed due to the node running low on memory.\n"
        "Memory on the node (IP: 10.0.0.7, ID: x) was 15 GB / 16 GB\n"
        "Refer to the documentation on how to address the out of memory issue: x"
    )
    known = analysed(tmp_path, [made_trial(number, [], error=monitor) for number in (1, 2)])
    (told,) = trials_failed(known)
    assert "main memory (RAM) ran out on node 10.0.0.7" in told.seen
    assert told.follows == ""


def test_what_stopping_saved_is_by_the_pace_of_trials(tmp_path: Path) -> None:
    """Repeats are measured on all clips and whole windows."""
    trials = [made_trial(1, [40.0, 20.0, 10.0]), made_trial(2, [41.0], rate=2)]
    alone = find_costs(analysed(tmp_path / "alone", trials)).full
    repeated = analysed(tmp_path / "repeated", trials, repeats={"001": [11.0, 12.0]})
    for run in repeated.state.repeats.all():
        run.seconds *= 3
    assert find_costs(repeated).full == alone


@pytest.mark.parametrize("final_round", [False, True])
@pytest.mark.parametrize(
    ("reason", "told"), [("plateau", True), ("failures", True), ("time_budget", False), ("target", False)]
)
def test_more_trials_are_proposed_where_they_would_run(
    reason: Any, told: bool, final_round: bool, tmp_path: Path
) -> None:
    folder = write_experiment(tmp_path, [made_trial(1, [40.0, 20.0, 10.0])])
    known = analyse(folder)
    cut = CutShort(reason=reason, text="ended", final_round=final_round)
    known.state.apply(Entry(known.state.events + 1, 0.0, cut))
    known.state.apply(Entry(known.state.events + 1, 0.0, SearchEnded(status="completed")))
    assert ("--trials 9" in search_page(known)) == told
