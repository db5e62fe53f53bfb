"""A search for translations: decided by chrF, and named so in all that is made of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import mlflow
import pytest
from search_process import QUICK, Search, results

from tune.cli import main
from tune.experiments.folder import EVENTS_FILE

_WER = re.compile(r"\bWERs?\b|\bCER\b|\"(\w+_)?[wc]er\"|\b[wc]er\b")


@pytest.mark.slow
def test_a_translation_is_decided_and_named_by_chrf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--space", "lr_batch", "--trials", "1", "--epochs", "2", "--experiment", "x", "--finalists", "0"]
    search = Search(tmp_path, *words, "--set", "task=translate", *QUICK)
    assert search.end() == 0, search.log
    experiment, found = tmp_path / "experiments" / "x", results(tmp_path / "experiments" / "x")
    best, baseline = found["best"]["chrf_error"], found["baseline"]
    assert (found["metric"], baseline["chrf_error"]) == ("chrf_error", pytest.approx(100 - baseline["chrf"]))
    assert f"best      chrF error {best:6.2f} %" in search.log
    assert f"chrF error {baseline['chrf_error']:.2f} % (chrF {baseline['chrf']:.2f}), BLEU" in search.log
    for row in map(json.loads, (experiment / EVENTS_FILE).read_text().splitlines()):
        data = row["data"]
        if row["event"] in ("BaselineMeasured", "HeldOutMeasured"):
            assert {"chrf_error", "chrf", "bleu"} <= data["rates"].keys()
        elif row["event"] == "Evaluated":
            assert data["metrics"]["chrf_error"] == pytest.approx(100 - (data["metrics"]["chrf"] or 0.0))
    runs = mlflow.MlflowClient(f"sqlite:///{experiment}/mlflow.db").search_runs(["1"])
    assert len(runs) == 2
    for run in runs:
        assert {"best_chrf_error"} <= run.data.metrics.keys()
        assert "chrF error" in run.data.tags["mlflow.note.content"]
        assert not [name for name in run.data.metrics if re.search(r"(^|_)[wc]er($|_)", name)]
        assert not _WER.search(run.data.tags["mlflow.note.content"])
    monkeypatch.chdir(tmp_path)
    assert main(["export", "x", "--output", "model"]) == 0
    assert main(["evaluate", "model", "--data", "demo", "--split", "test", "--output", "evaluated"]) == 0
    assert main(["list"]) == 0
    assert main(["report", "x"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^chrF error +\d+\.\d+ ", printed, re.MULTILINE)
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"| {best:.2f}" in card
    assert json.loads((tmp_path / "evaluated" / "evaluation.json").read_text())["rates"].keys() == {
        "chrf_error"
    }
    texts = [search.log, printed, card, (experiment / "results.json").read_text()]
    texts += [path.read_text() for path in tmp_path.rglob("evaluation.json")]
    texts += [(experiment / "report" / "report.html").read_text().replace("plotly", "")]
    for text in texts[:-1]:
        assert not _WER.search(text), _WER.search(text)
    assert not re.search(r"\bWER\b|\bCER\b", texts[-1])
