"""The last lines of a search on the screen: what won, how sure that is, and what it gained."""

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest
from made_experiments import made_trial, write_experiment
from plans import search_plan
from rich.console import Console
from search_process import read_log

from tune.experiments.events import (
    CutShort,
    Entry,
    Event,
    FinalistsCompared,
    HeldOutMeasured,
    TrialEnded,
    TrialProposed,
    TrialStarted,
)
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.storage import Storage
from tune.runs.outcome import Outcome
from tune.runs.search_display import print_summary
from tune.tracking.mlflow_texts import experiment_note

SETTINGS = "learning_rate 0.00024, warmup_ratio 0.1, train_batch_size 8, gradient_accumulation_steps 1"


def printed(outcome: Outcome, *events: Event) -> list[str]:
    """All lines, with the table of trials first, once these events have happened too."""
    for event in events:
        outcome.state.apply(Entry(outcome.state.events + 1, outcome.state.last_event_time, event))
    console = Console(file=io.StringIO(), width=200)
    print_summary(outcome, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def search_outcome(folder: Path, *, baseline: float = 60.0, **kinds: Any) -> Outcome:
    """Of 12 trials, of which the first has the usual settings, and 003 and 004 are finalists."""
    usual = [made_trial(1, [50.0, 30.0, 12.0])]
    better = [made_trial(n, [48.0, 28.0, 11.0 - n / 10], rate=2 + n / 10) for n in range(2, 5)]
    others = [made_trial(n, [55.0], rate=n / 10) for n in range(5, 13)]
    kinds = {"repeats": {"003": [10.5, 11.5], "004": [10.0, 10.4]}, **kinds}
    written = write_experiment(folder, [*usual, *better, *others], baseline=baseline, **kinds)
    asked = {"space": "lr_batch", "trials": 12, "finalists": len(kinds["repeats"])}
    plan = search_plan(Storage.parse(folder / "elsewhere"), "made", **asked)
    return Outcome(plan, read_log(written.path / EVENTS_FILE))


def test_the_winners_mean_and_its_interval_lead_and_the_test_split_stands_beside_it(tmp_path: Path) -> None:
    outcome = search_outcome(tmp_path)
    low, high = outcome.state.verdict.score.mean_interval or (0.0, 0.0)
    measured = HeldOutMeasured(
        run="004-r1", rates={"wer": 10.894, "cer": 3.0, "clips": 1234.0}, baseline={"wer": 61.25, "cer": 20.0}
    )
    lines = printed(outcome, measured)
    first = next(number for number, line in enumerate(lines) if line.startswith("winner "))
    assert [line.split()[0] for line in lines[first - 3 : first]] == ["finalist", "004", "003"]
    assert lines[first : first + 7] == [
        f"winner    WER  10.20 % (mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f})  "
        f"trial 004: {SETTINGS}",
        "verdict   trial 004 has the lowest mean; no difference to 003 is shown",
        "baseline  WER  60.00 %  demo before fine-tuning",
        "gain           49.80 points: 83 % fewer errors",
        "search    1.80 points more than one training with the usual settings (trial 001), which gained 48.00; within "
        "noise: 95 % interval -1.04 to 4.64 points",
        "test      WER  10.89 % (baseline 61.25 %)  on 1,234 held-out test clips",
        "best      WER  10.00 %  repeat 004-r1, to be exported: the lowest of 2 seeds, which is partly luck",
    ]


@pytest.mark.parametrize("text", ["", "trial 003 has no repeat that was completed"])
def test_without_a_comparison_the_best_is_told_to_be_lucky(text: str, tmp_path: Path) -> None:
    told = [FinalistsCompared(verdict=None, text=text)] if text else []
    lines = printed(search_outcome(tmp_path, repeats={}), *told)
    assert not text or f"no verdict: {text}; the weights of all finalists are kept" in lines
    first = lines.index(f"best      WER  10.60 %  trial 004: {SETTINGS}")
    assert lines[first + 1 : first + 4] == [
        "          the lowest of 12 trials, which is partly luck",
        "baseline  WER  60.00 %  demo before fine-tuning",
        "gain           49.40 points: 82 % fewer errors",
    ]


def test_a_verdict_holds_until_another_trial_ends(tmp_path: Path) -> None:
    outcome = search_outcome(tmp_path)
    assert any(line.startswith("winner ") for line in printed(outcome))
    ended = TrialEnded(trial_id="005", status="completed", samples_seen=300, epoch=3.0)
    assert not any(line.startswith("winner ") for line in printed(outcome, ended))


def test_one_lucky_seed_below_the_base_model_is_no_gain(tmp_path: Path) -> None:
    """Its mean is 10.2 %, its lowest 10.0 %."""
    assert "\ngain " in "\n".join(printed(search_outcome(tmp_path / "above", baseline=10.3)))
    lines = [line for line in printed(search_outcome(tmp_path / "below", baseline=10.1)) if line]
    assert "\ngain " not in "\n".join(lines)
    assert lines[0].startswith("no gain: ")
    assert "(WER 10.20 %) does not beat the base model (10.10 %)" in lines[0]
    saved = Experiment.read(Storage.parse(tmp_path / "below").experiment("made"))
    told = "\n**No gain**: WER 10.10 % before fine-tuning, 10.20 % here (settings of trial 004: `"
    assert told in experiment_note(saved, ""), "in MLflow too"


def test_a_gain_has_its_interval_or_is_within_noise(tmp_path: Path) -> None:
    """As the report has it."""
    for place, baseline, gain in (
        ("far", 60.0, r"49\.80 points: 83 % fewer errors, 95 % interval 4\d\.\d\d to 5\d\.\d\d points"),
        ("near", 10.9, r"0\.70 points: 6 % fewer errors; within noise: its 95 % interval, -\d\.\d\d to .*"),
    ):
        outcome = search_outcome(tmp_path / place, baseline=baseline, base_clips=True)
        folder = Storage.parse(tmp_path / place).experiment("made")
        lines = printed(Outcome(dataclasses.replace(outcome.plan, experiment_folder=folder), outcome.state))
        assert [line for line in lines if re.fullmatch(f"gain +{gain}", line)], lines
    lines = printed(search_outcome(tmp_path / "by seeds", baseline=10.9))
    told = "gain            0.70 points: 6 % fewer errors; within noise: two seeds can differ by 1.5 points"
    assert told in lines


def test_where_repeats_fail_it_shows_the_first_error_of_those_in_a_row(tmp_path: Path) -> None:
    """Once a ValueError where no trial had an error."""
    outcome = search_outcome(tmp_path, repeats={})
    outcome.state.run("012").error = "another one, an hour before"
    events: list[Event] = []
    for number in (1, 2, 3, 4):
        name = f"004-r{number}"
        events += [TrialProposed(trial_id=name, config={}), TrialStarted(trial_id=name, folder=name)]
        events.append(TrialEnded(trial_id=name, status="failed", error=f"boom {number}"))
    events.append(CutShort(final_round=True, reason="failures", text="3 trials in a row failed"))
    lines = printed(outcome, *events)
    where = lines.index("ended     3 trials in a row failed")
    assert lines[where + 1 : where + 3] == ["the first error, of repeat 004-r2:", "boom 2"]


def test_where_all_diverged_it_says_what_to_search(tmp_path: Path) -> None:
    written = write_experiment(tmp_path, [made_trial(number, []) for number in (1, 2)])
    plan = search_plan(Storage.parse(tmp_path / "elsewhere"), space="lr_batch", trials=2)
    lines = printed(Outcome(plan, read_log(written.path / EVENTS_FILE)))
    first = next(number for number, line in enumerate(lines) if line.startswith("trials "))
    assert lines[first].endswith(": 2 diverged")
    assert lines[first + 1] == "all trials diverged: search lower learning rates"
