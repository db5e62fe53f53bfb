"""Clips that cannot be used: counted, listed, and too many of them refused without leaving useless features."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from make_data import ROWS, examples, records, sizes, snapshot, tone, write_clips, write_manifest

from trainer.config import TrainConfig
from trainer.data.drops import count_by_reason
from trainer.data.prepared import prepare
from trainer.errors import DataError


def bad_data(tmp_path: Path) -> Path:
    """One clip for each reason to drop it, and 15 good ones."""
    rows = [{"path": str(tmp_path / "clips" / row.file), "text": row.text} for row in examples(15)]
    write_clips(tmp_path / "clips", examples(15))
    clips = tmp_path / "clips"
    soundfile.write(clips / "long.wav", tone(2.5), 16_000)
    soundfile.write(clips / "empty.wav", np.zeros(0, np.float32), 16_000)
    (clips / "broken.wav").write_bytes(b"RIFF but no more")
    good = str(clips / ROWS[0].file)
    rows += [
        {"path": str(clips / "long.wav"), "text": "long"},
        {"path": str(clips / "empty.wav"), "text": "nothing"},
        {"path": str(clips / "broken.wav"), "text": "broken"},
        {"path": str(clips / "missing.wav"), "text": "missing"},
        {"path": good, "text": "  "},
        {"path": good, "text": "?!"},
        {"path": good, "text": "x" * 60},
    ]
    for number, row in enumerate(rows):
        row["split"] = "dev" if number in (3, 4) else "train"
    return write_manifest(tmp_path / "bad.csv", rows)


def test_drops_are_counted_and_listed(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(data=str(bad_data(tmp_path)), row_filter=None, max_dropped_share=0.5)
    data = prepare(config.replace(remove_punctuation=True))
    ones = dict.fromkeys(("too_long_audio", "empty_audio", "too_long_text"), 1)
    assert count_by_reason(data.drops) == {"unreadable_audio": 2, "empty_text": 2, **ones}
    assert (data.total, sizes(data)) == (22, {"train": 13, "validation": 2})
    data.write_dropped(tmp_path / "dropped.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "dropped.jsonl").read_text().splitlines()]
    assert all({**line, "split": "train"} == line and len(line) == 4 for line in lines)
    details = {(line["reason"], line["detail"]) for line in lines}
    assert ("too_long_audio", "2.50 s, over the model's window of 2 s") in details
    assert ("unreadable_audio", "file not found") in details
    assert ("empty_text", "no letter or digit in '?!'") in details
    assert ("empty_text", "no text") in details
    assert ("too_long_text", "66 tokens; the model writes at most 64") in details
    assert any(note.startswith("dropped 7 of 22 clips: 2 unreadable audio") for note in data.notes)
    # The same features, whatever the text settings: a text without words is none even where marks are kept.
    again = prepare(config)
    assert again.reused
    assert again.drops == data.drops


def test_a_split_needs_a_word_to_measure(config: TrainConfig, tmp_path: Path) -> None:
    write_clips(tmp_path / "clips", examples(8))
    rows = [{"path": str(tmp_path / "clips" / row.file), "text": row.text} for row in examples(8)]
    for number, row in enumerate(rows):
        row["split"] = "train" if number < 4 else "dev"
        row["text"] = row["text"] if number < 4 else ""
    data = str(write_manifest(tmp_path / "silence.csv", rows))
    needs = "no clip of the validation split has a text, so there is no word to measure; .*validation_split"
    with pytest.raises(DataError, match=needs):
        prepare(config.replace(data=data, row_filter=None, empty_text="keep"))


@pytest.mark.parametrize("begin_with_marks", [True, False])
def test_other_texts_without_the_source(config: TrainConfig, tmp_path: Path, begin_with_marks: bool) -> None:
    bad = bad_data(tmp_path)
    with bad.open("a", encoding="utf-8") as file:
        file.write(f"{tmp_path / 'clips' / ROWS[0].file},a{'!' * 70},train\n")
    plain = config.replace(data=str(bad), row_filter=None, max_dropped_share=0.5)
    bare = plain.replace(remove_punctuation=True, lowercase=True)
    first, other = (plain, bare) if begin_with_marks else (bare, plain)
    data, expected = prepare(first), prepare(other)
    assert {count_by_reason(prepare(config).drops)["too_long_text"] for config in (plain, bare)} == {1, 2}
    shutil.rmtree(tmp_path / "clips")
    bad.unlink()
    made = data.with_texts(other)
    assert snapshot(made) == snapshot(expected)
    for name in ("folder", "notes", "drops", "total", "source_notes"):
        assert getattr(made, name) == getattr(expected, name), name
    back = made.with_texts(first)
    assert (snapshot(back), back.drops, back.notes) == (snapshot(data), data.drops, data.notes)
    with pytest.raises(DataError, match=r"max_dropped_share=0\.1 allows fewer"):
        data.with_texts(other.replace(max_dropped_share=0.1))


def test_audio_that_is_cut_off_and_channels_that_cancel_each_other(
    config: TrainConfig, tmp_path: Path
) -> None:
    """The first is dropped, the second heard by one of its channels, and both are told."""
    clips = tmp_path / "clips"
    write_clips(clips, examples(8))
    soundfile.write(clips / "whole.mp3", tone(1.5), 16_000)
    content = (clips / "whole.mp3").read_bytes()
    (clips / "cut.mp3").write_bytes(content[: len(content) // 2])
    soundfile.write(clips / "opposite.wav", np.stack([tone(1.0), -tone(1.0)], axis=1), 16_000)
    rows = [row | {"language": "en"} for row in records(examples(8))]
    rows += [
        {"audio": f"clips/{name}", "text": "a sentence", "split": "train", "language": "en"}
        for name in ("cut.mp3", "opposite.wav")
    ]
    data = prepare(config.replace(data=str(write_manifest(tmp_path / "odd.csv", rows)), row_filter=None))
    assert count_by_reason(data.drops) == {"incomplete_audio": 1}
    assert re.fullmatch(r"cut off or damaged: announces 1\.5\d s, holds 0\.\d\d s", data.drops[0].detail)
    assert "dropped 1 of 10 clips: 1 audio that is cut off or damaged" in data.notes
    note = "1 clip has channels that cancel each other (opposite phase): one channel is used, not the mean"
    assert note in data.notes
    cached = prepare(config.replace(data=str(tmp_path / "odd.csv"), row_filter=None))
    assert note in cached.notes
    assert data.splits["train"].features(len(data.splits["train"]) - 1).std() > 0.1, "no silence"


def test_too_many_drops_stop(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(data=str(bad_data(tmp_path)), row_filter=None, remove_punctuation=True)
    with pytest.raises(DataError) as caught:
        prepare(config)
    message = str(caught.value)
    assert "\n" not in message
    assert "7 of 22 clips (31.8%) cannot be used: 2 unreadable audio, 2 no text" in message
    assert "1 audio longer than the model's window of 2 s" in message
    assert "max_dropped_share=0.25 allows fewer" in message
    share = re.search(r"--set max_dropped_share=([\d.]+)", message)
    # The features stay, for this very next run.
    data = prepare(config.replace(max_dropped_share=float(share[1])))
    assert len(data.drops) == 7
    assert data.reused


def test_a_split_of_which_no_clip_can_be_used(config: TrainConfig, tmp_path: Path) -> None:
    rows = records(ROWS)
    for row in rows:
        if row["split"] == "validation":
            row["text"] = "x" * 60
    path = write_manifest(tmp_path / "useless.csv", rows)
    # No share that may be dropped would help, so none is advised.
    with pytest.raises(DataError) as caught:
        prepare(config.replace(data=str(path), max_dropped_share=0.1))
    message = str(caught.value)
    told = "3 text longer than the model can write (the first is clips/clip_02.flac: 66 tokens"
    assert f"no clip of the validation split can be used: {told}" in message
    assert "name another split with validation_split" in message
    assert "max_dropped_share" not in message
