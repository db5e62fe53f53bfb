"""Every kind of source loads to the same examples, by columns, rows and languages, or is refused in one line."""

import shutil
from pathlib import Path

import pytest
from make_data import (
    ALL_LANGUAGES,
    FILES,
    ROWS,
    TEXTS,
    Example,
    content,
    embedded,
    expected,
    load,
    records,
    refused,
    rows_with,
    sizes,
    write_common_voice,
    write_hub_parquet,
    write_manifest,
)

from trainer.data.audio import AudioError, read_audio
from trainer.errors import ConfigError


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
    refused("has de, en, not language=be; set the language", release, language="be")
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
    refused(words, tmp_path / name)


def test_parquet_with_one_name_twice(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pa.table([["a.wav"], ["one"], ["two"]], names=["audio", "text", "text"])
    pq.write_table(columns, tmp_path / "x.parquet")
    refused("2 columns are named 'text'", tmp_path / "x.parquet")


def test_places_that_cannot_be() -> None:
    missing = dict.fromkeys(
        ("/no/where/at/all", "data/nowhere.csv", "nowhere"), "no such file or folder; give demo"
    )
    wrong = {"~nobody_of_this_name/data": "there is no such user", "x" * 300: "cannot be read: File name"}
    for data, words in (missing | wrong).items():
        refused(f"data='{data}': {words}", data)


def test_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    refused(r"no data set in this folder; expected .* found notes\.txt", tmp_path)


@pytest.mark.parametrize(
    ("audio", "text"),
    [
        ("audio_filepath", "Transcript"),
        ("WAV", "label"),
        ("Audio_Path", "text"),
        ("wav", "wrd"),  # SpeechBrain
        ("audio", "tgt_text"),  # fairseq
        ("wav", "txt"),  # WeNet
        ("file_path", "transcription"),  # Vaani
    ],
)
def test_usual_names_are_found(folder: Path, tmp_path: Path, audio: str, text: str) -> None:
    files = [str(folder / file) for file in FILES]
    path = write_manifest(tmp_path / "x.csv", rows_with(id=TEXTS, **{text: TEXTS, audio: files}))
    table = load(path)
    assert sorted(clip.text for clips in table.splits.values() for clip in clips) == sorted(TEXTS)
    assert all(Path(clip.path).is_file() for clips in table.splits.values() for clip in clips)


def test_columns_are_told(folder: Path) -> None:
    rows = rows_with(audio=["no"] * 12, recording=FILES, text=["no"] * 12, polished=TEXTS)
    path = write_manifest(folder / "told.csv", rows)
    table = load(path, audio_column="recording", text_column="polished")
    assert {clip.text for clips in table.splits.values() for clip in clips} == set(TEXTS)
    for field, name in (("audio_column", "sound"), ("text_column", "words")):
        refused(
            f"{field}='{name}': no such column .* audio, recording, text, polished", path, **{field: name}
        )


def test_another_text_column_is_mentioned(folder: Path) -> None:
    rows = rows_with(audio=FILES, raw_transcription=TEXTS, transcription=TEXTS)
    told = "the text is taken from column transcription (text_column may name another: raw_transcription)"
    assert told in load(write_manifest(folder / "two.csv", rows)).notes


def test_filters(folder: Path) -> None:
    rows = [row | {"age": str(number % 3)} for number, row in enumerate(records(ROWS))]
    path = write_manifest(folder / "filter.csv", rows)
    assert load(path, row_filter="language=en, age=0").total == 2
    assert load(path, row_filter="age=0,age=1,language=en,language=de").total == 8
    refused("no column 'sex' in .*; it has audio, text, split, language, age", path, row_filter="sex=f")
    refused("no row of the train split is left; column age has 0, 1, 2", path, row_filter="age=7")
    refused("'language' is not column=value", path, ConfigError, row_filter="language")


def test_language_is_chosen_where_there_are_several(folder: Path, tmp_path: Path) -> None:
    path = write_manifest(folder / "languages.csv", records(ROWS))
    table = load(path, language="en")
    assert table.notes[0].startswith("kept 6 of 12 rows: of several languages, those with language=en")
    # Nothing is trained as French that is not.
    words = "language='fr': column language has de, en and nothing in this language; give one of them with "
    refused(words + "--language, or choose rows with row_filter=language=de$", path, language="fr")
    assert load(path, language="fr", row_filter=ALL_LANGUAGES).total == 12
    assert load(path, language="fr", row_filter="language=en").total == 6
    refused("^language='de': no row of the validation split is left; column langu", path, language="de")
    # Only the rows that another filter leaves count.
    ages = [row | {"age": row["language"]} for row in records(ROWS)]
    assert load(write_manifest(folder / "ages.csv", ages), language="fr", row_filter="age=en").total == 6
    coded = rows_with(audio=FILES, text=TEXTS, locale=["deu", "ger", "de-AT", "nan-tw"] * 3)
    assert load(write_manifest(folder / "coded.csv", coded), language="de-DE").total == 9


def test_classes_are_filtered_by_name(folder: Path, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset

    data = {"path": [str(folder / "clips" / row.file) for row in ROWS], "text": [row.text for row in ROWS]}
    whole = Dataset.from_dict(data | {"gender": [number % 3 - 1 for number in range(12)]})
    whole.cast_column("gender", ClassLabel(names=["female", "male"])).save_to_disk(tmp_path / "x")
    table = load(tmp_path / "x", row_filter="gender=male")
    assert table.total == 4


def test_the_only_language_is_another(folder: Path, tmp_path: Path) -> None:
    release = write_common_voice(tmp_path / "cv", ROWS, language="de")
    told = "WARNING: column locale has only language de, trained as en (set language to change that)"
    assert load(release).notes == load(release / "de").notes == [told]
    assert content(load(release)) == expected(folder)
    assert load(release, language="de").notes == []
    # Not a name that Whisper has: it may well be English.
    coded = [row | {"language": "eng"} for row in records(ROWS)]
    assert load(write_manifest(folder / "coded.csv", coded)).notes == []


def test_a_language_column_in_some_of_the_files(folder: Path) -> None:
    place, rows = folder / "some", records(ROWS, clips=f"{folder}/clips/")
    write_manifest(place / "train.csv", rows)
    write_manifest(place / "test.csv", [{"audio": row["audio"], "text": row["text"]} for row in rows])
    found = sizes(load(place, validation_share=0.2, split_by=None))
    assert found == {"train": 5, "validation": 1, "test": 12}


def test_jsonl_values(folder: Path) -> None:
    rows = [{"audio": file, "text": text} for file, text in zip(FILES, [5, None, "six"], strict=False)]
    table = load(write_manifest(folder / "values.jsonl", rows))
    assert sorted(clip.text for clips in table.splits.values() for clip in clips) == ["5", "six"]
    [drop] = table.drops
    assert (drop.split, drop.name, drop.reason) == ("train", FILES[1], "empty_text")
    number = write_manifest(folder / "nan.jsonl", [*rows, {"audio": FILES[3], "text": float("nan")}])
    assert len(load(number).drops) == 2


def test_audio_as_an_object(folder: Path) -> None:
    """As `datasets` writes an audio column to JSON."""
    rows = [
        {"audio": {"bytes": None, "path": f"clips/{row.file}"}, "text": row.text, "split": row.split}
        for row in ROWS
    ]
    assert content(load(write_manifest(folder / "objects.jsonl", rows))) == expected(folder)
    for row in rows:
        row["audio"] = {"path": row["audio"]["path"]}  # type: ignore[index]
    assert content(load(write_manifest(folder / "objects.parquet", rows))) == expected(folder)
    rows[0]["audio"] = {"bytes": "UklGRg=="}
    clips = load(write_manifest(folder / "objects.jsonl", rows)).splits["train"]
    assert [clip.name for clip in clips if not clip.path] == ["train[0]"]


def test_columns_without_a_name(folder: Path) -> None:
    """The index that pandas writes, and the separators that spreadsheets leave at the end."""
    lines = [",audio,text,,", *(f"{number},{FILES[number]},text {number},," for number in range(12))]
    (folder / "unnamed.csv").write_text("\n".join(lines))
    assert load(folder / "unnamed.csv").total == 12


@pytest.mark.parametrize("name", ["~take.wav", "said " * 80, "a\0b"])
def test_names_that_no_file_has(folder: Path, name: str) -> None:
    """They are dropped like other files that are not there, and do not end the program."""
    path = write_manifest(folder / "names.jsonl", rows_with(audio=[name, *FILES[1:]], text=TEXTS))
    clips = [clip for clips in load(path).splits.values() for clip in clips]
    [clip] = [clip for clip in clips if clip.name == name.strip()]
    assert clip.identity({}).endswith(":missing")
    with pytest.raises(AudioError):
        read_audio(clip.source())
