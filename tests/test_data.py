"""Every kind of source loads to the same examples; columns, filters and splits."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from make_data import (
    SHARED_DATA,
    Example,
    embedded,
    examples,
    records,
    write_clips,
    write_common_voice,
    write_hub_parquet,
    write_manifest,
)

from trainer.audio import AudioError, read_audio
from trainer.config import TrainConfig
from trainer.data import ClipTable, load_clips
from trainer.errors import ConfigError, DataError

ROWS = examples(12)
ALL_LANGUAGES = "language=en,language=de"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clips/` with the audio, and nothing else yet."""
    place = tmp_path_factory.mktemp("data")
    write_clips(place / "clips", ROWS)
    return place


def content(table: ClipTable) -> dict[str, list[tuple[str, str, bytes]]]:
    """What a table holds: name of the file, text and decoded audio of each clip of each split."""
    return {
        role: [(Path(clip.name).name, clip.text, read_audio(clip.source()).tobytes()) for clip in clips]
        for role, clips in table.splits.items()
    }


def expected(folder: Path, rows: list[Example] = ROWS) -> dict[str, list[tuple[str, str, bytes]]]:
    return {
        split: [
            (row.file, row.text, read_audio(folder / "clips" / row.file).tobytes())
            for row in rows
            if row.split == split
        ]
        for split in ("train", "validation", "test")
    }


def load(data: Path | str, **settings: object) -> ClipTable:
    return load_clips(TrainConfig.from_dict({"data": str(data), **settings}))


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_manifests(folder: Path, suffix: str) -> None:
    path = write_manifest(folder / f"all{suffix}", records(ROWS))
    assert content(load(path, row_filter=ALL_LANGUAGES)) == expected(folder)


def test_absolute_paths(folder: Path, tmp_path: Path) -> None:
    path = write_manifest(tmp_path / "all.csv", records(ROWS, clips=f"{folder}/clips/"))
    assert content(load(path, row_filter=ALL_LANGUAGES)) == expected(folder)


def test_json_list(folder: Path) -> None:
    path = folder / "all.json"
    path.write_text(json.dumps(records(ROWS), indent=1))
    assert content(load(path, row_filter=ALL_LANGUAGES)) == expected(folder)


def test_csv_from_a_spreadsheet(folder: Path) -> None:
    lines = ["audio;text;split"]
    lines += [f"clips/{row.file};{json.dumps(row.text, ensure_ascii=False)}" for row in ROWS[:1]]
    path = folder / "semicolons.csv"
    path.write_bytes(("\r\n".join([*lines, "clips/clip_01.flac;zwei; drei;"]) + "\r\n").encode("utf-8-sig"))
    with pytest.raises(DataError, match=r"semicolons\.csv, line 3: 4 fields where the header has 3"):
        load(path)
    path.write_bytes(("\r\n".join([*lines, 'clips/clip_01.flac;"zwei; drei";']) + "\r\n").encode("utf-8-sig"))
    table = load(path, validation_share=0.5)
    assert sorted(clip.text for clips in table.splits.values() for clip in clips) == ["NA", "zwei; drei"]


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


def test_parquet_audio_is_found_in_any_order(folder: Path, tmp_path: Path) -> None:
    from trainer.embedded import ParquetAudio

    path = write_manifest(tmp_path / "x.parquet", embedded(ROWS, folder / "clips"))
    audio = ParquetAudio(path, "audio", ())
    audio._BATCH_ROWS = 2
    for row in [*range(12), 3, 11, 0, 5, 4]:
        assert audio.read(row) == (folder / "clips" / ROWS[row].file).read_bytes()


def test_parquet_that_points_to_files(folder: Path) -> None:
    rows = [
        {"audio": {"bytes": None, "path": f"clips/{row.file}"}, "text": row.text, "split": row.split}
        for row in ROWS
    ]
    assert content(load(write_manifest(folder / "paths.parquet", rows))) == expected(folder)


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


