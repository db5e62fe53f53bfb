"""Take the pictures of README and docs: `python docs/screenshot.py --experiment FOLDER`, a finished search.

Needs Chromium and its driver.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--enable-unsafe-swiftshader"),  # WebGL without a GPU
)
_SECONDS = 120
_ASSISTANT = "//button[@data-component-id='mlflow.assistant.chat_panel.close']"
_HEIGHT = """return [...document.querySelectorAll('h2')].find(each => each.textContent === 'Winning settings')
  .getBoundingClientRect().top"""


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A headless browser with a profile that is thrown away; `get_log` has its requests and console."""
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            yield browser
        finally:
            browser.quit()


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    """In CSS pixels; below 600 it is a phone."""
    phone = width < 600
    size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def photograph_report(browser: webdriver.Chrome, page: Path, picture: Path) -> None:
    """Save what a report shows above the winning settings."""
    browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    resize(browser, 1280, 900)
    browser.get(page.as_uri())
    resize(browser, 1280, int(browser.execute_script(_HEIGHT)))
    browser.save_screenshot(str(picture))


def photograph_mlflow(browser: webdriver.Chrome, url: str, awaited: str, picture: Path) -> None:
    """Save a page of MLflow that shows an element, given by its XPath."""
    wait = WebDriverWait(browser, _SECONDS, ignored_exceptions=[WebDriverException])
    wait.until(lambda page: page.get(url) is None)  # refused until the server is up
    wait.until(lambda page: page.find_elements("xpath", awaited))
    for button in browser.find_elements("xpath", _ASSISTANT):
        button.click()
    time.sleep(5)  # charts are drawn one after the other, and animated
    browser.save_screenshot(str(picture))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    arguments = parser.parse_args()
    folder, output = arguments.experiment.absolute(), arguments.output
    words = [sys.executable, "-m", "tune", "ui", folder.name, "--storage", str(folder.parent)]
    with chromium() as browser:
        photograph_report(browser, folder / "report" / "report.html", output / "report.png")
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                url = server.stdout.readline().split()[-1] if server.stdout else ""
                resize(browser, 2000, 700)
                photograph_mlflow(browser, url, "//*[@role='gridcell']", output / "mlflow_trials.png")
                resize(browser, 2000, 1100)
                plots = "//*[contains(@class, 'js-plotly-plot')]"
                photograph_mlflow(
                    browser, f"{url}&compareRunsMode=CHART", plots, output / "mlflow_charts.png"
                )
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
