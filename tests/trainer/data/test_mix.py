"""Data files of several sources: what a training, and what an evaluation, gets of them; and their mistakes."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import soundfile
import yaml
from make_data import RATE, tone, write_manifest

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.data.columns import Origin
from trainer.data.labels import check_languages
from trainer.data.prepared import prepare
from trainer.data.split_data import load_split
from trainer.errors import ConfigError, DataError, ModelError
from trainer.model.processor import Processor


def rows(source: str, split: str, number: int, **more: str) -> list[dict[str, str]]:
    texts = {f"{split}{n}.wav": f"{source} {split} {n}" for n in range(number)}
    return [{"file": file, "text": text, "split": split, **more} for file, text in texts.items()]


def mix(folder: Path, **sources: Any) -> TrainConfig:
    (folder / "mix.yaml").write_text(yaml.safe_dump({"sources": sources}, sort_keys=False), encoding="utf-8")
    return TrainConfig(data=str(folder / "mix.yaml"))


def by_source(clips: Any) -> dict[str, int]:
    return dict(Counter(clip.origin.source for clip in clips))


def test_sources_have_their_own_columns_filters_splits_and_languages(tmp_path: Path) -> None:
    good = [*rows("one", "train", 8, good="yes"), *rows("one", "dev", 3, good="yes")]
    write_manifest(tmp_path / "deep" / "one.csv", [*good, *rows("one", "train", 4, good="no")])
    kinds = enumerate([("fit", "German"), ("fit", "fr-FR"), ("check", "de"), ("try", "pt_BR")])
    other = [
        {"wav": f"{n}.wav", "said": f"two {n}", "tongue": tongue, "what": "translate", "split": split}
        for n, (split, tongue) in kinds
    ]
    write_manifest(tmp_path / "two.csv", other)
    one = {"data": "deep/one.csv", "row_filter": "good=yes", "language": "Belarusian", "max_train_clips": 5}
    two = {"data": str(tmp_path / "two.csv"), "weight": 0.5, "audio_column": "wav", "text_column": "said"}
    two |= {"language_column": "tongue", "task_column": "what"}
    two |= {"train_split": "fit", "validation_split": "check", "test_split": "try"}
    config = mix(tmp_path, one=one, two=two)
    table = load_clips(config)
    assert {role: by_source(clips) for role, clips in table.splits.items()} == {
        "train": {"one": 5, "two": 2},
        "validation": {"one": 3, "two": 1},
        "test": {"two": 1},
    }
    kinds = {clip.origin for clips in table.splits.values() for clip in clips}
    assert kinds == {
        Origin("one", "be"),
        *(Origin("two", code, "translate", 0.5) for code in ("de", "fr", "pt")),
    }
    assert table.epoch_samples == 6.0
    assert any(clip.name == "one/train0.wav" for clip in table.whole["train"])
    assert by_source(load_split(config, "check").clips) == {"two": 1}
    every = load_split(config, "all")
    assert by_source(every.clips) == {"one": 11, "two": 4}
    assert every.clips[-1].cell("source") == "two"
    assert {"source", "good", "tongue"} <= set(every.columns)


def test_made_splits_share_no_text_and_have_clips_of_each_source(tmp_path: Path) -> None:
    for source, size in (("one", 60), ("two", 20)):
        texts = [f"text {n if n < 10 else source + str(n)}" for n in range(size)]
        table = [{"file": f"{n}.wav", "text": text} for n, text in enumerate(texts)]
        write_manifest(tmp_path / f"{source}.csv", table)
    config = mix(tmp_path, one={"data": "one.csv"}, two={"data": "two.csv"}).replace(split_by="text")
    splits = load_clips(config).splits
    texts = [text for clips in splits.values() for text in {clip.text for clip in clips}]
    assert len(texts) == len(set(texts)) == 70
    for clips in splits.values():
        assert by_source(clips).keys() == {"one", "two"}


def test_clips_without_text_are_measured_with_the_split_of_their_source(tmp_path: Path) -> None:
    """Where no source keeps a test split, that of one without a validation split becomes it."""
    for name, measured, number in (("a", "validation", 8), ("b", "test", 1)):
        silent = {"file": f"silent-{name}.wav", "text": "", "split": measured}
        made = [*rows(name, "train", number), *rows(name, measured, 4), silent]
        write_manifest(tmp_path / f"{name}.csv", [{**row, "file": f"{name}/{row['file']}"} for row in made])
    table = load_clips(mix(tmp_path, a={"data": "a.csv"}, b={"data": "b.csv"}))
    assert by_source(table.splits["validation"]) == {"a": 4, "b": 4}
    assert by_source(table.without_text["validation"]) == {"a": 1, "b": 1}


def test_each_clip_is_taught_its_own_language(tmp_path: Path) -> None:
    told = [{**row, "text": "ISI"} for split in ("train", "dev") for row in rows("", split, 3)]
    for name in ("en", "de"):
        write_manifest(tmp_path / name / "metadata.csv", told)
        for row in told:
            soundfile.write(tmp_path / name / row["file"], tone(), RATE)
    translated = {"data": "de", "language": "tr", "task": "translate"}
    config = mix(tmp_path, en={"data": "en", "language": "en"}, de=translated)
    config = config.replace(cache_dir=str(tmp_path / "cache"), lowercase=True)
    data = prepare(config)
    alone = prepare(config.replace(data=str(tmp_path / "de"), language="tr", task="translate"))
    english = prepare(config.replace(data=str(tmp_path / "en"), language="en"))
    split = data.splits["train"]
    assert split.labels(0) == english.splits["train"].labels(0)
    assert split.labels(5) == alone.splits["train"].labels(0) != split.labels(0)
    cased = prepare(config.replace(lowercase=False)).with_texts(config)
    assert [cased.splits["train"].labels(i) for i in range(6)] == [split.labels(i) for i in range(6)]
    before = split.digest()
    other = mix(tmp_path, en={"data": "en"}, de={"data": "de", "language": "tr", "weight": 2})
    changed = prepare(other.replace(cache_dir=str(tmp_path / "cache")))
    assert changed.reused
    assert changed.splits["train"].digest() != before
    assert changed.splits["train"].epoch_samples == 9.0


MISTAKES = {
    "not a mapping": ("- a", ":1: must be a mapping with sources"),
    "no sources": ("{}", ":1: sources is missing"),
    "other key": ("data: x\nsources: {a: {data: demo}}", ":1: data: unknown key; a data file has sources"),
    "no data": ("sources:\n  a: {weight: 2}", ":2: a: data is missing"),
    "key": ("sources:\n  a: {data: demo, [b]: 1}", ":2: a: a key must be a name"),
    "not settings": ("sources:\n  a: recordings/", ":2: a: must be a mapping of settings"),
    "name": ("sources:\n  a b: {data: demo}", ":2: 'a b': is not a valid name"),
    "unknown": (
        "sources:\n  a:\n    data: demo\n    split: x",
        ":4: a: unknown setting 'split'; did you mean train_split?",
    ),
    "of all": (
        "sources:\n  a: {data: demo, empty_text: keep}",
        ":2: a: empty_text holds for all sources; give it by --set empty_text=...",
    ),
    "weight": (
        "sources:\n  a: {data: demo}\n  b: {data: demo, language: de, weight: -1}",
        ":3: b: weight=-1: must be a number from 0 to 1000",
    ),
    "same": (
        "sources:\n  a: {data: demo}\n  b: {data: demo, weight: 3}",
        ":3: b: is the same as a; name it once",
    ),
    "no weight": ("sources:\n  a: {data: demo, weight: 0}", ":1: sources: every weight is 0"),
    "language": ("sources:\n  a: {data: demo, language: xx}", ":2: a: language='xx': Whisper does not know"),
    "nested": ("sources:\n  a: {data: other.yaml}", ":2: a: data='other.yaml': is a data file itself"),
    "row": ("sources:\n  a: {data: demo, language_column: text}", "row 1: column text has"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_line_with_file_and_line(mistake: str, tmp_path: Path) -> None:
    text, told = MISTAKES[mistake]
    path = tmp_path / "mix.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as failed:
        load_clips(TrainConfig(data=str(path)))
    [line] = str(failed.value).splitlines()
    assert line.startswith(str(path))
    assert told in line


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text("sources:\n  a: {data: no.csv}\n  b: {data: demo, text_column: x}\n", encoding="utf-8")
    with pytest.raises(DataError) as failed:
        load_clips(TrainConfig(data=str(path), source_weights="c=2"))
    first, second, third = str(failed.value).splitlines()
    assert "has no source 'c'; it has a, b" in first
    assert "mix.yaml:2: a: data='" in second
    assert "mix.yaml:3: b: text_column='x': no such column" in third
    with pytest.raises(ConfigError, match="source_weights"):
        load_clips(TrainConfig(source_weights="a=2"))
    with pytest.raises(ConfigError, match="must be weights from 0 to 1000"):
        TrainConfig(source_weights="a=2,a=1")
    assert TrainConfig(source_weights="a=2").replace(**{"weight.b": 0.5}).weights == {"a": 2.0, "b": 0.5}


def test_a_language_that_the_model_lacks_is_told_with_its_line(tmp_path: Path, shared_data: Path) -> None:
    write_manifest(tmp_path / "one.csv", [*rows("one", "train", 3), *rows("one", "dev", 2)])
    one, two = ({"data": "one.csv", "language": language} for language in ("de", "yue"))
    config = mix(tmp_path, one=one, two=two)
    clips = load_clips(config).splits["train"]
    processor = Processor.from_pretrained(str(shared_data / "whisper_tiny_processor"))
    with pytest.raises(ModelError, match=r"mix\.yaml:5: two: language='yue': .* has no such language"):
        check_languages(config, clips, processor)


def test_splits_are_kept_of_sources_that_lack_others(tmp_path: Path) -> None:
    numbers = {
        "a": {"train": 6, "dev": 3, "test": 3},
        "b": {"train": 40},
        "c": {"train": 5, "dev": 2, "test": 2},
        "d": {"train": 12, "dev": 4},
    }
    for seed, (source, splits) in enumerate(numbers.items()):
        made = [row for split, number in splits.items() for row in rows(source, split, number)]
        write_manifest(tmp_path / source / "clips.csv", made)
        for number, row in enumerate(made):
            sound = tone(0.3, pitch=200 + 100 * seed + 7 * number)
            soundfile.write(tmp_path / source / row["file"], sound, RATE)
    config = mix(tmp_path, **{source: {"data": f"{source}/clips.csv"} for source in numbers})
    config = config.replace(cache_dir=str(tmp_path / "cache"), train_on="train+validation")
    table = load_clips(config)
    kept = tmp_path / "splits.parquet"
    kept.write_bytes(prepare(config).encode_splits(table))
    assert load_clips(config.replace(splits=str(kept), train_on="train")).splits == table.splits
    again = prepare(config.replace(splits=str(kept), train_on="train"))
    assert again.folder == prepare(config).folder
