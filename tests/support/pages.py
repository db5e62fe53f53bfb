"""Pages of the project: what one holds, read without a browser, and how it looks in a real one."""

import dataclasses
import itertools
import json
import re
import shutil
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS))
try:
    import screenshot
finally:
    sys.path.remove(str(DOCS))

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium"
)
DESKTOP, PHONE = 1280, 390
"""Widths in CSS pixels."""
MARKS = """return [...document.querySelectorAll('figure .plot')].map(plot => [plot.getAttribute('aria-label'),
  plot.querySelector('svg').getBoundingClientRect().width,
  plot.querySelectorAll('.point, .scatter path, .hm, .parcoords .y-axis').length])
"""


VOID = {"meta", "link", "br"}
POLICY = (
    r"default-src 'none'; img-src data: blob:; media-src data:; style-src 'unsafe-inline'; "
    r"script-src 'nonce-([\w-]{40,})'(?: 'unsafe-eval')?"
)


class Page(HTMLParser):
    """Headings, texts and figures of a page, whose tags must be closed, and which must need nothing but itself."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.texts: list[str] = []
        self.words: dict[str, list[str]] = {}
        """Texts by the tag that they are directly in."""
        self.tags: Counter[str] = Counter()
        self.figures: dict[str, dict[str, Any]] = {}
        """What each figure is drawn from, by its name."""
        self._open: list[str] = []
        self._name = ""
        policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
        found = policy and re.fullmatch(POLICY, policy[1])
        assert found
        self._nonce = found[1]
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags[tag] += 1
        assert tag not in ("iframe", "img", "object", "embed")
        assert not any(name.startswith("on") for name in found), "no handlers"
        assert all(str(found.get(name, "#")).startswith(("#", "data:")) for name in ("href", "src"))
        if tag == "script":
            assert found.get("nonce", self._nonce) == self._nonce
            assert "nonce" in found or found["type"] == "application/json"
        if found.get("class") == "plot":
            self._name = str(found["id"])
            assert found["aria-label"]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        if tag == "script" and self._name:
            self.figures[self._name] = json.loads(data)
            self._name = ""
        elif data.strip() and tag not in ("style", "script"):
            text = " ".join(data.split())
            self.texts.append(text)
            self.words.setdefault(tag, []).append(text)
            if tag in ("h1", "h2", "h3"):
                self.headings.append(text)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def labels(self) -> str:
        """All that figures say, in one line."""
        return " ".join(_strings(self.figures))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inside for text in _strings(each)]


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


def look(browser: Any, page: Path, width: int = DESKTOP, *, dark: bool = False) -> Seen:
    """Open a page on a screen of this width."""
    screenshot.resize(browser, width, 900)
    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    browser.get_log("performance"), browser.get_log("browser")  # forget what was before
    browser.get(page.as_uri())
    root = "document.documentElement"
    # The first is the width laid out, bars left out.
    laid_out, needed = browser.execute_script(f"return [{root}.clientWidth, {root}.scrollWidth]")
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
    asked = [message["params"]["request"]["url"] for message in sent]
    console = [entry["message"] for entry in browser.get_log("browser")]
    return Seen(
        text=browser.execute_script("return document.body.innerText"),
        # Chromium's own first tab may still load.
        requests=[url for url in asked if not url.startswith(("data:", "chrome")) and url != page.as_uri()],
        console=[text for text in console if "GPU stall" not in text],  # WebGL without a GPU is slow
        too_wide=max(0, needed - laid_out),
    )


def look_at(browser: Any, page: Path, width: int = DESKTOP, *, dark: bool = False) -> Seen:
    """Open a page, which must be quiet, must fit, and in which every figure must be drawn; what was seen."""
    seen = look(browser, page, width, dark=dark)
    assert (seen.requests, seen.console, seen.too_wide) == ([], [], 0)
    for caption, across, marks in browser.execute_script(MARKS):
        assert caption and across > 150 and marks, caption
    return seen


def look_everywhere(page: Path) -> None:
    """On a desk and on a phone, light and dark."""
    with screenshot.chromium() as browser:
        for width, dark in itertools.product((DESKTOP, PHONE), (False, True)):
            look_at(browser, page, width, dark=dark)
