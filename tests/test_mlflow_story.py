"""What MLflow's own pages tell of a search: descriptions, columns, the best run, charts, pictures as artifacts."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from made_experiments import made_trial
from made_experiments import write_experiment as write_search
from mlflow_server import children, client_of, only_parent
from search_process import results
from test_ui import free_port, running_ui, write_experiment
from tune.mlflow_attach import attach_folder
from tune.mlflow_journal import JOURNAL_FILE, Journal
from tune.mlflow_logging import MlflowRecorder
from tune.mlflow_records import Run
from tune.mlflow_story import search_begins, search_ended, training_ended, trial_ended
from tune.mlflow_writer import StoreWriter
from tune.results import SearchOutcome

from trainer.train import Evaluation
from tune.comparison import Standing, Verdict
from tune.errors import TrackingError
from tune.experiment_folder import ExperimentFolder
from tune.mlflow_store import default_artifact_root, default_tracking_uri
from tune.plan import SearchRequest, make_plan
from tune.search.budgets import Budgets, End
from tune.search.records import Stop, TrialRecord
from tune.storage import Storage
from tune.tracking.mlflow_connection import TrackingStore
from tune.tracking.mlflow_view import trials_view

ROOT = Path(__file__).parents[1]
SETTINGS = ("learning_rate", "warmup_ratio", "train_batch_size", "gradient_accumulation_steps")


BASELINE = 60.0


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SearchOutcome:
    """A search of 12 trials, of which the first has the usual settings, with two finalists."""
    folder = tmp_path_factory.mktemp("made")
    usual = [made_trial(1, [50.0, 30.0, 12.0])]
    better = [made_trial(n, [48.0, 28.0, 11.0 - n / 10], rate=2e-3 + n / 1e4) for n in range(2, 5)]
    others = [made_trial(n, [55.0], rate=n / 1e4) for n in range(5, 13)]
    repeats = {"003": [10.5, 11.5], "004": [10.0, 10.4]}
    written = write_search(folder, [*usual, *better, *others], baseline=BASELINE, repeats=repeats)
    saved = results(written.path)
    verdict = saved["finalists"]
    standings = [Standing(**{**each, "interval": tuple(each["interval"])}) for each in verdict["standings"]]
    state = json.loads((written.path / "state.json").read_text())
    trials, records = ([TrialRecord.from_dict(each) for each in state[key]] for key in ("trials", "repeats"))
    request = SearchRequest(
        space="lr_batch",
        trials=12,
        storage=Storage.parse(folder / "elsewhere"),
        experiment="made",
        finalists=2,
    )
    return SearchOutcome(
        plan=make_plan(request),
        trials=trials,
        best=next(run for run in records if run.trial_id == saved["best"]["run"]),
        baseline=base_model(BASELINE),
        checkpoints={},
        seconds=3700.0,
        interrupted=False,
        repeats=records,
        verdict=Verdict(standings, verdict["winner"], verdict["tie"]),
    )


def base_model(wer: float) -> Evaluation:
    rates = dict.fromkeys(("wer", "cer", "wer_orthographic", "cer_orthographic"), wer)
    return Evaluation(**rates, loss=1.0, clips=200, predictions=[])


def cells(text: str) -> list[list[str]]:
    """Rows of all Markdown tables."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if "---" not in row[0]]


def test_while_it_runs_the_description_says_what_is_searched(outcome: SearchOutcome) -> None:
    budgets = Budgets(seconds=5400.0, gpu_hours=3.0, plateau_trials=4)
    request = dataclasses.replace(outcome.plan.request, budgets=budgets)
    text = search_begins(dataclasses.replace(outcome.plan, request=request))
    assert "`demo` on `demo`, language `en`" in text
    assert (
        "12 trials, at most 1h30m, at most 3 GPU-hours, until 4 in a row bring nothing better, "
        "then the best 2 again with 2 new seeds each."
    ) in text
    assert ["`learning_rate`", "0.0001 to 0.01, log scale"] in cells(text)


