"""Checkpoints that are being written when the search is killed, or its disk is full: nothing half is ever used."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from search_process import QUICK, Search, results, state
from small_disks import mounted

from trainer.training.checkpoints import problem_of

SPACE = """\
learning_rate: {type: float, low: 5e-4, high: 2e-3, log: true}
scheduler: {rungs: 4, reduction_factor: 2, rising_rungs: 0}
"""
WORDS = [
    "--space",
    "space.yaml",
    "--experiment",
    "x",
    "--trials",
    "1",
    "--finalists",
    "0",
    "--epochs",
    "8",
    *QUICK,
]
WHERE = ["writing", "naming", "telling"]


def frozen(where: str, folder: Path, *more: str) -> Search:
    """A search whose second save stands still."""
    folder.mkdir(exist_ok=True)
    (folder / "space.yaml").write_text(SPACE)
    hold = folder / "hold"
    search = Search(folder, *WORDS, *more, frozen=(where, hold))
    search.wait_for((hold / "there").exists)
    return search


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """The evaluations of a search that nothing disturbs."""
    folder = tmp_path_factory.mktemp("unbroken")
    (folder / "space.yaml").write_text(SPACE)
    search = Search(folder, *WORDS)
    assert search.end() == 0, search.log
    return results(folder / "experiments" / "x")["trials"][0]["evaluations"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_killed_in_the_middle_of_a_save_it_goes_on_from_the_one_before(
    where: str, unbroken: list[dict[str, float]], tmp_path: Path
) -> None:
    search, experiment = frozen(where, tmp_path), tmp_path / "experiments" / "x"
    before = state(experiment)["001"]
    assert before["last_checkpoint"] == f"trials/001/checkpoint_{unbroken[0]['samples_seen']:09d}"
    assert len(before["evaluations"]) >= 2, "the training goes on meanwhile"
    assert before["best_wer"] == unbroken[0]["wer"], "what can be exported now"
    search.kill()
    assert problem_of(experiment / before["last_checkpoint"]) is None
    search = Search(tmp_path, "--resume", "x")
    assert search.end() == 0, search.log
    assert f"trial 001 goes on at epoch {before['checkpoint_epoch']:.2f}" in search.log
    assert "damaged" not in search.log
    (trial,) = results(experiment)["trials"]
    assert trial["evaluations"] == unbroken
    assert [path.name for path in (experiment / "trials").rglob("*checkpoint_*")] == [
        Path(trial["checkpoint"]).name
    ]


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERE)
def test_the_disk_is_full_in_the_middle_of_a_save(
    where: str, unbroken: list[dict[str, float]], tmp_path: Path
) -> None:
    with mounted(tmp_path / "disk", "size=200m") as disk:
        place = ["--storage", str(disk)]
        search = frozen(where, tmp_path, "--max-failures", "0", *place)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)) == 4096:
                pass
        (tmp_path / "hold" / "go").touch()
        code = search.end()
        assert "Traceback" not in search.log
        filler.unlink()
        if where == "telling":  # the log itself cannot be written
            assert code == 2, search.log
            assert f"{disk}/x/events.jsonl: cannot be written: No space left on device" in search.log
            search = Search(tmp_path, "--resume", "x", *place)
            assert search.end() == 0, search.log
        else:
            assert code == 0, search.log
            assert re.search(r"trial 001 failed: .*the disk is full", search.log)
        (trial,) = results(disk / "x")["trials"]
        if where == "telling":
            assert (trial["status"], trial["evaluations"]) == ("completed", unbroken)
        else:
            assert (trial["status"], trial["best_wer"]) == ("failed", unbroken[0]["wer"])
        assert (Path(trial["checkpoint"]) / "model.safetensors").is_file()
