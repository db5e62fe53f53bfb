"""The advice of a report: each rule on an experiment where it must speak, and on one like it where it must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_experiments import made_trial, write_experiment

from trainer.data.clips import Drop
from tune.report.advice import results, settings, trials
from tune.report.advice.rules import RULES, advise
from tune.report.analysis import Analysis
from tune.report.experiment import load_experiment
from tune.search.records import Stop, TrialRecord, listed

Trials = Sequence[TrialRecord]


def analysed(folder: Path, trials: Trials, **kinds: Any) -> Analysis:
    return Analysis(load_experiment(write_experiment(folder, trials, **kinds), " --storage x"))


def whole(number: int, last: float, **settings: Any) -> TrialRecord:
    """A trial with its whole budget, done at the end: its last rung brings little."""
    return made_trial(number, [last + 20, last + 0.4, last], **settings)


def ladder(count: int, step: float = 2.0, **settings: Any) -> list[TrialRecord]:
    """Whole trials, each worse than the one before by so many points."""
    return [whole(n, 10 + step * n, rate=1e-3 * 1.1**n, **settings) for n in range(1, count + 1)]


def at_upper_bound(*, elsewhere: float) -> list[TrialRecord]:
    """The best three of ten at the upper bound of the learning rate, 0.01; the others at `elsewhere` and worse."""
    rates = [0.0098, 0.0085, 0.0095, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004]
    wers = [10.0, 10.5, 10.8, *(elsewhere + n for n in range(7))]
    return [whole(n, wer, rate=rate) for n, (rate, wer) in enumerate(zip(rates, wers, strict=True), 1)]


def at_lower_warmup() -> list[TrialRecord]:
    """The best at warmup 0, below which there is none."""
    return [whole(n, 10 + 3 * n, warmup=0.0 if n < 4 else 0.03 * n, rate=1e-3 * n) for n in range(1, 10)]


def largest_batch(values: Sequence[int]) -> list[TrialRecord]:
    return [whole(n, 10 + 3 * n, batch=batch, rate=1e-3) for n, batch in enumerate(values, 1)]


def astray(limit: float, *, below: int = 0) -> list[TrialRecord]:
    """Trials at rising rates that diverge from a limit on, and so many below it."""
    rates = [0.0002, 0.0004, 0.0008, 0.0012, 0.002, 0.003, 0.005, 0.007, 0.008, 0.0095]
    return [
        made_trial(n, [], rate=rate) if rate >= limit or n <= below else whole(n, 10 + n, rate=rate)
        for n, rate in enumerate(rates, 1)
    ]


def diverged_later(number: int, wer: float, **settings: Any) -> TrialRecord:
    """A trial that had a WER at the first rung and diverged at the second."""
    return made_trial(number, [wer], stop=Stop("diverged", 1088), **settings)


def learned_by_heart(count: int) -> list[TrialRecord]:
    """Six whole trials, of which so many end well above their best."""
    return [made_trial(n, [30, 15, 19 if n <= count else 14.5], rate=1e-3 * n) for n in range(1, 7)]


def failing(count: int) -> list[TrialRecord]:
    error = "Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError: CUDA out of memory."
    return [made_trial(n, [], error=error) if n <= count else whole(n, 10 + n) for n in range(1, 11)]


def stopped_ahead(at: float) -> list[TrialRecord]:
    """Whole trials that came from 40 to 20, and one stopped at the first rung with this WER."""
    return [
        *(made_trial(n, [40 + n, 30 + n, 20 + n], rate=1e-3 * n) for n in range(1, 5)),
        made_trial(5, [at], rate=2e-3),
    ]


def behind_at_first(wer: float) -> list[TrialRecord]:
    """The best of nine had this WER at the first rung, where the others had 40 and more."""
    return [made_trial(1, [wer, 20, 10]), *(made_trial(n, [38.0 + n], rate=1e-3 * n) for n in range(2, 10))]


def finalists(first: Sequence[float], second: Sequence[float], **speeds: float) -> dict[str, Any]:
    return {"repeats": {"001": first, "002": second}, "repeat_speeds": speeds}


DROPS = [Drop("train", "a.wav", "too_long_audio", "31 s")]
FEW = [whole(n, 10 + n) for n in range(1, 4)]
CASES: dict[str, tuple[Callable[[Analysis], Any], Trials, dict[str, Any], Sequence[str]]] = {
    "worse than base": (
        *(results.worse_than_base, ladder(3), {"baseline": 11.0}),
        ["12.00 % at best, against 11.00 %", "`learning_rate` 0.0011"],
    ),
    "better than base": (results.worse_than_base, ladder(3), {"baseline": 13.0}, []),
    "most is wrong": (
        *(results.most_is_wrong, [whole(1, 90)], {"baseline": 95.0, "settings": {"language": "be"}}),
        ["WER 90.00 %", "`tune-whisper inspect --data demo --language be`"],
    ),
    "most is right": (results.most_is_wrong, [whole(1, 40)], {"baseline": 120.0}, []),
    "nothing left": (
        results.nothing_left,
        [made_trial(1, [20, 5, 0])],
        {},
        ["no error on the 200 validation"],
    ),
    "an error left": (results.nothing_left, [made_trial(1, [20, 5, 0.1])], {}, []),
    "gain within seeds": (
        *(results.gain_is_noise, [whole(1, 19.5)], {"baseline": 20.0}),
        ["0.50 points, is within noise", "seeds alone make up to 1.4 points"],
    ),
    "gain beyond seeds": (results.gain_is_noise, [whole(1, 17)], {"baseline": 20.0}, []),
    "gain within clips": (
        *(results.gain_is_noise, [whole(1, 18.0)], {"baseline": 20.0, "base_clips": True}),
        ["the 95 % interval of the gain goes from -"],
    ),
    "still falling": (
        *(results.still_falling, [made_trial(1, [40, 30, 20])], {}),
        ["from 30.00 to 20.00 % between epochs 1.36 and 4", "`--epochs 8`"],
    ),
    "still falling in steps": (
        *(results.still_falling, [made_trial(1, [40, 30, 20])], {"settings": {"max_steps": 400}}),
        ["`--max-steps 800`"],
    ),
    "flat at the end": (results.still_falling, [made_trial(1, [40, 21, 20])], {}, []),
    "rises at the end": (
        results.rises_at_the_end,
        learned_by_heart(4),
        {},
        ["in 4 of 6 whole trials", "regularisation"],
    ),
    "two rise": (results.rises_at_the_end, learned_by_heart(2), {}, []),
    "alike within noise": (
        *(results.order_is_noise, ladder(5, step=0.3), {}),
        ["Trials 001, 002, 003, 004 and 005 lie within 1.4 points", "as is usual"],
    ),
    "alike as finalists show": (
        *(results.order_is_noise, ladder(4, step=2.0), finalists([10, 14], [10, 14])),
        ["as the finalists show", "1.68 points"],
    ),
    "apart": (results.order_is_noise, ladder(5), {}, []),
    "tie, the first": (
        *(results.finalists_tie, ladder(3), finalists([12, 13], [12.2, 13.1])),
        [
            "Between finalists 001 and 002 no",
            "Trial 001 has the lowest mean. If",
            "`--repeats 4`",
        ],
    ),
    "the short window costs": (
        *(results.short_window, ladder(3), finalists([25, 26], [26, 27])),
        ["of the longest clip", "their repeats have 13.00 WER points more", "`--set audio_window=30`"],
    ),
    "the batches' windows cost": (
        results.short_window,
        ladder(3),
        {**finalists([25, 26], [26, 27]), "settings": {"audio_window": "batch"}},
        ["of the longest clip of each batch"],
    ),
    "the short window costs nothing": (
        *(results.short_window, ladder(3), finalists([11, 12], [13, 14])),
        ["their repeats have 0.50 WER points less", "no more than seeds make"],
    ),
    "the whole window": (
        results.short_window,
        ladder(3),
        {**finalists([25, 26], [26, 27]), "settings": {"audio_window": 30}},
        [],
    ),
    "trials measured with the whole window": (
        results.short_window,
        ladder(3),
        {**finalists([25, 26], [26, 27]), "settings": {"full_window_evaluation": True}},
        [],
    ),
    "no tie": (results.finalists_tie, ladder(3), finalists([12, 12.1], [25, 25.2]), []),
    "usual settings won": (
        results.usual_settings_do,
        [whole(1, 10), *ladder(9)[1:]],
        {},
        ["are the best of 9 (trial 001)", "begin with them"],
    ),
    "usual settings are the only ones": (results.usual_settings_do, [whole(1, 10)], {}, []),
    "usual settings do": (
        *(results.usual_settings_do, [whole(1, 10.5), whole(2, 10, rate=2e-3), *ladder(9)[2:]], {}),
        ["10.50 % (trial 001), the winner 10.00 %", "without a search"],
    ),
    "usual settings do not": (
        results.usual_settings_do,
        [whole(1, 15), whole(2, 10, rate=2e-3)],
        {},
        [],
    ),
    "usual settings diverged": (
        results.usual_settings_do,
        [diverged_later(1, 20.0), diverged_later(2, 30.0, rate=2e-3)],
        {},
        [],
    ),
    "few clips": (
        results.few_clips,
        [whole(1, 6)],
        {},
        ["200 validation clips tell the winner's WER only to ± 1."],
    ),
    "clips enough": (results.few_clips, [whole(1, 40)], {}, []),
    "upper bound": (
        *(settings.at_bounds, at_upper_bound(elsewhere=15), {}),
        [
            "All 3 best trials lie at the upper bound of `learning_rate`, 0.01: at 0.0085 to 0.0098",
            "`high: 0.03`",
        ],
    ),
    "upper bound by noise": (settings.at_bounds, at_upper_bound(elsewhere=11), {}, []),
    "no warmup below 0": (settings.at_bounds, at_lower_warmup(), {}, []),
    "largest batch": (
        *(settings.at_bounds, largest_batch([16, 16, 16, 4, 8, 4, 8, 4, 8]), {}),
        ["All 3 best trials have `train_batch_size` 16, the largest", "Add 32 to its values"],
    ),
    "diverges above": (
        *(settings.diverges_above, astray(0.003), {}),
        ["5 of 5 trials with a `learning_rate` of 0.003", "0 of 5 below", "`high: 0.003`"],
    ),
    "all diverged": (
        *(settings.all_diverged, astray(0.0), {}),
        [
            "All 10 trials diverged",
            "Lower the range of `learning_rate`: search below 0.0002, the lowest that",
        ],
    ),
    "all diverged but a failed one": (
        *(settings.all_diverged, [*failing(1)[:1], made_trial(2, [], rate=3e-3)], {}),
        ["The only trial that was measured diverged", "search below 0.003"],
    ),
    "the first diverged": (
        settings.all_diverged,
        [made_trial(1, []), made_trial(2, []), made_trial(3, [40])],
        {"asked": 20, "state": "running"},
        [],
    ),
    "one did not diverge": (settings.all_diverged, astray(0.0003), {}, []),
    "diverges everywhere": (settings.diverges_above, astray(0.003, below=4), {}, []),
    "failures": (
        *(trials.trials_failed, failing(3), {}),
        ["3 of 10 trials failed. All with: torch.OutOfMemoryError: CUDA out of memory.", "train_batch_size"],
    ),
    "one failure": (trials.trials_failed, failing(1), {}, []),
    "none went whole": (
        *(trials.none_went_whole, [made_trial(n, [40.0 + n], rate=1e-3 * n) for n in range(1, 5)], {}),
        ["all 4 were stopped early"],
    ),
    "one went whole": (trials.none_went_whole, stopped_ahead(44), {}, []),
    "stopped too soon": (
        *(trials.stopped_too_soon, stopped_ahead(30), {}),
        ["Trial 005 was stopped early and might have won", "the best whole trial has 21.00 %"],
    ),
    "stopped rightly": (trials.stopped_too_soon, stopped_ahead(44), {}, []),
    "a rung misleads": (
        *(trials.rung_misleads, behind_at_first(55), {}),
        ["it had 55.00 % at 384 samples, where the cutoff came to be 42.00 %"],
    ),
    "a rung does not": (trials.rung_misleads, behind_at_first(41), {}, []),
    "stopping saved": (
        *(trials.stopping_saved, [whole(1, 10), made_trial(2, [40]), made_trial(3, [41])], {}),
        # Whole: 20 + 1600 s; stopped: 20 + 192 s each.
        ["ended 2 of 3 trials and saved about 58 % of their time", "34.1 GPU-minutes were spent, 81.0"],
    ),
    "nothing was stopped": (trials.stopping_saved, [whole(1, 10), whole(2, 11)], {}, []),
    "clips dropped": (
        trials.clips_dropped,
        FEW,
        {"drops": DROPS * 100},
        ["100 of 1,300 clips (8 %) were left out"],
    ),
    "hardly any dropped": (trials.clips_dropped, FEW, {"drops": DROPS * 10}, []),
    "few trials": (
        trials.few_trials,
        FEW,
        {},
        ["3 measured trials", "--resume made --trials 16 --storage x`"],
    ),
    "trials enough": (trials.few_trials, ladder(8), {}, []),
    "none measured": (trials.few_trials, failing(10), {}, ["No trial reached an evaluation"]),
    "all diverged, which another rule tells": (trials.few_trials, astray(0.0), {}, []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule(case: str, tmp_path: Path) -> None:
    rule, trials, kinds, said = CASES[case]
    found = list(rule(analysed(tmp_path, trials, **kinds)))
    assert len(found) == (1 if said else 0), found
    for words in said:
        assert words in f"{found[0].seen} {found[0].follows}"


def test_every_rule_has_a_case_each_way() -> None:
    for rule in RULES:
        outcomes = {bool(said) for tested, _, _, said in CASES.values() if tested is rule}
        assert outcomes == {True, False} or rule is settings.did_not_matter, rule.__name__


def grid(batch_points: float) -> list[TrialRecord]:
    """48 trials all over the space, whose WERs are of the learning rate and, by so much a doubling, the batch."""
    rates = [1e-4 * 10 ** (n / 8) for n in range(1, 17)]
    return [
        whole(
            1 + 3 * i + j,
            10 + 2 * abs(i - 9) + batch_points * j,
            rate=rate,
            batch=4 * 2**j,
            warmup=0.02 * ((i + j) % 15),
        )
        for i, rate in enumerate(rates)
        for j in range(3)
    ]


def test_a_setting_that_did_not_matter(tmp_path: Path) -> None:
    (told,) = settings.did_not_matter(analysed(tmp_path, grid(0.0)))
    assert "`train_batch_size`" in told.seen
    assert "`learning_rate`" not in told.seen
    assert "`train_batch_size: " in told.follows


def test_a_setting_that_mattered(tmp_path: Path) -> None:
    found = settings.did_not_matter(analysed(tmp_path, grid(4.0)))
    assert all("`train_batch_size`" not in told.seen for told in found)


def test_changes_come_first(tmp_path: Path) -> None:
    found = advise(analysed(tmp_path, [made_trial(1, [40, 30, 20]), *stopped_ahead(44)[1:]]))
    assert [advice.change for advice in found] == sorted((advice.change for advice in found), reverse=True)
    assert {advice.change for advice in found} == {True, False}


def test_a_search_that_runs_is_not_told_to_end(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, FEW, asked=20, state="running")
    assert not list(trials.few_trials(analysis))
    told = " ".join(f"{advice.seen} {advice.follows}" for advice in advise(analysis))
    assert "winner" not in told


def test_long_lists_are_cut() -> None:
    names = [f"{number:03d}" for number in range(1, 9)]
    assert listed(names[:1]) == "001"
    assert listed(names[:3]) == "001, 002 and 003"
    assert listed(names) == "001, 002, 003, 004 and 4 more"


def test_a_stop_above_the_base_model_is_astray(tmp_path: Path) -> None:
    stop = Stop("above_baseline", 384, 150.0, 120.0)
    trials = [made_trial(n, [150], rate=1e-3 * (n + 4), stop=stop) for n in range(1, 5)]
    (told,) = settings.diverges_above(analysed(tmp_path, [*trials, whole(5, 10, rate=1e-3)]))
    assert "4 of 4 trials" in told.seen
