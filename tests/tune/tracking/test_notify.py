"""What `--notify` posts, to a server of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from made_experiments import MadeLog, made_trial, write_experiment
from plans import search_plan

from tune.cluster.resources import TrialResources
from tune.experiments.events import Baseline, CheckpointSaved, Evaluated, ExportChosen, GuardsJudged
from tune.experiments.storage import Storage
from tune.runs.session import session_started
from tune.tracking.notify import Notifier
from tune.tracking.sync import Log, Target
from tune.util.files import read_object


@pytest.fixture
def posted() -> Iterator[tuple[str, list[str]]]:
    """The address of a server, and the texts that it was sent."""
    texts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            again = "busy" in self.path and len(texts) < 3
            self.send_response(503 if again else 404 if "hidden" in self.path else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Its own lines would be among those that the notifier prints."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", texts
        server.shutdown()


def test_news_of_a_session(tmp_path: Path, posted: tuple[str, list[str]]) -> None:
    address, texts = posted
    made = MadeLog(tmp_path / "exp")
    store, log = Notifier(made.target(notify=f"{address}/secret")), Log(made.experiment)
    store.sync(log)  # of an empty log, as a search begins
    made.session()
    made.begin("001")
    for samples, wer in ((384, 40.0), (1088, 30.0), (3200, 35.0)):
        made.measure("001", samples, wer)
        log.read()
        store.sync(log)
    made.end("001", "completed")
    made.begin("002")
    made.end(
        "002",
        "failed",
        error="Failure # 1 (occurred at 12:00)\nTraceback:\nRuntimeError: CUDA out of memory\n",
    )
    made.finish()
    log.read()
    store.sync(log)
    before = f"before fine-tuning WER {made.saved.state.base_rates['wer']:.2f} %"
    assert texts == [
        f"exp: new best, WER 40.00 % (001), {before}; 0 of 4 trials ended",
        f"exp: new best, WER 30.00 % (001), {before}; 0 of 4 trials ended",
        "exp: trial 002 failed: RuntimeError: CUDA out of memory",
        f"exp: completed, WER 30.00 % (001), {before}; 2 of 4 trials ended",
    ]
    again = Notifier(made.target(notify=f"{address}/secret"))
    again.sync(log)  # as a session that resumes does before its first event
    made.session()
    log.read()
    again.sync(log)
    assert len(texts) == 4, "what an earlier session did is no news"


def test_what_the_guards_passed_over_is_no_news_of_a_session_that_goes_on(
    tmp_path: Path, posted: tuple[str, list[str]]
) -> None:
    made = MadeLog(tmp_path / "exp")
    made.session(trials=2)
    made.trial("001", 50.0, 30.0, 11.0)
    made.trial("002", 50.0, 30.0, 13.0)
    made.append(GuardsJudged(run="002", models={"001": [], "002": []}), ExportChosen(run="002", keep=["001"]))
    made.finish()
    store, log = Notifier(made.target(notify=f"{posted[0]}/secret")), Log(made.experiment)
    made.session(trials=3)
    log.read()
    store.sync(log)
    made.begin("003")
    log.read()
    store.sync(log)
    assert posted[1] == []


def test_figures_are_those_of_the_results(tmp_path: Path, posted: tuple[str, list[str]]) -> None:
    """The winner's mean, and the base model as the best was measured; of translations the chrF error."""
    repeats = {"001": [12.0, 13.0], "002": [20.0, 21.0]}
    trials = [made_trial(1, [40, 20, 10]), made_trial(2, [41, 21, 11], rate=2)]
    folder = write_experiment(tmp_path, trials, repeats=repeats)
    part = MadeLog(tmp_path / "part", baseline=Baseline(rates={"wer": 60.0}, trial_rates={"wer": 30.0}))
    part.whole()
    translated = MadeLog(tmp_path / "chrf", baseline=Baseline(rates={"chrf_error": 60.0, "chrf": 40.0}))
    translated.session(trials=1)
    translated.begin("001")
    metrics: dict[str, float | None] = {"chrf_error": 45.0, "chrf": 55.0, "bleu": 9.0}
    named: dict[str, Any] = {"trial_id": "001", "samples_seen": 3200, "epoch": 4.0, "keep": "weights"}
    translated.append(Evaluated(**named, metrics=metrics, finished=True))
    translated.append(CheckpointSaved(**named, checkpoint="trials/001/checkpoint_3200"))
    translated.finish()
    for log in (Log(folder), Log(part.experiment), Log(translated.experiment)):
        store = Notifier(Target(folder=log.saved.folder, notify=f"{posted[0]}/secret"))
        store.sync(log)
        log.read()
        store.sync(log)
    best = read_object(folder.path / "results.json")["best"]
    low, high = best["mean_interval"]
    assert best["mean_wer"] == 12.5
    assert [text for text in posted[1] if "ended" in text] == [
        f"made: completed, WER 12.50 % (trial 001, mean of 2 seeds, 95 % interval {low:.2f} to {high:.2f}), before "
        "fine-tuning WER 60.00 %; 2 of 2 trials ended",
        "part: completed, WER 12.00 % (001), before fine-tuning WER 30.00 %; 2 of 2 trials ended",
        "chrf: completed, chrF error 45.00 % (001), before fine-tuning chrF error 60.00 %; 0 of 1 trials ended",
    ]


def test_what_fails_is_tried_again_then_printed_without_the_address(
    tmp_path: Path,
    posted: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tune.tracking.notify._PAUSES", (0.0, 0.0))
    made = MadeLog(tmp_path / "exp")
    made.session()
    made.begin("001")
    addresses = {
        f"{posted[0]}/busy": "",
        f"{posted[0]}/hidden": "HTTP 404",
        "http://127.0.0.1:9/hidden": "URLError",
        "http://me:hidden@127.0.0.1/x": "InvalidURL",
        "http://127.0.0.1:9/hidden with a space": "InvalidURL",
    }
    for number, (address, why) in enumerate(addresses.items()):
        store, log = Notifier(made.target(notify=address)), Log(made.experiment)
        log.read()
        store.sync(log)
        made.measure("001", 384 + number, 40.0 - number)
        log.read()
        store.sync(log)
        warning = f"warning: --notify: not posted ({why}): exp: new best, WER {40 - number}.00 % (001), "
        printed = capsys.readouterr().err
        assert (printed.startswith(warning) and printed.count("\n") == 1) if why else printed == ""
    assert len(posted[1]) == 6, "three tries each"
    store, log = Notifier(made.target(notify=f"{posted[0]}/hidden")), Log(made.experiment)
    for seen in (390, 391, 392):
        log.read()
        store.sync(log)
        made.measure("001", seen, 420.0 - seen)
    log.read()
    store.sync(log)
    assert len(posted[1]) == 6 + 3 + 1 + 1, "other stores wait meanwhile"
    storage = Storage.parse(str(tmp_path / "experiments"))
    plan = search_plan(storage, space="lr_batch", trials=1, notify="https://host/hidden")
    resources = TrialResources(gpus=0, cpus=1, concurrent=1)
    assert "hidden" not in str(session_started(plan, resources, "fp32", 0.0, None))
