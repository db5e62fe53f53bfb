"""The queue on disk: whole after a kill, small, private, and no trouble where the disk is full."""

from __future__ import annotations

import resource
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest
from tune.mlflow_journal import Journal
from tune.mlflow_records import Record, Run

from tune.errors import TrackingError


def queue(journal: Journal, run: Run, number: int, content: object = "x" * 50) -> None:
    record = Record(number, "tags", [["key", content]])
    journal.append(run, record)
    run.waiting.append(record)


def take(journal: Journal, run: Run, count: int, run_id: str | None = None) -> None:
    journal.done([run.waiting.popleft().number for _ in range(count)], run_id)


def reread(path: Path) -> dict[str | None, tuple[str | None, list[int]]]:
    journal = Journal(path)
    try:
        return {
            run.key: (run.run_id, [record.number for record in run.waiting])
            for run in journal.open()
            if run.waiting
        }
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mlflow_queue.jsonl"


def test_what_is_not_done_is_there_again(path: Path) -> None:
    journal = Journal(path)
    assert journal.open() == []
    parent, trial = Run(None, "p"), Run("001")
    for number in range(1, 9):
        queue(journal, trial if number % 2 else parent, number)
    take(journal, trial, 2, "t")
    take(journal, parent, 1)
    journal.close()
    assert reread(path) == {None: ("p", [4, 6, 8]), "001": ("t", [5, 7])}
    assert reread(path) == {None: ("p", [4, 6, 8]), "001": ("t", [5, 7])}  # also after it was written anew
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_numbers_and_words_come_back_exactly(path: Path) -> None:
    journal = Journal(path)
    journal.open()
    content = [["wer", 1e-300, 1, 2], ["cer", float("inf"), 1, 2], ["\u0431\n\ud800", 0.1 + 0.2, 1, 2]]
    journal.append(Run("001", "t"), Record(1, "metrics", content))
    journal.close()
    (run,) = Journal(path).open()
    assert run.waiting[0] == Record(1, "metrics", content)


def test_it_is_empty_once_all_is_done_and_stays_small_before(path: Path) -> None:
    journal = Journal(path)
    journal.open()
    run = Run("001", "t")
    queue(journal, run, 1)
    for number in range(2, 20_002):  # never empty: one more comes before each is done
        queue(journal, run, number)
        take(journal, run, 1)
        if journal.wants_rewrite:
            journal.rewrite(lambda: [run], nullcontext())
        assert path.stat().st_size < 1_001_000
    assert reread(path) == {"001": ("t", [20_001])}
    take(journal, run, 1)


def test_nothing_waits_nothing_is_kept(path: Path) -> None:
    journal = Journal(path)
    journal.open()
    run = Run("001", "t")
    for number in range(1, 4):
        queue(journal, run, number)
    take(journal, run, 3)
    assert path.read_bytes() == b""
    queue(journal, run, 4)
    assert reread(path) == {"001": ("t", [4])}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_half_a_line_at_the_end_is_left_out(path: Path) -> None:
    journal = Journal(path)
    journal.open()
    run = Run("001", "t")
    queue(journal, run, 1)
    whole = path.stat().st_size
    queue(journal, run, 2)
    content = path.read_bytes()
    for length in range(whole, len(content)):
        path.write_bytes(content[:length])
        assert reread(path) == {"001": ("t", [1])}


def test_a_broken_line_is_told(path: Path) -> None:
    path.write_text('{"n": 1}\n')
    with pytest.raises(TrackingError, match=r"line 1 cannot be read; remove that line") as caught:
        Journal(path).open()
    assert str(path) in str(caught.value)
    with pytest.raises(TrackingError, match="cannot be read: Not a directory"):
        Journal(path / "x").open()


def test_a_full_disk_stops_nothing_and_is_made_good_later(path: Path) -> None:
    journal = Journal(path)
    journal.open()
    run = Run("001", "t")
    queue(journal, run, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, before[1]))
    try:
        queue(journal, run, 2)
        queue(journal, run, 3)
        assert "cannot be written: File too large; what waits for MLflow is only in memory" in str(
            journal.problem
        )
        journal.rewrite(lambda: [run], nullcontext())
        assert journal.problem is not None
        assert path.read_bytes().count(b"\n") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert journal.wants_rewrite
    journal.rewrite(lambda: [run], nullcontext())
    assert journal.problem is None
    queue(journal, run, 4)
    assert reread(path) == {"001": ("t", [1, 2, 3, 4])}