def test_classes_are_filtered_by_name(folder: Path, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset

    data = {"path": [str(folder / "clips" / row.file) for row in ROWS], "text": [row.text for row in ROWS]}
    whole = Dataset.from_dict(data | {"gender": [number % 3 - 1 for number in range(12)]})
    whole.cast_column("gender", ClassLabel(names=["female", "male"])).save_to_disk(tmp_path / "x")
    table = load(tmp_path / "x", row_filter="gender=male")
    assert table.total == 4


def test_common_voice(folder: Path, tmp_path: Path) -> None:
    release = write_common_voice(tmp_path / "cv", ROWS)
    assert content(load(release)) == expected(folder)
    assert content(load(release / "en")) == expected(folder)
    write_common_voice(release, ROWS[:4], language="de")
    assert content(load(release, language="de")) == expected(folder, ROWS[:4])
    assert "took de of the release's languages de, en" in load(release, language="de").notes
    with pytest.raises(DataError, match="has de, en, not language=be; set the language"):
        load(release, language="be")


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


def test_manifest_for_each_split(folder: Path) -> None:
    for split, name in {"train": "train", "validation": "val", "test": "test"}.items():
        rows = [{"path": row.file, "text": row.text} for row in ROWS if row.split == split]
        write_manifest(folder / f"{name}.tsv", rows)
    assert content(load(folder)) == expected(folder)


def test_tsv_with_quotes_of_its_own(folder: Path, tmp_path: Path) -> None:
    texts = ['"Hello," he said', '"Hello"', 'a "quoted" word']
    lines = [
        "path\tsentence",
        *(f"{folder}/clips/{row.file}\t{text}" for row, text in zip(ROWS, texts, strict=False)),
    ]
    path = tmp_path / "raw.tsv"
    path.write_text("\n".join(lines))
    table = load(path)
    assert sorted(clip.text for clips in table.splits.values() for clip in clips) == sorted(texts)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writerows(
            [["path", "sentence"], *([f"{folder}/clips/{row.file}", "plain"] for row in ROWS[:3])]
        )
    assert {clip.text for clips in load(path).splits.values() for clip in clips} == {"plain"}


def test_shared_speech_filters_by_language() -> None:
    place = SHARED_DATA / "speech_en_de"
    if not place.is_dir():
        pytest.skip(f"{place} is not here: the project's shared test data is absent")
    table = load(place, language="de")
    assert {role: len(clips) for role, clips in table.splits.items()} == {
        "train": 140,
        "validation": 30,
        "test": 30,
    }
    assert table.notes == ["kept 200 of 400 rows: of several languages, those with language=de"]
    table = load(place, row_filter="language=en")
    assert {clip.name[:8] for clips in table.splits.values() for clip in clips} == {"clips/en"}


def test_shared_common_voice_uses_its_test_split() -> None:
    place = SHARED_DATA / "common_voice_layout"
    if not place.is_dir():
        pytest.skip(f"{place} is not here: the project's shared test data is absent")
    table = load(place)
    assert {role: [clip.text for clip in clips] for role, clips in table.splits.items()} == {
        "train": ["Example sentence"],
        "validation": ["Another example sentence"],
    }
    assert any(
        note.startswith("WARNING") and "test split is used for validation" in note for note in table.notes
    )
    told = "WARNING: the release has only language language_id, trained as en (set language to change that)"
    assert told in table.notes
    assert not any("model card" in note for note in table.notes)


def rows_with(**columns: list[str]) -> list[dict[str, str]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


FILES = [f"clips/{row.file}" for row in ROWS]
TEXTS = [f"text {number}" for number in range(12)]


@pytest.mark.parametrize("audio", ["audio", "path", "file_name", "audio_filepath", "WAV", "Audio_Path"])
@pytest.mark.parametrize("text", ["text", "sentence", "transcription", "Transcript", "label"])
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
        with pytest.raises(
            DataError, match=rf"{field}='{name}': no such column .* audio, recording, text, polished"
        ):
            load(path, **{field: name})


@pytest.mark.parametrize(("columns", "what"), [(("audio", "words"), "text"), (("sounds", "text"), "audio")])
def test_missing_columns(folder: Path, columns: tuple[str, str], what: str) -> None:
    path = write_manifest(folder / "missing.csv", rows_with(**{columns[0]: FILES, columns[1]: TEXTS}))
    with pytest.raises(
        DataError, match=rf"no {what} column in .* has {', '.join(columns)}; set {what}_column"
    ):
        load(path)


def test_numbers_are_no_text(folder: Path) -> None:
    rows = [{"audio": file, "label": number} for number, file in enumerate(FILES)]
    path = write_manifest(folder / "numbers.parquet", rows)
    with pytest.raises(DataError, match="no text column"):
        load(path)
    with pytest.raises(DataError, match="text_column='label': holds no text"):
        load(path, text_column="label")


def test_another_text_column_is_mentioned(folder: Path) -> None:
    path = write_manifest(
        folder / "two.csv", rows_with(audio=FILES, raw_transcription=TEXTS, transcription=TEXTS)
    )
    notes = load(path).notes
    assert (
        "the text is taken from column transcription (text_column may name another: raw_transcription)"
        in notes
    )


def test_filters(folder: Path) -> None:
    rows = [row | {"age": str(number % 3)} for number, row in enumerate(records(ROWS))]
    path = write_manifest(folder / "filter.csv", rows)
    assert load(path, row_filter="language=en, age=0").total == 2
    assert load(path, row_filter="age=0,age=1,language=en,language=de").total == 8
    with pytest.raises(DataError, match=r"no column 'sex' in .*; it has audio, text, split, language, age"):
        load(path, row_filter="sex=f")
    with pytest.raises(DataError, match=r"no row of the train split is left; column age has 0, 1, 2"):
        load(path, row_filter="age=7")
    with pytest.raises(ConfigError, match=r"'language' is not column=value"):
        load(path, row_filter="language")


def test_language_is_chosen_where_there_are_several(folder: Path, tmp_path: Path) -> None:
    path = write_manifest(folder / "languages.csv", records(ROWS))
    table = load(path, language="en")
    assert table.notes[0].startswith("kept 6 of 12 rows: of several languages, those with language=en")
    # Nothing is trained as French that is not.
    words = "language='fr': column language has de, en and nothing in this language; give one of them with "
    with pytest.raises(DataError, match=words + "--language, or choose rows with row_filter=language=de$"):
        load(path, language="fr")
    assert load(path, language="fr", row_filter=ALL_LANGUAGES).total == 12
    english = load(path, language="fr", row_filter="language=en")
    assert english.total == 6
    assert not any("WARNING" in note for note in english.notes)
    with pytest.raises(
        DataError, match=r"^language='de': no row of the validation split is left; column langu"
    ):
        load(path, language="de")
    # Only the rows that another filter leaves count.
    ages = [row | {"age": row["language"]} for row in records(ROWS)]
    assert load(write_manifest(folder / "ages.csv", ages), language="fr", row_filter="age=en").total == 6
    locales = [row | {"language": "Belarusian"} for row in records(ROWS)]
    assert load(write_manifest(folder / "one.csv", locales), language="be").notes == []
    mixed = rows_with(audio=FILES, text=TEXTS, locale=["en-US", "en_GB", "de", "English"] * 3)
    assert load(write_manifest(folder / "mixed.csv", mixed), language="en").total == 9


def test_jsonl_values(folder: Path) -> None:
    rows = [
        {"audio": FILES[0], "text": 5},
        {"audio": FILES[1], "text": None},
        {"audio": FILES[2], "text": "six"},
    ]
    table = load(write_manifest(folder / "values.jsonl", rows))
    assert sorted(clip.text for clips in table.splits.values() for clip in clips) == ["5", "six"]
    assert [(drop.split, drop.name, drop.reason) for drop in table.drops] == [
        ("train", FILES[1], "empty_text")
    ]
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
    assert content(load(write_manifest(folder / "objects.jsonl", rows))) == expected(folder)
    assert content(load(write_manifest(folder / "objects.parquet", rows))) == expected(folder)
    rows[0]["audio"] = {"bytes": "UklGRg=="}
    [clip] = [
        clip for clip in load(write_manifest(folder / "objects.jsonl", rows)).splits["train"] if not clip.path
    ]
    assert clip.name == "train[0]"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.csv", "", "is empty; its first line must name the columns"),
        ("x.jsonl", '{"audio": "a.wav", "text": "a"}\n{"audio": ', "line 2: not valid JSON"),
        ("x.jsonl", "[1]", "row 1: must be an object"),
        ("x.csv", "audio,text\na.wav,one,two\n", "line 2: 3 fields where the header has 2"),
        ("x.parquet", "PAR?", "not a Parquet file"),
        ("x.txt", "a", "no kind of manifest"),
        ("x.csv", "audio,text\n", "the train split is empty"),
        ("x.csv", "audio,text\na.wav,one\n", "one training clip and no other split"),
        (
            "x.csv",
            "audio,text, text\na.wav,one,two\n",
            "2 columns are named 'text'; every column needs a name",
        ),
        ("x.tsv", "audio\ttext\taudio\na.wav\tone\tb.wav\n", "2 columns are named 'audio'"),
        ("x.csv", "audio,text\na.wav,...\nb.wav,\n", "no clip of the train split can be used: 2 no text"),
    ],
)
def test_bad_manifests(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("audio,text\na.wav,Ä\n".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text"):
        load(tmp_path / "x.csv")


def test_parquet_with_one_name_twice(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pa.table([["a.wav"], ["one"], ["two"]], names=["audio", "text", "text"])
    pq.write_table(columns, tmp_path / "x.parquet")
    with pytest.raises(DataError, match="2 columns are named 'text'"):
        load(tmp_path / "x.parquet")


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


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("~nobody_of_this_name/data", "nobody here has this name"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
)
def test_places_that_cannot_be(data: str, words: str) -> None:
    with pytest.raises(DataError, match=f"data='{data}': {words}") as caught:
        load(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data", ["./nowhere", "/no/where/at/all", "nowhere.csv", "data/nowhere.csv", "nowhere"]
)
def test_data_that_is_not_there(data: str) -> None:
    with pytest.raises(DataError, match=f"data='{data}': no such file or folder; give demo, a hub data set"):
        load(data)


def test_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"no data set in this folder; expected .* found notes\.txt"):
        load(tmp_path)


def test_split_names(folder: Path) -> None:
    rows = records(ROWS)
    for row in rows:
        row["split"] = {"train": "Training", "validation": "dev", "test": "extra"}[row["split"]]
    path = write_manifest(folder / "names.csv", rows)
    table = load(path, row_filter=ALL_LANGUAGES)
    assert {role: len(clips) for role, clips in table.splits.items()} == {"train": 6, "validation": 3}
    assert "splits that are not used: extra" in table.notes
    table = load(path, row_filter=ALL_LANGUAGES, test_split="extra")
    assert len(table.splits["test"]) == 3
    with pytest.raises(DataError, match="no split 'val2'; it has Training, dev, extra; set validation_split"):
        load(path, validation_split="val2")
    with pytest.raises(ConfigError, match="train_split and validation_split are both 'dev'"):
        load(path, train_split="dev", validation_split="dev")
    only_test = [row | {"split": "test"} for row in rows]
    with pytest.raises(DataError, match="no split 'train'; it has test; set train_split"):
        load(write_manifest(folder / "only.csv", only_test))


def test_validation_is_made_from_train(folder: Path) -> None:
    texts = [f"text {number // 2}{'!' * (number % 2)}" for number in range(12)]
    path = write_manifest(folder / "plain.csv", rows_with(audio=FILES, text=texts))
    table = load(path, validation_share=0.35)
    assert {role: len(clips) for role, clips in table.splits.items()} == {"train": 8, "validation": 4}
    assert table.notes == [
        "no validation split in the data: 4 of the 12 training clips (33%) were set apart as one "
        "(data_seed=0)",
        "no test split in the data, and too few training clips to make one (12; it takes 20, and 10 must be "
        "left to train on): there is none, and the model card will have no test WER",
    ]
    learned, judged = (
        {clip.text.strip("!") for clip in table.splits[role]} for role in ("train", "validation")
    )
    assert not learned & judged
    assert not table.drops
    assert load(path, validation_share=0.35).splits == table.splits
    others = [load(path, validation_share=0.35, data_seed=seed).splits["validation"] for seed in range(1, 4)]
    assert any(other != table.splits["validation"] for other in others)
    same = write_manifest(folder / "same.csv", rows_with(audio=FILES, text=["yes"] * 12))
    assert len(load(same, validation_share=0.25).splits["validation"]) == 3


def plain(folder: Path, count: int, *, name: str = "many.csv", split: str = "") -> Path:
    """A manifest of so many clips without any split, or with one more clip in `split`."""
    rows = [{"audio": f"{number}.wav", "text": f"text {number}", "split": "train"} for number in range(count)]
    if split:
        rows.append({"audio": "other.wav", "text": "another text", "split": split})
    return write_manifest(folder / name, rows)


def sizes(table: ClipTable) -> dict[str, int]:
    return {role: len(clips) for role, clips in table.splits.items()}


def test_test_is_made_from_train(tmp_path: Path) -> None:
    path = plain(tmp_path, 40)
    table = load(path)
    assert sizes(table) == {"train": 32, "validation": 4, "test": 4}
    assert table.notes == [
        f"no {role} split in the data: 4 of the 40 training clips (10%) were set apart as one (data_seed=0)"
        for role in ("validation", "test")
    ]
    assert len({clip.name for clips in table.splits.values() for clip in clips}) == 40
    assert load(path).splits == table.splits
    assert load(path, data_seed=1).splits["test"] != table.splits["test"]
    # What the search judges by does not depend on whether there is a test split.
    with_test = plain(tmp_path, 40, name="with_test.csv", split="test")
    assert load(with_test).splits["validation"] == table.splits["validation"]
    assert sizes(load(path, max_train_clips=5, max_eval_clips=2)) == {"train": 5, "validation": 2, "test": 2}


def test_only_what_is_missing_is_made(tmp_path: Path) -> None:
    table = load(plain(tmp_path, 30, split="dev"))
    assert sizes(table) == {"train": 27, "validation": 1, "test": 3}
    assert table.notes == [
        "no test split in the data: 3 of the 30 training clips (10%) were set apart as one (data_seed=0)"
    ]
    table = load(plain(tmp_path, 30, split="test"))
    assert sizes(table) == {"train": 27, "validation": 3, "test": 1}
    assert len(table.notes) == 1


@pytest.mark.parametrize(
    ("count", "share", "expected_sizes"),
    [
        (19, 0.1, {"train": 17, "validation": 2}),
        (20, 0.1, {"train": 16, "validation": 2, "test": 2}),
        (20, 0.25, {"train": 10, "validation": 5, "test": 5}),
        (20, 0.3, {"train": 14, "validation": 6}),
        (40, 0.9, {"train": 4, "validation": 36}),
    ],
)
def test_train_is_not_used_up_by_a_test_split(
    tmp_path: Path, count: int, share: float, expected_sizes: dict[str, int]
) -> None:
    table = load(plain(tmp_path, count), validation_share=share)
    assert sizes(table) == expected_sizes
    none = [note for note in table.notes if "too few training clips to make one" in note]
    assert len(none) == ("test" not in expected_sizes)


def test_a_test_split_of_a_few_sentences_leaves_enough(tmp_path: Path) -> None:
    """Sentences stay whole, so that a split may come out larger than its share."""
    rows = [{"audio": f"{number}.wav", "text": f"text {number % 3}"} for number in range(24)]
    table = load(write_manifest(tmp_path / "x.csv", rows))
    assert sizes(table) == {"train": 16, "validation": 8}
    assert "too few training clips to make one (24;" in table.notes[-1]


def test_sentences_of_a_made_test_split_are_in_no_other(tmp_path: Path) -> None:
    rows = [{"audio": f"{number}.wav", "text": f"text {number // 3}"} for number in range(90)]
    table = load(write_manifest(tmp_path / "x.csv", rows))
    assert sizes(table) == {"train": 72, "validation": 9, "test": 9}
    texts = [{clip.text for clip in clips} for clips in table.splits.values()]
    assert sum(map(len, texts)) == 30


def test_clips_without_words_are_left_out_before_splits_are_made(tmp_path: Path) -> None:
    texts = ["...", "", " \u2013 ", "?!", "\u266a"]
    rows = [
        {"audio": f"{number}.wav", "text": f"text {number}" if number >= 20 else texts[number % 5]}
        for number in range(60)
    ]
    table = load(write_manifest(tmp_path / "x.csv", rows))
    assert sizes(table) == {"train": 32, "validation": 4, "test": 4}
    assert {drop.detail for drop in table.drops} == {
        *("no letter or digit in '...'", "no letter or digit in '\u2013'", "no letter or digit in '?!'"),
        *("no letter or digit in '\u266a'", "no text"),
    }
    assert {(drop.split, drop.reason) for drop in table.drops} == {("train", "empty_text")}
    assert len(table.drops) == 20
    # Of few clips out of many, so many are counted as bad as were met while these were chosen.
    few = load(tmp_path / "x.csv", max_train_clips=8)
    assert sizes(few)["train"] == 8
    assert 0 < len(few.drops) < 12
    assert few.drops == load(tmp_path / "x.csv", max_train_clips=8).drops


@pytest.mark.parametrize("text", ["5", "\u0915\u093f", "\u4f60\u597d", "a.", "\u00bd"])
def test_a_letter_or_digit_is_a_text(tmp_path: Path, text: str) -> None:
    rows = [{"audio": "a.wav", "text": text}, {"audio": "b.wav", "text": text}]
    assert load(write_manifest(tmp_path / "x.jsonl", rows)).total == 2


def test_an_evaluation_split_without_words(tmp_path: Path) -> None:
    rows = [
        {"audio": f"{split}.wav", "text": "..." if split == "dev" else "yes", "split": split}
        for split in ("train", "dev", "test")
    ]
    words = (
        r"no clip of the validation split can be used: 1 no text \(the first is dev\.wav: no letter or digit in "
        r"'\.\.\.'\); mend them, or name another split with validation_split"
    )
    with pytest.raises(DataError, match=words):
        load(write_manifest(tmp_path / "x.csv", rows))


def test_the_only_language_is_another(folder: Path, tmp_path: Path) -> None:
    release = write_common_voice(tmp_path / "cv", ROWS, language="de")
    told = "WARNING: {} has only language de, trained as en (set language to change that)"
    assert load(release).notes == [told.format("the release")]  # once, though the rows say so too
    assert content(load(release)) == expected(folder)
    assert load(release, language="de").notes == []
    assert load(release / "de").notes == [told.format("column locale")]
    rows = [row | {"language": "Castilian"} for row in records(ROWS)]
    path = write_manifest(folder / "only_one.csv", rows)
    assert load(path, language="es").notes == []
    assert any(
        "column language has only language Castilian, trained as en" in note for note in load(path).notes
    )
    # Not a name that Whisper has: it may well be English.
    coded = [row | {"language": "eng"} for row in records(ROWS)]
    assert load(write_manifest(folder / "coded.csv", coded)).notes == []


def test_a_language_column_in_some_of_the_files(folder: Path) -> None:
    place = folder / "some"
    place.mkdir()
    rows = records(ROWS, clips=f"{folder}/clips/")
    write_manifest(place / "train.csv", rows)
    write_manifest(place / "test.csv", [{"audio": row["audio"], "text": row["text"]} for row in rows])
    assert sizes(load(place, validation_share=0.2)) == {"train": 5, "validation": 1, "test": 12}


def test_subsets(folder: Path) -> None:
    path = write_manifest(folder / "subset.csv", records(ROWS))
    table = load(path, row_filter=ALL_LANGUAGES, max_train_clips=4, max_eval_clips=2)
    assert {role: len(clips) for role, clips in table.splits.items()} == {
        "train": 4,
        "validation": 2,
        "test": 2,
    }
    names = [clip.name for clip in table.splits["train"]]
    assert names == sorted(names)
    assert names == [
        clip.name for clip in load(path, row_filter=ALL_LANGUAGES, max_train_clips=4).splits["train"]
    ]
    chosen = {
        tuple(
            clip.name
            for clip in load(path, row_filter=ALL_LANGUAGES, max_train_clips=4, data_seed=seed).splits[
                "train"
            ]
        )
        for seed in range(4)
    }
    assert len(chosen) > 1
    assert "train: 4 of 6 clips (data_seed=0)" in table.notes


def test_splitting_is_stable_when_clips_are_added() -> None:
    from trainer.data import Clip
    from trainer.splits import split_off

    clips = [Clip(f"{number}.wav", f"text {number}") for number in range(400)]
    before = {clip.name for clip in split_off(clips[:390], 0.1, 0)[1]}
    after = {clip.name for clip in split_off(clips, 0.1, 0)[1]}
    assert len(before & after) > 0.8 * len(before)
    assert np.isclose(len(after), 40)
