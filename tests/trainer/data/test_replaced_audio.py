"""Audio that is replaced is prepared again, whoever names the file and however it is replaced; nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import soundfile
from make_data import embedded, examples, records, tone, write_manifest

from trainer.config import TrainConfig
from trainer.data.prepared import is_prepared, prepare

ROWS = examples(8)
CLIP = "clip_00.flac"
NO_FILE = {"audio": "", "text": "none", "split": "train", "language": "en"}


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """`clips`, a link to the folder `here`: every file is of the same size and age as its sister in `others`."""
    for folder, pitch in (("here", 200), ("others", 300)):
        (tmp_path / folder).mkdir()
        for row in ROWS:
            path = tmp_path / folder / row.file
            soundfile.write(path, tone(0.3, pitch=pitch), 16_000, format="WAV")
            os.utime(path, (1_000, 1_000))
    (tmp_path / "links").symlink_to(tmp_path / "here")
    return tmp_path / "links"


def write_csv(clips: Path) -> Path:
    rows = [{"audio": f"{clips}/{row.file}", "text": row.text, "split": row.split} for row in ROWS]
    return write_manifest(clips.parent / "rows.csv", rows)


def write_saved(clips: Path) -> Path:
    from datasets import Dataset, Features, Value

    rows = [
        {"audio": {"bytes": None, "path": f"{clips}/{row.file}"}, "text": row.text, "split": row.split}
        for row in ROWS
    ]
    audio = {"bytes": Value("binary"), "path": Value("string")}
    features = Features({"audio": audio, "text": Value("string"), "split": Value("string")})
    Dataset.from_list(rows, features=features).save_to_disk(clips.parent / "saved")
    return clips.parent / "saved"


def rename_over(clips: Path) -> None:
    (clips.parent / "others" / CLIP).replace(clips.parent / "here" / CLIP)


def write_in_place(clips: Path) -> None:
    path = clips.parent / "here" / CLIP
    path.write_bytes((clips.parent / "others" / CLIP).read_bytes())
    os.utime(path, (1_000, 1_000))


def swap_folder(clips: Path) -> None:
    clips.unlink()
    clips.symlink_to(clips.parent / "others")


@pytest.mark.parametrize(
    ("write", "replace"), [(write_csv, rename_over), (write_csv, write_in_place), (write_saved, swap_folder)]
)
def test_a_file_that_is_named(
    config: TrainConfig,
    clips: Path,
    write: Callable[[Path], Path],
    replace: Callable[[Path], None],
) -> None:
    config = config.replace(data=str(write(clips)), row_filter=None)
    before = prepare(config).splits["train"].features(0).copy()
    (clips / CLIP).read_bytes()
    os.utime(clips.parent / "others", (time.time() + 1_000,) * 2)
    assert is_prepared(config), "somebody read a file, or wrote others"
    replace(clips)
    assert not is_prepared(config)
    assert (prepare(config).splits["train"].features(0) != before).any()


def test_rows_that_name_no_file_and_content_beside_a_file(
    config: TrainConfig, tmp_path: Path, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the working directory nor what lies in it by chance is part of such data."""
    inside = write_manifest(tmp_path / "inside.parquet", embedded(ROWS, clips))
    without = write_manifest(tmp_path / "without.csv", [*records(ROWS, clips="here/"), NO_FILE])
    for data in (inside, without):
        found = set()
        for name in ("one", "two"):
            (tmp_path / name).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / name)
            found.add(prepare(config.replace(data=str(data), row_filter=None, max_dropped_share=0.5)).folder)
            (tmp_path / name / "something").touch()
        assert len(found) == 1
