"""Photograph a page of `tune-whisper report`.

`python docs/screenshot_report.py PAGE.html REPORT.png`: REPORT.png gets the result and the advice as they are on a
wide screen in light colours. Needs Chromium and its driver; fails where the page, there or on a phone in dark colours,
asks the network for anything, writes to the console or is wider than the screen.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from screenshot import chromium
from selenium import webdriver

DESKTOP, PHONE = 1280, 390
"""Widths in CSS pixels."""


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a browser made of a page."""

    text: str
    requests: list[str]
    """Addresses that it asked for, but for the page's own and what the page holds itself."""
    console: list[str]
    """Errors and warnings."""
    too_wide: int
    """CSS pixels by which the page is wider than the screen."""


def look(browser: webdriver.Chrome, page: Path, width: int, *, dark: bool = False) -> Seen:
    """Open a page on a screen of this width."""
    screen = {
        "width": width,
        "height": 900,
        "deviceScaleFactor": 1 if width > 600 else 2,
        "mobile": width <= 600,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    _logged(browser, "performance"), _logged(browser, "browser")  # forget what was before
    browser.get(page.as_uri())
    root = "document.documentElement"
    # The first is the width laid out, bars left out.
    laid_out, needed = browser.execute_script(f"return [{root}.clientWidth, {root}.scrollWidth]")
    messages = [json.loads(entry["message"])["message"] for entry in _logged(browser, "performance")]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return Seen(
        text=browser.execute_script("return document.body.innerText"),
        # Chromium's own first tab may still load.
        requests=[url for url in asked if not url.startswith(("data:", "chrome")) and url != page.as_uri()],
        # Without a GPU WebGL tells that it is slow.
        console=[
            entry["message"] for entry in _logged(browser, "browser") if "GPU stall" not in entry["message"]
        ],
        too_wide=max(0, needed - laid_out),
    )


def photograph(browser: webdriver.Chrome, picture: Path, *, end: str | None = None) -> None:
    """Save the open page, or what is above one heading."""
    width, height = browser.execute_script(
        "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
    )
    clip = {
        "x": 0,
        "y": 0,
        "width": width,
        "height": height if end is None else _height_of(browser, end),
        "scale": 1,
    }
    shot = {"format": "png", "captureBeyondViewport": True, "clip": clip}
    picture.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]))


def _height_of(browser: webdriver.Chrome, heading: str) -> int:
    return int(
        browser.execute_script(
            "const found = [...document.querySelectorAll('h2, h3')].find(each => each.textContent === arguments[0]);"
            "return found.getBoundingClientRect().top + window.scrollY",
            heading,
        )
    )


def _logged(browser: webdriver.Chrome, kind: str) -> list[Any]:
    return list(browser.get_log(kind))


def main(words: list[str]) -> int:
    """Run the script; the exit code says whether the page is as it must be."""
    if len(words) != 2:
        raise SystemExit(__doc__)
    page, wrong = Path(words[0]).absolute(), []
    with chromium(DESKTOP, 1000, logged=True) as browser:
        for width in (DESKTOP, PHONE):
            seen = look(browser, page, width, dark=width == PHONE)
            wrong += [*seen.requests, *seen.console]
            if seen.too_wide:
                wrong.append(f"{seen.too_wide} pixels too wide at {width}")
            if width == DESKTOP:
                photograph(browser, Path(words[1]), end="Winning settings")
    print("\n".join(wrong) or f"{words[1]}: no requests, no messages, not too wide")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
