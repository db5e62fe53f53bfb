"""Photograph an experiment in the MLflow UI: `python docs/screenshot.py URL COMPARE.png [LIST.png CHARTS.png]`.

URL is what `tune-whisper ui` prints. COMPARE.png gets the compare view of all trials, best first, with the
searched settings beside the WER; LIST.png the list of runs at URL itself; CHARTS.png the charts of that view.
Needs Chromium and its driver.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

SETTINGS = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")
METRIC = "wer"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server"),
    *(
        "--disable-background-networking",
        "--enable-unsafe-swiftshader",  # WebGL without a GPU, for parallel coordinates
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
    ),
)
_WAIT_SECONDS = 60
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def chromium(width: int, height: int, *, logged: bool = False) -> Iterator[webdriver.Chrome]:
    """A headless browser with a profile that is thrown away; `logged` keeps requests and console for `get_log`."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        if logged:
            options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            yield browser
        finally:
            browser.quit()


def compare_url(experiment_url: str) -> str:
    """The compare view of an experiment's trials, best first.

    Raises:
        SystemExit: `experiment_url` is no page of an experiment, or the experiment has no trial with a WER.
    """
    match = re.match(r"(https?://[^#]+?)/?#/experiments/(\d+)", experiment_url)
    if match is None:
        raise SystemExit(f"{experiment_url}: not the address of an experiment (http://.../#/experiments/1)")
    base, experiment_id = match.groups()
    query = {
        "experiment_ids": [experiment_id],
        "filter": 'tags.role = "trial" and metrics.wer >= 0',
        "order_by": [f"metrics.{METRIC} ASC"],
    }
    request = urllib.request.Request(
        f"{base}/api/2.0/mlflow/runs/search",
        json.dumps(query).encode(),
        {"Content-Type": "application/json"},
    )
    with _DIRECT.open(request, timeout=30) as answer:
        runs = [run["info"]["run_id"] for run in json.load(answer).get("runs", [])]
    if not runs:
        raise SystemExit(f"{experiment_url}: no trial with a WER")
    lists = urllib.parse.urlencode({"runs": json.dumps(runs), "experiments": json.dumps([experiment_id])})
    return f"{base}/#/compare-runs?{lists}&workflowType=machine_learning"


def photograph_compare_view(browser: webdriver.Chrome, url: str, path: str) -> str:
    """Save the compare view with WER and the searched settings side by side; return the text of the page."""
    browser.get(url)
    _wait_for(browser, "//button[@aria-label='Parameters - Show diff only']").click()
    _close_assistant(browser)
    _wait_for(browser, "//button[@data-testid='clear-button']").click()
    for box, names in zip(_boxes(browser), (SETTINGS, (METRIC,)), strict=True):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
        box.find_element(By.XPATH, "./ancestor::div[contains(@class, 'select-selector')]").click()
        _wait_for(browser, f"//*[@id='{box.get_attribute('id')}_list']")
        for name in names:
            _choose(browser, box, name)
        browser.find_element(By.TAG_NAME, "h2").click()
    _wait_for(browser, f"//*[local-name()='text' and text()='{METRIC}']")
    browser.execute_script("document.querySelector('h2').scrollIntoView({block: 'end'})")
    browser.save_screenshot(path)
    return browser.find_element(By.TAG_NAME, "body").text


def photograph_list(browser: webdriver.Chrome, url: str, path: str) -> str:
    """Save the list of runs as `tune-whisper ui` opens it; return the text of the page."""
    browser.get(url)
    _wait_for(browser, "//*[contains(text(), 'matching run')]")
    _close_assistant(browser)
    _wait_for(browser, "//*[@role='gridcell']")
    browser.save_screenshot(path)
    return browser.find_element(By.TAG_NAME, "body").text


def photograph_charts(browser: webdriver.Chrome, url: str, path: str) -> str:
    """Save the charts of the view that `tune-whisper ui` opens; return the text of the page."""
    browser.get(f"{url}&compareRunsMode=CHART")
    _wait_for(browser, "//*[contains(text(), 'matching run')]")
    _close_assistant(browser)
    _wait_for(browser, "//*[contains(@class, 'js-plotly-plot')]")
    time.sleep(4)  # the charts are drawn one after the other, and animated
    browser.save_screenshot(path)
    return browser.find_element(By.TAG_NAME, "body").text


def _boxes(browser: webdriver.Chrome) -> list[Any]:
    """The two choices of the parallel-coordinates plot: parameters, metrics."""
    return browser.find_elements(By.XPATH, "//input[@role='combobox' and starts-with(@id, 'dubois-select')]")


def _choose(browser: webdriver.Chrome, box: Any, name: str) -> None:
    """Take one entry of an open choice. Only those in sight exist on the page: go down until it is there."""
    active = "//div[contains(@class, 'item-option-active') and not(ancestor::*[contains(@class, 'hidden')])]"
    for _ in range(200):
        entry = _wait_for(browser, active)
        if entry.get_attribute("title") == name:
            box.send_keys(Keys.ENTER)
            return
        box.send_keys(Keys.ARROW_DOWN)
    raise SystemExit(f"the compare view does not offer {name}")


def _close_assistant(browser: webdriver.Chrome) -> None:
    """Close the chat panel that covers a third of the page; older versions of MLflow have none."""
    panel = "//button[@data-component-id='mlflow.assistant.chat_panel.close']"
    for button in browser.find_elements(By.XPATH, panel):
        button.click()


def _wait_for(browser: webdriver.Chrome, xpath: str) -> Any:
    found = WebDriverWait(browser, _WAIT_SECONDS).until(
        lambda page: page.find_elements(By.XPATH, xpath), xpath
    )
    return found[0]


def main(words: list[str]) -> int:
    """Run the script; the exit code says whether the pages show what they must."""
    if len(words) not in (2, 4):
        raise SystemExit(__doc__)
    with chromium(2000, 2000) as browser:
        text = photograph_compare_view(browser, compare_url(words[0]), words[1])
        missing = [name for name in (*SETTINGS, METRIC) if name not in text]
        if len(words) == 4:
            browser.set_window_size(2000, 850)
            photograph_list(browser, words[0], words[2])
            browser.set_window_size(2000, 1250)
            photograph_charts(browser, words[0], words[3])
    print(
        f"not on the page: {missing}"
        if missing
        else f"{words[1]}: WER and {', '.join(SETTINGS)} side by side"
    )
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
