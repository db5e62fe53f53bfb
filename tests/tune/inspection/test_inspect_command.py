"""`tune-whisper inspect`: what it prints and writes, and how it tells mistakes."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pages import Page, look_everywhere, needs_chromium
from planted_faults import Planter, load_rows

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from tune.cli import main
from tune.runs.data import quick_notes

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Planter:
    """Sixty clips of the demo and more with faults."""
    folder = tmp_path_factory.mktemp("faulty") / "data"
    rows = load_rows(folder, 60)
    kept = [row for row in rows if row.split == "train"] + [row for row in rows if row.split != "train"][::12]
    planter = Planter(folder, kept)
    for plant in (planter.plant_sounds, planter.plant_leaks, planter.plant_texts, planter.plant_drops):
        plant()
    planter.write()
    return planter


def inspected(planter: Planter, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What was printed: standard output and standard error."""
    assert main(["inspect", "--data", str(planter.folder), *words]) == 0
    return capsys.readouterr()


def test_warnings_come_first_each_with_files_and_what_to_do(
    faulty: Planter, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = inspected(faulty, capsys=capsys)[0].splitlines()
    assert lines[0].startswith(f"data {faulty.folder}: ")
    warnings = [at for at, line in enumerate(lines) if line.startswith("warning: ")]
    assert lines.index("") < warnings[0]
    assert warnings[-1] < next(at for at, line in enumerate(lines) if line.startswith("split "))
    at = lines.index("warning: no speech in 3 clips: silence, or steady noise")
    assert {line.split(" (")[0].strip() for line in lines[at + 1 : at + 4]} == faulty.faults["silent"]
    assert lines[at + 4].startswith("  → listen to them and remove them")
    assert "--output DIR writes all of them to suspicious.csv, and a page with pictures" in lines


def test_sound_data_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--set", "max_train_clips=60", "--set", "max_eval_clips=30"]) == 0
    out, _ = capsys.readouterr()
    assert "no warnings: nothing in this data looks wrong" in out
    assert "warning: " not in out
    assert re.search(r"^tokens +\d", out, re.MULTILINE)
    assert "limits    4 s and 128 tokens, of demo" in out


def test_json_is_all_that_is_printed_and_files_need_nothing_else(
    faulty: Planter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "report"
    for _ in range(2):  # a second time over the first
        out, err = inspected(faulty, "--output", str(folder), "--json", capsys=capsys)
    assert err.strip().startswith(f"written   {folder}/inspection.json, ")
    names = ["inspection.html", "inspection.json", "suspicious.csv"]
    assert sorted(path.name for path in folder.iterdir()) == names
    found, written = json.loads(out), json.loads((folder / "inspection.json").read_text())
    assert found | {"created": 0} == written | {"created": 0}
    assert found["kind"] == "tune-whisper inspection"
    by_kind = {finding["kind"]: finding for finding in found["findings"]}
    assert {clip["name"] for clip in by_kind["clipped"]["suspects"]} >= faulty.faults["clipped"]
    dropped = {"unreadable_audio": 2, "too_long_audio": 1, "empty_audio": 1, "empty_text": 1}
    assert found["dropped"]["by_reason"] == dropped
    assert found["distributions"]["seconds"]["median"] > 0.5
    assert found["limits"] == {"seconds": 30.0, "tokens": 448}
    with (folder / "suspicious.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "split", "why", "detail"]
    for kind in ("odd_characters", "shared_audio"):
        assert {row["file"] for row in rows if row["why"] == kind.replace("_", " ")} == faulty.faults[kind]
    page = Page((folder / "inspection.html").read_text())
    assert {"durations", "rates"} <= set(page.figures)
    for kind in ("silent", "clipped"):
        assert all(name in page.text for name in faulty.faults[kind])
    assert "\u200b" not in page.text, "what cannot be seen is named"


@pytest.mark.slow
@needs_chromium
def test_the_page_in_a_browser(faulty: Planter, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspected(faulty, "--output", str(tmp_path), capsys=capsys)
    look_everywhere(tmp_path / "inspection.html")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--data /no/such", "data='/no/such': no such file or folder"),
        ("--language belorusian", "--language 'belorusian': Whisper does not know this language"),
        ("--sample 0", "--sample 0: must be at least 1"),
        ("--language en --set language=de", "--set language: is given as --language too"),
        ("--set text_column=speakr", "text_column='speakr': no such column"),
        (f"--output {__file__}", "is a file; give a folder"),
    ],
)
def test_mistakes_are_one_line(words: str, told: str, refused: Callable[..., str]) -> None:
    assert told in refused("inspect", *words.split())


def test_a_search_warns_of_what_shows_without_listening(faulty: Planter, tmp_path: Path) -> None:
    config = TrainConfig(data=str(faulty.folder), cache_dir=str(tmp_path), max_dropped_share=0.9)
    small, shared, misfits, odd, command = quick_notes(config, prepare(config))
    each = r"by \d\d points on the \d\d words of the {} split"
    assert re.fullmatch(
        rf"error rates are uncertain {each.format('validation')}, {each.format('test')}", small
    )
    assert shared.startswith("WARNING: the same text in two splits: 4 texts, 4 of ")
    assert misfits.startswith("WARNING: text too long or too short for its audio: ")
    assert re.match(r"WARNING: odd characters in the texts of [456] clips, such as clips/", odd)
    words = f"tune-whisper inspect --data {faulty.folder} --model demo --language en"
    assert command == f"to see the clips: {words}"
