"""Which columns of the data are read, which values they may hold, and which rows and languages are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_data import (
    ALL_LANGUAGES,
    FILES,
    ROWS,
    TEXTS,
    content,
    expected,
    load,
    records,
    rows_with,
    sizes,
    write_common_voice,
    write_manifest,
)

from trainer.data.audio import AudioError, read_audio
from trainer.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("audio", "text"),
    [
        ("audio", "text"),
        ("path", "sentence"),
        ("file_name", "transcription"),
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
        with pytest.raises(
            DataError, match=rf"{field}='{name}': no such column .* audio, recording, text, polished"
        ):
            load(path, **{field: name})


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
    assert load(path, language="fr", row_filter="language=en").total == 6
    with pytest.raises(
        DataError, match=r"^language='de': no row of the validation split is left; column langu"
    ):
        load(path, language="de")
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
    place = folder / "some"
    place.mkdir()
    rows = records(ROWS, clips=f"{folder}/clips/")
    write_manifest(place / "train.csv", rows)
    write_manifest(place / "test.csv", [{"audio": row["audio"], "text": row["text"]} for row in rows])
    assert sizes(load(place, validation_share=0.2, split_by=None)) == {
        "train": 5,
        "validation": 1,
        "test": 12,
    }


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
    assert content(load(write_manifest(folder / "objects.parquet", rows))) == expected(folder)
    rows[0]["audio"] = {"bytes": "UklGRg=="}
    [clip] = [
        clip for clip in load(write_manifest(folder / "objects.jsonl", rows)).splits["train"] if not clip.path
    ]
    assert clip.name == "train[0]"


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