def test_in_the_end_it_says_what_came_of_it(outcome: SearchOutcome) -> None:
    assert outcome.best is not None
    assert outcome.verdict is not None
    text, best = search_ended(outcome), outcome.best.best_wer or 0.0
    assert text.startswith(f"**WER {best:.2f} %**, 60.00 % before: {60 - best:.2f} points, ")
    assert f"{100 * (60 - best) / 60:.0f} % fewer errors (run {outcome.best.trial_id})" in text
    rows = cells(text)
    assert ["`demo` untouched", "60.00", ""] in rows
    assert ["the usual settings: trial 001", "12.00", "`lr=0.001 warmup=0.1 batch=8 accum=1`"] in rows
    for standing in outcome.verdict.standings:
        (row,) = [row for row in rows if row[0].strip("*") == standing.trial_id]
        assert row[2:4] == [f"{standing.mean:.2f}", f"{standing.sd:.2f}"]
    (won,) = [row for row in rows if row[0].startswith("**winner, mean of 2 seeds: trial")]
    lead = next(found for found in outcome.verdict.standings if found.trial_id == outcome.winner)
    assert won[1] == f"**{lead.mean:.2f} ± {lead.sd:.2f}**"
    assert "12 trials in 1:01:40: 4 completed, 8 early stopped. 4 repeats of the best." in text
    storage = outcome.plan.request.storage.address
    assert f"tune-whisper export made --output my-model --storage {storage}" in text
    assert len(text) < 8000  # what a tag may hold


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"best": None, "verdict": None, "repeats": []}, "No trial reached an evaluation."),
        ({"end": End("plateau", "5 trials in a row were no better")}, "It ended because 5 trials in a row"),
        ({"interrupted": True, "verdict": None, "repeats": []}, "**It was interrupted**"),
    ],
)
def test_other_ends(changes: dict[str, Any], told: str, outcome: SearchOutcome) -> None:
    text = search_ended(dataclasses.replace(outcome, **changes))
    assert told in text
    assert ("export" in text) == ("best" not in changes)
    assert ("--resume made" in text) == ("interrupted" in changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "normaliser auto-en, unit: words. English: case and"),
        ({"language": "ja"}, "normaliser auto-ja, unit: characters, so that it is the CER here. Japanese: "),
        ({"language": "ja", "normalizer": "none"}, "normaliser none, unit: words. Texts as they are."),
    ],
)
def test_what_is_counted_is_told(changes: dict[str, Any], told: str, outcome: SearchOutcome) -> None:
    plan = dataclasses.replace(outcome.plan, base=outcome.plan.base.replace(**changes))
    for text in (
        search_ended(dataclasses.replace(outcome, plan=plan)),
        training_ended(dataclasses.replace(outcome, plan=plan, trials=outcome.trials[:1])),
    ):
        assert [line for line in text.splitlines() if told in line]


def test_a_search_that_gained_nothing(outcome: SearchOutcome) -> None:
    text = search_ended(dataclasses.replace(outcome, baseline=base_model(1.0)))
    assert text.startswith("**No trial beat `demo` untouched**: WER 1.00 %")


def test_the_usual_settings_win(outcome: SearchOutcome) -> None:
    verdict = Verdict([Standing("001", ["001-r1"], [12.5], 12.5, None, 60.0)], "001", False)
    text = search_ended(dataclasses.replace(outcome, verdict=verdict))
    (row,) = [row for row in cells(text) if "usual settings" in row[0]]
    assert row[:2] == ["**winner, 1 seed: trial 001 with the usual settings**", "**12.50**"]


def ended(status: str, **changes: Any) -> TrialRecord:
    evaluations = [(384, 40.0), (1088, 20.0), (3200, 25.5)]
    record = TrialRecord("001", {}, 8, status, 25.5, 20.0, 7.0, 1088, 3200, evaluations=evaluations)  # type: ignore[arg-type]
    record.seconds = 61.26
    return dataclasses.replace(record, **changes)


