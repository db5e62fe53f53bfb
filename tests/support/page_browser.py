"""Pages in a real browser, by the script that photographs them for the documentation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))
try:
    import screenshot_report as screenshots
finally:
    sys.path.remove(str(DOCS))

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium"
)
MARKS = """return [...document.querySelectorAll('figure .plot')].map(plot => [plot.getAttribute('aria-label'),
  plot.querySelector('svg').getBoundingClientRect().width, plot.querySelectorAll('.point, .scatter path, .hm').length])
"""


def look_at(browser: Any, page: Path, width: str = "DESKTOP", *, dark: bool = False) -> Any:
    """Open a page, which must be quiet, must fit, and in which every figure must be drawn; what was seen."""
    seen = screenshots.look(browser, page, getattr(screenshots, width), dark=dark)
    assert (seen.requests, seen.console, seen.too_wide) == ([], [], 0)
    for caption, across, marks in browser.execute_script(MARKS):
        assert caption and across > 150 and marks, caption
    return seen


def look_everywhere(page: Path) -> None:
    """On a desk and on a phone, light and dark."""
    with screenshots.chromium(screenshots.DESKTOP, 1000, logged=True) as browser:
        for width in ("DESKTOP", "PHONE"):
            for dark in (False, True):
                look_at(browser, page, width, dark=dark)
