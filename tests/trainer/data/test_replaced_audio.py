"""Audio that is replaced is prepared again, whoever names the file and however it is replaced; nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from make_data import examples, tone, write_manifest

from trainer.config import TrainConfig
from trainer.data.prepared import is_prepared, prepare

ROWS = examples(8)
CLIP = "clip_00.flac"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def clips(place: Path) -> Path:
    """`clips`, a link to a folder with links to files: every one of the same size as its sister in `others`."""
    for folder, pitch in (("here", 200), ("others", 300)):
        (place / folder).mkdir()
        (place / f"{folder}-links").mkdir()
        for row in ROWS:
            path = place / folder / row.file
            soundfile.write(path, tone(0.3, pitch=pitch), 16_000, format="WAV")
            os.utime(path, (1_000, 1_000))
            (place / f"{folder}-links" / row.file).symlink_to(path)
    (place / "clips").symlink_to(place / "here-links")
    return place / "clips"


def write_csv(place: Path, clips: Path) -> Path:
    rows = [{"audio": f"{clips}/{row.file}", "text": row.text, "split": row.split} for row in ROWS]
    return write_manifest(place / "rows.csv", rows)


def write_saved(place: Path, clips: Path) -> Path:
    from datasets import Dataset, Features, Value

    rows = [
        {"audio": {"bytes": None, "path": f"{clips}/{row.file}"}, "text": row.text, "split": row.split}
        for row in ROWS
    ]
    audio = {"bytes": Value("binary"), "path": Value("string")}
    features = Features({"audio": audio, "text": Value("string"), "split": Value("string")})
    Dataset.from_list(rows, features=features).save_to_disk(place / "saved")
    return place / "saved"


def rename_over(clips: Path) -> None:
    (clips.parent / "others" / CLIP).replace(clips.parent / "here" / CLIP)


def write_in_place(clips: Path) -> None:
    path = clips.parent / "here" / CLIP
    path.write_bytes((clips.parent / "others" / CLIP).read_bytes())
    os.utime(path, (1_000, 1_000))


def swap_link(clips: Path) -> None:
    link = clips.parent / "here-links" / CLIP
    link.unlink()
    link.symlink_to(clips.parent / "others" / CLIP)


def swap_folder(clips: Path) -> None:
    clips.unlink()
    clips.symlink_to(clips.parent / "others-links")


@pytest.mark.parametrize(
    ("write", "replace"),
    [
        (write_csv, rename_over),
        (write_csv, write_in_place),
        (write_csv, swap_link),
        (write_saved, swap_folder),
    ],
)
def test_a_file_that_is_named(
    config: TrainConfig,
    place: Path,
    clips: Path,
    write: Callable[[Path, Path], Path],
    replace: Callable[[Path], None],
) -> None:
    config = config.replace(data=str(write(place, clips)), row_filter=None)
    before = prepare(config).splits["train"].features(0).copy()
    (clips / CLIP).read_bytes()
    os.utime(clips.parent / "others", (time.time() + 1_000,) * 2)
    assert is_prepared(config), "somebody read a file, or wrote others"
    replace(clips)
    assert not is_prepared(config)
    assert (prepare(config).splits["train"].features(0) != before).any()


def test_rows_that_name_no_file_and_content_beside_a_file(
    config: TrainConfig, place: Path, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the working directory nor what lies in it by chance is part of such data."""
    rows = [
        {
            "audio": {"bytes": (clips / row.file).read_bytes(), "path": row.file},
            "text": row.text,
            "split": row.split,
        }
        for row in ROWS
    ]
    inside = write_manifest(place / "inside.parquet", rows)
    named = [{"audio": f"clips/{row.file}", "text": row.text, "split": row.split} for row in ROWS]
    without = write_manifest(place / "without.csv", [*named, {"audio": "", "text": "none", "split": "train"}])
    for data in (inside, without):
        found = set()
        for name in ("one", "two"):
            (place / name).mkdir(exist_ok=True)
            monkeypatch.chdir(place / name)
            found.add(prepare(config.replace(data=str(data), row_filter=None, max_dropped_share=0.5)).folder)
            (place / name / "something").touch()
        assert len(found) == 1