@pytest.mark.parametrize(
    ("record", "error", "line"),
    [
        (ended("completed"), None, "Completed: WER 25.50 % at 3,200 samples; the best was 20.00 % at 1,088."),
        (ended("completed", wer=20.0), None, "Completed: WER 20.00 % at 3,200 samples."),
        (ended("interrupted"), None, "Interrupted: WER 25.50 % at 3,200 samples; the best was 20.00 % at 1,088."),
        (ended("interrupted", wer=None, best_wer=None), None, "Interrupted after 3,200 samples, before any evaluation."),  # noqa: E501
        (ended("failed"), "ValueError: no such column", "Failed: ValueError: no such column"),
        (
            ended("early_stopped", stop=Stop("asha", 384, 43.45, 39.0, 4)),
            None,
            "Stopped early: WER 43.45 % at 384 samples is above 39.00 %, the cutoff among 4 trials.",
        ),
        (
            ended("diverged", stop=Stop("diverged", 384)),
            None,
            "Diverged: loss or WER was no finite number at 384 samples.",
        ),
    ],
)  # fmt: skip
def test_one_line_on_every_trial(record: TrialRecord, error: str | None, line: str) -> None:
    told = trial_ended(record, error)
    assert told["tags"]["mlflow.note.content"] == line
    assert told["tags"].get("stop_reason") == (record.stop.reason if record.stop else None)
    best = {} if record.best_wer is None else {"best_wer": 20.0}
    assert told["metrics"] == {"samples_seen": 3200.0, "seconds": 61.3, **best}


class Recorded:
    """A store in a folder, and recorders of one experiment, one after the other."""

    def __init__(self, folder: Path, *, journal: bool = False) -> None:
        self.folder = folder
        self.uri = default_tracking_uri(folder)
        self._journal = folder / JOURNAL_FILE if journal else None

    def recorder(self) -> MlflowRecorder:
        root = default_artifact_root(self.folder)
        return MlflowRecorder(self.uri, self.folder.name, root, journal=self._journal)

    def started(self, gpus: str = "0.5") -> MlflowRecorder:
        recorder = self.recorder()
        params = {"gpus_per_trial": gpus, "search.learning_rate": "1e-5 to 1e-3", "learning_rate": 1e-3}
        params |= {"weight_decay": 0.01, "seed": 0, "model": "demo"}
        tags = {"model": "demo"}
        recorder.start(params=params, tags=tags, description="runs", artifacts=[], compare=["learning_rate"])
        recorder.log(None, {"baseline_wer": 60.0}, step=0)
        return recorder

    def trial(self, recorder: MlflowRecorder, name: str, wer: float, **params: Any) -> None:
        settings = {"learning_rate": 1e-3, "weight_decay": 0.01, "seed": 0, "model": "demo"} | params
        recorder.trial_started(name, name=name, params=settings | {"effective_batch_size": 16}, tags={})
        recorder.log(name, {"wer": wer}, step=100)
        recorder.trial_ended(name, "completed", metrics={"best_wer": wer, "seconds": 7200.0})

    @property
    def parent(self) -> Any:
        client = client_of(self.uri)
        return client.get_run(only_parent(client, self.folder.name))

    @property
    def trials(self) -> dict[str, Any]:
        return children(client_of(self.uri), self.parent.info.run_id)

    def named(self, tag: str) -> list[str]:
        """Trials with a tag that is true."""
        return sorted(key for key, run in self.trials.items() if run.data.tags.get(tag) == "true")


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_a_trial_says_only_what_is_its_own(recorded: Recorded) -> None:
    recorder = recorded.started()
    recorded.trial(recorder, "001", 20.0)
    recorded.trial(recorder, "001-r1", 21.0, seed=1, weight_decay=0.01)
    assert recorder.finish("completed") is None
    own = {
        "learning_rate": "0.001",
        "effective_batch_size": "16",
    }  # searched, though it is the parent's value too
    assert recorded.trials["001"].data.params == own
    assert recorded.trials["001-r1"].data.params == own | {"seed": "1"}
    assert recorded.parent.data.params["weight_decay"] == "0.01"


