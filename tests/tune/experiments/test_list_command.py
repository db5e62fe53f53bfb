"""`tune-whisper list`: every experiment of a storage with its state, in a moment, whatever lies in the folders."""

import datetime
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_experiments import TRAINING, MadeLog, bring, made_trial, write_experiment
from s3_server import S3Server, give_keys

from tune.cli import main
from tune.experiments.events import CutShort
from tune.experiments.experiment import LOCK_FILE, lock
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.listing import ExperimentLine, list_experiments
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.storage import Storage
from tune.report.analysis import analyse
from tune.tracking.mlflow_connection import open_store


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and an interrupted search; read only."""
    folder = tmp_path_factory.mktemp("made")
    trials = [made_trial(number, [60 - number, 40 - number, 25 - number]) for number in range(1, 10)]
    repeats = {"008": [17.5, 18.5], "009": [16.5, 17.0]}
    first, second = (datetime.datetime.fromisoformat(f"2026-01-0{day}T12:00:00+00:00") for day in (1, 2))
    write_experiment(folder, trials, name="finished", repeats=repeats, began=first.timestamp())
    trials = [made_trial(number, [60 - number, 40 - number, 25 - number]) for number in range(1, 7)]
    how: dict[str, Any] = {"asked": 9, "state": "interrupted", "began": second.timestamp()}
    write_experiment(folder, trials, name="interrupted", **how)
    return folder


def of(storage: Path | str) -> dict[str, ExperimentLine]:
    return {line.name: line for line in list_experiments(Storage.parse(storage))}


def copy(made: Path, name: str, target: Path) -> Path:
    shutil.copytree(made / name, target, ignore=shutil.ignore_patterns("trials"))
    return target


def test_what_a_finished_search_came_to(made: Path) -> None:
    line = of(made)["finished"]
    results = json.loads((made / "finished" / "results.json").read_text())
    assert (line.state, line.kind, line.trials_ended, line.trials_asked) == ("finished", "search", 9, 9)
    won = results["finalists"]["scores"][0]
    assert won["trial_id"] == results["finalists"]["winner"]
    assert won["mean"] > results["best"]["wer"]  # the mean of its seeds, not the luckiest of them
    assert (line.baseline, line.best) == (results["baseline"]["wer"], won["mean"])
    assert line.gain == results["baseline"]["wer"] - won["mean"]
    assert (line.model, line.data, line.language) == ("demo", "demo", "en")
    assert line.seconds == pytest.approx(3600, abs=5)


def test_it_runs_while_a_process_holds_its_lock(made: Path, tmp_path: Path) -> None:
    folder = copy(made, "interrupted", tmp_path / "x")
    (folder / "results.json").unlink()
    assert of(tmp_path)["x"].state == "interrupted"  # killed before it could write any
    code = "import sys; from pathlib import Path; from tune.experiments.experiment import lock\n"
    code += f"file = lock(Path({str(folder)!r})); print(flush=True); sys.stdin.read()"
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout.readline()
    line = of(tmp_path)["x"]
    owner.communicate()
    assert line.state == "running"
    assert line.seconds >= 3600
    assert of(tmp_path)["x"].state == "interrupted"
    lock(folder).close()  # looking has taken the lock from nobody


@pytest.mark.parametrize(
    ("trials", "ended", "state", "note"),
    [
        ([[50.0, 30.0, 12.0]], {"reason": "plateau", "text": "5 trials in a row"}, "finished", "5 trials"),
        ([[50.0, 30.0, 12.0]], {"reason": "failures", "text": "3 trials failed"}, "failed", "3 trials"),
        ([[50.0]], {"reason": "time_budget", "text": "spent"}, "finished", "spent"),
        ([], {"reason": "time_budget", "text": "spent"}, "failed", "spent"),
        ([[]], {"status": "failed"}, "failed", ""),
        ([[50.0, 30.0, 12.0]], {"status": "interrupted"}, "interrupted", ""),
        ([[50.0, 30.0, 12.0]], {"kind": "training"}, "finished", ""),
    ],
)
def test_how_it_ended(
    trials: list[list[float]], ended: dict[str, Any], state: str, note: str, tmp_path: Path
) -> None:
    kind = ended.pop("kind", "search")
    settings = TRAINING if kind == "training" else {}
    log = MadeLog(tmp_path / "x", **settings)
    interrupted = ended.get("status") == "interrupted"
    log.session(trials=max(1, len(trials)) + interrupted)
    for number, wers in enumerate(trials, start=1):
        log.trial(f"{number:03d}", *wers, status=None if wers else "failed")
    if "reason" in ended:
        log.append(CutShort(**ended))
    log.finish(ended.get("status", "completed"))
    line = of(tmp_path)["x"]
    assert line.state == state
    assert note in (line.note or "")
    assert line.kind == kind


def test_one_that_starts_and_one_that_cannot_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("starting", "closed"):
        (tmp_path / name).mkdir()
        for file in ("experiment.yaml", EVENTS_FILE):
            (tmp_path / name / file).touch()
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    with lock(tmp_path / "starting"):
        lines = of(tmp_path)
    assert lines["starting"].state == "starting"
    assert (lines["closed"].state, lines["closed"].note) == ("damaged", "cannot be read: Permission denied")


def change_line(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Of the log, the fifth one."""
    log = folder / EVENTS_FILE
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:4], change(lines[4]), *lines[5:]]))


def of_another_version(line: bytes) -> bytes:
    body = re.sub(rb'"event": "\w+"', b'"event": "Later"', line[: line.rindex(b', "sum"')])
    return body + b', "sum": "%08x"}\n' % zlib.crc32(body)


