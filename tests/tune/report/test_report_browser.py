"""The report in a real browser: complete, quiet, and no wider than the screen, on a desk and on a phone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_experiments import made_trial, write_experiment
from pages import DESKTOP, PHONE, look, look_at, needs_chromium, screenshot

from trainer.data.drops import Drop
from tune.report.analysis import analyse
from tune.report.writer import save_page

pytestmark = [pytest.mark.slow, needs_chromium]
SECTIONS = (
    *("Advice", "Learning curves", "Winning settings", "Finalists", "Effect of the settings"),
    *("Trials", "Search space", "Cost", "Data", "Clips left out", "Next steps"),
)
FIGURES = {
    *("curves", "parallel", "slice-learning-rate", "slice-warmup-ratio", "slice-train-batch-size"),
    "slice-gradient-accumulation-steps",
}
SEEN = """const texts = [...document.querySelectorAll('figure svg text')];
const on = document.getElementById('curves')._context;
return [texts.map(text => text.getBoundingClientRect().height).filter(height => height),
  getComputedStyle(document.body).color, getComputedStyle(texts[0]).fill, on.modeBarButtons, on.showSendToCloud]
"""
SORTED = """const heads = [...document.querySelectorAll('.sortable th')];
const head = heads.find(each => each.innerText.trim() === arguments[0]);
head.querySelector('button').click();
return [...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[head.cellIndex].innerText.trim())
"""
NAME = "a-rather-long-name-of-an-experiment-that-somebody-chose_2026.11.21"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with screenshot.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a finished search with everything in it: finalists, failures, dropped clips, long words."""
    drops = [Drop("train", f"{'long/' * 30}{n}.wav", "unreadable_audio", "x" * 200) for n in range(90)]
    trials = [
        made_trial(
            n,
            [60.0, 40 - n / 2, 20 - n / 4][: 1 + n % 3],
            rate=n / 5,
            warmup=n / 100,
            batch=(4, 8, 16)[n % 3],
        )
        for n in range(1, 21)
    ]
    trials += [made_trial(21, [], rate=9), made_trial(22, [50.0], error="x " * 300, accumulation=2)]
    kinds: dict[str, Any] = {"name": NAME, "drops": drops, "base_clips": True}
    repeats = {"020": [15.0, 15.4], "017": [15.8, 15.9]}
    folder = write_experiment(tmp_path_factory.mktemp("rich"), trials, repeats=repeats, **kinds)
    return save_page(analyse(folder, ended=True))


def test_a_page_is_complete_quiet_and_fits(rich: Path, browser: Any) -> None:
    """Its figures can be read, are in the colours of the theme, and offer no upload to plotly's makers."""
    for width, dark in itertools.product((DESKTOP, PHONE), (False, True)):
        seen = look_at(browser, rich, width, dark=dark)
        assert [line for line in seen.text.splitlines() if line in SECTIONS] == list(SECTIONS)
        plots = browser.find_elements("css selector", "figure .plot")
        assert {plot.get_attribute("id") for plot in plots} == FIGURES
        heights, ink, drawn, buttons, upload = browser.execute_script(SEEN)
        assert len(heights) > 8 * len(plots)
        assert min(heights) > 7  # pixels of a line of text
        assert ink == drawn == ("rgb(227, 230, 234)" if dark else "rgb(31, 35, 41)")
        assert (buttons, upload) == ([["toImage", "zoom2d", "pan2d", "resetScale2d"]], False)


def test_trials_are_sorted_by_a_click(rich: Path, browser: Any) -> None:
    """Numbers as numbers and empty cells last, the other way with the next click; first they are by WER."""
    look(browser, rich)
    rates, again = (browser.execute_script(SORTED, "lr") for _ in range(2))
    assert [float(rate) for rate in rates] == sorted(map(float, rates)) == [*map(float, reversed(again))]
    wers = browser.execute_script(SORTED, "WER %")
    assert wers[-1] == "" and [float(wer) for wer in wers[:-1]] == sorted(map(float, wers[:-1]))
