"""A search for translations: decided by chrF, and named so in all that is made of it."""

import json
import re
from pathlib import Path

import mlflow
import pytest
from made_experiments import MadeLog
from search_process import QUICK, Search, results

from tune.cli import main
from tune.experiments.events import Baseline, CheckpointSaved, Evaluated, FinalistsCompared, GuardMeasured
from tune.experiments.folder import EVENTS_FILE
from tune.experiments.listing import list_experiments
from tune.experiments.log import parse
from tune.experiments.results import results_of
from tune.experiments.storage import Storage
from tune.search.finalists import FinalistScore, Verdict
from tune.tracking.mlflow_runs import event_points, own_run, trial_run

_WER = re.compile(r"\bWERs?\b|\bCER\b|\"(\w+_)?[wc]er\"|\b[wc]er\b")


def rates(value: float) -> dict[str, float]:
    return {"chrf_error": value, "chrf": 100 - value, "bleu": 5.0}


def test_what_is_made_of_the_log_of_a_translation_names_the_chrf(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "x")
    baseline = Baseline(rates={**rates(60.0), "clips": 20.0}, sources={"a": rates(61.0)})
    made.session(trials=2, baseline=baseline)
    made.append(*(GuardMeasured(guard="g", run=run, rates=rates(30.0)) for run in (None, "002")))
    for run, value in (("001", 50.0), ("002", 45.0), ("002-r1", 44.0)):
        made.begin(run)
        named = {"trial_id": run, "samples_seen": 3200}
        found = {"metrics": {**rates(value), "eval_loss": 0.5}, "sources": {"a": rates(value)}}
        made.append(Evaluated(**named, epoch=4.0, finished=True, keep="weights", **found))  # type: ignore[arg-type]
        made.append(CheckpointSaved(**named, epoch=4.0, checkpoint=f"trials/{run}/c", keep="weights"))  # type: ignore[arg-type]
        made.end(run)
    score = FinalistScore("002", ["002-r1"], [44.0], 44.0, None, 3.0)
    made.append(FinalistsCompared(verdict=Verdict([score], "002", False)))
    made.finish()
    state, saved, log = made.saved.state, made.saved, made.folder / EVENTS_FILE
    found = results_of(made.experiment, state)
    best = {name: found["best"][name] for name in ("run", "mean_chrf_error", "chrf_error")}
    assert best == {"run": "002-r1", "mean_chrf_error": 44.0, "chrf_error": 44.0}
    assert found["finalists"]["scores"][0]["chrf_errors"] == [44.0]
    [line] = [one.to_dict() for one in list_experiments(Storage.parse(tmp_path))]
    told = [line[name] for name in ("baseline_chrf_error", "best_chrf_error", "chrf_error_gain")]
    assert told == [60.0, 44.0, 16.0]
    points = event_points([*parse(log.read_bytes(), log)], saved)
    ended = [*own_run(saved, "").metrics, *trial_run(state.run("001"), saved).metrics]
    keys = {key for each in [*points.values(), ended] for key, *_ in each}
    wanted = {"baseline_chrf_error/a", "chrf_error", "best_chrf_error", "winner_mean_chrf_error"}
    assert wanted <= keys
    assert not [
        text for text in (*keys, json.dumps(found), json.dumps(line)) if re.search(r"\b(\w+_)?[wc]er\b", text)
    ]


@pytest.mark.slow
@pytest.mark.occasional
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
        if row["event"] in ("Prepared", "HeldOutMeasured"):
            base = data["baseline"].get("rates", data["baseline"])
            assert {"chrf_error", "chrf", "bleu"} <= base.keys() & data.get("rates", base).keys()
        elif row["event"] == "Evaluated":
            assert data["metrics"]["chrf_error"] == pytest.approx(100 - (data["metrics"]["chrf"] or 0.0))
    runs = mlflow.MlflowClient(f"sqlite:///{experiment.parent}/mlflow.db").search_runs(["1"])
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
    for text in (search.log, printed, card, (experiment / "results.json").read_text()):
        assert not _WER.search(text), _WER.search(text)
    page = (experiment / "report" / "report.html").read_text()
    assert not re.search(r"\bWER\b|\bCER\b", page.replace("plotly", ""))