def test_columns_worth_sorting_by(recorded: Recorded) -> None:
    recorder = recorded.started()
    recorded.trial(recorder, "001", 20.0)
    assert recorder.finish("completed") is None
    metrics = recorded.trials["001"].data.metrics
    assert metrics == {"wer": 20.0, "best_wer": 20.0, "wer_gain": 40.0, "seconds": 7200.0, "gpu_hours": 1.0}
    experiment = client_of(recorded.uri).get_experiment(recorded.parent.info.experiment_id)
    view = json.loads(experiment.tags["mlflow.sharedViewState.trials"])
    assert "metrics.`gpu_hours`" in view["selectedColumns"]


def test_without_gpus_there_are_no_gpu_hours(recorded: Recorded) -> None:
    recorder = recorded.started(gpus="0")
    recorded.trial(recorder, "001", 20.0)
    assert recorder.finish("completed") is None
    assert "gpu_hours" not in recorded.trials["001"].data.metrics
    assert "gpu_hours" not in trials_view(SETTINGS)


def test_the_best_run_and_the_winner_are_tagged(recorded: Recorded) -> None:
    recorder = recorded.started()
    for name, wer in (("001", 20.0), ("002", 22.0), ("002-r1", 19.0)):
        recorded.trial(recorder, name, wer)
    assert recorder.finish("completed", best="002-r1", winner="002", description="**done**") is None
    assert (recorded.named("best"), recorded.named("winner")) == (["002-r1"], ["002"])
    tags = recorded.parent.data.tags
    assert (tags["best_trial"], tags["winner"], tags["mlflow.note.content"]) == ("002-r1", "002", "**done**")


def test_a_resumed_search_goes_on_in_the_same_way(recorded: Recorded) -> None:
    first = recorded.started()
    for name, wer in (("001", 20.0), ("002", 22.0)):
        recorded.trial(first, name, wer)
    assert first.finish("interrupted", best="001", winner="001") is None
    runs = {name: run.info.run_id for name, run in recorded.trials.items()}
    second = recorded.recorder()
    second.resume(first.parent_run_id, {}, ended=runs)
    recorded.trial(second, "003", 15.0)
    assert second.finish("completed", best="003", winner="003") is None
    assert (recorded.named("best"), recorded.named("winner")) == (["003"], ["003"])
    assert recorded.trials["001"].data.tags["best"] == "false"
    run = recorded.trials["003"].data
    assert run.params == {"learning_rate": "0.001", "effective_batch_size": "16"}
    assert (run.metrics["wer_gain"], run.metrics["gpu_hours"]) == (45.0, 1.0)

    third = recorded.recorder()
    third.resume(first.parent_run_id, {}, ended=runs | {"003": second.run_id("003")})
    assert third.finish("completed", best="003", winner="001") is None
    assert (recorded.named("best"), recorded.named("winner")) == (["003"], ["001"])


@pytest.mark.parametrize("journal", [True, False])
def test_a_folder_of_pictures(journal: bool, tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, journal=journal)
    report = tmp_path / "report"
    (report / "pictures").mkdir(parents=True)
    (report / ".partial").touch()
    for name in ("report.html", "pictures/curves.png"):
        (report / name).write_text(name)
    recorder = recorded.started()
    assert recorder.finish("completed", artifacts=[report]) is None
    stored = default_artifact_root(tmp_path) / recorded.parent.info.run_id / "artifacts"
    found = sorted(str(path.relative_to(stored)) for path in stored.rglob("*") if path.is_file())
    assert found == ["report/pictures/curves.png", "report/report.html", "versions.json"]


def test_pictures_wait_on_disk_while_the_store_is_away(tmp_path: Path) -> None:
    """The queue's file names them relative to the experiment, with their place; an older one's are still read."""
    path = tmp_path / JOURNAL_FILE
    journal = Journal(path)
    journal.open()
    store = TrackingStore("http://127.0.0.1:9", "x", None)
    writer = StoreWriter(store, flush_seconds=1.0, patience=1.0, journal=journal)
    run = Run(None, "a run")
    with writer.changed:
        writer.queue(run, "upload", ["report/a.png", "report"])
        writer.queue(run, "upload", "results.json")
    journal.close()
    (left,) = Journal(path).open()
    assert [record.content for record in left.waiting] == [["report/a.png", "report"], "results.json"]
    assert sum(record.size for record in left.waiting) == 2