DAMAGES: dict[str, Callable[[Path], None]] = {
    r"experiment\.yaml": lambda folder: (folder / "experiment.yaml").unlink(),
    r"events\.jsonl: line 5 is damaged: its checksum": lambda folder: change_line(
        folder, lambda line: line.replace(b"0", b"1", 1)
    ),
    r"line 5 is no event that this version of tune-whisper knows \('Later'\); use": lambda folder: (
        change_line(folder, of_another_version)
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_shown_as_such(
    damage: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(made, "finished", tmp_path / "whole")
    DAMAGES[damage](copy(made, "finished", tmp_path / "hurt"))
    assert main(["list", "--storage", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("hurt ")]
    assert row.split() == ["hurt", "damaged"]
    (reason,) = [line for line in printed.splitlines() if line.startswith("warning: hurt: ")]
    assert re.search(damage, reason)
    assert re.search(r"^whole +finished", printed, re.MULTILINE)


def test_folders_that_are_no_experiments(tmp_path: Path) -> None:
    (tmp_path / ".feature-cache" / "a").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "x.txt").touch()
    (tmp_path / "a file").touch()
    (tmp_path / "killed at once").mkdir()
    (tmp_path / "killed at once" / ".running").touch()
    (tmp_path / "begins").mkdir()
    with lock(tmp_path / "begins"):
        lines = of(tmp_path)
    assert {name: line.state for name, line in lines.items()} == {
        "killed at once": "damaged",
        "begins": "starting",
    }
    assert "can be removed" in (lines["killed at once"].note or "")


def test_the_table_and_the_same_for_programs(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")  # a storage that is named goes before it
    assert main(["list", "--storage", str(made)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("experiment", "state", "trials", "baseline", "%", "best", "%", "gain", "time", "started")
    ]
    assert [row.split()[0] for row in rows] == ["interrupted", "finished"]  # the newest first
    line = of(made)["finished"]
    shown = [f"{rate:.2f}" for rate in (line.baseline, line.best, line.gain) if rate is not None]
    assert rows[1].split()[1:] == ["finished", "9", *shown, "1:00:00", *rows[1].split()[-2:]]
    assert rows[1].split()[-2] in ("2026-01-01", "2026-01-02")  # local time
    assert " of 9 " in rows[0]
    assert main(["list", "--storage", str(made), "--json"]) == 0
    newest, oldest = json.loads(capsys.readouterr().out)
    assert (newest["name"], oldest["name"]) == ("interrupted", "finished")
    assert oldest["wer_gain"] == oldest["baseline_wer"] - oldest["best_wer"]
    began = datetime.datetime.fromisoformat(oldest["started"])
    assert began == datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def test_an_empty_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "missing"
    assert main(["list", "--storage", str(place)]) == 0
    printed = capsys.readouterr().out
    assert printed == (
        f"no experiments in {place}; start one with tune-whisper search --space lr_batch, or give another folder by "
        "--storage\n"
    )
    assert main(["list", "--storage", str(place), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--storage", "x", "--all"], "--all: is for jobs, --storage for experiments"),
        (["--storage", "x", "--address", "http://head:8265"], "--address: is for jobs"),
        (["--storage", __file__], "is a file; give a folder"),
    ],
)
def test_jobs_or_experiments(words: list[str], told: str, refused: Callable[..., str]) -> None:
    assert told in refused("list", *words)


def test_an_object_store(
    server: S3Server,
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    give_keys(monkeypatch, tmp_path)
    store = ObjectStore(server.uri("experiments"))
    assert main(["list", "--storage", store.uri]) == 0
    assert "no experiments in s3://" in capsys.readouterr().out
    for name in ("finished", "interrupted"):
        bring(ExperimentFolder(name, made / name), store)
    killed = [made_trial(1, [50.0, 30.0, 12.0]), made_trial(2, [49.0, 29.0, 11.0])]
    bring(write_experiment(tmp_path / "made", killed, name="elsewhere", state="killed"), store)
    bring(ExperimentFolder("hurt", copy(made, "finished", tmp_path / "made" / "hurt")), store)
    damaged = store.read("hurt/events.jsonl").replace(b'"wer": 59.0', b'"wer": 19.0', 1)
    store.write("hurt/events.jsonl", damaged)
    store.write("begun/events.jsonl", b"{\n")
    store.write("notes/x.txt", b"x")
    assert {name: line.state for name, line in of(store.uri).items()} == {
        "finished": "finished",
        "interrupted": "interrupted",
        "elsewhere": "running",  # something of it was written a moment ago, and nothing says that it has ended
        "hurt": "damaged",
        "begun": "damaged",
    }
    assert of(store.uri)["finished"].best == of(made)["finished"].best
    monkeypatch.setattr("tune.experiments.listing._ALIVE_SECONDS", 0.0)
    assert of(store.uri)["elsewhere"].state == "interrupted"
    assert of(store.uri)["elsewhere"].best == 12.0


def fail(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_an_mlflow_database_is_made_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, errno.ENOLCK)
    client, _ = open_store(f"sqlite:///{tmp_path}/mlflow.db", "x")
    assert client.create_experiment("x")


def test_without_locks_a_search_that_has_written_just_now_is_taken_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an object store: nobody can see whether a process still runs it."""
    folder = write_experiment(tmp_path, [made_trial(1, [40.0])], asked=4, state="killed")
    (folder.path / LOCK_FILE).touch()
    storage = Storage.parse(tmp_path)

    def seen() -> tuple[str, str]:
        return list_experiments(storage)[0].state, analyse(folder).stage

    assert seen() == ("interrupted", "interrupted")
    fail(monkeypatch, errno.ENOLCK)
    assert seen() == ("running", "unfinished")
    for path in folder.path.iterdir():
        os.utime(path, (0, path.stat().st_mtime - 86400))
    assert seen() == ("interrupted", "unfinished")
