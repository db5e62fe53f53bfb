"""The report in a real browser: complete, quiet, and no wider than the screen, on a desk and on a phone."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from made_experiments import made_trial, simulated, write_experiment

from trainer.drops import Drop
from tune.experiment_folder import ExperimentFolder
from tune.report.writer import write_report

DOCS = Path(__file__).resolve().parents[1] / "docs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium"
    ),
]
SECTIONS = (
    *("Finalists", "What to do with it", "What was searched", "How the search went", "What the settings did"),
    *(
        "One setting at a time",
        "All settings at once",
        "Trials",
        "What it cost",
        "Data",
        "Clips left out",
        "Going on",
    ),
)
NAME = "a-rather-long-name-of-an-experiment-that-somebody-chose_2026.11.21"


@pytest.fixture(scope="module")
def screenshots() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("screenshot_report")
    finally:
        sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def browser(screenshots: ModuleType) -> Iterator[Any]:
    with screenshots.chromium(screenshots.DESKTOP, 1000, logged=True) as browser:
        yield browser


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> ExperimentFolder:
    """A finished search with everything in it: finalists, failures, dropped clips, long words."""
    drops = [Drop("train", f"{'long/' * 30}{n}.wav", "unreadable_audio", "x" * 200) for n in range(90)]
    kinds: dict[str, Any] = {"name": NAME, "drops": drops, "base_clips": True}
    return simulated(tmp_path_factory.mktemp("rich"), trials=24, family="failing", seed=2, **kinds)


def test_what_is_wrong_with_a_page_is_seen(browser: Any, screenshots: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><link rel=icon href='data:,'><meta name=viewport content='width=device-width'>"
        "<p style='width: 700px'>wide</p><img src='http://127.0.0.1:9/x.png'><script>console.error('oh')</script>"
    )
    seen = screenshots.look(browser, page, screenshots.PHONE)
    assert seen.requests == ["http://127.0.0.1:9/x.png"]
    assert any("oh" in message for message in seen.console)
    assert seen.too_wide > 300


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", ["DESKTOP", "PHONE"])
def test_a_page_is_complete_quiet_and_fits(
    rich: ExperimentFolder, browser: Any, screenshots: ModuleType, tmp_path: Path, width: str, dark: bool
) -> None:
    page = write_report(rich)
    picture = tmp_path / "page.png"
    seen = screenshots.look(browser, page, getattr(screenshots, width), dark=dark)
    screenshots.photograph(browser, picture)
    assert seen.requests == []
    assert seen.console == []
    assert seen.too_wide == 0
    lines = seen.text.splitlines()
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    assert picture.stat().st_size > 100_000
    figures = browser.execute_script(
        "return [...document.querySelectorAll('figure .plot')].map(plot => [plot.getAttribute('aria-label'),"
        " plot.querySelector('svg').getBoundingClientRect().width,"
        " plot.querySelectorAll('.trace, .point, .hm, .bars').length])"
    )
    assert len(figures) == 11
    assert all(label and wide > 150 and marks for label, wide, marks in figures)


def test_words_in_pictures_can_be_read_on_a_phone(
    rich: ExperimentFolder, browser: Any, screenshots: ModuleType
) -> None:
    page = write_report(rich)
    screenshots.look(browser, page, screenshots.PHONE)
    heights = browser.execute_script(
        "return [...document.querySelectorAll('figure svg text')]"
        ".map(text => text.getBoundingClientRect().height).filter(height => height)"
    )
    assert len(heights) > 100
    assert min(heights) > 7  # pixels of a line of text, of 390 across


def test_colours_follow_the_theme(rich: ExperimentFolder, browser: Any, screenshots: ModuleType) -> None:
    page = write_report(rich)
    inks = set()
    for dark in (False, True):
        screenshots.look(browser, page, screenshots.DESKTOP, dark=dark)
        inks.add(
            browser.execute_script(
                "return [getComputedStyle(document.body).color,"
                " getComputedStyle(document.querySelector('figure svg text')).fill].join(' ')"
            )
        )
    assert len(inks) == 2
    for ink in inks:
        body, picture = ink.split(") ")
        assert body + ")" == picture


def test_details_are_printed(rich: ExperimentFolder, browser: Any, screenshots: ModuleType) -> None:
    page = write_report(rich)
    screenshots.look(browser, page, screenshots.DESKTOP)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    height = "return document.querySelector('details table').getBoundingClientRect().height"
    try:
        assert browser.execute_script(height) > 300
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("state", ["running", "interrupted"])
def test_pages_of_searches_that_have_just_begun(
    browser: Any, screenshots: ModuleType, tmp_path: Path, state: str
) -> None:
    for count in (1, 3):
        trials = [made_trial(n, [40, 20, 10 + n], rate=1e-3 * n) for n in range(1, count + 1)]
        folder = write_experiment(tmp_path, trials, asked=9, state=state, name=f"{state}{count}")
        page = write_report(folder)
        for width in (screenshots.DESKTOP, screenshots.PHONE):
            seen = screenshots.look(browser, page, width)
            assert (seen.requests, seen.console, seen.too_wide) == ([], [], 0)