def test_a_report_that_is_written_later(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    folder.mkdir()
    recorded = Recorded(folder)
    write_settings(folder, recorded.uri)
    recorder = recorded.started()
    assert recorder.finish("completed") is None
    report = folder / "report"
    report.mkdir()
    (report / "report.html").write_text("first")
    with pytest.raises(TrackingError, match="the run of experiment 'later' is not known"):
        attach_folder(ExperimentFolder("later", folder), report)
    (folder / "state.json").write_text(json.dumps({"parent_run_id": recorder.parent_run_id}))
    assert attach_folder(ExperimentFolder("later", folder), report) == 1
    (report / "report.html").write_text("second")
    assert attach_folder(ExperimentFolder("later", folder), report) == 1
    stored = default_artifact_root(folder) / recorder.parent_run_id / "artifacts" / "report"
    assert (stored / "report.html").read_text() == "second"
    shutil.rmtree(default_artifact_root(folder))
    (folder / "mlflow.db").unlink()
    with pytest.raises(Exception, match="is gone"):
        attach_folder(ExperimentFolder("later", folder), report)


def write_settings(folder: Path, uri: str) -> None:
    (folder / "experiment.yaml").write_text(json.dumps({"experiment": folder.name, "tracking_uri": uri}))


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_a_browser_shows_columns_charts_and_description(tmp_path: Path) -> None:
    folder = tmp_path / "new one"
    write_experiment(folder, default_tracking_uri(folder))
    recorder = MlflowRecorder(default_tracking_uri(folder), folder.name, default_artifact_root(folder))
    params = {f"search.{name}": "" for name in SETTINGS}
    recorder.start(params=params, tags={}, description="", artifacts=[], compare=SETTINGS)
    recorder.log(None, {"baseline_wer": 70.0}, step=0)
    for number in range(4):
        values = (1e-4 * (number + 1), 0.1 * number, 4 + 4 * number, 1 + number)
        trial = f"{number:03d}"
        recorder.trial_started(
            trial, name=f"{trial} trial", params=dict(zip(SETTINGS, values, strict=True)), tags={}
        )
        for step in (100, 200, 300):
            recorder.log(trial, {"wer": 6000.0 / step + number, "loss": 100.0 / step}, step=step)
        note = {"mlflow.note.content": f"How {trial} ended."}
        metrics = {"best_wer": 20.0 + number, "samples_seen": 300.0, "seconds": 5.0}
        recorder.trial_ended(trial, "completed", metrics=metrics, tags=note)
    text = "**WER 20.00 %**, much better\n\n| | WER % |\n| --- | --: |\n| base | 70.00 |"
    assert recorder.finish("completed", description=text, best="000", winner="000") is None
    spec = importlib.util.spec_from_file_location("screenshot", ROOT / "docs" / "screenshot.py")
    assert spec is not None
    assert spec.loader is not None
    screenshot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(screenshot)
    with running_ui(tmp_path, free_port()) as (_, url), screenshot.chromium(2400, 1300) as browser:
        listed = screenshot.photograph_list(browser, url, str(tmp_path / "list.png"))
        charts = screenshot.photograph_charts(browser, url, str(tmp_path / "charts.png"))
        experiment = url.split("/runs?")[0]
        browser.get(f"{experiment}/runs/{recorder.parent_run_id}?workflowType=machine_learning")
        deadline = time.monotonic() + 300
        page = ""
        while "much better" not in page and time.monotonic() < deadline:
            page = browser.find_element("tag name", "body").text
            time.sleep(0.5)
    for word in ("best_wer", "wer_gain", "samples_seen", "status", "winner", "Description", "How 000 ended."):
        assert word in listed
    rows = [line for line in listed.splitlines() if re.fullmatch(r"00\d trial", line)]
    assert rows == ["000 trial", "001 trial", "002 trial", "003 trial"]  # best first
    for word in ("The search", "Parallel Coordinates", "learning_rate vs. best_wer"):
        assert word in charts
    assert "Error" not in listed + charts
    assert "WER 20.00 %, much better" in page
