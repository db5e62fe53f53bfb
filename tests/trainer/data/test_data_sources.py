"""Every kind of source loads to the same examples, and one that cannot be read is refused in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from make_data import (
    ALL_LANGUAGES,
    ROWS,
    Example,
    content,
    embedded,
    expected,
    load,
    records,
    write_common_voice,
    write_hub_parquet,
    write_manifest,
)

from trainer.errors import DataError


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_manifests(folder: Path, suffix: str) -> None:
    path = write_manifest(folder / f"all{suffix}", records(ROWS))
    assert content(load(path, row_filter=ALL_LANGUAGES)) == expected(folder)


def test_hugging_face_parquet_folder(folder: Path, tmp_path: Path) -> None:
    write_hub_parquet(tmp_path / "flat", ROWS, folder / "clips")
    assert content(load(tmp_path / "flat")) == expected(folder)
    # As the hub lays it out: data/<split>-<piece>-of-<pieces>.parquet
    pieces = tmp_path / "hub" / "data"
    pieces.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = embedded([row for row in ROWS if row.split == split], folder / "clips")
        for piece, part in enumerate((rows[:2], rows[2:])):
            write_manifest(pieces / f"{split}-{piece:05}-of-00002.parquet", part)
    assert content(load(tmp_path / "hub")) == expected(folder)


def test_save_to_disk(folder: Path, tmp_path: Path) -> None:
    from datasets import Audio, Dataset, DatasetDict

    def dataset(rows: list[Example]) -> Dataset:
        data = {
            "audio": [str(folder / "clips" / row.file) for row in rows],
            "text": [row.text for row in rows],
        }
        return Dataset.from_dict(data | {"split": [row.split for row in rows]}).cast_column("audio", Audio())

    names = {"train": "train", "validation": "dev", "test": "test"}
    parts = {name: dataset([row for row in ROWS if row.split == split]) for split, name in names.items()}
    DatasetDict(parts).save_to_disk(tmp_path / "dict")
    assert content(load(tmp_path / "dict")) == expected(folder)
    dataset(ROWS).save_to_disk(tmp_path / "one")
    assert content(load(tmp_path / "one")) == expected(folder)


def test_common_voice(folder: Path, tmp_path: Path) -> None:
    release = write_common_voice(tmp_path / "cv", ROWS)
    assert content(load(release)) == expected(folder)
    assert content(load(release / "en")) == expected(folder)
    write_common_voice(release, ROWS[:4], language="de")
    assert content(load(release, language="de")) == expected(folder, ROWS[:4])
    assert "took de of the release's languages de, en" in load(release, language="de").notes
    with pytest.raises(DataError, match="has de, en, not language=be; set the language"):
        load(release, language="be")
    # Releases name folders by BCP 47, and `nan-tw` is a language of its own.
    for name in ("nan-tw", "zh-CN", "nb-NO"):
        write_common_voice(release, ROWS[:4], language=name)
    for name, language in (("zh-CN", "cmn"), ("nb-NO", "no")):
        assert f"took {name} of the release's languages" in load(release, language=language).notes[0]


def test_audiofolder(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "one"
    shutil.copytree(folder / "clips", place / "clips")
    rows = [{"file_name": f"clips/{row.file}", "transcription": row.text, "split": row.split} for row in ROWS]
    write_manifest(place / "metadata.csv", rows)
    assert content(load(place)) == expected(folder)
    for split in ("train", "validation", "test"):
        part = tmp_path / "three" / split
        shutil.copytree(folder / "clips", part)
        rows = [{"file_name": row.file, "text": row.text} for row in ROWS if row.split == split]
        write_manifest(part / "metadata.jsonl", rows)
    assert content(load(tmp_path / "three")) == expected(folder)


def texts_of(path: Path, **settings: str) -> list[str]:
    splits = load(path, validation_share=0.5, **settings).splits
    return sorted(clip.text for clips in splits.values() for clip in clips)


def test_tsv_with_a_line_break_in_a_cell(tmp_path: Path) -> None:
    """Its quotes are marks, whatever other rows are like; without them a row would be torn in two."""
    path = tmp_path / "breaks.tsv"
    for more in ("", 'c.wav\t"He said ""no"""\n'):
        path.write_text(f'path\tsentence\na.wav\t"two\nlines"\n{more}b.wav\tplain\n')
        assert texts_of(path) == sorted(["two\nlines", "plain", *(['He said "no"'] if more else [])])
    # Nobody's marks: the rows are whole without them.
    path.write_text('path\tsentence\na.wav\t"Come in\nb.wav\tand sit down"\n')
    assert texts_of(path) == ['"Come in', 'and sit down"']
    path.write_text('path\tsentence\na.wav\t"Hello," he said\nb.wav\t"Hello"\n')
    assert texts_of(path) == ['"Hello"', '"Hello," he said']


