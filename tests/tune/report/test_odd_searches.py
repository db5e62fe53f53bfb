"""Small and odd searches: what the report advises on each, and what it must not say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_experiments import MadeTrial, made_trial, write_experiment
from pages import Page

from tune.cli import main

BROKEN = "Traceback (most recent call last):\n  ...\nValueError: no such column"
MORE = "More training is likely"
TEXTS = "texts and audio match, and that"
NONE = "No trial has reached an evaluation"


def whole(number: int, *wers: float, **settings: Any) -> MadeTrial:
    """A trial with its whole budget, the first of which has the usual settings."""
    return made_trial(number, wers, rate=number, **settings)


def failed(number: int, *wers: float) -> MadeTrial:
    return made_trial(number, wers, rate=number, error=BROKEN)


#: Trials, what else the experiment has, what the report must say and what it must not.
TABLE: dict[str, tuple[Sequence[MadeTrial], dict[str, Any], Sequence[str], Sequence[str]]] = {
    "no trial began": ([], {"asked": 4}, [NONE], ["Trials "]),
    "the only trial failed": (
        *([failed(1)], {}),
        *(
            ["The only trial failed with: ValueError: no such column.", NONE],
            ["1 of 1 trials failed", "All with"],
        ),
    ),
    "all diverged": (
        [whole(1), whole(2)],
        {},
        ["All 2 trials diverged", "search below 0.0001"],
        [NONE],
    ),
    "all stopped at the first rung": (
        *([whole(n, 40.0 + n) for n in range(1, 5)], {}),
        *(
            ["No trial was trained on the full budget: all 4 were stopped early", "reduction_factor: 1.5"],
            [NONE, MORE],
        ),
    ),
    "no error left": (
        *([whole(1, 20, 5, 0), whole(2, 25, 8, 4)], {}),
        *(
            ["makes no error on the 200 validation clips", "in the training data"],
            [MORE],
        ),
    ),
    "the base model makes no error": (
        *([whole(1, 0, 0, 0), whole(2, 0, 0, 0)], {"baseline": 0.0}),
        *(
            ["they can show no gain", "harder"],
            [TEXTS, "search lower", MORE, "training data ("],
        ),
    ),
    "worse than the base model": (
        *([whole(1, 30, 13.4, 13), whole(2, 30, 16, 15)], {"baseline": 8.0}),
        *(
            [
                "13.00 %, against 8.00 %",
                "0.0001: search lower ones",
                "No gain: the best model (WER 13.00 %)",
            ],
            [TEXTS],
        ),
    ),
    "more errors than words": (
        *([whole(1, 250, 200, 142), whole(2, 280, 270, 260)], {"baseline": 300.0}),
        *(
            [
                "more errors than there are words: WER 142.00 %",
                "by repeating itself",
                "match the audio",
                "inspect --data demo",
            ],
            [MORE],
        ),
    ),
    "broken by training": (
        *([whole(1, 250, 200, 142), whole(2, 280, 270, 260)], {"baseline": 30.0}),
        *(
            ["the training is at fault", "Keep the base model"],
            [MORE, TEXTS, "match the audio"],
        ),
    ),
    "all rise at the end": (
        *([whole(n, 30, 15, 19) for n in range(1, 4)], {}),
        *(["in 3 of 3 completed trials"], [MORE]),
    ),
    "still falling": (
        [whole(1, 50, 40, 30), whole(2, 60, 50, 40)],
        {},
        [MORE, "--epochs 8"],
        ["rises again"],
    ),
    "still falling, limited in samples": (
        [whole(1, 50, 40, 30), whole(2, 60, 50, 40)],
        {"settings": {"max_samples": "3200"}},
        [MORE, "--max-samples 6400"],
        ["--epochs"],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_what_is_said_of_an_odd_search(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, kinds, must, must_not = TABLE[case]
    made, page = write_experiment(tmp_path, trials, **kinds), tmp_path / "page.html"
    monkeypatch.setenv("COLUMNS", "2000")
    capsys.readouterr()
    assert main(["report", made.name, "--storage", str(tmp_path), "--output", str(page)]) == 0
    text = f"{capsys.readouterr().out}\n{Page(page.read_text(encoding='utf-8')).text}"
    assert not [words for words in must if words not in text], text
    assert not [words for words in must_not if words in text], text