@pytest.mark.parametrize(
    ("text", "header", "rows"),
    [
        ("text, as spoken", "audio;text, as spoken;split", ["a.wav;one;train", "b.wav;two, three;train"]),
        ("text, raw", "audio;text, raw", ["a.wav;one", "b.wav;two, three"]),
        ("text as spoken;heard", "audio,text as spoken;heard", ["a.wav,one", 'b.wav,"two, three"']),
        ("text, as spoken", '"text, as spoken"|audio', ["one|a.wav", "two, three|b.wav"]),
    ],
)
def test_separators(tmp_path: Path, text: str, header: str, rows: list[str]) -> None:
    """The one that cuts all rows alike, whatever the header's names and the texts have in them."""
    path = tmp_path / "x.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    assert texts_of(path, text_column=text) == ["one", "two, three"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.csv", "", "is empty; its first line must name the columns"),
        (
            "x.csv",
            'audio,text\na.wav,"o\nk"\nb.wav,"two\n' + "c.wav,three\n" * 9,
            "line 4: a field begins with a quote",
        ),
        ("x.csv", 'audio,text\na.wav,"o\nk",b\n', "line 2: 3 fields where the header has 2"),
        ("x.tsv", '"audio"\t"text"\na.wav\t"one\nb.wav\ttwo\n', "line 2: a field begins with a quote"),
        ("x.jsonl", '{"audio": "a.wav", "text": "a"}\n{"audio": ', "line 2: not valid JSON"),
        ("x.jsonl", '{"audio": "a.wav", "text": "a"}\n' + "[" * 100_000, "line 2: not a row"),
        ("x.json", "[" * 100_000, "not a table: lists are nested"),
        ("x.jsonl", "[1]", "row 1: must be an object"),
        ("x.parquet", "PAR?", "not a Parquet file"),
        ("x.txt", "a", "not a supported kind of table"),
        ("x.csv", "audio,text\n", "the train split is empty"),
        ("x.csv", "audio,text\na.wav,one\n", "one training clip and no other split"),
        (
            "x.csv",
            "audio,text, text\na.wav,one,two\n",
            "2 columns are named 'text'; every column needs a name",
        ),
        ("x.csv", "audio,text\na.wav,...\nb.wav,\n", "no clip of the train split can be used: 2 no text"),
    ],
)
def test_bad_manifests(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_parquet_with_one_name_twice(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pa.table([["a.wav"], ["one"], ["two"]], names=["audio", "text", "text"])
    pq.write_table(columns, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="2 columns are named 'text'"):
        load(tmp_path / "x.parquet")


def test_places_that_cannot_be() -> None:
    for data, words in (
        ("~nobody_of_this_name/data", "there is no such user"),
        ("x" * 300, "cannot be read: File name"),
    ):
        with pytest.raises(DataError, match=f"data='{data}': {words}"):
            load(data)


@pytest.mark.parametrize("data", ["/no/where/at/all", "data/nowhere.csv", "nowhere"])
def test_data_that_is_not_there(data: str) -> None:
    with pytest.raises(DataError, match=f"data='{data}': no such file or folder; give demo, a hub data set"):
        load(data)


def test_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"no data set in this folder; expected .* found notes\.txt"):
        load(tmp_path)
